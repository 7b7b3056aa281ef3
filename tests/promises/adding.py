# SPDX-License-Identifier: Apache-2.0
# Follows docs/look-up/adding.md in a copy of the source: what is added to an enum or to the list of operators must not compile before
# each place that has to know it does, and the page must name the places; an added strategy, policy, observer and model work.
# Usage: adding.py SOURCE_ROOT PARTS COMPILER ARGUMENTS...    PARTS: of native,host,cuda,libtorch those that can be compiled, or none
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile

root, parts, *compiler = sys.argv[1:]
root = pathlib.Path(root)
parts = ['core', *parts.split(',')]

INCLUDES = {'core': '<comp/core/hardware.hpp>\n#include <comp/core/scaled_formats.hpp>',
            'native': '<comp_native/model.hpp>\n#include <comp_native/storage.hpp>',
            'host': '<comp_host/elementwise.hpp>', 'cuda': '<comp_cuda/elementwise.hpp>', 'libtorch': '<comp_libtorch/support/tensors.hpp>'}
# What is added: where, after what; then the places that must refuse it, by part.
ADDED = {
    'activation': (('backends/native/include/comp_native/device.hpp', 'enum class activation', 'sigmoid', ', added'),
                   {'native': ['comp_native/device.hpp'], 'host': ['comp_host/elementwise.hpp'],
                    'cuda': ['comp_cuda/elementwise.hpp']}),
    'operator': (('backends/native/include/comp_native/operation.hpp', 'using operation', 'op::mse_loss', ', op::added'),
                 {'native': ['comp_native/operation.hpp']}),
    'precision': (('include/comp/core/precision.hpp', 'enum class precision', 'fp64', ', added'),
                  {'core': ['comp/core/precision.hpp', 'comp/core/hardware.hpp', 'comp/core/scaled_formats.hpp'],
                   'native': ['comp_native/storage.hpp'],
                   'libtorch': ['comp_libtorch/support/tensors.hpp']}),
    'row of a precision': (('include/comp/core/precision.hpp', 'constexpr precision_traits traits', 'switch (p) {',
                            " case precision{11}: return {.name = \"added\"};"), {'core': ['comp/core/precision.hpp']}),
}


def folders(copy):
    return [copy, copy / 'include', *sorted((copy / 'backends').glob('*/include'))]


def copied(to):
    for folder in ['include', *(str(f.relative_to(root)) for f in (root / 'backends').glob('*/include')), 'examples/data', 'examples/models/native']:
        shutil.copytree(root / folder, to / folder)
    return to


def insert(file, begin, after, text):
    source = file.read_text()
    at = source.index(after, source.index(begin)) + len(after)
    file.write_text(source[:at] + text + source[at:])


def run(copy, program, *arguments):
    (copy / 'program.cpp').write_text(program)
    command = [*compiler, '-Werror=switch', *(f'-I{f}' for f in folders(copy)), *arguments, str(copy / 'program.cpp')]
    return subprocess.run(command, capture_output=True, text=True)


def refusing(copy, those):
    """The headers of comp that hold an error, of those that these parts include."""
    program = ''.join(f'#include {INCLUDES[part]}\n' for part in those)
    output = run(copy, program, '-fsyntax-only').stderr
    faults = re.findall(r'^(\S+?):\d+:\d+: (?:fatal )?error', output, re.MULTILINE)  # the standard library's own are a consequence
    return {re.sub(r'.*/include/', '', f) for f in faults if f.startswith(str(copy))}, output


def check_refusals(copy, page):
    for what, (added, places) in ADDED.items():
        file = copy / added[0]
        before = file.read_text()
        insert(file, *added[1:])
        if what == 'operator':
            insert(file, 'namespace comp::native {', 'native {', ' namespace op { struct added {}; }')
        here = [part for part in parts if part in places]
        found, output = refusing(copy, here)
        file.write_text(before)
        expected = {place for part in here for place in places[part]}
        if found != expected:
            sys.exit(f'an added {what} is refused in {sorted(found)}, and should be in {sorted(expected)}:\n{output}')
        unnamed = [place for all in places.values() for place in all if place not in page]
        if unnamed:
            sys.exit(f'docs/look-up/adding.md names no {unnamed}')


def check_additions(copy):
    here = root / 'tests/promises/adding'
    for source, to in {'strategy': 'include/comp/strategy', 'policy': 'include/comp/policy', 'observer': 'include/comp/observe',
                       'model': 'examples/models/native'}.items():
        shutil.copy(here / f'{source}.hpp', copy / to / 'added.hpp')
        if source != 'model':
            insert(copy / 'include/comp/comp.hpp', '#pragma once', 'once\n', f'#include <{to[8:]}/added.hpp>\n')
    subprocess.run([sys.executable, root / 'tests/promises/layering.py', copy], check=True)
    built = run(copy, (here / 'main.cpp').read_text(), '-DFMT_HEADER_ONLY', '-o', str(copy / 'program'))
    if built.returncode:
        sys.exit(built.stderr)
    output = subprocess.run([copy / 'program'], check=True, capture_output=True, text=True).stdout
    if output != 'b1b1 observed\n':
        sys.exit(f'the added strategy, policy, observer and model gave: {output}')


with tempfile.TemporaryDirectory() as folder:
    copy = copied(pathlib.Path(folder))
    check_refusals(copy, (root / 'docs/look-up/adding.md').read_text())
    if 'native' in parts:
        check_additions(copy)
    print(f'{len(ADDED)} additions were refused where they were not known, four worked')
