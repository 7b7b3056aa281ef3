// SPDX-License-Identifier: Apache-2.0
// The tests train on the CPU.
#include "device.hpp"

const c10::Device libtorch_tests::device{c10::kCPU};
