# SPDX-License-Identifier: Apache-2.0
# Writes scaled_formats.inc: matrices, and the codes and scales that other implementations give them in each format below 16
# bits. Not run by the tests: it needs ml_dtypes 0.6.0, gfloat 0.5.2, torch 2.11.0, torchao 0.18.0 and nvfp4_reference.py of
# pytorch/ao at commit 46e106b (test/prototype/moe_training/nvfp4_training).
#   elements   ml_dtypes, and gfloat agrees
#   fp8        scales by TransformerEngine 2.20's recipe_common.cuh; a value that is not finite is NaN, as everywhere in comp
#   mx         TransformerEngine's quantize_mxfp8.cuh, and torchao's to_mx agrees in its mode RCEIL, but for blocks whose scale
#              is 2^-127, which that flushes to zero, and for a largest value that is just above one that needs no larger scale,
#              as that rounds a logarithm
#   nvfp4      nvfp4_reference.py, and the scale of a product by TransformerEngine's dequantize_nvfp4.cuh
# A line: format, operand, product, which matrix, codes as bytes, scales by blocks as FP32.
# Usage: scaled_formats.py FOLDER_OF_NVFP4_REFERENCE > scaled_formats.inc
import sys

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import torch
import torchao.prototype.moe_training.nvfp4_training.hadamard_utils as hadamard_utils
from torchao.prototype.mx_formats.config import ScaleCalculationMode
from torchao.prototype.mx_formats.mx_tensor import to_mx

SIGNS = (1, 1, 1, -1, 1, -1, -1, -1, -1, -1, -1, 1, -1, 1, -1, -1)
hadamard_utils.DEFAULT_SIGN_VECTOR = SIGNS
sys.path.insert(0, sys.argv[1])
import nvfp4_reference  # noqa: E402

F32 = np.float32
MOST = np.finfo(F32).max
ELEMENTS = {'e4m3': (ml_dtypes.float8_e4m3fn, gfloat.formats.format_info_ocp_e4m3, F32(448)),
            'e5m2': (ml_dtypes.float8_e5m2, gfloat.formats.format_info_ocp_e5m2, F32(57344)),
            'e2m1': (ml_dtypes.float4_e2m1fn, gfloat.formats.format_info_ocp_e2m1, F32(6))}


def matrices():
    """Random values, of magnitudes that differ by row; ties; the ends of FP32's range; nothing but subnormals; infinities; NaN."""
    def rows(*values):
        return np.array([np.resize(np.array(v, F32), 40) for v in values])

    rng = np.random.default_rng(33)
    drawn = rng.standard_normal((18, 40)) * 2.0 ** rng.integers(-12, 12, (18, 1))
    yield drawn.astype(ml_dtypes.bfloat16).astype(F32)
    ties = rows([448.0, 17.0, 19.0, -21.0, 8.5, 9.5, 0.015625, 0.0146484375], [57344.0, 2.0**-16, 2.0**-17, 3 * 2.0**-17],
                [448.0, 0.0009765625, 0.001953125, 0.0029296875], [6.0, 0.25, 0.75, 1.25, 1.75, 2.5, 3.5, 5.0, -0.25, -0.75, -5.0],
                [np.nextafter(F32(448), F32(449)), 240.0, 232.0], [1.0], [-3.0], [0.0], [0.0, -0.0], rng.standard_normal(40),
                *[[0.0]] * 6)
    ties[7, 16:32] = ties[9, :16] = ties[9, 32:] = 0
    ties[9, 20] = 61234.57  # so that NVFP4's factor of the matrix is no power of two
    largest, sixth = ties.max(), F32(2688) / ties.max() * F32(1 / 6)
    for i, tie in enumerate([1.0625, 1.1875, 13.5, 14.5, 3.875, 0.0136719, 0.0009765625, 0.0029296875, 7.25, 25, 27, 5.75, 92,
                             0.1015625, 0.109375, 208, 0.21875]):
        amax = F32(tie) / sixth
        row, block = 10 + i // 3, i % 3 * 16
        beside = [np.nextafter(amax, F32(0)), amax, np.nextafter(amax, largest)][i % 3]
        ties[row, block:block + 16] = beside * np.resize(np.array([1, 0.3, -0.7, 0.125], F32), 16)[:40 - block]
    yield ties
    huge, tiny = MOST, F32(2.0**-149)
    yield rows([huge, -huge, 1.0], [tiny, -tiny], [2.0**-126, 2.0**-127, -2.0**-130], [2.0**-120, 2.0**-122], [2.0**100, 2.0**-100],
               [1e30, 1.0, 1e-30])
    yield rows([tiny, 3 * tiny], [2.0**-130, 2.0**-133])
    yield np.zeros((1, 40), F32)
    odd = rng.standard_normal((3, 40)).astype(F32)
    odd[1, 5], odd[2, 33] = np.inf, -np.inf
    yield odd
    odd = odd.copy()
    odd[0, 17] = np.nan
    yield odd


def codes_of(name, scaled):
    """Codes of values that were scaled, clamped as hardware does."""
    kind, info, largest = ELEMENTS[name]
    clamped = np.where(np.abs(scaled) > largest, np.copysign(largest, scaled), scaled).astype(F32)
    got = clamped.astype(kind)
    finite = np.isfinite(clamped)
    assert [gfloat.round_float(info, float(x)) for x in clamped[finite]] == got[finite].astype(float).tolist()
    return got.view(np.uint8)


def padded(x, block):
    return np.pad(x, [(0, -size % b) for size, b in zip(x.shape, block)])


