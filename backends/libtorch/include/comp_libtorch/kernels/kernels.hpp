// SPDX-License-Identifier: Apache-2.0
// All kernels that comp has beside ATen's.
#pragma once

#include <algorithm>
#include <array>
#include <comp_libtorch/kernels/attention.hpp>
#include <comp_libtorch/kernels/batch_norm.hpp>
#include <comp_libtorch/kernels/bias.hpp>
#include <comp_libtorch/kernels/convolution.hpp>
#include <comp_libtorch/kernels/kernel.hpp>
#include <comp_libtorch/kernels/pooling.hpp>
#include <comp_libtorch/kernels/relu.hpp>

namespace comp::libtorch::detail {

inline constexpr std::array all_kernels{&convolution_kernel, &pooling_kernel, &batch_norm_kernel, &attention_kernel};

/// Returns: comp's kernel for an operator; null if there is none.
inline const kernel* kernel_for(const op_traits& op) {
  const auto at = std::ranges::find_if(all_kernels, [&](const kernel* each) { return each->serves(op); });
  return at == all_kernels.end() ? nullptr : *at;
}

/// Returns: what may always run an operator, because its results are ATen's; null if there is none. It returns
/// false, with the stack as it was, for arguments that it does not serve.
inline auto kernel_with_same_results(const op_traits& op, bool reads_parameter) -> bool (*)(torch::jit::Stack&) {
  if (op.kind == "aten::add_.Tensor" && reads_parameter) return add_bias;
  if (op.kind == "aten::relu_") return run_relu<true>;
  if (op.kind == "aten::relu") return run_relu<false>;
  return nullptr;
}

}  // namespace comp::libtorch::detail
