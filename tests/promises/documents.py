# SPDX-License-Identifier: Apache-2.0
# The C++ of the documents compiles: README's and that of each page below docs/, of a page in the order in which it stands. A whole
# program stands in examples/, too. What names LibTorch, or the CUDA backend, is compiled with its flags, if there are any.
# Usage: documents.py SOURCE_ROOT COMPILER ARGUMENTS... [--cuda ARGUMENTS...] [--libtorch ARGUMENTS...]
import pathlib
import re
import subprocess
import sys

root = pathlib.Path(sys.argv[1])
flags = {'ours': []}  # by kind of program; the compiler's own come first
compiler = filling = []
for word in sys.argv[2:]:
    if word in ('--cuda', '--libtorch'):
        filling = flags[word[2:]] = []
    else:
        filling.append(word)
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


def compile_all(kind, pages):
    includes, text = programs(pages)
    program = f'{includes}#include "{kind}.hpp"\n{text}'
    got = subprocess.run([*compiler, *flags[kind], '-Wall', '-Wextra', '-Werror', '-Wno-unused', f'-I{root}/tests/promises/documents', f'-I{root}/tests/promises/refuse',
                          f'-I{root}/backends/simulated/include', '-fsyntax-only', '-x', 'c++', '-'], input=program, text=True, capture_output=True)
    if got.returncode:
        numbered = '\n'.join(f'{n:4} {line}' for n, line in enumerate(program.splitlines(), 1))
        sys.exit(f'{got.stderr}\nthis does not compile:\n{numbered}')


def kind_of(block):
    return 'cuda' if 'comp_cuda/' in block else 'libtorch' if re.search(r'\b(?:torch|at|libtorch)::|comp::doctor', block) else 'ours'


pages_of = {'ours': [], 'cuda': [], 'libtorch': []}
examples = [lines(file.read_text()) for file in (root / 'examples').glob('*.cpp')]
for page in [root / 'README.md', *sorted((root / 'docs').rglob('*.md'))]:
    text = page.read_text()
    if page.parent.name in ('start', 'how-to') and '```' not in text.split('\n## ', 1)[0]:
        sys.exit(f'{page} does not begin with an example: put one above its first heading')
    blocks = re.findall(r'^```cpp\n(.*?)^```', text, re.M | re.S)
    for block in [block for block in blocks if 'int main(' in block]:
        if not any(set(lines(block)) <= set(example) for example in examples):
            sys.exit(f'{page}: this program is none of examples/:\n{block}')
        blocks.remove(block)
    for kind, pages in pages_of.items():
        if of_kind := [block for block in blocks if kind_of(block) == kind]:
            pages.append((page.relative_to(root), of_kind))
for kind, pages in pages_of.items():
    assert pages, f'the documents have no programs of {kind} any more'
    if kind in flags:
        compile_all(kind, pages)
    print(f'{kind}: {len(pages)} pages{"" if kind in flags else " (not compiled: no flags)"}')
