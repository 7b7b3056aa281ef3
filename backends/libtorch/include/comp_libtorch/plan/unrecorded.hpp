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
  } else if (products.lowers() && p != precision::tf32) {
    const bool as_found = full_format(stack, known, device) == at::kDouble && products.as_written == precision::fp32;
    const bool refused = p == precision::fp16 && has_number_beyond_fp16(op, stack);
    if (as_found || refused) {  // the plan knows it in FP32 alone, or FP16 does not have it
      cast_to_full(stack, known, device);
    } else {
      cast_read(stack, known, scalar_type(p), device, !keeps_affine(known, scalar_type(p), device));
    }
  } else if (p == precision::fp64 && !known.is_in_place && !known.is_view && !known.is_copy) {
    cast_read(stack, known, at::kDouble, device, true);
  } else {
    cast_to_full(stack, known, device);
  }
  run_in(op, stack, p == precision::tf32);
}

}  // namespace comp::libtorch::detail
