// SPDX-License-Identifier: Apache-2.0
// The device of these tests' trainings. There is a program for the CPU, and one for a CUDA device.
#pragma once

#include <c10/core/Device.h>

#include <comp/policy/pytorch.hpp>

namespace libtorch_tests {

extern const c10::Device device;

/// Returns: which operators that device's autocast lowers.
inline comp::policy::pytorch_list autocast_list() {
  return device.is_cuda() ? comp::policy::pytorch_list::cuda : comp::policy::pytorch_list::cpu;
}

}  // namespace libtorch_tests
