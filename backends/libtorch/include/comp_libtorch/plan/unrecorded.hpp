// SPDX-License-Identifier: Apache-2.0
// Runs operators that no instruction of a compiled plan is for: those of evaluation, and those that the recorded
// forward does not have. Their precision comes from their names.
#pragma once

#include <comp/core/op_info.hpp>
#include <comp/core/precision.hpp>
#include <comp_libtorch/hook/casting.hpp>
#include <comp_libtorch/hook/op_traits.hpp>
#include <comp_libtorch/hook/tf32.hpp>
#include <comp_libtorch/kernels/scaled_linear.hpp>
#include <comp_libtorch/plan/instructions.hpp>

namespace comp::libtorch::detail {

/// Runs `op` in its precisions, or as its author wrote it. `captures`: torch.compile does, whose tensors have no data,
/// so that nothing below 16 bits is rounded.
inline void run_unrecorded(const c10::OperatorHandle& op, author_choice author, const product_precisions& products,
                           torch::jit::Stack& stack, at::DeviceType device, bool captures) {
  const precision p = products.forward;
  const op_traits& known = traits(op);
  if (author != author_choice::none) {
    cast_for_author(stack, known, author, device);
  } else if (products.need_rounding() && !captures && run_scaled(known, stack, products)) {
    return;
  } else if (is_low(p) && p != precision::tf32) {
    cast_read(stack, known, scalar_type(p), device, !keeps_affine(known, device));
  } else {
    cast_to_fp32(stack, known, device);
  }
  run_in(op, stack, p == precision::tf32);
}

}  // namespace comp::libtorch::detail
