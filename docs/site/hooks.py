# SPDX-License-Identifier: Apache-2.0
# Makes a page of each notebook. Warns of what MkDocs does not look at by itself: code whose language nobody highlights. With
# --strict a warning is an error.
import json
import logging
import re

from mkdocs.structure.files import File
from pygments.lexers import get_lexer_by_name
from pygments.util import ClassNotFound

log = logging.getLogger('mkdocs.hooks.comp')


def on_files(files, config):
    for notebook in [file for file in files if file.src_uri.endswith('.ipynb')]:
        cells = json.loads(notebook.content_string)['cells']
        texts = [(cell['cell_type'], ''.join(cell['source'])) for cell in cells]
        page = '\n\n'.join(text if kind == 'markdown' else f'```python\n{text}\n```' for kind, text in texts)
        files.append(File.generated(config, notebook.src_uri.replace('.ipynb', '.md'), content=page))


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
