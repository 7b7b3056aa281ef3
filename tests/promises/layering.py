# SPDX-License-Identifier: Apache-2.0
# Reads every #include under include/comp and backends/ against the arrows of the architecture, and all that a header
# reaches through others. Refuses a call in LibTorch's headers that one of the compilers does not link.
# Usage: layering.py SOURCE_ROOT
import pathlib
import re
import sys

BELOW_SEARCH = 'comp/core comp/policy comp/autocast comp/strategy'
SEARCH = ('comp/search/trainer comp/search/space comp/search/losses comp/search/times comp/search/decision '
          'comp/search/training')
# What each folder may reach beside itself.
MAY_REACH = {
    'comp/core': '',
    'comp/files': 'comp/core',
    'comp/scaling': 'comp/core',
    'comp/policy': 'comp/core',
    'comp/autocast': 'comp/core comp/policy',
    'comp/systems': 'comp/core comp/policy comp/autocast comp/scaling',
    'comp/strategy': 'comp/core',
    'comp/search': f'{BELOW_SEARCH} {SEARCH}',
    'comp/search/trainer': f'{BELOW_SEARCH} comp/search',
    'comp/search/space': f'{BELOW_SEARCH} comp/search comp/search/trainer',
    'comp/search/losses': f'{BELOW_SEARCH} comp/search comp/search/trainer comp/search/space',
    'comp/search/times': f'{BELOW_SEARCH} comp/search comp/search/trainer comp/search/space comp/search/losses',
    'comp/search/decision': f'{BELOW_SEARCH} comp/search comp/search/trainer comp/search/space comp/search/losses '
                            'comp/search/times',
    'comp/search/training': f'{BELOW_SEARCH} comp/search comp/search/trainer comp/search/space comp/search/losses',
    'comp/observe': f'{BELOW_SEARCH} {SEARCH} comp/search comp/files',
    'comp/ranks': f'{BELOW_SEARCH} {SEARCH} comp/search comp/files',
    'comp/doctor': f'{BELOW_SEARCH} {SEARCH} comp/search comp/files comp/observe',
    'comp_native': 'comp/core comp/scaling',
    'comp_host': 'comp/core comp/scaling comp_native',
    'comp_cuda': 'comp/core comp/scaling comp_native',
    'comp_simulated': 'comp/core comp/policy comp/autocast',
    'comp_libtorch/support': 'comp/core',
    'comp_libtorch/hook': 'comp/core comp_libtorch/support',
    'comp_libtorch/kernels': 'comp/core comp_libtorch/support comp_libtorch/hook',
    'comp_libtorch/plan': 'comp/core comp/files comp_libtorch/support comp_libtorch/hook comp_libtorch/kernels',
    'comp_libtorch/train': 'comp/core comp/scaling comp/files comp/policy '
                           'comp_libtorch/support comp_libtorch/hook comp_libtorch/kernels comp_libtorch/plan',
    'comp_libtorch/doctor': 'comp/core comp/scaling comp/files comp/policy comp/doctor '
                            'comp_libtorch/support comp_libtorch/hook comp_libtorch/kernels comp_libtorch/plan '
                            'comp_libtorch/train',
    'comp_libtorch/ranks': 'comp/core comp/ranks comp_libtorch/support',
    'comp_libtorch': 'comp/core comp/scaling comp/files comp/policy '
                     'comp_libtorch/support comp_libtorch/hook comp_libtorch/kernels comp_libtorch/plan '
                            'comp_libtorch/train',
}
# Its symbol has two names (comp_libtorch/support/tensors.hpp).
UNLINKABLE = re.compile(r'\bconst_data_ptr<.*>\(\)')
# Kernels know their own declarations, what both sides compute with, and the core; nothing that a host does.
KERNELS_MAY = re.compile(r'comp/core/|comp_native/math/|comp_native/device\.hpp|comp_cuda/(kernels|errors)\.hpp')

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def includes(header, root):
    """Paths that a header includes; one beside it is spelled from the root, too."""
    found = INCLUDE.findall(header.read_text())
    return [str((header.parent / i).relative_to(root)) if (header.parent / i).is_file() else i for i in found]


def folder(header):
    """The folder that `header` ("comp/core/plan.hpp") belongs to, as named in MAY_REACH; None for a stranger's."""
    parts = header.split('/')
    inner, room = '/'.join(parts[:3]), '/'.join(parts[:2])
    if inner in MAY_REACH:
        return inner
    return room if parts[0] == 'comp' or room in MAY_REACH else parts[0] if parts[0].startswith('comp_') else None


def wrong_chains(header, included):
    """One chain of includes for each header that `header` must not reach."""
    own = folder(header)
    allowed = {own, *MAY_REACH[own].split()}
    targets, left = {header}, [[header]]
    while left:
        chain = left.pop()
        for target in included.get(chain[-1], []):
            if target in targets:
                continue
            targets.add(target)
            if folder(target) is not None and folder(target) not in allowed:
                yield [*chain, target]
            else:
                left.append([*chain, target])


def main():
    root = pathlib.Path(sys.argv[1])
    included = {}
    for include in [root / 'include', *root.glob('backends/*/include')]:
        for header in include.rglob('*.hpp'):
            included[str(header.relative_to(include))] = includes(header, include)
    umbrella = included.pop('comp/comp.hpp')
    faults = [f'comp/comp.hpp includes {i}' for i in umbrella if folder(i) not in MAY_REACH or not i.startswith('comp/')]
    for header in sorted(included):
        if folder(header) not in MAY_REACH:
            faults.append(f'{header}: layering.py knows no arrows for its folder')
            continue
        faults += [' includes '.join(chain) for chain in wrong_chains(header, included)]
        faults += [f'{header} includes {i}: spell it from its root' for i in included[header] if '..' in i]
        faults += [f'{header} includes {i} (examples use it, not the other way round)'
                   for i in included[header] if i.startswith('examples')]
    for reader in sorted(root.glob('examples/data/*.hpp')):  # no backend is needed to read a data set
        faults += [f'{reader.relative_to(root)} includes {i}' for i in INCLUDE.findall(reader.read_text())
                   if i.startswith('comp_')]
    for header in sorted(root.glob('backends/libtorch/**/*.hpp')):
        code = re.sub('//.*', '', header.read_text())
        faults += [f'{header.relative_to(root)} has {call} (Clang does not link it): call values_of'
                   for call in UNLINKABLE.findall(code)]
    kernels = sorted(root.glob('backends/cuda/kernels/**/*.cu*'))
    for source in kernels:
        faults += [f'{source.relative_to(root)} includes {i}' for i in INCLUDE.findall(source.read_text())
                   if i.startswith('comp') and not KERNELS_MAY.match(i)]
    print(f'{len(included) + len(kernels)} files read')
    return '\n'.join(faults) if faults or included else 'no header found'


sys.exit(main() or 0)
