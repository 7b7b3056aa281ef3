// SPDX-License-Identifier: Apache-2.0
// Activations, sums and products of tensors, in whatever order they come: the second operand is brought into the order
// of the first.
#pragma once

#include <algorithm>
#include <span>
#include <vector>

#include "layout.hpp"

namespace comp::cuda {

using native::activation;

namespace detail {

/// `t` stored as `like` is, and in its order.
inline tensor beside(context& c, const tensor& t, const tensor& like) {
  return in_order(c, cast(c, t, like.precision()), like.order());
}
constexpr step_kind step_of(activation a) {
  return a == activation::relu   ? step_kind::relu
         : a == activation::gelu ? step_kind::gelu
         : a == activation::tanh ? step_kind::tanh
                                 : step_kind::sigmoid;
}
constexpr step_kind backward_step_of(activation a) {
  return a == activation::relu   ? step_kind::relu_backward
         : a == activation::gelu ? step_kind::gelu_backward
         : a == activation::tanh ? step_kind::tanh_backward
                                 : step_kind::sigmoid_backward;
}
/// One step over all elements of x; `other` lies as x does.
inline tensor one_step(context& c, const tensor& x, step_kind kind, const tensor& other = {}) {
  const tensor y = c.make_like(x);
  with_storage(x.precision(), [&]<class T>(std::type_identity<T>) {
    const chain_step<T> step{.kind = kind, .other = other.as<T>()};
    run_chain<T>(c.stream().get(), x.as<T>(), y.as<T>(), x.size(), {&step, 1});
  });
  return y;
}

}  // namespace detail

inline tensor activate(context& c, activation a, const tensor& x) {
  require_some("activate", x.shape());
  return detail::one_step(c, x, detail::step_of(a));
}
/// x and y: what activate took and gave. Returns: the gradient of x.
inline tensor activate_backward(context& c, activation a, const tensor& dy, const tensor& x, const tensor& y) {
  const tensor& known = a == activation::gelu ? x : y;
  require_same("activate_backward", dy.shape(), known.shape());
  const tensor at = cast(c, known, dy.precision());
  return detail::one_step(c, in_order(c, dy, at.order()), detail::backward_step_of(a), at);
}

/// Element by element; b is taken in the precision of a.
inline tensor add(context& c, const tensor& a, const tensor& b) {
  require_same("add", a.shape(), b.shape());
  require_some("add", a.shape());
  return detail::one_step(c, a, step_kind::add, detail::beside(c, b, a));
}
inline tensor mul(context& c, const tensor& a, const tensor& b) {
  require_same("mul", a.shape(), b.shape());
  require_some("mul", a.shape());
  return detail::one_step(c, a, step_kind::mul, detail::beside(c, b, a));
}

namespace detail {

/// The sum of tensors that are stored alike, in one order, rounded at the end of each launch: one for most_steps + 1.
template <class T>
tensor sum_alike(context& c, std::span<const tensor> terms) {
  tensor total = terms[0];
  for (std::span<const tensor> rest = terms.subspan(1); !rest.empty();) {
    const auto some = rest.first(std::min(rest.size(), static_cast<std::size_t>(most_steps)));
    std::vector<chain_step<T>> steps;
    for (const tensor& t : some) steps.push_back({.kind = step_kind::add, .other = t.as<T>()});
    const tensor next = c.make_like(total);
    run_chain<T>(c.stream().get(), total.as<T>(), next.as<T>(), total.size(), steps);
    total = next;
    rest = rest.subspan(some.size());
  }
  return total;
}

}  // namespace detail

/// The sum of all terms in FP32, rounded once, in the precision of the first.
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
  const tensor total = with_storage(alike[0].precision(),
                                    [&]<class T>(std::type_identity<T>) { return detail::sum_alike<T>(c, alike); });
  return cast(c, total, to);
}

}  // namespace comp::cuda
