#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Fits the coefficients of backends/simulated to published measurements, and prints what they are worth on GPUs that
were held out. Needs numpy and scipy.

Usage: fit_gpus.py NEUSIGHT    (a checkout of github.com/sitar-lab/NeuSight, whose measurements are not copied here)

published.csv has the other measurements that are used, each with its source. The GPUs' figures are read from gpu.hpp.
"""
import ast
import csv
import pathlib
import re
import sys
from itertools import product as pairs_of

import numpy as np
from scipy.optimize import least_squares

HERE = pathlib.Path(__file__).parent
HEADER = HERE / '../../backends/simulated/include/comp_simulated/gpu.hpp'
FIELDS = ('sms', 'lanes', 'memory', 'fp32', 'tf32', 'half', 'fp8', 'fp4')
# GPUs that are only fitted to or tested on (NVIDIA's data sheets). NeuSight's P4, T4 and L4 cannot hold their clocks at 70
# to 75 W, unlike the targets: nothing is fitted to them.
OTHERS = {'A100 40GB': (108, 64, 1.555e12, 19.5e12, 156e12, 312e12, 0, 0), 'A100 80GB PCIe': (108, 64, 1.935e12, 19.5e12, 156e12, 312e12, 0, 0),
          'A40': (84, 128, .696e12, 37.4e12, 74.8e12, 149.7e12, 0, 0), 'L20': (92, 128, .864e12, 59.8e12, 59.8e12, 119.5e12, 239e12, 0),
          'L4': (58, 128, .3e12, 30.3e12, 60e12, 121e12, 242e12, 0),
          'V100': (80, 64, .9e12, 14e12, 0, 0, 0, 0), 'H200 NVL': (132, 128, 4.8e12, 60e12, 418e12, 835e12, 1671e12, 0)}
NAMES = {'NVIDIA A100-PCIE-40GB': 'A100 40GB', 'NVIDIA A100 80GB PCIe': 'A100 80GB PCIe', 'NVIDIA H100 80GB HBM3': 'H100',
         'NVIDIA L4': 'L4', 'Tesla V100-PCIE-32GB': 'V100'}  # NeuSight's
GENERATION = {'A100': 'ampere', 'A100 40GB': 'ampere', 'A40': 'ada', 'L20': 'ada', 'RTX 4090': 'ada', 'H100': 'hopper', 'H200': 'hopper',
              'H200 NVL': 'hopper', 'B200': 'blackwell', 'B300': 'blackwell'}
PEAK = {'fp32': 'fp32', 'tf32': 'tf32', 'bf16': 'half', 'fp16': 'half', 'fp8_e4m3': 'fp8', 'fp8_block128': 'fp8', 'mxfp8': 'fp8', 'nvfp4': 'fp4'}
READ = {'fp32': 4, 'tf32': 4, 'bf16': 2, 'fp16': 2, 'fp8_e4m3': 1, 'fp8_block128': 1, 'mxfp8': 1 + 1 / 32, 'nvfp4': .5625}
LAUNCH = 2e-6  # of a kernel: torchao's roofline_utils.py (H100), NVIDIA/cccl#7391 (B200)
TILES = ((256, 128), (128, 256), (128, 128), (128, 64), (64, 128), (64, 64), (64, 32), (32, 64), (32, 32))
SPLITS = (1, 2, 4, 8, 16)
FITTED = ('V100', 'A100 40GB')  # of NeuSight, whose P100 has an older kernel for each operator


# Seconds of kernels that quantize, less what is timed with them. Of 8 bits: MXFP8 (16384x16384 on a B200, torchao's page
# on training) and blocks of 128 (32768x4096 and 131072x4096 on an H100, torchao's
# benchmarks/prototype/blockwise_fp8_training). Of 4 bits: products of NxK = 6144x4096 with M rows on a B200 with the rows'
# quantization and without (vllm-project/vllm#20646).
QUANTIZED_8 = [('B200', 2**28 * (3 + 1 / 32), us) for us in (138.18, 142.34)] + [
    ('H100', rows * 4096 * (3 + 4 / 128), us) for rows, each in ((32768, (154.46, 150.53, 150.86, 148.7, 144.99)),
                                                               (131072, (581.89, 586.98, 581.47, 562.56, 555.3))) for us in each]
QUANTIZED_4 = [('B200', m * 4096 * 2.5625, 2e-6 * m * 6144 * 4096 * (1 / slow - 1 / fast)) for m, slow, fast in (
    (2048, 2613.10182, 3411.463557), (4096, 2947.881593, 3645.594842), (8192, 3025.497089, 3778.760919), (16384, 3038.844961, 3904.329097))]
# The linear layers of a 5B transformer [ms], inputs quantized for each product (TransformerEngine#2863, its
# docs/examples/gemm_profiling). The parts: four forward products on the B300 and their sum on the H200, then the sums of the
# products for the inputs' gradients and for the weights'.
LAYER = [(15872, 12288, 4096), (15872, 4096, 4096), (15872, 16384, 4096), (15872, 4096, 16384)]
BACKWARD = [[(m, k, n) for m, n, k in LAYER], [(n, k, m) for m, n, k in LAYER]]
TRANSFORMER_ENGINE = {
    'B300': ([[one] for one in LAYER] + BACKWARD,
             {'bf16': (1.071, .307, 1.393, 1.426, 4.29, 4.272), 'fp8_e4m3': (.605, .317, .924, 1.033, 3.063, 3.205),
              'mxfp8': (.579, .269, .924, 1.076, 3.045, 3.092), 'nvfp4': (.392, .256, .635, .649, 2.189, 2.331)}),
    'H200 NVL': ([LAYER] + BACKWARD, {'bf16': (10.653, 10.813, 10.548), 'fp8_e4m3': (6.503, 6.795, 6.987), 'fp8_block128': (7.425, 7.636, 7.821)})}
# Of a quantized element: bytes at the rate of elementwise kernels (the pass that finds the tensor's maximum), bytes at the
# rate of quantization.
QUANTIZED_BYTES = {'fp8_e4m3': (2, 3), 'fp8_block128': (0, 3 + 4 / 128), 'mxfp8': (0, 3 + 1 / 32), 'nvfp4': (2, 2.5625)}


def read_gpus():
    rows = re.findall(r'\{"([^"]+)", ([\d., e]+)\}', HEADER.read_text())
    table = {name: tuple(float(v) for v in figures.split(',')) for name, figures in rows}
    assert table and all(len(v) == len(FIELDS) for v in table.values()), f'{HEADER} has no table of GPUs that can be read'
    return {name: dict(zip(FIELDS, v)) for name, v in {**table, **OTHERS}.items()}


GPUS = read_gpus()


def neusight(root, folder, names):
    base = pathlib.Path(root) / 'scripts/asplos/data/dataset' / folder
    for name in names:
        yield from csv.DictReader((base / f'{name}.csv').open())


def column(rows, key):
    return np.array([key(r) for r in rows], dtype=float)


def matmul_seconds(x, rows):
    """The C++ is product_seconds in operator_time.hpp."""
    b, m, n, k, sms, memory, peak, read, write, rate, start = rows
    tile_loss, prologue, tail, bandwidth = x
    best = np.full(len(b), np.inf)
    for (tm, tn), s in pairs_of(TILES, SPLITS):
        deep = np.maximum(k / s, 1)
        waves = b * np.ceil(m / tm) * np.ceil(n / tn) * s / sms
        waves = np.maximum(1, (1 - tail) * waves + tail * np.ceil(waves))
        side = np.sqrt(tm * tn)
        compute = waves * 2 * tm * tn * (deep + prologue) / (peak / sms * rate * side / (side + tile_loss))
        moved = b * (read * (m * k + k * n) + write * m * n) + (s > 1) * 8 * s * b * m * n
        best = np.where((s == 1) | (deep >= 128), np.minimum(best, np.maximum(compute, moved / (memory * bandwidth))), best)
    return start + best


def inputs(rows, rate, start):
    """rows: (gpu, precision, batch, m, n, k, seconds)"""
    of = lambda field: column(rows, lambda r: GPUS[r[0]][field])
    return [column(rows, lambda r, i=i: r[i]) for i in (2, 3, 4, 5)] + [
        of('sms'), of('memory'), column(rows, lambda r: GPUS[r[0]][PEAK[r[1]]]), column(rows, lambda r: READ[r[1]]),
        column(rows, lambda r: 4 if r[1] in ('fp32', 'tf32') else 2), rate, start]


def steps(root, folder):
    """Yields (kind, contraction or bytes, seconds of the forward, of the backward) of each operator of NeuSight's training steps."""
    size = lambda shape: float(np.prod(shape or [0]))
    for path in sorted((pathlib.Path(root) / 'scripts/asplos/label' / folder).glob('*-train-*.csv')):
        for r in csv.DictReader(path.open()) if path.stat().st_size > 1000 else []:
            seconds = [float(r[c]) * 1e-3 for c in ('fw_latency', 'bw_latency')]
            if min(seconds) < 2e-5 or not r['output_shape'].startswith('('):
                continue  # a view, or below what host timing resolves
            reads, result, module = ast.literal_eval(r['input_shapes']), ast.literal_eval(r['output_shape']), r['op'] == 'call_module'
            called = r['target'].split('.')[-1] if module else r['target']
            streamed = ('norm', re.search('LayerNorm|ln_|layer_norm', called)), ('softmax', 'softmax' in called), (
                'elementwise', not module and re.search(r'(add|mul|truediv|tanh)>|tanh', called))
            if re.search('addmm|matmul|bmm', called) and not module:
                a, b = reads[-2], reads[-1]
                yield 'product', (size(b[:-2]) if len(b) > 2 else 1, size(result) / result[-1] / (size(b[:-2]) if len(b) > 2 else 1), result[-1], a[-1]), *seconds
            elif module and re.search('lm_head|decoder|dense|query|key|value|fc[12]|_proj', called) and size(result):
                yield 'product', (1, size(result) / result[-1], result[-1], reads[0][-1]), *seconds
            else:
                for kind in [name for name, is_it in streamed if is_it]:
                    yield kind, (4 * (sum(map(size, reads)) + size(result)), 4 * size(result)), *seconds


