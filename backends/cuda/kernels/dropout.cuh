// SPDX-License-Identifier: Apache-2.0
// Dropout as a step of a chain (elementwise.cuh). The mask of an element is computed from the key and the element's
// position by the same Philox as on the host, so that both drop the same elements. The backward is the same step over
// the gradient.
#pragma once

#include <comp_native/math/philox.hpp>

#include "support/packs.cuh"

namespace comp::cuda {

/// Returns: the mask of this launch: if draws is not null, *draws is added to the mask's draw.
__device__ __forceinline__ native::math::dropout_mask mask_of(const native::math::dropout_mask& mask,
                                                              pointer<const std::uint64_t> draws) {
  return draws ? mask.later(*draws) : mask;
}

/// Zeroes or scales the elements i to i + N, which are v. Philox gives four numbers at once, for four neighbours.
template <int N>
__device__ __forceinline__ void drop(float (&v)[N], const native::math::dropout_mask& mask, index i) {
  const auto group = static_cast<std::uint64_t>(i) / 4;
  if (N % 4 == 0 && i % 4 == 0) {
    constexpr int groups = (N + 3) / 4;
    float factor[4 * groups];
    mask.factors<groups>(group, factor);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] = factor[j] != 0 ? v[j] * factor[j] : 0.0F;
    return;
  }
  constexpr int groups = (N + 6) / 4;  // the elements begin inside a group
  float factor[4 * groups];
  mask.factors<groups>(group, factor);
  const int skip = static_cast<int>(i % 4);
#pragma unroll
  for (int j = 0; j < N; ++j) {
    float f = factor[j];  // factor[j + skip], without an index at run time, which would put factor into local memory
#pragma unroll
    for (int s = 1; s < 4; ++s) f = skip == s ? factor[j + s] : f;
    v[j] = f != 0 ? v[j] * f : 0.0F;
  }
}

}  // namespace comp::cuda
