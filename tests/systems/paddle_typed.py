# SPDX-License-Identifier: Apache-2.0
# Writes paddle_typed.inc: random graphs, and the precision in which Paddle runs each operator at each level. Not run by the
# tests: it needs the paddlepaddle wheel (3.3.1 was used), but no GPU, as a static program is only typed, not run. BF16,
# because for FP16 Paddle asks for kernels that a CPU lacks.
# "cast:b,3" is a cast of the model's own to BF16 (f: to FP32) of what operator 3 gives; '-1' is data in FP32, 'p0' a
# parameter. '1': gives FP32, 'b': BF16; '-': refused at this level.
# Usage: paddle_typed.py | ../autocast/distinct_graphs.py > paddle_typed.inc
import random
import sys
import warnings

warnings.filterwarnings('ignore')
import paddle  # noqa: E402
import paddle.nn.functional as F  # noqa: E402

paddle.enable_static()
ONE = {'relu': F.relu, 'tanh': paddle.tanh, 'exp': paddle.exp, 'softmax': F.softmax, 'abs': paddle.abs, 'gelu': F.gelu,
       'log1p': paddle.log1p, 'sigmoid': F.sigmoid, 'tan': paddle.tan, 'acos': paddle.acos, 'asin': paddle.asin,
       'sinh': paddle.sinh, 'cosh': paddle.cosh, 'atanh': paddle.atanh, 'tanh_shrink': F.tanhshrink, 'erfinv': paddle.erfinv,
       'expm1': paddle.expm1, 'log': paddle.log, 'log10': paddle.log10, 'log2': paddle.log2, 'reciprocal': paddle.reciprocal,
       'rsqrt': paddle.rsqrt, 'pow': lambda x: paddle.pow(x, 2.), 'square': paddle.square, 'softplus': F.softplus,
       'log_softmax': F.log_softmax, 'cumsum': lambda x: paddle.cumsum(x, 0), 'cumprod': lambda x: paddle.cumprod(x, 0),
       'renorm': lambda x: paddle.renorm(x, 2., 0, 1.), 'sqrt': paddle.sqrt, 'floor': paddle.floor, 'silu': F.silu,
       'leaky_relu': F.leaky_relu, 'elu': F.elu, 'erf': paddle.erf, 'sin': paddle.sin, 'reshape2': lambda x: paddle.reshape(x, [4, 4]),
       'transpose2': lambda x: paddle.transpose(x, [1, 0]), 'scale': lambda x: paddle.scale(x, 2.),
       'reduce_sum': lambda x: paddle.expand(paddle.sum(x, 0, keepdim=True), [4, 4]),
       'reduce_mean': lambda x: paddle.expand(paddle.mean(x, 0, keepdim=True), [4, 4])}
TWO = {'matmul': paddle.matmul, 'elementwise_add': paddle.add, 'elementwise_mul': paddle.multiply,
       'elementwise_max': paddle.maximum, 'elementwise_sub': paddle.subtract, 'elementwise_div': paddle.divide,
       'elementwise_min': paddle.minimum, 'elementwise_pow': paddle.pow,
       'einsum': lambda x, y: paddle.einsum('ij,jk->ik', x, y)}
OFTEN = {'matmul': 16, 'elementwise_add': 5, 'elementwise_mul': 5, 'relu': 4, 'tanh': 3, 'softmax': 3, 'cast': 7}
KINDS = sorted({**ONE, **TWO, 'cast': None})
SETTINGS = [{'level': 'O1'}, {'level': 'OD'}, {'level': 'O2'}, {'level': 'O2', 'use_promote': False},
            {'level': 'O1', 'custom_white_list': ['softmax', 'elementwise_add'], 'custom_black_list': ['tanh']}]


def draw(rng):
    """Operators with what they read: the number of an earlier one, -1 for data, 'p0' or 'p1' for a parameter."""
    operators = []
    for i in range(rng.randint(3, 20)):
        kind = rng.choices(KINDS, [OFTEN.get(k, 1) for k in KINDS])[0]
        reads = [rng.choice([-1, 'p0', 'p1']) if i == 0 or rng.random() < .15 else rng.randrange(max(0, i - 5), i)
                 for _ in range(2 if kind in TWO else 1)]
        operators.append((kind, rng.choice('bf') if kind == 'cast' else '', reads))
    return operators


def typed(operators, settings):
    """'1' for each operator that gives FP32, 'b' for BF16."""
    program = paddle.static.Program()  # it owns the tensors
    with paddle.static.program_guard(program, paddle.static.Program()), paddle.amp.auto_cast(dtype='bfloat16', **settings):
        made, inputs = [], 0
        shared = {name: paddle.create_parameter([4, 4], 'float32') for name in ('p0', 'p1')}
        for kind, to, reads in operators:
            arguments = []
            for r in reads:
                inputs += r == -1
                arguments.append(paddle.static.data(f'input{inputs}', [4, 4], 'float32') if r == -1
                                 else shared[r] if isinstance(r, str) else made[r])
            made.append(paddle.cast(arguments[0], 'bfloat16' if to == 'b' else 'float32') if kind == 'cast'
                        else {**ONE, **TWO}[kind](*arguments))
        return ''.join('b' if tensor.dtype == paddle.bfloat16 else '1' for tensor in made)


rng = random.Random(7)
print('// SPDX-License-Identifier: Apache-2.0')
print(f'// Made by paddle_typed.py with Paddle {paddle.__version__}: what its automatic mixed precision does with random graphs (distinct_graphs.py has chosen them),')
print('// at O1, OD, O2, O2 without promotion, and O1 with softmax and elementwise_add white and tanh black.')
done = 0
while done < 200:
    drawn, seen = draw(rng), []
    for settings in SETTINGS:
        try:
            seen.append(typed(drawn, settings))
        except TypeError:  # an operator without BF16 on a CPU
            seen.append('-')
    if seen[0] == '-':
        continue
    done += 1
    words = [kind + (f':{to}' if to else '') + ''.join(f',{r}' for r in reads) for kind, to, reads in drawn]
    print(f'"{" ".join(words)} | {" ".join(seen)}",')
    sys.stdout.flush()
