// SPDX-License-Identifier: Apache-2.0
// Layer normalisation over the last axis. Statistics, scale and shift are FP32 whatever the tensors are.
// With settings::fuse a residual connection has no pass of its own. Forward: the norm computes and writes a pending sum
// that it reads, together with a dropout before that. Backward: the gradient of x is pending work with an epilogue,
// which adds the residual's gradient. The results have the same bits as without fusing.
#pragma once

#include <memory>
#include <utility>
#include <vector>

#include "parameter.hpp"
#include "pending.hpp"

namespace comp::cuda {

using saved_tensor = native::with_saved<tensor>;

namespace detail {

/// The addresses to which one kernel writes the gradients of two parameters of the same size.
struct gradient_pair {
  float *first, *second;
  bool adds;  // the kernel adds to both
};
/// Returns: these addresses. A parameter that is not trainable has its gradient written to `unused`. If the kernel must
/// add to one of them, the other is cleared first, so that it can add to both.
inline gradient_pair gradients_of(context& c, parameter& first, parameter& second, float* unused) {
  const gradient_place a = first.trainable ? gradient_of(c, first) : gradient_place{unused, false};
  const gradient_place b = second.trainable ? gradient_of(c, second) : gradient_place{unused, false};
  const bool adds = a.adds || b.adds;
  const auto bytes = static_cast<std::int64_t>(sizeof(float)) * elements(first.extents);
  if (adds && !a.adds) c.clear(a.at, bytes);
  if (adds && !b.adds) c.clear(b.at, bytes);
  return {a.at, b.at, adds};
}

/// The pending gradient of x.
class pending_norm_gradient final : public work_with_epilogue {
 public:
  pending_norm_gradient(tensor dy, tensor x, const parameter& gamma, const std::vector<tensor>& saved)
      : dy_{std::move(dy)}, x_{std::move(x)}, gamma_{gamma.value}, mean_{saved[0]}, inverse_deviation_{saved[1]} {}

  bool makes(const pending_step& s) const override { return s.kind == step_kind::add; }
  void write(memory& into, const pending_step* then) const override {
    lifeline& life = into.life();
    check(cudaSetDevice(life.card.device), "choosing a GPU");
    const index width = gamma_.size();
    with_storage(dy_.precision(), [&]<class T>(std::type_identity<T>) {
      const T *dy = dy_.materialize_as<T>(), *addend = then ? then->other.materialize_as<T>() : nullptr;
      layer_norm_backward<T>(life.stream.get(), dy, x_.materialize_as<T>(), gamma_.materialize_as<float>(),
                             mean_.materialize_as<float>(), inverse_deviation_.materialize_as<float>(),
                             static_cast<T*>(into.take_place()), dy_.size() / width, width, addend);
    });
  }

 private:
  tensor dy_, x_, gamma_, mean_, inverse_deviation_;
};

}  // namespace detail

/// x is (...,C), gamma and beta are (C). saved: each row's mean and inverse deviation, in FP32.
inline saved_tensor layer_norm(context& c, const tensor& x, parameter& gamma, parameter& beta, double eps) {
  require_some("layer_norm", x.shape());
  const std::int64_t width = x.shape().back(), rows = x.size() / width;
  for (const parameter* p : {&gamma, &beta}) native::require_vector("layer_norm", p->extents, x.shape(), width);
  const tensor in = row_major(c, x), y = c.make_like(in);
  tensor mean = c.make({rows}, precision::fp32), inverse_deviation = c.make({rows}, precision::fp32);
  const auto* waits = detail::pending_operator::of(in.held().get());
  const auto sum = waits ? waits->as_sum() : std::nullopt;
  with_storage(in.precision(), [&]<class T>(std::type_identity<T>) {
    const auto normalise = [&](const auto& from, auto... to) {
      layer_norm<T>(c.stream().get(), from, to..., gamma.value.materialize_as<float>(),
                    beta.value.materialize_as<float>(), y.materialize_as<T>(), mean.materialize_as<float>(),
                    inverse_deviation.materialize_as<float>(), rows, width, eps);
    };
    if (!sum) return normalise(static_cast<const T*>(in.materialize_as<T>()));
    layer_norm_sum<T> of{sum->from.materialize_as<T>(), sum->other.materialize_as<T>()};
    if (sum->dropout) of.drops = true, of.mask = sum->dropout->mask, of.draws = sum->dropout->draws;
    normalise(of, static_cast<T*>(in.held()->take_place()));
    waits->made_by_reader(*in.held());
  });
  return {y, {std::move(mean), std::move(inverse_deviation)}};
}

/// Adds the gradients of gamma and beta. Returns: the gradient of x.
inline tensor layer_norm_backward(context& c, const tensor& dy, const tensor& x, const std::vector<tensor>& saved,
                                  parameter& gamma, parameter& beta) {
  require_same("layer_norm_backward", dy.shape(), x.shape());
  const tensor in = row_major(c, cast(c, x, dy.precision())), g = row_major(c, dy);
  const std::int64_t width = x.shape().back(), rows = x.size() / width;
  const auto *mean = saved[0].materialize_as<float>(), *inverse_deviation = saved[1].materialize_as<float>();
  with_storage(g.precision(), [&]<class T>(std::type_identity<T>) {
    const T *from = g.materialize_as<T>(), *at = in.materialize_as<T>();  // before scratch_of(): both may use scratch
    if (!gamma.trainable && !beta.trainable) return;
    float* scratch = c.scratch_of<float>(column_scratch(rows, width, 2) + width);
    const auto to = detail::gradients_of(c, gamma, beta, scratch + column_scratch(rows, width, 2));
    layer_norm_parameters_backward<T>(c.stream().get(), from, at, mean, inverse_deviation, to.first, to.second, rows,
                                      width, to.adds, scratch);
  });
  const std::int64_t bytes = g.size() * bytes_of(storage_of(g.precision()));
  auto later = std::make_unique<detail::pending_norm_gradient>(g, in, gamma, saved);
  const tensor dx{g.shape(), g.precision(), g.order(), c.promise(bytes, std::move(later))};
  if (!c.chosen().fuse) (void)dx.materialize();
  return dx;
}

}  // namespace comp::cuda
