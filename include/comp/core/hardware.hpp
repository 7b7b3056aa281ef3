// SPDX-License-Identifier: Apache-2.0
// The machine that a plan is made for: what decides which precisions are fast, and what a plan file records.
// Not here: probing (a backend knows its device) and the rules that read these facts (policy/tensor_core.hpp).
#pragma once

#include <algorithm>
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

}  // namespace comp
