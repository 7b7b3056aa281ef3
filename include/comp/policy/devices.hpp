// SPDX-License-Identifier: Apache-2.0
// NVIDIA's GPUs by name with their compute capability, so that a user can ask for advice on a machine that he does not
// have at hand. For the machine at hand, ask a backend's hardware().
// Source: NVIDIA, CUDA GPU Compute Capability (tables of current and legacy GPUs).
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <comp/core/error.hpp>
#include <comp/core/hardware.hpp>
#include <string>
#include <string_view>

namespace comp::policy {

struct known_device {
  std::string_view name;
  int compute_capability;  // 10 * major + minor
};

inline constexpr std::array<known_device, 20> known_devices{
    {{"K40", 35},  {"M40", 52},         {"P100", 60},  {"P40", 61},   {"V100", 70},
     {"T4", 75},   {"RTX 2080 Ti", 75}, {"A100", 80},  {"A30", 80},   {"A10", 86},
     {"A40", 86},  {"RTX 3090", 86},    {"L4", 89},    {"L40S", 89},  {"RTX 4090", 89},
     {"H100", 90}, {"H200", 90},        {"B200", 100}, {"B300", 103}, {"RTX 5090", 120}}};

/// Returns a name in small letters without spaces and hyphens, by which names are compared.
inline std::string plain_name(std::string_view from) {
  std::string text;
  for (const char c : from) {
    if (c != ' ' && c != '-') text += static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return text;
}

/// Returns the GPU of that name. Upper and lower case, spaces and hyphens make no difference.
/// Throws: `settings_error`, with the names that are known.
inline hardware device_named(std::string_view gpu) {
  const auto same = [&](const known_device& d) { return plain_name(d.name) == plain_name(gpu); };
  const auto device = std::find_if(known_devices.begin(), known_devices.end(), same);
  require<settings_error>(device != known_devices.end(),
                          "\"{}\" is no device that is known (they are {}): choose one of those", gpu,
                          joined(known_devices, ", ", [](const known_device& d) { return d.name; }));
  return {
      .name = std::string{device->name}, .kind = device_kind::cuda, .compute_capability = device->compute_capability};
}

}  // namespace comp::policy
