// SPDX-License-Identifier: Apache-2.0
// The choices of the executor: none changes the model, the optimizer or what a plan means.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace comp::libtorch {

/// What a forward does whose operator sequence leaves the recorded one.
enum class on_mismatch : std::uint8_t {
  error,  // throws, naming the first operator that differs
  fp32    // goes on in FP32 to the end of the region; program::problems() counts it
};

/// Where the low-precision copies of parameters come from.
enum class weight_casts : std::uint8_t {
  cast,  // made on first use in a region and dropped at its end, as autocast does
  keep   // the memory of a copy lives on; what is in it is written anew on first use in a region
};

enum class memory_format : std::uint8_t { as_is, channels_last };

struct program_settings {
  at::Device device = at::kCPU;
  on_mismatch otherwise = on_mismatch::error;
  weight_casts weights = weight_casts::cast;
  memory_format images = memory_format::as_is;  // of what convolutions in low precision read
};

}  // namespace comp::libtorch
