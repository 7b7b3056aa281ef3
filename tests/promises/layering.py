# SPDX-License-Identifier: Apache-2.0
# Reads every #include under include/comp and backends/ against the arrows of the architecture.
# Usage: layering.py SOURCE_ROOT
import pathlib
import re
import sys

# A part of include/comp may include itself and what stands beside it here.
PARTS = {
    'core': '',
    'scaling': 'core',
    'policy': 'core scaling',
    'autocast': 'core policy',
    'strategy': 'core',
    'search': 'core policy autocast strategy',
    'observe': 'core search',
}
# A backend may include comp's core, itself and what stands beside it here; none needs the search.
BACKENDS = {'comp_native': '', 'comp_host': 'comp_native', 'comp_cuda': 'comp_native', 'comp_libtorch': ''}
# Headers beyond the core that a backend may include: they scale losses, libtorch trains by a plan file without a search
# and refuses one that the machine has no units for.
ALSO = {'comp_native': {'comp/scaling/settings.hpp', 'comp/scaling/grad_scaler.hpp'},
        'comp_libtorch': {'comp/observe/plan_file.hpp', 'comp/policy/tensor_core.hpp', 'comp/scaling/settings.hpp'}}

# Kernels may include these, the core and comp_native/math.
KERNELS_MAY = {'comp_cuda/kernels.hpp', 'comp_cuda/errors.hpp', 'comp_native/device.hpp'}

# Headers that a user includes on top of <comp/comp.hpp>: files for other programs, and rules of other systems, which
# would be half a second of everyone's compilation.
APART = {'comp/observe/compare.hpp', 'comp/observe/summary.hpp', 'comp/observe/t4.hpp', 'comp/policy/kind_lists.hpp', 'comp/policy/tensorflow.hpp',
         'comp/policy/tensorflow_lists.hpp', 'comp/policy/paddle.hpp', 'comp/policy/paddle_lists.hpp',
         'comp/policy/amp_configs.hpp', 'comp/autocast/typed_plan.hpp', 'comp/autocast/follow_pass.hpp',
         'comp/autocast/casts.hpp', 'comp/autocast/tensorflow_pass.hpp', 'comp/autocast/paddle_pass.hpp',
         'comp/policy/tvm.hpp', 'comp/policy/tvm_lists.hpp', 'comp/autocast/tvm_pass.hpp', 'comp/scaling/settings.hpp',
         'comp/scaling/grad_scaler.hpp', 'comp/scaling/state_dict.hpp', 'comp/autocast/all_rules.hpp', 'comp/search/system_rules.hpp', 'comp/policy/advice.hpp',
         'comp/policy/devices.hpp', 'comp/strategy/annealing.hpp', 'comp/strategy/beam.hpp', 'comp/strategy/delta_debugging.hpp',
         'comp/strategy/genetic.hpp', 'comp/strategy/hierarchical.hpp', 'comp/strategy/moves.hpp', 'comp/strategy/pareto.hpp',
         'comp/strategy/successive_halving.hpp', 'comp/search/replay.hpp', 'comp/observe/replay_file.hpp', 'comp/observe/warm_start.hpp',
         'comp/core/cpu.hpp', 'comp/core/stored_state.hpp', 'comp/observe/safetensors.hpp', 'comp/observe/training_file.hpp'}

INCLUDE = re.compile(r'^\s*#\s*include\s*[<"]([^>"]+)[>"]', re.MULTILINE)


def includes(header):
    """Paths that a header includes, those relative to itself spelled from its root."""
    return INCLUDE.findall(header.read_text())


def wrong_in_part(header, root):
    part = header.relative_to(root / 'include/comp').parts[0]
    if part == 'comp.hpp':
        return [i for i in includes(header) if not i.startswith('comp/')]
    if part not in PARTS:
        return [f'the folder {part} itself: layering.py knows no arrows for it']
    allowed = {part, *PARTS[part].split()}
    names = [i.split('/') for i in includes(header)]
    return ['/'.join(n) for n in names
            if (n[0] == 'comp' and n[1] not in allowed) or n[0] in BACKENDS or n[0] == 'examples' or '..' in n or n[0] in PARTS]


def wrong_in_backend(header, backend):
    allowed = {backend, *BACKENDS[backend].split()}
    names = [i.split('/') for i in includes(header)]
    return ['/'.join(n) for n in names
            if (n[0] == 'comp' and n[1] != 'core' and '/'.join(n) not in ALSO.get(backend, ()))
            or (n[0] in BACKENDS and n[0] not in allowed) or n[0] == 'examples' or n[-1].endswith('.cuh')]


def wrong_in_kernel(source):
    """Kernels know their own declarations, what both sides compute with, and comp's core; nothing that a host does."""
    return [i for i in includes(source) if i.startswith('comp') and not i.startswith(('comp/core/', 'comp_native/math/'))
            and i not in KERNELS_MAY]


def not_in_umbrella(root):
    """Headers of include/comp that <comp/comp.hpp> does not reach."""
    reached, left = set(), ['comp/comp.hpp']
    while left:
        header = left.pop()
        if header.startswith('comp/') and header not in reached:
            reached.add(header)
            left += includes(root / 'include' / header)
    every = {str(h.relative_to(root / 'include')) for h in (root / 'include/comp').rglob('*.hpp')}
    return sorted(every - reached - APART)


def main():
    root = pathlib.Path(sys.argv[1])
    headers = sorted((root / 'include/comp').rglob('*.hpp'))
    faults = [f'{h.relative_to(root)} includes {w}' for h in headers for w in wrong_in_part(h, root)]
    for backend in BACKENDS:
        for header in sorted(root.glob(f'backends/*/include/{backend}/**/*.hpp')):
            faults += [f'{header.relative_to(root)} includes {w}' for w in wrong_in_backend(header, backend)]
            headers.append(header)
    for reader in sorted(root.glob('examples/data/*.hpp')):  # no backend is needed to read a data set
        faults += [f'{reader.relative_to(root)} includes {i}' for i in includes(reader) if i.split('/')[0] in BACKENDS]
        headers.append(reader)
    for source in sorted(root.glob('backends/cuda/kernels/**/*.cu*')):
        faults += [f'{source.relative_to(root)} includes {w}' for w in wrong_in_kernel(source)]
        headers.append(source)
    faults += [f'comp/comp.hpp does not include {h}' for h in not_in_umbrella(root)]
    print(f'{len(headers)} files read')
    return '\n'.join(faults) if faults or headers else 'no header found'


sys.exit(main() or 0)
