// SPDX-License-Identifier: Apache-2.0
// The machine that a plan is made for, as plan files record it, and which precisions have matrix units there (the
// paper's Tensor Cores, or a CPU's AVX512-BF16 and AMX).
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/fields.hpp>
#include <comp/core/precision.hpp>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace comp {

enum class device_kind : std::uint8_t { unknown, cpu, cuda };

constexpr std::string_view name(device_kind kind) {
  return kind == device_kind::cpu ? "cpu" : kind == device_kind::cuda ? "cuda" : "unknown";
}

struct hardware {
  std::string name = "unknown";  // as the vendor calls it: "AMD EPYC 9B14", "NVIDIA H200"
  device_kind kind = device_kind::unknown;
  int compute_capability = 0;  // CUDA only: 10 * major + minor, 80 for 8.0; 0: not known
  std::vector<std::string> isa =
      {};           // CPU only: "avx2", "avx512_core", "avx512_bf16", "amx_bf16", "avx512_fp16", "amx_fp16"
  int threads = 0;  // CPU only: threads that compute; 0: not known

  bool has(std::string_view feature) const { return std::find(isa.begin(), isa.end(), feature) != isa.end(); }
  friend bool operator==(const hardware&, const hardware&) = default;
};

void fields(auto& io, hardware& h) {
  io("name", h.name);
  io("kind", h.kind, device_kind::cuda);
  io("compute_capability", h.compute_capability, 0, 10'000);
  io("isa", h.isa);
  io("threads", h.threads, 0, 1'000'000);
}

/// The name of a machine whose times come from a model and not from a clock begins with this (backends/simulated), so
/// that it stands wherever the machine is named.
inline constexpr std::string_view modelled_for = "modelled for ";
inline bool is_modelled(const hardware& machine) { return std::string_view{machine.name}.starts_with(modelled_for); }

/// The hardware that makes a precision faster than FP32. Source: CUDA C++ Programming Guide (compute capabilities);
/// Intel, Architecture Instruction Set Extensions (AVX512-BF16, AMX). AVX512-FP16 does not count, because it sums in
/// FP16 and oneDNN therefore converts to FP32 (docs/benchmarks/libtorch-parts.md).
struct matrix_unit {
  int capability = 0;  // lowest compute capability whose Tensor Cores have the precision; 0: no GPU's have it
  std::array<std::string_view, 2> cpu_sets{};  // a CPU needs one of these instruction sets; empty: no CPU has it
};

constexpr matrix_unit unit_for(precision p) {
  switch (p) {
    case precision::fp64:
    case precision::fp32:
      return {};
    case precision::tf32:
      return {.capability = 80};
    case precision::bf16:
    case precision::bf16_fp32:
      return {.capability = 80, .cpu_sets = {"avx512_bf16", "amx_bf16"}};
    case precision::fp16:
      return {.capability = 70, .cpu_sets = {"amx_fp16"}};
    case precision::fp8_e4m3:
    case precision::fp8_e5m2:
      return {.capability = 89};
    case precision::fp8_block128:
      return {.capability = 90};
    case precision::mxfp8:
    case precision::mxfp4:
    case precision::nvfp4:
      return {.capability = 100};
  }
  return {};
}

/// Returns: whether `machine` has a matrix unit for `p`; false for FP32. A machine about which nothing is known counts
/// as one that has every unit: a precision that turns out slow costs a few batches, one that is left out costs its
/// speedup.
inline bool has_unit(precision p, const hardware& machine) {
  const matrix_unit unit = unit_for(p);
  if (machine.kind == device_kind::cpu) {
    return std::any_of(unit.cpu_sets.begin(), unit.cpu_sets.end(),
                       [&](auto set) { return !set.empty() && machine.has(set); });
  }
  const bool known = machine.kind == device_kind::cuda && machine.compute_capability != 0;
  return unit.capability != 0 && (!known || machine.compute_capability >= unit.capability);
}

}  // namespace comp
