# SPDX-License-Identifier: Apache-2.0
# Writes pytorch_kinds.inc: what PyTorch's autocast makes of the operators of its own test suite, one by one. Not run by the
# tests: it needs the torch wheel (2.15.0 was used) with expecttest, hypothesis and numpy, but no GPU: its tensors are fake.
# A line is "KIND CUDA CPU": the precision of the first result for FP32 inputs and for low ones, '1' FP32, 'l' low, so "ll"
# is lowered, "11" kept in FP32, "1l" left alone; several, joined by '/', if it depends on the arguments; '-': not known.
# Usage: pytorch_kinds.py > pytorch_kinds.inc
import collections
import contextlib
import logging
import warnings

import torch
from torch._subclasses.fake_tensor import FakeTensorMode
from torch.testing._internal import common_methods_invocations
from torch.utils._pytree import tree_leaves, tree_map

warnings.filterwarnings('ignore')
logging.disable(logging.CRITICAL)
OTHERWISE = {'aten::_convolution_mode', 'aten::to.dtype'}  # the tracer's word for conv2d.padding; a cast
LOW = {'cuda': torch.float16, 'cpu': torch.bfloat16}


def is_tensor(x):
    return isinstance(x, torch.Tensor)


def letters(device, function, arguments):
    """Two letters; nothing if the operator refuses one of the precisions, or gives no floats."""
    text = ''
    torch.set_autocast_dtype(device, LOW[device])
    torch.set_autocast_enabled(device, True)
    try:
        for wanted in (torch.float32, LOW[device]):
            def given(t):
                dtype = wanted if t.dtype == torch.float32 else t.dtype
                return t.to(dtype) if device == 'cpu' else torch.empty_strided(t.shape, t.stride(), device=device, dtype=dtype)
            faked = contextlib.nullcontext() if device == 'cpu' else FakeTensorMode(allow_non_fake_inputs=True)
            with faked, torch.no_grad():
                args, kwargs = tree_map(lambda x: given(x) if is_tensor(x) else x, arguments)
                result = next(t for t in tree_leaves(function(*args, **kwargs)) if is_tensor(t)).dtype
            text += {torch.float32: '1', LOW[device]: 'l'}[result]
    except Exception:
        return None
    finally:
        torch.set_autocast_enabled(device, False)
    return text


def kinds_in(function, arguments):
    """The operators, as PyTorch's tracer sees them: composites whole."""
    given = [t for t in tree_leaves(arguments) if is_tensor(t)]

    def call(*tensors):
        rest = iter(tensors)
        args, kwargs = tree_map(lambda x: next(rest) if is_tensor(x) else x, arguments)
        return function(*args, **kwargs)
    graph = torch.jit.trace(call, tuple(given), check_trace=False, strict=False).inlined_graph
    schemas = [torch._C.parse_schema(n.schema()) for n in graph.nodes() if n.kind().startswith('aten::')]
    return [s.name + ('.' + s.overload_name if s.overload_name else '') for s in schemas]


def sampled():
    """Kind, function, arguments: of each operator some calls of PyTorch's test suite."""
    for op in common_methods_invocations.op_db:
        try:
            samples = [s for _, s in zip(range(14), op.sample_inputs('cpu', torch.float32))]
        except Exception:
            continue
        for s in samples:
            arguments = ([s.input, *s.args], s.kwargs)
            if (is_tensor(s.input) and s.input.dim() == 0) or any(isinstance(x, torch.dtype) for x in tree_leaves(arguments)):
                continue
            try:
                kinds = [k for k in kinds_in(op.op, arguments) if k != 'aten::detach']
            except Exception:
                continue
            if len(kinds) == 1 and kinds[0] not in OTHERWISE:
                yield kinds[0], op.op, arguments


def written():
    """Composites that the suite calls by way of others."""
    t, aten, width = torch.randn, torch.ops.aten, 8
    square, state, heads = t(4, 4), t(1, 2, 5), t(1, 2, 4, 4)

    def gates(n):
        return [t(n * 5, 4), t(n * 5, 5), t(n * 5), t(n * 5)]
    recurrent = [True, 1, 0., False, False, False]
    calls = {
        'lstm.input': [t(3, 2, 4), [state, state], gates(4), *recurrent], 'gru.input': [t(3, 2, 4), state, gates(3), *recurrent],
        'rnn_tanh.input': [t(3, 2, 4), state, gates(1), *recurrent], 'rnn_relu.input': [t(3, 2, 4), state, gates(1), *recurrent],
        'lstm_cell': [t(2, 4), [t(2, 5), t(2, 5)], *gates(4)], 'gru_cell': [t(2, 4), t(2, 5), *gates(3)],
        'rnn_tanh_cell': [t(2, 4), t(2, 5), *gates(1)], 'rnn_relu_cell': [t(2, 4), t(2, 5), *gates(1)],
        'matrix_power': [square, 3], 'inner': [square, square], 'chain_matmul': [[square, square, square]], 'cov': [t(4, 8)], 'corrcoef': [t(4, 8)],
        'affine_grid_generator': [t(2, 2, 3), [2, 3, 4, 4], False], 'linalg_norm': [square], 'linalg_norm.ord_str': [square, 'fro'],
        '_transformer_encoder_layer_fwd': [t(2, 3, width), width, 2, t(3 * width, width), t(3 * width), t(width, width), t(width),
                                           False, False, 1e-5, t(width), t(width), t(width), t(width), t(16, width), t(16),
                                           t(width, 16), t(width)],
        '_native_multi_head_attention': [t(2, 3, width)] * 3 + [width, 2, t(3 * width, width), t(3 * width), t(width, width), t(width)],
        'special_erfinv': [square], 'arccos': [square], 'arcsin': [square], 'arctan2': [square, square], 'trapz.dx': [square],
        'trapz.x': [square, t(4)], '_upsample_nearest_exact3d.vec': [t(1, 1, 4, 4, 4), [8, 8, 8], None],
        '_upsample_bicubic2d_aa.vec': [t(1, 1, 4, 4), [8, 8], False, None], 'special_expm1': [square],
        'special_log1p': [square], 'special_logsumexp': [square, [1]], 'linalg_matmul': [square, square],
        '_convolution_mode': [t(1, 2, 8, 8), t(3, 2, 3, 3), None, [1, 1], 'same', [1, 1], 1],
        'nll_loss_nd': [square, torch.randint(0, 4, (4,))], '_softmax': [square, 1, False],
        '_scaled_dot_product_attention_math': [heads, heads, heads]}
    for name, args in calls.items():
        kind, _, overload = name.partition('.')
        yield 'aten::' + name, getattr(getattr(aten, kind), overload or 'default'), (args, {})


found = collections.defaultdict(lambda: {'cuda': set(), 'cpu': set()})
torch.manual_seed(7)
for kind, function, arguments in [*sampled(), *written()]:
    for device, seen in found[kind].items():
        seen.add(letters(device, function, arguments))
print('// SPDX-License-Identifier: Apache-2.0')
print(f"// Made by pytorch_kinds.py with PyTorch {torch.__version__.partition('+')[0]}: what autocast makes of operators, on CUDA and on the CPU.")
line = ''
for kind, devices in sorted(found.items()):
    seen = ['/'.join(sorted(s for s in devices[d] if s)) or '-' for d in ('cuda', 'cpu')]
    if seen == ['-', '-']:
        continue
    entry = f'"{kind} {" ".join(seen)}", '
    if len(line) + len(entry) > 121:
        print(line.rstrip())
        line = ''
    line += entry
print(line.rstrip())
