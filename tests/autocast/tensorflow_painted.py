# SPDX-License-Identifier: Apache-2.0
# Writes tensorflow_painted.inc: random graphs, and what TensorFlow's graph rewrite makes of them. Not run by the tests: it
# needs the tensorflow wheel (2.21.0 was used), but no GPU; a virtual cluster stands in for it.
# Usage: tensorflow_painted.py > tensorflow_painted.inc
import os
import random

os.environ['TF_CPP_MIN_LOG_LEVEL'] = '2'
os.environ['TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_IGNORE_PERFORMANCE'] = '1'
import tensorflow as tf  # noqa: E402
from tensorflow.core.protobuf import config_pb2, device_properties_pb2, rewriter_config_pb2  # noqa: E402
from tensorflow.python.framework import meta_graph  # noqa: E402
from tensorflow.python.grappler import cluster, tf_optimizer  # noqa: E402

tf.compat.v1.disable_eager_execution()
ON, OFF = rewriter_config_pb2.RewriterConfig.ON, rewriter_config_pb2.RewriterConfig.OFF
OTHERS = ['constant_folding', 'layout_optimizer', 'arithmetic_optimization', 'dependency_optimization', 'loop_optimization',
          'function_optimization', 'debug_stripper', 'remapping', 'shape_optimization', 'common_subgraph_elimination',
          'pin_to_host_optimization', 'implementation_selector', 'scoped_allocator_optimization']
ONE = {'Relu': tf.nn.relu, 'Exp': tf.exp, 'Tanh': tf.tanh, 'Neg': tf.negative, 'Softmax': tf.nn.softmax, 'Abs': tf.abs,
       'Log1p': tf.math.log1p, 'Sigmoid': tf.sigmoid, 'Floor': tf.floor, 'Cosh': tf.cosh, 'Expm1': tf.math.expm1,
       'Elu': tf.nn.elu}
TWO = {'MatMul': tf.matmul, 'AddV2': tf.add, 'Mul': tf.multiply, 'Pow': tf.pow, 'Maximum': tf.maximum, 'Sub': tf.subtract,
       'Minimum': tf.minimum}
OFTEN = {'MatMul': 5, 'AddV2': 2, 'Mul': 2, 'Relu': 3, 'Tanh': 1, 'Softmax': 1, 'Neg': 2, 'Abs': 1, 'Maximum': 2, 'Exp': 1,
         'Pow': .5, 'Expm1': .3, 'Cosh': 1, 'Sub': 1, 'Log1p': .5, 'Sigmoid': 1, 'Floor': .5, 'Elu': .5, 'Minimum': 1}
DEVICES = {'CPU': device_properties_pb2.DeviceProperties(type='CPU', frequency=1000, num_cores=2),
           'GPU': device_properties_pb2.DeviceProperties(type='GPU', vendor='NVidia', frequency=1000, num_cores=60,
                                                         environment={'architecture': '8.0', 'cuda': '12030', 'cudnn': '9000'})}


def full_name(device):
    return f'/job:localhost/replica:0/task:0/device:{device}:0'


CLUSTER = cluster.Cluster(devices=[device_properties_pb2.NamedDevice(name=full_name(d), properties=p)
                                   for d, p in DEVICES.items()])


def draw(rng):
    """Operators with what they read: the number of an earlier one, or -1 for an input of the graph."""
    operators = []
    for i in range(rng.randint(3, 22)):
        kind = rng.choices(list(OFTEN), list(OFTEN.values()))[0]
        reads = [-1 if i == 0 or rng.random() < .18 else rng.randrange(max(0, i - 6), i) for _ in range(1 if kind in ONE else 2)]
        operators.append((kind, reads))
    return operators


def rewritten(operators, mode, device):
    """'1' for each operator that stays in FP32, '0' for the others; the number of casts."""
    graph = tf.Graph()
    with graph.as_default():
        made = []
        for i, (kind, reads) in enumerate(operators):
            inputs = [tf.compat.v1.placeholder(tf.float32, [4, 4]) if r < 0 else made[r] for r in reads]
            made.append({**ONE, **TWO}[kind](*inputs, name=f'op{i}'))
        read = {r for _, reads in operators for r in reads}
        ends = [tf.compat.v1.placeholder_with_default(x, [4, 4]) for i, x in enumerate(made) if i not in read]
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
    types = [nodes[f'op{i}'].attr['T'].type for i in range(len(operators))]
    return ''.join('1' if t == tf.float32.as_datatype_enum else '0' for t in types), sum(n.op == 'Cast' for n in nodes.values())


rng = random.Random(7)
print('// SPDX-License-Identifier: Apache-2.0')
print(f'// Made by tensorflow_painted.py with TensorFlow {tf.__version__}: what its graph rewrite does with 200 random graphs.')
for _ in range(200):
    drawn = draw(rng)
    words = [kind + ''.join(f',{r}' for r in reads if r >= 0) for kind, reads in drawn]
    cuda, bf16 = rewritten(drawn, 'auto_mixed_precision', 'GPU'), rewritten(drawn, 'auto_mixed_precision_onednn_bfloat16', 'CPU')
    print(f'"{" ".join(words)} | {cuda[0]} {cuda[1]} | {bf16[0]} {bf16[1]}",')
