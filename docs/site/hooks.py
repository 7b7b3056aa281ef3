# SPDX-License-Identifier: Apache-2.0
# What MkDocs does not look at by itself, as warnings, which --strict makes errors: code whose language nobody highlights.
import logging
import re

from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

log = logging.getLogger('mkdocs.hooks.comp')


def on_page_markdown(markdown, page, **_):
    inside = False
    for fence in re.findall(r'^ *(```+)(.*)$', markdown, re.M):
        inside = not inside
        language = fence[1].strip()
        if not inside or language in ('', 'mermaid'):
            continue
        try:
            get_lexer_by_name(language)
        except ClassNotFound:
            log.warning('%s has code in "%s" (no language that Pygments knows): name another', page.file.src_uri, language)
    if inside:
        log.warning('%s has code that does not end: close its fence', page.file.src_uri)
