# SPDX-License-Identifier: Apache-2.0
# Writes tensorflow_painted.inc: random graphs, and what TensorFlow's graph rewrite makes of them. Not run by the tests: it
# needs the tensorflow wheel (2.21.0 was used), but no GPU; a virtual cluster stands in for it.
# A line is a graph, then for each setting the types of its operators ('1' FP32, '0' FP16, 'b' BF16) and the number of casts
# that were added. "Mul:h,3,p0" is an operator with half results in the model itself (i: integers), which reads operator 3
# and parameter 0; '-' is an input that nothing else reads.
# Usage: tensorflow_painted.py | ../autocast/distinct_graphs.py 2 > tensorflow_painted.inc
import os
import random

os.environ['TF_CPP_MIN_LOG_LEVEL'] = '3'
PREFIX = 'TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_'
os.environ[PREFIX + 'IGNORE_PERFORMANCE'] = '1'
import tensorflow as tf  # noqa: E402
from tensorflow.core.protobuf import config_pb2, device_properties_pb2, rewriter_config_pb2  # noqa: E402
from tensorflow.python.framework import meta_graph  # noqa: E402
from tensorflow.python.grappler import cluster, tf_optimizer  # noqa: E402

tf.compat.v1.disable_eager_execution()
raw = tf.raw_ops
ON, OFF = rewriter_config_pb2.RewriterConfig.ON, rewriter_config_pb2.RewriterConfig.OFF
OTHERS = ['constant_folding', 'layout_optimizer', 'arithmetic_optimization', 'dependency_optimization', 'loop_optimization',
          'function_optimization', 'debug_stripper', 'remapping', 'shape_optimization', 'common_subgraph_elimination',
          'pin_to_host_optimization', 'implementation_selector', 'scoped_allocator_optimization']
SETTINGS = [('auto_mixed_precision', 'GPU', {}), ('auto_mixed_precision_onednn_bfloat16', 'CPU', {}),
            ('auto_mixed_precision', 'GPU', {'LEVEL': 'TENSOR_CORES_ONLY'}),
            ('auto_mixed_precision', 'GPU', {'LEVEL': 'treat_infer_as_deny'}),
            ('auto_mixed_precision', 'GPU', {'LEVEL': 'UNSAFE_FORCE_ALL'}),
            ('auto_mixed_precision', 'GPU', {'ALLOWLIST_ADD': 'Cosh,Softmax', 'INFERLIST_REMOVE': 'Softmax,AddV2',
                                             'DENYLIST_ADD': 'AddV2', 'DENYLIST_REMOVE': 'Exp', 'CLEARLIST_REMOVE': 'Relu'})]

# Operators over matrices of 4 x 4: what they are given beside what they read.
ONE = {kind: {} for kind in (
    'Abs Ceil Elu Erf Erfc Exp Expm1 Floor Inv LeakyRelu Log Log1p Neg Reciprocal Relu Relu6 Round Rsqrt Selu Sigmoid Sign '
    'Softplus Softsign Sqrt Square Tanh Cosh Sin OnesLike ZerosLike StopGradient Snapshot').split()}
NAMES = {kind: 'features' for kind in 'Elu LeakyRelu Relu Relu6 Selu Softplus Softsign'.split()}
NAMES.update({'Identity': 'input', 'StopGradient': 'input', 'Snapshot': 'input'})
TWO = {'MatMul': 'a b', 'BatchMatMul': 'x y', 'BatchMatMulV2': 'x y', 'Add': 'x y', 'AddV2': 'x y', 'Mul': 'x y', 'Sub': 'x y',
       'RealDiv': 'x y', 'FloorDiv': 'x y', 'Pow': 'x y', 'Maximum': 'x y', 'Minimum': 'x y', 'SquaredDifference': 'x y',
       'EluGrad': 'gradients outputs', 'LeakyReluGrad': 'gradients features', 'ReluGrad': 'gradients features',
       'Relu6Grad': 'gradients features', 'SeluGrad': 'gradients outputs', 'SigmoidGrad': 'y dy', 'TanhGrad': 'y dy',
       'SoftplusGrad': 'gradients features', 'SoftsignGrad': 'gradients features'}
