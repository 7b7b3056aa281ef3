// SPDX-License-Identifier: Apache-2.0
// Recomputation: a part of a forward keeps its inputs only and is run again in the backward, in the precisions in which
// it ran: by the plan of its region, or by LibTorch's autocast.
//   x = comp::libtorch::checkpoint([&](const at::Tensor& h) { return block->forward(h); }, x);
// A torch::autograd::Function of the user's own that does the same runs in FP32 both times: no plan covers the inside
// of a Function. As with every recomputation, what the part does beside its result happens twice (a norm's running
// statistics).
#pragma once

#include <ATen/core/Tensor.h>

#include <comp/core/linkage.hpp>
#include <concepts>
#include <cstddef>
#include <functional>
#include <utility>
#include <vector>

namespace comp::libtorch {

namespace detail {

using checkpointed_work = std::function<at::Tensor(const std::vector<at::Tensor>&)>;

COMP_INLINE at::Tensor checkpointed(checkpointed_work work, std::vector<at::Tensor> inputs);

}  // namespace detail

/// Runs `work` on `inputs` and keeps nothing for its backward: the backward runs it again, on the same inputs and
/// random numbers. Returns: what `work` returns, a floating tensor. Gradients reach `inputs` (tensors that are defined)
/// and every parameter that `work` reads. torch::autograd::grad for those parameters does not: call backward(). Throws:
/// `error` in the backward if an input was written meanwhile, or the plan of the region has changed.
template <class F, std::convertible_to<at::Tensor>... Inputs>
requires std::invocable<F&, const Inputs&...> at::Tensor checkpoint(F work, const Inputs&... inputs) {
  const auto call = [work = std::move(work)](const std::vector<at::Tensor>& given) mutable {
    return [&]<std::size_t... I>(std::index_sequence<I...>) { return at::Tensor{work(given[I]...)}; }
    (std::index_sequence_for<Inputs...>{});
  };
  return detail::checkpointed(call, {inputs...});
}

}  // namespace comp::libtorch

#if COMP_HEADER_ONLY
#include <comp_libtorch/plan/checkpoint_node.hpp>
#endif
