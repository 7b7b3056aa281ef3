// SPDX-License-Identifier: Apache-2.0
// The choices of the executor: none changes the model, the optimizer or what a plan means.
#pragma once

#include <c10/core/Device.h>

#include <cstdint>

namespace comp::libtorch {

/// What a forward does whose operator sequence leaves the recorded one.
enum class on_mismatch : std::uint8_t {
  follow,  // goes on where the plan has the operator: by the parameter that it reads, else by what stands beside it. An
           // operator that was not recorded has its precision of the plan file, else that of most of its kind;
           // program::problems() counts it
  error,   // throws, naming the first operator that differs
  fp32     // goes on in FP32 to the end of the region; program::problems() counts it
};

/// Where the low-precision copies of parameters come from.
enum class weight_casts : std::uint8_t {
  cast,  // made on first use in a region and dropped at its end, as autocast does
  keep   // the memory of a copy lives on; what is in it is written anew on first use in a region
};

/// How step::update() and grad_scaler::step() step LibTorch's own optimizers.
enum class optimizer_pass : std::uint8_t {
  stock,  // as they step themselves
  fused   // in one pass over memory: weights differ in their last bits (fused_optimizer.hpp)
};

/// What becomes of CPU memory that LibTorch frees; of the whole process, by the program that was made last.
enum class freed_memory : std::uint8_t {
  kept,     // pages of large blocks stay for the next step's, as long as steps use them (memory.hpp)
  returned  // the C library decides
};

/// Whether the executor's choices (program_settings: weights, images) are measured for this training or as they are
/// set.
enum class executor_choices : std::uint8_t { measured, fixed };

enum class memory_format : std::uint8_t { as_is, channels_last };

struct program_settings {
  at::Device device = at::kCPU;
  on_mismatch otherwise = on_mismatch::follow;
  weight_casts weights = weight_casts::cast;
  memory_format images = memory_format::as_is;  // of what convolutions in low precision read
  freed_memory freed = freed_memory::kept;
  bool protect_blocks =
      true;  // what stands in an autocast(enabled = false) or another autocast of the model's own runs
             // as its author wrote, under every plan; asked for while recording, and in each forward
};

}  // namespace comp::libtorch