CALLS = {
    'Softmax': lambda x, n: raw.Softmax(logits=x, name=n), 'LogSoftmax': lambda x, n: raw.LogSoftmax(logits=x, name=n),
    'Reshape': lambda x, n: raw.Reshape(tensor=x, shape=[4, 4], name=n), 'Transpose': lambda x, n: raw.Transpose(x=x, perm=[1, 0], name=n),
    'Tile': lambda x, n: raw.Tile(input=x, multiples=[1, 1], name=n), 'Pad': lambda x, n: raw.Pad(input=x, paddings=[[0, 0], [0, 0]], name=n),
    'MirrorPad': lambda x, n: raw.MirrorPad(input=x, paddings=[[0, 0], [0, 0]], mode='REFLECT', name=n),
    'ReverseV2': lambda x, n: raw.ReverseV2(tensor=x, axis=[0], name=n), 'Slice': lambda x, n: raw.Slice(input=x, begin=[0, 0], size=[4, 4], name=n),
    'BroadcastTo': lambda x, n: raw.BroadcastTo(input=x, shape=[4, 4], name=n), 'Identity': lambda x, n: raw.Identity(input=x, name=n),
    'EnsureShape': lambda x, n: raw.EnsureShape(input=x, shape=[4, 4], name=n),
    'CheckNumerics': lambda x, n: raw.CheckNumerics(tensor=x, message='', name=n),
    'PreventGradient': lambda x, n: raw.PreventGradient(input=x, message='', name=n),
    'GatherV2': lambda x, n: raw.GatherV2(params=x, indices=[0, 1, 2, 3], axis=0, name=n),
    'TopKV2': lambda x, n: raw.TopKV2(input=x, k=4, name=n)[0],
    'Max': lambda x, n: raw.Max(input=x, axis=tf.zeros([0], tf.int32), name=n), 'Min': lambda x, n: raw.Min(input=x, axis=tf.zeros([0], tf.int32), name=n),
    'Sum': lambda x, n: raw.Sum(input=x, axis=tf.zeros([0], tf.int32), name=n), 'Mean': lambda x, n: raw.Mean(input=x, axis=tf.zeros([0], tf.int32), name=n),
    'Prod': lambda x, n: raw.Prod(input=x, axis=tf.zeros([0], tf.int32), name=n)}
PAIRS = {'AddN': lambda x, y, n: raw.AddN(inputs=[x, y], name=n),
         'Einsum': lambda x, y, n: raw.Einsum(inputs=[x, y], equation='ij,jk->ik', name=n),
         'SoftmaxCrossEntropyWithLogits': lambda x, y, n: raw.SoftmaxCrossEntropyWithLogits(features=x, labels=y, name=n)[1],
         'ClipByValue': lambda x, y, n: raw.ClipByValue(t=x, clip_value_min=y, clip_value_max=y, name=n)}
# Of tensors of four axes: 4 x 4 x 4 x 4.
ONE4 = {'AvgPool': lambda x, n: raw.AvgPool(value=x, ksize=[1, 2, 2, 1], strides=[1, 1, 1, 1], padding='SAME', name=n),
        'MaxPool': lambda x, n: raw.MaxPool(input=x, ksize=[1, 2, 2, 1], strides=[1, 1, 1, 1], padding='SAME', name=n)}
NORMS = {kind: (lambda x, n, kind=kind: getattr(raw, kind)(
    x=x, scale=tf.compat.v1.placeholder(tf.float32, [4]), offset=tf.compat.v1.placeholder(tf.float32, [4]),
    mean=tf.zeros([0]), variance=tf.zeros([0]), name=n)[0]) for kind in ('FusedBatchNorm', 'FusedBatchNormV2', 'FusedBatchNormV3')}
FILTERS = {'Conv2D': [3, 3, 4, 4], 'DepthwiseConv2dNative': [3, 3, 4, 1], 'BiasAdd': [4]}
INTEGERS = {'ArgMax': lambda x, n: raw.ArgMax(input=x, dimension=0, name=n), 'IsFinite': lambda x, n: raw.IsFinite(x=x, name=n),
            'IsNan': lambda x, n: raw.IsNan(x=x, name=n)}
