# SPDX-License-Identifier: Apache-2.0
# The C++ of the documents compiles: README's and that of each page below docs/, of a page in the order in which it stands. A whole
# program stands in examples/, too. What names LibTorch is compiled with its flags, if there are any. CUDA's page is not compiled.
# Usage: documents.py SOURCE_ROOT COMPILER ARGUMENTS... [--libtorch ARGUMENTS...]
import pathlib
import re
import subprocess
import sys

root, *rest = sys.argv[1:]
root = pathlib.Path(root)
compiler, torch = (rest[:rest.index('--libtorch')], rest[rest.index('--libtorch') + 1:]) if '--libtorch' in rest else (rest, [])
OUTSIDE = re.compile(r'^(?:struct|class) .*?^\};\n', re.M | re.S)  # what cannot stand in a function
INCLUDE = re.compile(r'^#include .*\n', re.M)


def lines(text):
    return [line.strip() for line in text.splitlines() if line.strip()]


def programs(pages):
    """Of the pages: includes, and a namespace for each, with its types and a function of the rest."""
    includes, text = [], ''
    for number, (page, blocks) in enumerate(pages):
        body = ''.join(blocks)
        includes += INCLUDE.findall(body)
        body = INCLUDE.sub('', body)
        text += f'namespace page_{number} {{  // {page}\n{"".join(OUTSIDE.findall(body))}void program() {{\n{OUTSIDE.sub("", body)}}}\n}}\n'
    return ''.join(dict.fromkeys(includes)), text


def compiled(kind, pages, flags):
    includes, text = programs(pages)
    program = f'{includes}#include "{kind}.hpp"\n{text}'
    got = subprocess.run([*compiler, *flags, '-Wall', '-Wextra', '-Werror', '-Wno-unused', f'-I{root}/tests/promises/documents', f'-I{root}/tests/promises/refuse',
                          f'-I{root}/backends/simulated/include', '-fsyntax-only', '-x', 'c++', '-'], input=program, text=True, capture_output=True)
    if got.returncode:
        numbered = '\n'.join(f'{n:4} {line}' for n, line in enumerate(program.splitlines(), 1))
        sys.exit(f'{got.stderr}\nthis does not compile:\n{numbered}')


ours, theirs = [], []
examples = [lines(file.read_text()) for file in (root / 'examples').glob('*.cpp')]
for page in [root / 'README.md', *sorted((root / 'docs').rglob('*.md'))]:
    text = page.read_text()
    if page.parent.name in ('start', 'how-to') and '```' not in text.split('\n## ', 1)[0]:
        sys.exit(f'{page} does not begin with an example: put one above its first heading')
    blocks = re.findall(r'^```cpp\n(.*?)^```', text, re.M | re.S)
    whole = [block for block in blocks if 'int main(' in block]
    for block in whole:
        if not any(set(lines(block)) <= set(example) for example in examples):
            sys.exit(f'{page}: this program is none of examples/:\n{block}')
    blocks = [block for block in blocks if block not in whole and 'comp_cuda/' not in block]
    of_torch = [block for block in blocks if re.search(r'\b(?:torch|at|libtorch)::|comp::doctor', block)]
    of_core = [block for block in blocks if block not in of_torch]
    ours += [(page.relative_to(root), of_core)] if of_core else []
    theirs += [(page.relative_to(root), of_torch)] if of_torch else []
assert len(ours) > 10 and len(theirs) > 5, 'the documents have no programs any more'
compiled('ours', ours, [])
if torch:
    compiled('theirs', theirs, torch)
print(f'{len(ours)} pages of comp alone, {len(theirs)} with LibTorch{"" if torch else " (not compiled: no LibTorch)"}')
