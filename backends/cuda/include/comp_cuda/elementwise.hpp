// SPDX-License-Identifier: Apache-2.0
// Activations, sums and element-wise products. Operands may have any order: the second one is brought into the order of
// the first.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "layout.hpp"
#include "pending.hpp"

namespace comp::cuda {

using native::activation;

namespace detail {

/// Returns: t in the precision and the order of `like`.
inline tensor beside(context& c, const tensor& t, const tensor& like) {
  return in_order(c, cast(c, t, like.precision()), like.order());
}
/// Returns: the steps of an activation's forward and backward.
constexpr std::pair<step_kind, step_kind> steps_of(activation a) {
  switch (a) {
    case activation::relu:
      return {step_kind::relu, step_kind::relu_backward};
    case activation::gelu:
      return {step_kind::gelu, step_kind::gelu_backward};
    case activation::gelu_tanh:
      return {step_kind::gelu_tanh, step_kind::gelu_tanh_backward};
    case activation::tanh:
      return {step_kind::tanh, step_kind::tanh_backward};
    case activation::sigmoid:
      return {step_kind::sigmoid, step_kind::sigmoid_backward};
    case activation::elu:
      return {step_kind::elu, step_kind::elu_backward};
    case activation::leaky_relu:
      return {step_kind::leaky_relu, step_kind::leaky_relu_backward};
  }
  return {};
}
/// Combines a and b by a commutative step. If only b is pending, the step continues b's chain instead of a's, so that b
/// need not be written. Requires: a and b have the same storage and order.
inline tensor combined(context& c, step_kind kind, const tensor& a, const tensor& b) {
  if (b.held()->pending() && !a.held()->pending()) return apply(c, b, {{kind, a}}).viewed(a.precision());
  return apply(c, a, {{kind, b}});
}

}  // namespace detail

inline tensor activate(context& c, activation a, const tensor& x) {
  require_some("activate", x.shape());
  return apply(c, x, {{detail::steps_of(a).first}});
}
/// x and y: activate's operand and result. Returns: the gradient of x.
inline tensor activate_backward(context& c, activation a, const tensor& dy, const tensor& x, const tensor& y) {
  const tensor& known = traits(a).backward_reads_input ? x : y;
  require_same("activate_backward", dy.shape(), known.shape());
  const tensor at = cast(c, known, dy.precision());
  return apply(c, in_order(c, dy, at.order()), {{detail::steps_of(a).second, at}});
}

/// Returns: a + b, in the precision of a.
inline tensor add(context& c, const tensor& a, const tensor& b) {
  require_same("add", a.shape(), b.shape());
  require_some("add", a.shape());
  return detail::combined(c, step_kind::add, a, detail::beside(c, b, a));
}
/// Returns: the element-wise product of a and b, in the precision of a.
inline tensor mul(context& c, const tensor& a, const tensor& b) {
  require_same("mul", a.shape(), b.shape());
  require_some("mul", a.shape());
  return detail::combined(c, step_kind::mul, a, detail::beside(c, b, a));
}

namespace detail {

/// Returns: the sum of the terms, rounded once for every most_steps of them.
/// Requires: the terms have one storage and one order.
inline tensor sum_alike(context& c, std::span<const tensor> terms) {
  tensor total = terms[0];
  for (std::span<const tensor> rest = terms.subspan(1); !rest.empty();) {
    const auto some = rest.first(std::min(rest.size(), static_cast<std::size_t>(most_steps)));
    std::vector<pending_step> steps;
    for (const tensor& t : some) steps.push_back({step_kind::add, t});
    total = apply(c, total, std::move(steps));
    rest = rest.subspan(some.size());
  }
  return total;
}

}  // namespace detail

/// Returns: the sum of all terms in the precision of the first. It is computed in FP32 and rounded once, however many
/// terms there are.
inline tensor sum(context& c, std::span<const tensor> terms) {
  require<error>(!terms.empty(), "sum of {} tensors (there is nothing to add): give at least one", terms.size());
  for (const tensor& t : terms) require_same("sum", t.shape(), terms[0].shape());
  if (terms.size() == 1) return terms[0];
  require_some("sum", terms[0].shape());
  const precision to = terms[0].precision();
  const bool in_one = terms.size() <= most_steps + 1 && std::ranges::all_of(terms, [&](const tensor& t) {
                        return storage_of(t.precision()) == storage_of(to);
                      });
  std::vector<tensor> alike{in_one ? terms[0] : cast(c, terms[0], precision::fp32)};
  for (const tensor& t : terms.subspan(1)) alike.push_back(detail::beside(c, t, alike[0]));
  const tensor total =
      alike.size() == 2 ? detail::combined(c, step_kind::add, alike[0], alike[1]) : detail::sum_alike(c, alike);
  return cast(c, total, to);
}

}  // namespace comp::cuda