def largest_of(x, block):
    """Largest magnitudes of blocks; NaN if a block has one."""
    p = np.abs(padded(x, block))
    return p.reshape(p.shape[0] // block[0], block[0], p.shape[1] // block[1], block[1]).max(axis=(1, 3))


def spread(scales, block, shape):
    return scales.repeat(block[0], 0).repeat(block[1], 1)[:shape[0], :shape[1]]


def fp8(name, x, block, powers):
    largest, amax = ELEMENTS[name][2], largest_of(x, block)
    encode = np.minimum(largest / amax, MOST if powers else F32(2.0**100)).astype(F32)
    encode = (encode.view(np.uint32) & 0x7f800000).view(F32) if powers else encode
    encode = np.where((amax > 0) & np.isfinite(amax), encode, F32(1))
    codes = codes_of(name, x * spread(encode, block, x.shape))
    codes[~np.isfinite(x)] = 0x7f
    return codes, F32(1) / encode


def mx(name, x):
    block = (1, 32)
    wanted = largest_of(x, block) * (F32(1) / ELEMENTS[name][2])
    fraction, exponent = np.frexp(np.where(np.isfinite(wanted), wanted, 1))
    byte = np.clip(np.where(fraction == 0.5, exponent - 1, exponent) + 127, 0, 254)
    byte = np.where(wanted == 0, 0, np.where(np.isnan(wanted), 255, np.where(np.isinf(wanted), 254, byte)))
    scale = np.where(byte == 255, np.nan, 2.0 ** (byte - 127.0)).astype(F32)
    codes = codes_of(name, x * spread((1 / scale.astype(float)).astype(F32), block, x.shape))
    other_scale, other = to_mx(torch.from_numpy(padded(x, block)), torch.float8_e4m3fn if name == 'e4m3' else
                               torch.float4_e2m1fn_x2, 32, ScaleCalculationMode.RCEIL)
    as_we = other_scale.view(torch.uint8).numpy() == byte
    assert (as_we | ((fraction > 0.5) & (fraction < 0.500001))).all()
    other = other.view(torch.uint8).numpy()
    if name == 'e2m1':
        other = np.stack([other & 15, other >> 4], -1).reshape(other.shape[0], -1)
    same = (other[:, :x.shape[1]] == codes) | spread((byte == 0) | (byte == 255) | ~as_we, block, x.shape)
    assert same.all(), (codes[~same], other[:, :x.shape[1]][~same])
    return codes, scale


def nvfp4(x, rows):
    block, amax = (rows, 16), np.abs(x).max()
    got = nvfp4_reference.nvfp4_reference_quantize(torch.from_numpy(padded(x, block)), torch.tensor(amax),
                                                   block=f'{rows}x16')
    codes = np.stack([got.codes.numpy() & 15, got.codes.numpy() >> 4], -1).reshape(got.values.shape)
    scaled = got.scaled.numpy()[:x.shape[0], :x.shape[1]]
    ours = codes_of('e2m1', scaled)
    codes = codes[:x.shape[0], :x.shape[1]]
    assert (codes == ours)[~np.isnan(scaled)].all()
    with np.errstate(invalid='ignore'):
        return codes, got.block_scale.float().numpy() * amax * F32(1 / 2688)


def transformed(x):
    """x times Sylvester's matrix with signs along the rows, in FP64, rounded to BF16; what is left of 16 stays."""
    h = np.ones((1, 1))
    while len(h) < 16:
        h = np.block([[h, h], [h, -h]])
    whole = x.shape[1] // 16 * 16
    y = (x[:, :whole].astype(float).reshape(-1, 16) @ (np.diag(SIGNS) @ h / 4)).reshape(x.shape[0], -1)
    return np.concatenate([y.astype(ml_dtypes.bfloat16).astype(F32), x[:, whole:]], 1)


def words(values):
    return ''.join(f'{w:08x}' for w in np.ascontiguousarray(values, F32).view(np.uint32).ravel())


def main():
    np.seterr(divide='ignore', over='ignore', invalid='ignore')
    kinds = [('fp8_e4m3', 'input', 'forward', lambda x: fp8('e4m3', x, x.shape, False)),
             ('fp8_e4m3', 'gradient', 'input_gradient', lambda x: fp8('e5m2', x, x.shape, False)),
             ('fp8_block128', 'input', 'forward', lambda x: fp8('e4m3', x, (1, 128), True)),
             ('fp8_block128', 'weight', 'forward', lambda x: fp8('e4m3', x, (128, 128), True)),
             ('mxfp8', 'input', 'forward', lambda x: mx('e4m3', x)),
             ('mxfp4', 'weight', 'forward', lambda x: mx('e2m1', x)),
             ('nvfp4', 'input', 'forward', lambda x: nvfp4(x, 1)),
             ('nvfp4', 'weight', 'forward', lambda x: nvfp4(x, 16)),
             ('nvfp4', 'input', 'weight_gradient', lambda x: nvfp4(transformed(x), 1))]
    print('// Written by scaled_formats.py.\n// clang-format off')
    print('const recorded_matrix recorded_matrices[] = {')
    every = list(matrices())
    for x in every:
        print(f'{{{x.shape[0]}, {x.shape[1]}, "{words(x)}"}},')
    print('};\nconst recorded_result recorded_results[] = {')
    for name, operand, product, f in kinds:
        for i, x in enumerate(every):
            if product == 'weight_gradient' and i:
                continue  # its sums round in FP32, by an order that libraries differ in
            codes, scales = f(x)
            print(f'{{precision::{name}, operand::{operand}, product::{product}, {i}, "{codes.tobytes().hex()}", '
                  f'"{words(scales)}"}},')
    print('};\n// clang-format on')


main()