def solve(error, start, f_scale=.1):
    return np.exp(least_squares(lambda z: error(np.exp(z)), np.log(start), loss='soft_l1', f_scale=f_scale).x)


def order(predicted, measured, seed=0):
    """How often of two that differ by 5% or more the faster one is told."""
    i, j = np.random.default_rng(seed).integers(0, len(measured), (2, 20000))
    apart = np.abs(np.log(measured[i] / measured[j])) >= np.log(1.05)
    return np.mean(((predicted[i] < predicted[j]) == (measured[i] < measured[j]))[apart])


def report(what, predicted, measured):
    error = np.abs(predicted / measured - 1)
    print(f'{what:42} {len(measured):6} times, error: median {np.median(error):5.1%} mean {np.mean(error):5.1%} '
          f'bias {np.median(predicted / measured) - 1:+5.1%}; order right {order(predicted, measured):6.1%}')


def report_plans(what, predicted, measured):
    """Of all plans that give each part one of the formats. Times are (parts, formats)."""
    plans = np.array(list(pairs_of(range(measured.shape[1]), repeat=len(measured))))
    report(what, *(times[np.arange(len(measured)), plans].sum(1) for times in (predicted, measured)))


def some(rows, most, key):
    pick = np.random.default_rng(0)
    groups = [[r for r in rows if key(r) == k] for k in sorted({key(r) for r in rows})]
    return [r for g in groups for r in (g if len(g) <= most else [g[i] for i in pick.choice(len(g), most, replace=False)])]


