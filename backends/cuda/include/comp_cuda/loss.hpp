// SPDX-License-Identifier: Apache-2.0
// Losses, their gradients, and the number of right answers. A loss is a double: the sum of FP32 terms in a fixed order.
// The host waits for a loss only in step_report.hpp, and there only if losses are not deferred.
// Targets below 0 count neither in the mean nor in the gradient. A batch that has no other targets is refused, which
// the host knows since their upload.
#pragma once

#include <utility>
#include <vector>

#include "layer_norm.hpp"
#include "layout.hpp"
#include "step_report.hpp"

namespace comp::cuda {

namespace detail {

/// Throws: error for targets that do not fit scores of shape s.
inline void require_targets(const char* operation, const shape& s, const indices& target) {
  require_some(operation, s);
  require<error>(s.size() == 2 && target.size() == s[0],
                 "{} of scores {} with {} targets (scores are (N,V), one target for each row): fix the shapes",
                 operation, text(s), target.size());
  const index_range& t = target.range();
  require<error>(t.most < s[1], "{} of target {} (there are {} classes): use targets below {}", operation, t.most, s[1],
                 s[1]);
  require<error>(t.counted > 0,
                 "{} with {} targets, all below 0 (the mean of none is not defined): leave out such a batch", operation,
                 target.size());
}

/// What a loss leaves on the device.
struct loss_place {
  tensor count;  // (1), FP32: how many targets the loss is the mean of
  double* loss;  // the mean, in the same block of memory unless the step's report has it
};
inline loss_place make_loss(context& c) {
  const tensor count{{1}, precision::fp32, order::row_major, c.allocate(16)};
  return {count, reinterpret_cast<double*>(count.materialize_as<float>() + 2)};
}
/// Returns: a place for a loss that the host reads, now or when the step ends.
inline loss_place make_loss_for_host(context& c) {
  loss_place to = make_loss(c);
  to.loss = c.part<step_report>().loss_address(to.loss);
  return to;
}
inline void record_loss(context& c, const double* from, double* to) { c.part<step_report>().record_loss(from, to); }

}  // namespace detail

/// Writes the mean of -log softmax(logits)[target] to *loss. saved: the logits, the logarithm of each row's sum of
/// exponentials, and how many targets count. The output is empty, since the loss is a number of the host.
inline saved_tensor cross_entropy(context& c, const tensor& logits, const indices& target, double* loss) {
  detail::require_targets("cross_entropy", logits.shape(), target);
  const std::int64_t rows = logits.shape()[0], width = logits.shape()[1];
  const tensor in = row_major(c, logits), sums = c.make({rows}, precision::fp32);
  const detail::loss_place to = detail::make_loss_for_host(c);
  with_storage(in.precision(), [&]<class T>(std::type_identity<T>) {
    cross_entropy<T>(c.stream().get(), in.materialize_as<T>(), target.data(), sums.materialize_as<float>(),
                     c.scratch_of<float>(rows), to.loss, to.count.materialize_as<float>(), rows, width);
  });
  detail::record_loss(c, to.loss, loss);
  return {{}, {in, sums, to.count}};
}
/// Returns: scale/count * (softmax(logits) - onehot(target)), in the precision of the logits.
inline tensor cross_entropy_backward(context& c, const std::vector<tensor>& saved, const indices& target,
                                     double scale) {
  const tensor &logits = saved[0], dx = c.make_like(logits);
  detail::require_targets("cross_entropy_backward", logits.shape(), target);
  with_storage(logits.precision(), [&]<class T>(std::type_identity<T>) {
    cross_entropy_backward<T>(c.stream().get(), logits.materialize_as<T>(), target.data(),
                              saved[1].materialize_as<float>(), saved[2].materialize_as<float>(),
                              dx.materialize_as<T>(), logits.shape()[0], logits.shape()[1], scale);
  });
  return dx;
}

namespace detail {

inline loss_place nll_mean(context& c, const tensor& logp, const indices& target, const loss_place& to) {
  with_storage(logp.precision(), [&]<class T>(std::type_identity<T>) {
    nll_loss<T>(c.stream().get(), logp.materialize_as<T>(), target.data(), c.scratch_of<float>(logp.shape()[0]),
                to.loss, to.count.materialize_as<float>(), logp.shape()[0], logp.shape()[1]);
  });
  return to;
}

}  // namespace detail

/// Writes the mean of -logp[target] to *loss.
inline void nll_loss(context& c, const tensor& logp, const indices& target, double* loss) {
  detail::require_targets("nll_loss", logp.shape(), target);
  detail::record_loss(c, detail::nll_mean(c, row_major(c, logp), target, detail::make_loss_for_host(c)).loss, loss);
}
/// Returns: the gradient of logp. The device counts the targets again: in a captured step its memory may hold another
/// batch than the one that was uploaded first.
inline tensor nll_loss_backward(context& c, const tensor& logp, const indices& target, double scale) {
  detail::require_targets("nll_loss_backward", logp.shape(), target);
  const tensor in = row_major(c, logp), dx = c.make_like(in);
  const detail::loss_place of = detail::nll_mean(c, in, target, detail::make_loss(c));
  with_storage(dx.precision(), [&]<class T>(std::type_identity<T>) {
    nll_loss_backward<T>(c.stream().get(), target.data(), of.count.materialize_as<float>(), dx.materialize_as<T>(),
                         dx.shape()[0], dx.shape()[1], scale);
  });
  return dx;
}

namespace detail {

/// Returns: x and target in one order and one storage, which is FP32 if theirs differ.
inline std::pair<tensor, tensor> compared(context& c, const tensor& x, const tensor& target) {
  const bool alike = storage_of(x.precision()) == storage_of(target.precision());
  const tensor a = alike ? x : cast(c, x, precision::fp32);
  return {a, in_order(c, alike ? target : cast(c, target, precision::fp32), a.order())};
}

}  // namespace detail

/// Writes the mean of (x - target)^2 to *loss.
inline void mse_loss(context& c, const tensor& x, const tensor& target, double* loss) {
  require_some("mse_loss", x.shape());
  require_same("mse_loss", x.shape(), target.shape());
  const auto [a, b] = detail::compared(c, x, target);
  const detail::loss_place to = detail::make_loss_for_host(c);
  with_storage(a.precision(), [&]<class T>(std::type_identity<T>) {
    mse_loss<T>(c.stream().get(), a.template materialize_as<T>(), b.template materialize_as<T>(), a.size(), to.loss,
                c.scratch_of<float>(most_partials));
  });
  detail::record_loss(c, to.loss, loss);
}
inline tensor mse_loss_backward(context& c, const tensor& x, const tensor& target, double scale) {
  require_some("mse_loss_backward", x.shape());
  require_same("mse_loss_backward", x.shape(), target.shape());
  const auto [a, b] = detail::compared(c, x, target);
  const tensor dx = c.make_like(a);
  with_storage(a.precision(), [&]<class T>(std::type_identity<T>) {
    mse_loss_backward<T>(c.stream().get(), a.template materialize_as<T>(), b.template materialize_as<T>(),
                         dx.materialize_as<T>(), a.size(), scale);
  });
  return cast(c, dx, x.precision());
}

/// Writes to *loss the mean binary cross entropy of the logits x, all of which have the same target, as a GAN's
/// discriminator has.
inline void binary_cross_entropy(context& c, const tensor& x, double target, double* loss) {
  require_some("binary_cross_entropy", x.shape());
  const detail::loss_place to = detail::make_loss_for_host(c);
  with_storage(x.precision(), [&]<class T>(std::type_identity<T>) {
    binary_cross_entropy<T>(c.stream().get(), x.materialize_as<T>(), static_cast<float>(target), x.size(), to.loss,
                            c.scratch_of<float>(most_partials));
  });
  detail::record_loss(c, to.loss, loss);
}
inline tensor binary_cross_entropy_backward(context& c, const tensor& x, double target, double scale) {
  const tensor dx = c.make_like(x);
  with_storage(x.precision(), [&]<class T>(std::type_identity<T>) {
    binary_cross_entropy_backward<T>(c.stream().get(), x.materialize_as<T>(), static_cast<float>(target),
                                     dx.materialize_as<T>(), x.size(), scale);
  });
  return dx;
}

/// Returns: how many rows have their largest score at the target; of equal scores the first counts.
inline std::int64_t count_correct(context& c, const tensor& logits, const indices& target) {
  detail::require_targets("count_correct", logits.shape(), target);
  const tensor in = row_major(c, logits);
  int* count = c.scratch_of<int>(1);
  c.clear(count, sizeof *count);
  with_storage(in.precision(), [&]<class T>(std::type_identity<T>) {
    count_correct<T>(c.stream().get(), in.materialize_as<T>(), target.data(), count, in.shape()[0], in.shape()[1]);
  });
  return c.read_one(count);
}

}  // namespace comp::cuda
