// SPDX-License-Identifier: Apache-2.0
// The host device under the tests of tests/native/devices.
#pragma once

#include <doctest/doctest.h>

#include <array>
#include <comp/core/precision.hpp>
#include <comp_host/device.hpp>

namespace comp::tested {

using host::device;
inline constexpr std::array precisions{precision::fp32, precision::bf16, precision::fp16};

/// With BF16 primitives and without, and with 1 and 2 threads.
void each_variant(auto f) {
  for (const host::settings& chosen :
       {host::settings{.threads = 2}, host::settings{.threads = 1, .native_bf16 = false}}) {
    CAPTURE(chosen.threads);
    CAPTURE(chosen.native_bf16);
    device d{chosen};
    f(d);
  }
}
/// Two of these give the same bits.
inline device reproducible() { return device{}; }
/// For whole networks: they are small, and machines that test are busy. Their attention is in one nonetheless.
inline device of_networks() { return device{{.threads = 1, .attention_from = 0}}; }
inline device with_memory(std::size_t bytes) { return device{{.threads = 1, .memory_limit = bytes}}; }
/// Live bytes count what operators keep for the next ones.
inline constexpr bool keeps_scratch = false;
/// How many times as small batches of trainings are made.
inline constexpr std::int64_t thrift = 1;

/// What the gradient of a convolution's weights is rounded to before it is added up in FP32.
constexpr precision of_convolution_gradients(precision) { return precision::fp32; }
inline constexpr bool convolutions_round_before_bias = false;

inline constexpr device_kind kind = device_kind::cpu;
/// A device that lacks a precision, which one, and how it refuses it.
inline device without_a_precision() { return device{}; }
inline constexpr precision lacking = precision::tf32;
inline constexpr auto* refusal =
    "precision tf32 asked of the host device (it is a format of NVIDIA's GPUs): use another one";

}  // namespace comp::tested
