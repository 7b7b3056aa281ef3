// SPDX-License-Identifier: Apache-2.0
// All kernels that comp has beside ATen's.
#pragma once

#include <algorithm>
#include <array>
#include <comp_libtorch/kernels/attention.hpp>
#include <comp_libtorch/kernels/batch_norm.hpp>
#include <comp_libtorch/kernels/convolution.hpp>
#include <comp_libtorch/kernels/kernel.hpp>
#include <comp_libtorch/kernels/pooling.hpp>

namespace comp::libtorch::detail {

inline constexpr std::array all_kernels{&convolution_kernel, &pooling_kernel, &batch_norm_kernel, &attention_kernel};

/// Returns: comp's kernel for an operator; null where there is none.
inline const kernel* kernel_for(const op_traits& op) {
  const auto at = std::ranges::find_if(all_kernels, [&](const kernel* each) { return each->serves(op); });
  return at == all_kernels.end() ? nullptr : *at;
}

}  // namespace comp::libtorch::detail
