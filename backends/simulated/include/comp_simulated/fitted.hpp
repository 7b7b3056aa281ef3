// SPDX-License-Identifier: Apache-2.0
// The coefficients of the model of times, as bench/simulated/fit_gpus.py prints them. docs/benchmarks/simulated.md says
// which measurements they were fitted to, and what they are worth on GPUs that were held out.
#pragma once

namespace comp::simulated::fitted {

/// How kernels that multiply matrices lose against the peak, whatever their format.
struct tiling {
  double tile_loss;  // a tile of side s reaches s / (s + tile_loss) of the rate
  double prologue;   // what a tile takes before and behind its loop, as a depth of that loop
  double tail;       // how much of a wave that does not fill the GPU is lost: 1: all, 0: nothing
  double memory;     // the part of the bandwidth that its reads and writes reach
};
inline constexpr tiling cores{1.354, 59.61, .7450, .5701};  // FP32, on the CUDA cores
inline constexpr tiling tensor_cores{14.60, 198.3, .4880, .6256};

/// The part of the peak that a large product reaches in formats of 16 (and TF32), 8 and 4 bits; 0: there are no units.
struct rates {
  double half, fp8, fp4;
};
inline constexpr rates ampere{.7633, 0, 0};
inline constexpr rates ada{.9936, .9936, 0};  // in 8 bits nothing was published by size: taken from 16
inline constexpr rates hopper{.8175, .7849, 0};
inline constexpr rates blackwell{.7528, .6974, .4955};
inline constexpr double fp32_of_64_lanes = .8789, fp32_of_128_lanes = .6429;
inline constexpr double winograd = 1.531;  // what 3x3 convolutions in FP32 reach beyond a product

/// The part of the bandwidth that a kernel reaches which memory bounds.
inline constexpr double elementwise = .9061, norm = .6425, softmax = .6162, quantize_8 = .8240, quantize_4 = .3768;
inline constexpr double softmax_backward = 1.467;  // times what its bytes take
inline constexpr double launch = 2e-6;  // [s] of a kernel in a queue: torchao's roofline_utils.py, NVIDIA/cccl#7391
/// Of the rate of products; FlashAttention 2 and 3 publish 50 to 75% of the peak. Not fitted by size.
inline constexpr double attention = .8;

}  // namespace comp::simulated::fitted
