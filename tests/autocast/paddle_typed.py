# SPDX-License-Identifier: Apache-2.0
# Writes paddle_typed.inc: random graphs, and the precision in which Paddle runs each operator at each level. Not run by the
# tests: it needs the paddlepaddle wheel (3.3.1 was used), but no GPU, as a static program is only typed, not run. BF16,
# because for FP16 Paddle asks for kernels that a CPU lacks.
# Usage: paddle_typed.py > paddle_typed.inc
import random
import sys
import warnings

warnings.filterwarnings('ignore')
import paddle  # noqa: E402
import paddle.nn.functional as F  # noqa: E402

paddle.enable_static()
ONE = {'relu': F.relu, 'tanh': paddle.tanh, 'exp': paddle.exp, 'softmax': F.softmax, 'abs': paddle.abs, 'gelu': F.gelu,
       'log1p': paddle.log1p, 'sigmoid': F.sigmoid}
TWO = {'matmul': paddle.matmul, 'elementwise_add': paddle.add, 'elementwise_mul': paddle.multiply,
       'elementwise_max': paddle.maximum}
OFTEN = {'matmul': 5, 'elementwise_add': 2, 'elementwise_mul': 2, 'elementwise_max': 1, 'relu': 2, 'tanh': 2, 'exp': 1,
         'softmax': 2, 'abs': 1, 'log1p': 1, 'gelu': 1, 'sigmoid': 1}
SETTINGS = [{'level': 'O1'}, {'level': 'OD'}, {'level': 'O2'}, {'level': 'O2', 'use_promote': False},
            {'level': 'O1', 'custom_white_list': ['softmax', 'elementwise_add'], 'custom_black_list': ['tanh']}]


def draw(rng):
    """Operators with what they read: the number of an earlier one, or -1 for an input of the graph."""
    operators = []
    for i in range(rng.randint(3, 18)):
        kind = rng.choices(list(OFTEN), list(OFTEN.values()))[0]
        reads = [-1 if i == 0 or rng.random() < .12 else rng.randrange(max(0, i - 5), i) for _ in range(1 if kind in ONE else 2)]
        operators.append((kind, reads))
    return operators


def typed(operators, settings):
    """'1' for each operator that gives FP32, 'b' for BF16."""
    program = paddle.static.Program()  # it owns the tensors
    with paddle.static.program_guard(program), paddle.amp.auto_cast(dtype='bfloat16', **settings):
        made, inputs = [], 0
        for kind, reads in operators:
            arguments = []
            for r in reads:
                inputs += r < 0
                arguments.append(paddle.static.data(f'input{inputs}', [4, 4], 'float32') if r < 0 else made[r])
            made.append({**ONE, **TWO}[kind](*arguments))
        return ''.join('b' if tensor.dtype == paddle.bfloat16 else '1' for tensor in made)


rng = random.Random(7)
print('// SPDX-License-Identifier: Apache-2.0')
print(f'// Made by paddle_typed.py with Paddle {paddle.__version__}: what its automatic mixed precision does with 100 random graphs,')
print('// at O1, OD, O2, O2 without promotion, and O1 with softmax and elementwise_add white and tanh black.')
for _ in range(100):
    drawn = draw(rng)
    words = [kind + ''.join(f',{r}' for r in reads) for kind, reads in drawn]
    print(f'"{" ".join(words)} | {" ".join(typed(drawn, settings) for settings in SETTINGS)}",')
    sys.stdout.flush()
