// SPDX-License-Identifier: Apache-2.0
// Moves weights in their last bits, in place. A training from there differs from the original one as two trainings
// differ whose operators round in another order.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_like.h>
#include <c10/util/BFloat16.h>
#include <c10/util/Half.h>

#include <cstdint>
#include <limits>
#include <mutex>
#include <vector>

namespace comp::libtorch {

namespace detail {

/// Returns: a generator of its own for `device`, so that LibTorch's default one draws on as before.
inline at::Generator generator_for(at::Device device, std::uint64_t seed) {
  at::Generator common = at::globalContext().defaultGenerator(device);
  const std::lock_guard only_one{common.mutex()};
  at::Generator own = common.clone();
  own.set_current_seed(seed);
  return own;
}

/// Returns: half the distance from 1 to the next number; 0 for a format without a last place.
inline double half_ulp(at::ScalarType type) {
  switch (type) {
    case at::kFloat:
      return std::numeric_limits<float>::epsilon() / 2.0;
    case at::kDouble:
      return std::numeric_limits<double>::epsilon() / 2;
    case at::kBFloat16:
      return static_cast<double>(std::numeric_limits<c10::BFloat16>::epsilon()) / 2;
    case at::kHalf:
      return static_cast<double>(std::numeric_limits<c10::Half>::epsilon()) / 2;
    default:
      return 0;
  }
}

}  // namespace detail

/// Adds to each value a random part of itself, and rounds. The part is drawn evenly between -1.5 and 1.5 times half a
/// unit in the last place of 1. So the value stays, or becomes one of its neighbours. Zeros, and what is no
/// floating-point number, stay.
inline void perturb(const std::vector<at::Tensor>& weights, std::uint64_t seed) {
  const at::NoGradGuard no_grad;
  for (const at::Tensor& weight : weights) {
    const double step = 1.5 * detail::half_ulp(weight.scalar_type());
    seed = seed * 0x5851f42d4c957f2dULL + 0x14057b7ef767814fULL;  // another stream for each: Knuth's MMIX generator
    if (step == 0 || weight.layout() != at::kStrided) continue;
    const at::Tensor part = at::empty_like(weight).uniform_(-step, step, detail::generator_for(weight.device(), seed));
    at::Tensor{weight}.addcmul_(weight, part);
  }
}

}  // namespace comp::libtorch
