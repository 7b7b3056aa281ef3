# SPDX-License-Identifier: Apache-2.0
# Writes pytorch_typed.inc: random graphs, and the precision of what each operator gives under PyTorch's autocast, on CUDA
# with FP16 and on the CPU with BF16. Not run by the tests: it needs the torch wheel (2.15.0 was used), but no GPU: its
# tensors are fake.
# "add.Tensor:h,3,p0" is an operator that gives halves in the model itself (a cast), which reads operator 3 and parameter 0;
# '-' is data in FP32. '1' FP32, '0' FP16, 'b' BF16.
# Usage: pytorch_typed.py | distinct_graphs.py > pytorch_typed.inc
import random
import warnings

import torch
from torch._subclasses.fake_tensor import FakeTensorMode

warnings.filterwarnings('ignore')
aten, F = torch.ops.aten, torch.nn.functional
LOW = {'cuda': torch.float16, 'cpu': torch.bfloat16}
ONE = {'relu': torch.relu, 'exp': torch.exp, 'tanh': torch.tanh, 'sigmoid': torch.sigmoid, 'log1p': torch.log1p, 'gelu': F.gelu,
       'softmax.int': lambda x: F.softmax(x, 1), 'log_softmax.int': lambda x: F.log_softmax(x, 1), 'rsqrt': torch.rsqrt,
       'cumsum': lambda x: torch.cumsum(x, 0), 'layer_norm': lambda x: F.layer_norm(x, [4]), 'square': torch.square,
       'pow.Tensor_Scalar': lambda x: x ** 3, 'add.Scalar': lambda x: aten.add.Scalar(x, 1), 'mul.Scalar': lambda x: aten.mul.Scalar(x, 2),
       'dropout': F.dropout, 'silu': F.silu, 'softplus': F.softplus, 'reciprocal': torch.reciprocal, 'neg': torch.neg,
       'matrix_power': lambda x: torch.matrix_power(x, 2), 'rms_norm': lambda x: F.rms_norm(x, [4]), 'clamp': lambda x: torch.clamp(x, 0, 1),
       'leaky_relu': F.leaky_relu, 'acos': torch.acos, 'expm1': torch.expm1, 'floor': torch.floor}
VIEWS = {'t': torch.t, 'view': lambda x: x.view(x.shape), 'reshape': lambda x: x.reshape(4, 4), 'contiguous': lambda x: x.contiguous()}
CASTS = {'float': lambda x, low: x.float(), 'half': lambda x, low: x.to(low)}
TWO = {'mm': torch.mm, 'matmul': torch.matmul, 'linear': F.linear, 'add.Tensor': torch.add, 'mul.Tensor': torch.mul,
       'sub.Tensor': torch.sub, 'div.Tensor': torch.div, 'maximum': torch.maximum, 'minimum': torch.minimum, 'atan2': torch.atan2,
       'pow.Tensor_Tensor': torch.pow, 'einsum': lambda x, y: torch.einsum('ij,jk->ik', x, y), 'inner': torch.inner,
       'tensordot': lambda x, y: torch.tensordot(x, y, 1), 'hypot': torch.hypot, 'type_as': lambda x, y: x.type_as(y),
       'prelu': lambda x, y: F.prelu(x, y[0])}
THREE = {'addmm': torch.addmm, 'addcmul': torch.addcmul, 'addcdiv': torch.addcdiv, 'lerp.Tensor': torch.lerp,
         'where.self': lambda x, y, z: torch.where(torch.ones(4, 4, dtype=torch.bool, device=x.device), y, z)}
OFTEN = {'mm': 8, 'linear': 8, 'add.Tensor': 5, 'mul.Tensor': 5, 'float': 5, 'half': 3, 'type_as': 4, 'relu': 3, 'softmax.int': 3}
KINDS = sorted({**ONE, **VIEWS, **CASTS, **TWO, **THREE})


def draw(rng):
    operators = []
    for i in range(rng.randint(3, 22)):
        kind = rng.choices(KINDS, [OFTEN.get(k, 1) for k in KINDS])[0]
        count = 3 if kind in THREE else 2 if kind in TWO else 1
        reads = [rng.randrange(max(0, i - 6), i) if i and rng.random() < .85 else rng.choice(['-', 'p0', 'p1']) for _ in range(count)]
        if kind == 'where.self':
            reads = reads[1:]
        operators.append((kind, reads))
    return operators


def typed(operators, device):
    low = LOW[device]
    torch.set_autocast_dtype(device, low)
    torch.set_autocast_enabled(device, True)
    try:
        with FakeTensorMode(allow_non_fake_inputs=True), torch.no_grad():
            def new():
                return torch.ones(4, 4, device=device)
            made, shared = [], {name: new() for name in ('p0', 'p1')}
            for kind, reads in operators:
                inputs = [new() if r == '-' else shared[r] if isinstance(r, str) else made[r] for r in reads]
                if kind == 'where.self':
                    inputs = [inputs[0], *inputs]
                made.append(CASTS[kind](*inputs, low) if kind in CASTS else {**ONE, **VIEWS, **TWO, **THREE}[kind](*inputs))
        return ''.join({torch.float32: '1', torch.float16: '0', torch.bfloat16: 'b'}[t.dtype] for t in made)
    finally:
        torch.set_autocast_enabled(device, False)


rng = random.Random(7)
print('// SPDX-License-Identifier: Apache-2.0')
print(f"// Made by pytorch_typed.py with PyTorch {torch.__version__.partition('+')[0]}: what its autocast does with random graphs (distinct_graphs.py has chosen them).")
done = 0
while done < 300:
    drawn = draw(rng)
    try:
        seen = [typed(drawn, device) for device in LOW]
    except RuntimeError:  # tensors that do not meet
        continue
    done += 1
    words = [kind + ''.join(f',{r}' for r in reads) for kind, reads in drawn]
    print(f'"{" ".join(words)} | {" ".join(seen)}",')
