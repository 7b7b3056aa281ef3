// SPDX-License-Identifier: Apache-2.0
// The cuda device under the tests of tests/native/devices: over the stand-in of the SIMT shim, or on a GPU.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <comp/core/precision.hpp>
#include <comp_cuda/device.hpp>
#include <cstdint>

#ifndef COMP_SIMT
#define COMP_TESTED_ON_GPU 1  // cases that order what a GPU has, or lacks, are left out
#endif

namespace comp::tested {

using cuda::device;
inline constexpr std::array precisions{precision::fp32, precision::tf32, precision::bf16, precision::fp16};

/// The stand-in as a process finds it. Whole networks are not watched for races: their kernels are elsewhere.
inline void start_again([[maybe_unused]] bool watch_races) {
#ifdef COMP_SIMT
  simt::watch_races = watch_races;
  simt::device.properties = {};
#endif
}

/// [bytes] A real cuDNN may have no deterministic gradients of convolutions without any.
#ifdef COMP_SIMT
inline constexpr std::int64_t little_workspace = 0;
#else
inline constexpr std::int64_t little_workspace = std::int64_t{32} << 20;
#endif
/// Fused, with algorithms that were measured and all the workspace that they like; and with little of it, on the
/// stand-in for an older GPU, which has other algorithms.
void each_variant(auto f) {
  for (const cuda::settings& chosen :
       {cuda::settings{},
        cuda::settings{.workspace_limit = little_workspace, .measure_algorithms = false, .fuse = false}}) {
    CAPTURE(chosen.measure_algorithms);
    CAPTURE(chosen.fuse);
    start_again(true);
#ifdef COMP_SIMT
    simt::device.properties.major = chosen.fuse ? 9 : 8;
#endif
    device d{chosen};
    f(d);
  }
#ifdef COMP_SIMT
  simt::device.reset();
#endif
}
/// Two of these give the same bits: their algorithms depend on no measurement.
inline device reproducible() {
  start_again(true);
  return device{{.measure_algorithms = false}};
}
inline device of_networks() {
  start_again(false);
  return device{};
}
#ifdef COMP_SIMT
inline device with_memory(std::size_t bytes) {
  start_again(false);
  simt::device.properties.totalGlobalMem = bytes;
  return device{};
}
#endif
/// Live bytes count what operators keep for the next ones.
inline constexpr bool keeps_scratch = true;
/// How many times as small batches of trainings are made.
#ifdef COMP_SIMT
inline constexpr std::int64_t thrift = 4;
#else
inline constexpr std::int64_t thrift = 1;
#endif

/// What the gradient of a convolution's weights is rounded to before it is added up in FP32: cuDNN gives it in the
/// precision of its operands.
constexpr precision of_convolution_gradients(precision p) { return p; }
/// cuDNN adds a bias to the rounded products of a convolution, as all frameworks that call it do.
inline constexpr bool convolutions_round_before_bias = true;

inline constexpr device_kind kind = device_kind::cuda;
#ifdef COMP_SIMT
/// A device that lacks a precision, which one, and how it refuses it.
inline device without_a_precision() {
  start_again(true);
  simt::device.properties.major = 8;
  return device{};
}
inline constexpr precision lacking = precision::fp8_e4m3;
inline constexpr auto* refusal =
    "precision fp8_e4m3 asked of the cuda device (stand-in has fp32, tf32, bf16, fp16): use one of these";
#endif

}  // namespace comp::tested