COMPARISONS = ['Equal', 'NotEqual', 'Greater', 'GreaterEqual', 'Less', 'LessEqual']
TYPED = {'Cast': 'DstT', 'GatherV2': 'Tparams'}
ANY_SHAPE = set(ONE) | (set(TWO) - {'MatMul', 'BatchMatMul'}) | {'AddN', 'Identity'}
OFTEN = {'MatMul': 40, 'BatchMatMulV2': 8, 'Conv2D': 60, 'AddV2': 8, 'Mul': 8, 'Relu': 8, 'Cast': 18, 'SelectV2': 12, 'ArgMax': 4, 'Greater': 6,
         'FusedBatchNorm': 4, 'FusedBatchNormV3': 4, 'SoftmaxCrossEntropyWithLogits': 3, 'BiasAdd': 6, 'MaxPool': 6}
DEVICES = {'CPU': device_properties_pb2.DeviceProperties(type='CPU', frequency=1000, num_cores=2),
           'GPU': device_properties_pb2.DeviceProperties(type='GPU', vendor='NVidia', frequency=1000, num_cores=60,
                                                         environment={'architecture': '8.0', 'cuda': '12030', 'cudnn': '9000'})}
KINDS4 = sorted(ANY_SHAPE | set(ONE4) | set(NORMS) | set(FILTERS) | set(COMPARISONS) | {'Cast', 'SelectV2', 'IsNan'})
KINDS2 = sorted(set(ONE) | set(TWO) | set(CALLS) | set(PAIRS) | set(INTEGERS) | set(COMPARISONS) | {'Cast', 'SelectV2'})


def full_name(device):
    return f'/job:localhost/replica:0/task:0/device:{device}:0'


CLUSTER = cluster.Cluster(devices=[device_properties_pb2.NamedDevice(name=full_name(d), properties=p)
                                   for d, p in DEVICES.items()])


def draw(rng):
    """Number of axes; operators: kind, what it gives (f, h, i), what it reads: an earlier one, 'p0' to 'p2', or '-'."""
    axes, operators = rng.choice([2, 2, 4]), []
    kinds = KINDS2 if axes == 2 else KINDS4

    def read(gives, i):
        near = [k for k in range(max(0, i - 7), i) if operators[k][1] == gives and operators[k][0] != 'ArgMax']
        if near and rng.random() < .85:
            return rng.choice(near)
        return (rng.choice(['-', 'p0', 'p1', 'p2']) if gives == 'f' else None)
    for i in range(rng.randint(4, 24)):
        kind = rng.choices(kinds, [OFTEN.get(k, 2) for k in kinds])[0]
        typed = rng.choice('fffh')
        if kind == 'Cast':
            operator = (kind, rng.choice('fffh'), [read(rng.choice('fffhhi'), i)])
        elif kind in INTEGERS or kind in COMPARISONS:
            operator = (kind, 'i', [read(typed, i) for _ in range(1 + (kind in COMPARISONS))])
        elif kind == 'SelectV2':
            operator = (kind, typed, [read('i', i), read(typed, i), read(typed, i)])
        elif kind in FILTERS or kind in NORMS or kind in ONE4:
            operator = (kind, 'f', [read('f', i)] + ['-'] * (kind in FILTERS))
        else:
            operator = (kind, typed, [read(typed, i) for _ in range(2 if kind in TWO or kind in PAIRS else 1)])
        if None in operator[2] or (kind == 'Cast' and operator[2][0] == '-'):
            operator = (rng.choice(sorted(ONE)), 'f', [read('f', i)])
        if kind == 'Cast' and operator[0] == 'Cast' and isinstance(operator[2][0], int) and operators[operator[2][0]][1] == operator[1]:
            operator = (rng.choice(sorted(ONE)), 'f', [read('f', i)])
        if kind == 'Cast' and operator[0] == 'Cast' and isinstance(operator[2][0], str) and operator[1] == 'f':
            operator = ('Cast', 'h', operator[2])
        operators.append(operator)
    return axes, operators


