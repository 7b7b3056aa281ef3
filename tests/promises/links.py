# SPDX-License-Identifier: Apache-2.0
# Each link of the documents leads to a file and a heading that are there, and each page that a source names is there. README.md
# is seen at once, a page of docs/ is read in five minutes, and all of docs/ in two hours.
# Usage: links.py SOURCE
import os
import pathlib
import re
import sys

ROOT = pathlib.Path(sys.argv[1])
PARTS = ('README.md', 'CONTRIBUTING.md', 'run', 'docs', 'include', 'backends', 'python', 'src', 'bench', 'tools', 'tests', 'examples', 'packaging')
MOST_LINES, MOST_WORDS = 120, 1400  # of README.md; of a page, but for those that are looked up and not read
LOOKED_UP = ('reference.md', 'coming-from.md')
MOST_OF_ALL = 30_000  # words of docs/, also of the pages that are looked up
SOURCES = ('', '.md', '.py', '.sh', '.hpp', '.cpp', '.cuh', '.cu', '.build', '.json')


def anchors(page):
    """Of its headings, as GitHub makes them: lower case, without punctuation, hyphens for spaces."""
    text = re.sub(r'^```.*?^```', '', page.read_text(encoding='utf-8'), flags=re.M | re.S)
    return {re.sub(r'[^\w\- ]', '', heading.strip().lower()).replace(' ', '-') for heading in re.findall(r'^#+ (.*)$', text, re.M)}


def faults_of(file):
    text = file.read_text(encoding='utf-8', errors='ignore')  # a package's build leaves programs
    for link in re.findall(r'\]\(([^)\s]+)\)', text) if file.suffix == '.md' else []:
        target, _, heading = link.partition('#')
        page = (file.parent / target).resolve() if target else file
        if '://' not in link and not (page.exists() and (not heading or heading in anchors(page))):
            yield f'{link} is not there'
    if file == ROOT / 'README.md' and text.count('\n') > MOST_LINES:
        yield f'line {MOST_LINES + 1}: what follows belongs to a page of docs/'
    if file.suffix == '.md' and ROOT / 'docs' in file.parents and file.name not in LOOKED_UP and len(text.split()) > MOST_WORDS:
        yield f'a page of {len(text.split())} words (five minutes are {MOST_WORDS}): cut it in two, or shorter'
    yield from (f'{name} is not there' for name in re.findall(r'\bdocs/[\w/-]+\.(?:md|svg|png)\b', text) if not (ROOT / name).exists())


found = []
for part in PARTS:
    for file in [ROOT / part] if (ROOT / part).is_file() else [pathlib.Path(at, name) for at, _, names in os.walk(ROOT / part) for name in names]:
        if file.suffix in SOURCES and file.parent.name != '__pycache__':
            found += [f'{file.relative_to(ROOT)}: {fault}' for fault in faults_of(file)]
of_all = sum(len(page.read_text(encoding='utf-8').split()) for page in (ROOT / 'docs').rglob('*.md'))
if of_all > MOST_OF_ALL:
    found.append(f'docs: {of_all} words (at most {MOST_OF_ALL}): leave out what no reader needs, or move figures into a table of docs/benchmarks/tables')
sys.exit('\n'.join(found) or 0)
