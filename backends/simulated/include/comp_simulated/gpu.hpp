// SPDX-License-Identifier: Apache-2.0
// The GPUs whose times can be modelled, with the figures that the model reads.
#pragma once

#include <array>
#include <comp/core/error.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/precision.hpp>
#include <comp/policy/devices.hpp>
#include <comp/policy/nearest.hpp>
#include <string>
#include <string_view>

namespace comp::simulated {

/// Peaks are those without sparsity that sum in FP32; 0: the GPU has no unit for the format. Units: [byte/s], [FLOP/s].
struct gpu {
  std::string_view name;
  double multiprocessors;
  double lanes;   // FP32 operations that a multiprocessor begins per clock
  double memory;  // bandwidth
  double fp32, tf32, half, fp8, fp4;

  constexpr double peak(precision p) const {
    switch (p) {
      case precision::fp32:
        return fp32;
      case precision::tf32:
        return tf32;
      case precision::bf16:
      case precision::bf16_fp32:
      case precision::fp16:
        return half;
      case precision::fp8_e4m3:
      case precision::fp8_e5m2:
      case precision::fp8_block128:
      case precision::mxfp8:
        return fp8;
      case precision::mxfp4:
      case precision::nvfp4:
        return fp4;
      case precision::fp64:  // not modelled
        return 0;
    }
    return 0;
  }
};

// Sources: NVIDIA's white papers of Ampere GA100 (A100 80GB SXM), Ada AD102 (RTX 4090) and Hopper GH100 (H100 SXM), its
// data sheets of H200 SXM and of Blackwell and Blackwell Ultra (B200, B300 SXM). The bandwidth of a B200 is what its
// driver reports (pytorch/ao#4002), the FP4 peak of a B300 and its bandwidth are those of torchao's roofline_utils.py
// and verda.com/blog/gb300-nvl72-architecture.
inline constexpr std::array<gpu, 6> gpus{{
    // clang-format off
    {"A100", 108, 64, 2.039e12, 19.5e12, 156e12, 312e12, 0, 0},
    {"RTX 4090", 128, 128, 1.008e12, 82.6e12, 82.6e12, 165.2e12, 330.3e12, 0},
    {"H100", 132, 128, 3.352e12, 66.9e12, 494.7e12, 989.4e12, 1978.9e12, 0},
    {"H200", 132, 128, 4.8e12, 66.9e12, 494.7e12, 989.4e12, 1978.9e12, 0},
    {"B200", 148, 128, 7.672e12, 75e12, 1125e12, 2250e12, 4500e12, 9000e12},
    {"B300", 148, 128, 7.7e12, 75e12, 1125e12, 2250e12, 4500e12, 14000e12},
    // clang-format on
}};

/// Returns the GPU of that name; upper and lower case, spaces and hyphens make no difference.
/// Throws: `settings_error`, with the most similar name and all that are known.
inline const gpu& gpu_named(std::string_view wanted) {
  const std::string plain = policy::plain_name(wanted);
  policy::nearest_word nearest{plain};
  std::string remedy = "choose one of those";
  for (const gpu& each : gpus) {
    if (policy::plain_name(each.name) == plain) return each;
    nearest.offer(policy::plain_name(each.name));
    if (nearest.word() == policy::plain_name(each.name)) remedy = fmt::format("did you mean \"{}\"?", each.name);
  }
  const std::string names = joined(gpus, ", ", [](const gpu& each) { return each.name; });
  throw settings_error{
      fmt::format("\"{}\" is no GPU whose times can be modelled (they are {}): {}", wanted, names, remedy)};
}

/// Returns: the machine that stands in plan files, reports and summaries for a GPU whose times are modelled.
inline hardware modelled(const gpu& target) {
  hardware machine = policy::device_named(target.name);
  machine.name.insert(0, modelled_for);
  return machine;
}

/// True if a GPU computes in `p`: each does in FP32.
inline bool computes_in(precision p, const gpu& target) {
  return p == precision::fp32 || has_unit(p, policy::device_named(target.name));
}

}  // namespace comp::simulated