def made_of(kind, inputs, gives, name, shape):
    if kind == 'Cast':
        return raw.Cast(x=inputs[0], DstT=tf.float32 if gives == 'f' else tf.float16, name=name)
    if kind == 'SelectV2':
        return raw.SelectV2(condition=inputs[0], t=inputs[1], e=inputs[2], name=name)
    if kind in COMPARISONS:
        return getattr(raw, kind)(x=inputs[0], y=inputs[1], name=name)
    if kind == 'BiasAdd':
        return raw.BiasAdd(value=inputs[0], bias=inputs[1], name=name)
    if kind == 'Conv2D' or kind == 'DepthwiseConv2dNative':
        return getattr(raw, kind)(input=inputs[0], filter=inputs[1], strides=[1, 1, 1, 1], padding='SAME', name=name)
    if kind in TWO:
        return getattr(raw, kind)(**dict(zip(TWO[kind].split(), inputs)), name=name)
    if kind in ONE:
        return getattr(raw, kind)(**{NAMES.get(kind, 'x'): inputs[0]}, name=name)
    return {**CALLS, **PAIRS, **ONE4, **NORMS, **INTEGERS}[kind](*inputs, name)


def rewritten(axes, operators, mode, device, environment):
    """A letter for the type of each operator; the number of casts that were added."""
    for variable in list(os.environ):
        if variable.startswith(PREFIX) and not variable.endswith('PERFORMANCE'):
            del os.environ[variable]
    os.environ.update({PREFIX + k: v for k, v in environment.items()})
    graph = tf.Graph()
    with graph.as_default():
        made, shared, shape = [], {}, [4] * axes
        for i, (kind, gives, reads) in enumerate(operators):
            inputs = []
            for r in reads:
                if r == '-':
                    inputs.append(tf.compat.v1.placeholder(tf.float32, FILTERS.get(kind, shape) if inputs else shape))
                elif isinstance(r, str):
                    inputs.append(shared.setdefault(r, tf.compat.v1.placeholder(tf.float32, shape)))
                else:
                    inputs.append(made[r])
            made.append(made_of(kind, inputs, gives, f'op{i}', shape))
        read = {r for _, _, reads in operators for r in reads}
        ends = [tf.compat.v1.placeholder_with_default(x, x.shape) for i, x in enumerate(made) if i not in read]
        meta = meta_graph.create_meta_graph_def(graph=graph)
    meta.collection_def['train_op'].node_list.value.extend(end.op.name for end in ends)
    for node in meta.graph_def.node:
        node.device = full_name(device)
    config = config_pb2.ConfigProto()
    options = config.graph_options.rewrite_options
    for other in OTHERS:
        setattr(options, other, OFF)
    options.min_graph_nodes, options.disable_model_pruning = -1, True
    options.meta_optimizer_iterations = rewriter_config_pb2.RewriterConfig.ONE
    options.memory_optimization = rewriter_config_pb2.RewriterConfig.NO_MEM_OPT
    setattr(options, mode, ON)
    nodes = {node.name: node for node in tf_optimizer.OptimizeGraph(config, meta, cluster=CLUSTER, verbose=False).node}
    letters = {tf.float32.as_datatype_enum: '1', tf.float16.as_datatype_enum: '0', tf.bfloat16.as_datatype_enum: 'b'}
    types = [letters[nodes[f'op{i}'].attr[TYPED.get(kind, 'T')].type] for i, (kind, _, _) in enumerate(operators)]
    own = sum(kind == 'Cast' for kind, _, _ in operators)
    return ''.join(types), sum(n.op == 'Cast' for n in nodes.values()) - own


rng = random.Random(7)
print('// SPDX-License-Identifier: Apache-2.0')
print(f'// Made by tensorflow_painted.py with TensorFlow {tf.__version__}: what its graph rewrite does with random graphs (distinct_graphs.py has chosen them).')
done = 0
while done < 300:
    axes, drawn = draw(rng)
    try:
        seen = [rewritten(axes, drawn, *setting) for setting in SETTINGS]
    except (TypeError, ValueError):  # no kernel of this type is registered
        continue
    done += 1
    words = [kind + (f':{gives}' if gives != 'f' else '') + ''.join(f',{r}' for r in reads) for kind, gives, reads in drawn]
    print(f'"{" ".join(words)} | {" ".join(f"{types} {casts}" for types, casts in seen)}",')