def main(root):
    published = [(r['gpu'], r['precision'], *(float(r[c]) for c in ('batch', 'm', 'n', 'k')), float(r['us']) * 1e-6, r['use'], r['source'])
                 for r in csv.DictReader((HERE / 'published.csv').open())]
    by_python = lambda r: len(r) < 9 or 'zzc' in r[8] or 'NeuSight' in r[8]  # timed from the host, call by call

    # 1. Products in FP32, which run on the CUDA cores.
    product = lambda r: (NAMES[r['Device']], 'fp32', *(float(r[c]) for c in 'BMNK'), float(r['Latency']) * 1e-3)
    collected = [f'collect/{kind}/p2.1.0/{name}' for kind in ('bmm', 'linear')
                 for name in ('NVIDIA A100-PCIE-40GB', 'Tesla V100-PCIE-32GB')]
    train = some([product(r) for r in neusight(root, 'train', collected)], 700, lambda r: r[0])
    simt = train + 8 * [r for r in published if r[1] == 'fp32' and r[7] == 'fit']
    lanes = lambda rows: column(rows, lambda r: GPUS[r[0]]['lanes'] == 128).astype(int)
    seconds = column(simt, lambda r: r[6])
    host = column(simt, lambda r: 0 if len(r) < 9 else 1).astype(int)
    fp32 = solve(lambda x: np.log(matmul_seconds(x[:4], inputs(simt, x[4:6][lanes(simt)], x[6:8][host])) / seconds),
                 [2, 60, .5, .6, .85, .7, 4e-5, 1e-5], .2)
    # 2. Products on Tensor Cores.
    classes = [('ampere', 'half'), ('ada', 'half'), ('hopper', 'half'), ('hopper', 'fp8'), ('blackwell', 'half'), ('blackwell', 'fp8'), ('blackwell', 'fp4')]
    width = lambda p: 'half' if PEAK[p] == 'tf32' else PEAK[p]
    which = lambda rows: column(rows, lambda r: classes.index((GENERATION[r[0]], width(r[1])))).astype(int)
    def fit_tensor(rows):
        time, late = column(rows, lambda r: r[6]), column(rows, by_python)
        start = [10, 80, .3, .7, 1e-5]
        return solve(lambda x: np.append(np.log(matmul_seconds(x[:4], inputs(rows, x[5:][which(rows)], LAUNCH + late * x[4])) / time),
                                         .1 * np.log(x[:5] / start)), start + [.75] * len(classes))
    low = [r for r in published if r[1] != 'fp32' and r[7] == 'fit']
    tensor = fit_tensor(low)
    # 3. What memory bounds. Bytes are those of the tensors read and written.
    tensors = {'add': 3, 'mul': 3, 'div': 3, 'pow': 3, 'addu': 2, 'mulu': 2, 'divu': 2, 'powu': 2, 'relu': 2, 'gelu': 2, 'tanh': 2, 'ln': 2, 'softmax': 2}
    streamed = lambda r: (NAMES[r['Device']], r['OPName'], 4 * tensors[r['OPName']] * float(r['B']) * float(r['H']), float(r['Latency']) * 1e-3)
    usable = lambda folder: [streamed(r) for r in neusight(root, folder, ('elem', 'ln', 'softmax')) if r['OPName'] in tensors and r['Device'] in NAMES]
    kind = lambda rows: column(rows, lambda r: {'ln': 1, 'softmax': 2}.get(r[1], 0)).astype(int)
    stream_seconds = lambda x, rows: x[3:][kind(rows)] + column(rows, lambda r: r[2]) / (column(rows, lambda r: GPUS[r[0]]['memory']) * x[:3][kind(rows)])
    flow = [r for r in usable('train') if r[0] in FITTED]
    stream = solve(lambda x: np.log(stream_seconds(x, flow) / column(flow, lambda r: r[3])), [.8, .6, .6, 1e-5, 2e-5, 2e-5])
    # 4. Convolutions in FP32, as products with a rate of their own.
    def convolution(r):
        size = (float(r['Input_Size']) + 2 * float(r['Padding']) - float(r['Kernel_Szie'])) // float(r['Stride']) + 1
        return (NAMES[r['Device']], 'fp32', 1, float(r['B']) * size**2, float(r['Output_Channel']), float(r['Input_Channel']) * float(r['Kernel_Szie'])**2,
                float(r['Latency']) * 1e-3)
    conv = [convolution(r) for r in neusight(root, 'train', ['collect/conv/p2.1.0/' + n for n in ('Tesla V100-PCIE-32GB', 'NVIDIA A100 80GB PCIe')])]
    conv_fit = some([r for r in conv if r[0] in FITTED], 700, lambda r: r[0])
    of_conv = solve(lambda x: np.log(matmul_seconds(fp32[:4], inputs(conv_fit, x[0] * fp32[4:6][lanes(conv_fit)], x[1])) / column(conv_fit, lambda r: r[6])), [1, 4e-5], .3)

    print('// fp32: tile_loss, prologue, tail, bandwidth; 64 lanes, 128 lanes [start NeuSight, start others]\n', np.round(fp32, 7))
    print('// tensor: the same [start from the host]', *classes, '\n', np.round(tensor, 7))
    print('// elementwise, norm, softmax [starts]\n', np.round(stream, 7), '\n// convolution [start]\n', np.round(of_conv, 7))

    print('\nheld out:')
    test = [product(r) for r in neusight(root, 'test', ('bmm', 'linear')) if r['Device'] in NAMES]
    for gpu in ('A100 80GB PCIe', 'L4', 'H100'):
        rows = [r for r in test if r[0] == gpu]
        report(f'{gpu}, products in FP32', matmul_seconds(fp32[:4], inputs(rows, fp32[4:6][lanes(rows)], fp32[6])), column(rows, lambda r: r[6]))
    streams = usable('test')
    for gpu in ('A100 80GB PCIe', 'L4'):
        for c, name in enumerate(('elementwise', 'layer norm', 'softmax')):
            rows = [r for r in streams if r[0] == gpu and kind([r])[0] == c]
            report(f'{gpu}, {name} in FP32', stream_seconds(stream, rows), column(rows, lambda r: r[3]))
    rows = [r for r in conv if r[0] == 'A100 80GB PCIe']
    report('A100 80GB PCIe, convolutions in FP32', matmul_seconds(fp32[:4], inputs(rows, of_conv[0] * fp32[4:6][lanes(rows)], of_conv[1])), column(rows, lambda r: r[6]))
    softmax_backward = 1  # found on the A100, used on the H100
    for gpu, folder in (('A100 80GB PCIe', 'NVIDIA_A100_80GB_PCIe'), ('H100', 'NVIDIA_H100_80GB_HBM3')):
        seen = list(steps(root, folder))
        for kind_of in ('product', 'elementwise', 'norm', 'softmax'):
            of = [r for r in seen if r[0] == kind_of]
            if kind_of == 'product':
                multiplied = lambda shapes: matmul_seconds(fp32[:4], inputs(rows := [(gpu, 'fp32', *c) for c in shapes], fp32[4:6][lanes(rows)], LAUNCH))
                forward = multiplied([c for _, c, *_ in of])
                backward = multiplied([(b, m, k, n) for _, (b, m, n, k), *_ in of]) + multiplied([(b, k, n, m) for _, (b, m, n, k), *_ in of])
            else:
                reached = GPUS[gpu]['memory'] * stream[('elementwise', 'norm', 'softmax').index(kind_of)]
                forward = LAUNCH + np.array([c[0] for _, c, *_ in of]) / reached
                backward = LAUNCH + np.array([sum(c) for _, c, *_ in of]) / reached * (softmax_backward if kind_of == 'softmax' else 1)
            report(f'{gpu}, steps, {kind_of}, forward', forward, column(of, lambda r: r[2]))
            report(f'{gpu}, steps, {kind_of}, backward', backward, column(of, lambda r: r[3]))
            if gpu != 'H100' and kind_of == 'softmax':
                softmax_backward = np.median(column(of, lambda r: r[3]) / backward)
                print(f'// softmax backward {softmax_backward:.3f}')
    rows = [r for r in published if r[0] == 'RTX 4090']
    rate = np.where([r[1] == 'fp32' for r in rows], fp32[5], tensor[5:][1])
    time = np.where([r[1] == 'fp32' for r in rows], matmul_seconds(fp32[:4], inputs(rows, rate, fp32[7])), matmul_seconds(tensor[:4], inputs(rows, rate, LAUNCH + tensor[4])))
    report('RTX 4090, products in 4 formats', time, column(rows, lambda r: r[6]))
    report_plans('RTX 4090, plans of five products', *(  # as many of each as take one second in FP32
        np.array([[t[[(r[1], r[3]) == (p, n) for r in rows]][0] / column(rows, lambda r: r[6])[[(r[1], r[3]) == ('fp32', n) for r in rows]][0]
                   for p in ('fp32', 'tf32', 'bf16', 'fp16')] for n in (1024, 2048, 4096, 8192, 10240)])
        for t in (time, column(rows, lambda r: r[6]))))

    squares = [r for r in low if r[8] == 'pytorch/ao#2427']  # the only ones of a B200 that can be left out: its layers remain
    without = fit_tensor([r for r in low if r not in squares])
    time = matmul_seconds(without[:4], inputs(squares, without[5:][which(squares)], LAUNCH))
    report_plans('B200, plans of seven products', *(
        np.array([[t[[(r[1], r[3]) == (p, n) for r in squares]][0] / column(squares, lambda r: r[6])[[(r[1], r[3]) == ('bf16', n) for r in squares]][0]
                   for p in ('bf16', 'nvfp4')] for n in sorted({r[3] for r in squares})])
        for t in (time, column(squares, lambda r: r[6]))))
    # 5. Quantization, and with it the plans of a transformer's linear layers.
    quantize = {bits: float(np.mean([moved / ((us * 1e-6 - LAUNCH * alone) * GPUS[gpu]['memory']) for gpu, moved, us in rows]))
                for bits, rows, alone in (('fp8', QUANTIZED_8, 1), ('fp4', QUANTIZED_4, 0))}
    print(f'// rate of quantization: {quantize}')
    for gpu, (parts, measured) in TRANSFORMER_ENGINE.items():
        def part_seconds(shapes, p):
            rows = [(gpu, p, 1, *shape) for shape in shapes]
            time = matmul_seconds(tensor[:4], inputs(rows, tensor[5:][which(rows)], LAUNCH)).sum()
            if p == 'bf16':
                return time
            elements, memory, (once, bytes_) = sum(m * k + n * k for m, n, k in shapes), GPUS[gpu]['memory'], QUANTIZED_BYTES[p]
            return time + len(shapes) * 2 * LAUNCH * (2 if once else 1) + elements * (once / stream[0] + bytes_ / quantize[PEAK[p]]) / memory
        formats = list(measured)
        times = np.array([[part_seconds(shapes, p) for p in formats] for shapes in parts])
        for f, p in enumerate(formats):
            print(f'  {gpu}, {p}: {sum(measured["bf16"]) / sum(measured[p]):.2f} measured, {times[:, 0].sum() / times[:, f].sum():.2f} modelled; '
                  f'error of the time {1e3 * times[:, f].sum() / sum(measured[p]) - 1:+.1%}')
        report_plans(f'{gpu}, plans of linear layers', times, 1e-3 * np.array([measured[p] for p in formats]).T)


main(*sys.argv[1:])
