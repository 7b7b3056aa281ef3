// SPDX-License-Identifier: Apache-2.0
// What comp may run in place of ATen's implementation of an operator. Such a kernel gives the same result up to the
// order of its sums, so it is chosen by its time alone (executor_tuning.hpp), and plan files carry the choice.
// A new kernel is a header beside this one, a row in kernels.hpp and a test.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/stack.h>

#include <algorithm>
#include <comp/core/op_info.hpp>
#include <comp_libtorch/hook/listener.hpp>
#include <comp_libtorch/hook/op_traits.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <utility>

namespace comp::libtorch {

/// Parts of an operator, as bits: those that its kernel runs, while ATen runs the others.
using kernel_parts = std::uint8_t;

/// When the part of an operator runs that a kernel replaces.
enum class kernel_phase : std::uint8_t { forward, backward, both };

struct kernel_part {
  std::string_view name;  // as plan files have it
  kernel_phase phase;
};

struct kernel {
  std::string_view name;               // as plan files have it
  std::span<const kernel_part> parts;  // in the order of their bits, the lowest first
  bool wants_channels_last;            // it serves images that lie so
  bool serves_fp32;                    // beside BF16 and FP16
  bool (*serves)(const detail::op_traits&);
  bool (*fits)(const op_info& recorded, at::ScalarType);  // true for shapes that it serves in that format
  /// Replaces the `arguments` on top of the stack by the result, as ATen's kernel does. Returns: false, with the stack
  /// as it was, for arguments that it does not serve, and for other shapes than `recorded`, for which it was measured.
  bool (*run)(torch::jit::Stack& stack, std::size_t arguments, kernel_parts parts, const op_info& recorded);
};

/// A kernel and what it runs of an operator.
struct kernel_use {
  const kernel* own = nullptr;
  kernel_parts parts = 0;
  friend bool operator==(const kernel_use&, const kernel_use&) = default;
};

namespace detail {

/// Returns: whether nobody but autograd's backward sees an operator on `t`.
inline bool is_plain(const at::Tensor& t) {
  return only_autograd_sees(*t.unsafeGetTensorImpl()) && !t._fw_grad(0).defined();
}

/// Returns: whether `images` are plain, lie channels-last and have the recorded size; their number may differ.
inline bool lies_as_recorded(const at::Tensor& images, const op_info& recorded) {
  if (!images.defined() || images.dim() != 4 || images.numel() == 0 || !is_plain(images)) return false;
  const auto& shape = recorded.inputs.at(0).shape;
  return shape.size() == 4 && images.is_contiguous(at::MemoryFormat::ChannelsLast) &&
         std::equal(images.sizes().begin() + 1, images.sizes().end(), shape.begin() + 1, shape.end());
}

/// Returns: whether images of that shape are whole vectors of channels.
inline bool has_whole_vectors(const op_info& recorded, at::ScalarType /*format*/) {
  return !recorded.inputs.empty() && recorded.inputs.front().shape.size() == 4 &&
         recorded.inputs.front().shape[1] % 16 == 0;
}

/// Puts `result` in place of the arguments on the stack. Returns: true, as kernel::run does.
inline bool replace_arguments(torch::jit::Stack& stack, std::size_t arguments, at::Tensor result) {
  torch::jit::drop(stack, arguments);
  torch::jit::push(stack, std::move(result));
  return true;
}

}  // namespace detail
}  // namespace comp::libtorch
