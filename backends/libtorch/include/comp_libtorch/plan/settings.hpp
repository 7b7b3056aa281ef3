// SPDX-License-Identifier: Apache-2.0
// The choices of the executor. None of them changes the model, the optimizer or what a plan means.
#pragma once

#include <c10/core/Device.h>

#include <comp/core/error.hpp>
#include <comp/core/op_info.hpp>
#include <comp_libtorch/kernels/kernel.hpp>
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::libtorch {

/// What happens when a forward's operators differ from the recorded sequence.
enum class on_mismatch : std::uint8_t {
  follow,  // each operator runs as the recorded one that it is recognised as: by the parameter that it reads, else by
           // its neighbours. One that was not recorded runs as the plan file says, else as most of its kind, and
           // program::problems() counts it
  error,   // the first operator that differs throws, with its name
  fp32     // the region goes on in FP32 to its end; program::problems() counts it
};

namespace detail {
/// Returns: how a reader asks for FP32 after a mismatch.
inline std::string_view fp32_otherwise() {
  return by_language("set on_mismatch::fp32",
                     "name forwards that differ, as with plan(\"second\"), or give comp.plan otherwise=\"fp32\"");
}
}  // namespace detail

/// How the low-precision copies of parameters are made.
enum class weight_casts : std::uint8_t {
  cast,  // made on first use in a region and dropped at its end, as autocast does
  keep   // the memory of a copy is kept, and is written anew on first use in a region
};

/// How step::update() and grad_scaler::step() step LibTorch's own optimizers.
enum class optimizer_pass : std::uint8_t {
  stock,  // by their own step()
  fused   // in one pass over memory: weights differ in their last bits (fused_optimizer.hpp)
};

/// What becomes of CPU memory that LibTorch frees. The program that was made last decides, for the whole process.
enum class freed_memory : std::uint8_t {
  kept,     // pages of large blocks stay for the next step's blocks, as long as steps use them (memory.hpp)
  returned  // the C library decides
};

/// Whether the executor's choices (weights and images of program_settings) are measured for this training or stay as
/// set.
enum class executor_choices : std::uint8_t { measured, fixed };
/// Returns: on all ranks of a training the largest of what each gives, element by element; all of them call it.
using agreement = std::function<std::vector<double>(std::vector<double>)>;

enum class memory_format : std::uint8_t { as_is, channels_last };

struct program_settings {
  at::Device device = at::kCPU;
  on_mismatch otherwise = on_mismatch::follow;
  weight_casts weights = weight_casts::cast;
  memory_format images = memory_format::as_is;  // of what convolutions read in low precision
  // What comp's kernels run of low operators, by their layers' common names (layer_names.hpp); ATen runs the rest.
  std::vector<std::pair<std::string, kernel_use>> kernels = {};
  freed_memory freed = freed_memory::kept;
  // What stands in an autocast(enabled = false), or in another autocast of the model's own, runs as its author wrote,
  // under every plan. It is looked for while recording and in each forward.
  bool protect_blocks = true;
  // While operators are recorded, each runs in low precision, too, forward and backward, so that none is lowered that
  // ATen cannot run so: in a loop of the user's own no plan may raise.
  bool tries_low = false;
  // Linear layers may have any format below 16 bits on a GPU, too. Those that it has no units for are emulated: right
  // in their bits, and slow.
  bool emulate = false;
  // The two products of a linear layer's backward are operators of the graph, so that a plan gives each product its own
  // precision. They stand behind all others.
  bool separate_products = false;
  // The exchange of gradients among ranks is the last operator of the graph (exchange.hpp).
  bool exchange = false;
  // What the training keeps from step to step, as operators before the exchange (kept_moments.hpp).
  std::vector<op_info> states = {};
};

namespace detail {
/// Returns: true if linear layers may have any format below 16 bits.
inline bool emulates(const program_settings& s) { return s.emulate || s.device.is_cpu(); }
}  // namespace detail

}  // namespace comp::libtorch
