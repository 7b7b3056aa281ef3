// SPDX-License-Identifier: Apache-2.0
// Losses with their gradients, and the number of right answers. A loss is a sum of FP32 terms in double, in a fixed
// order, because a search compares losses that differ by little. A target below 0 is left out of mean and gradient; a
// batch without any other target is refused.
#pragma once

#include <cmath>
#include <comp_native/math/elementwise.hpp>
#include <cstdint>
#include <cstring>
#include <limits>
#include <vector>

#include "context.hpp"
#include "convert.hpp"
#include "normalization.hpp"
#include "softmax.hpp"
#include "transfer.hpp"

namespace comp::host {

namespace detail {

/// Returns how many targets count.
/// Throws: error, for targets that do not fit scores of shape `s`.
inline std::int64_t counted(const char* operation, const shape& s, const indices& target) {
  require_some(operation, s);
  const auto& t = target.values();
  require<error>(s.size() == 2 && std::ssize(t) == s[0],
                 "{} of scores {} with {} targets (scores are (N,V), one target for each row): fix the shapes",
                 operation, text(s), t.size());
  std::int64_t count = 0;
  for (const std::int32_t label : t) {
    require<error>(label < s[1], "{} of target {} (there are {} classes): use targets below {}", operation, label, s[1],
                   s[1]);
    count += label >= 0;
  }
  require<error>(count > 0, "{} with {} targets, all below 0 (the mean of none is not defined): leave out such a batch",
                 operation, t.size());
  return count;
}
inline double mean_of(const std::vector<float>& terms, std::int64_t count) {
  double total = 0;
  for (const float term : terms) total += term;
  return total / static_cast<double>(count);
}

/// Returns the logarithm of the sum of the exponentials of a row.
template <class T>
COMP_HOST_INLINE float log_sum_exp(const T* x, std::size_t n) {
  float largest = -std::numeric_limits<float>::infinity();
#pragma omp simd reduction(max : largest)
  for (std::size_t i = 0; i < n; ++i) largest = load(x[i]) > largest ? load(x[i]) : largest;
  float total = 0;
#pragma omp simd reduction(+ : total)
  for (std::size_t i = 0; i < n; ++i) total += exp_of(load(x[i]) - largest);
  return largest + std::log(total);
}

}  // namespace detail

/// Sets *loss to the mean of -log softmax(logits)[target]. Saved are the logits, and the logarithm of each row's sum of
/// exponentials.
inline saved_tensor cross_entropy(context& c, const tensor& logits, const indices& target, double* loss) {
  const std::int64_t count = detail::counted("cross_entropy", logits.shape(), target);
  const tensor in = row_major(c, computable(c, logits)), sums = c.make_plain({logits.shape()[0]});
  const auto width = static_cast<std::size_t>(logits.shape()[1]), rows = target.values().size();
  std::vector<float> terms(rows);
  with_operand(in.precision(), [&](auto* storage) {
    const auto* from = static_cast<decltype(storage)>(in.data());
    c.run_kernel([&] {
      launch_rows(rows, width, [&, from](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
        for (std::size_t r = begin; r < end; ++r) {
          const float sum = detail::log_sum_exp(from + r * width, width);
          sums.as<float>()[r] = sum;
          const std::int32_t label = target.values()[r];
          terms[r] = label < 0 ? 0.0F : sum - load(from[r * width + static_cast<std::size_t>(label)]);
        }
      });
    });
  });
  *loss = detail::mean_of(terms, count);
  const auto as_float = static_cast<float>(*loss);
  return {upload(c, {&as_float, 1}, {1}, precision::fp32), {logits, sums}};
}

/// Returns: scale/count * (softmax - one at the target), in the precision of the logits.
inline tensor cross_entropy_backward(context& c, const std::vector<tensor>& saved, const indices& target,
                                     double scale) {
  const tensor& logits = saved[0];
  const std::int64_t count = detail::counted("cross_entropy_backward", logits.shape(), target);
  const tensor in = row_major(c, computable(c, logits)), dx = c.make(logits.shape(), in.layout());
  const auto width = static_cast<std::size_t>(logits.shape()[1]);
  const auto factor = static_cast<float>(scale / static_cast<double>(count));
  with_operand(in.precision(), [&](auto* storage) {
    const auto* from = static_cast<decltype(storage)>(in.data());
    auto* to = static_cast<decltype(storage)>(dx.data());
    c.run_kernel([&] {
      launch_rows(target.values().size(), width, [&, from, to](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
        for (std::size_t r = begin; r < end; ++r) {
          const std::int32_t label = target.values()[r];
          const float sum = saved[1].as<float>()[r], share = label < 0 ? 0.0F : factor;
          const auto* x = from + r * width;
          auto* d = to + r * width;
#pragma omp simd
          for (std::size_t i = 0; i < width; ++i)
            store(d[i], native::math::cross_entropy_gradient(load(x[i]), sum, share));
          if (label < 0) continue;
          const auto at = static_cast<std::size_t>(label);
          store(d[at], native::math::cross_entropy_gradient_at_target(load(x[at]), sum, share));
        }
      });
    });
  });
  return cast(c, dx, logits.precision());
}

/// Sets *loss to the mean of -logp[target].
inline void nll_loss(context& c, const tensor& logp, const indices& target, double* loss) {
  const std::int64_t count = detail::counted("nll_loss", logp.shape(), target);
  const tensor in = row_major(c, cast(c, logp, precision::fp32));
  std::vector<float> terms(target.values().size());
  for (std::size_t r = 0; r < terms.size(); ++r) {
    const std::int32_t label = target.values()[r];
    terms[r] = label < 0 ? 0.0F : -in.as<float>()[static_cast<std::int64_t>(r) * logp.shape()[1] + label];
  }
  *loss = detail::mean_of(terms, count);
}
inline tensor nll_loss_backward(context& c, const tensor& logp, const indices& target, double scale) {
  const std::int64_t count = detail::counted("nll_loss_backward", logp.shape(), target);
  const tensor dx = c.make_plain(logp.shape());
  std::memset(dx.data(), 0, dx.layout()->bytes);
  for (std::size_t r = 0; r < target.values().size(); ++r) {
    const std::int32_t label = target.values()[r];
    if (label >= 0)
      dx.as<float>()[static_cast<std::int64_t>(r) * logp.shape()[1] + label] =
          static_cast<float>(-scale / static_cast<double>(count));
  }
  return cast(c, dx, logp.precision());
}

/// Sets *loss to the mean of (x - target)^2.
inline void mse_loss(context& c, const tensor& x, const tensor& target, double* loss) {
  require_some("mse_loss", x.shape());
  require_same("mse_loss", x.shape(), target.shape());
  const tensor a = row_major(c, cast(c, x, precision::fp32)), b = row_major(c, cast(c, target, precision::fp32));
  const float *left = a.as<float>(), *right = b.as<float>();
  const auto n = static_cast<std::size_t>(elements(x.shape()));
  c.run_kernel([&] {
    *loss = launch_sum(n,
                       [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
                         double total = 0;
#pragma omp simd reduction(+ : total)
                         for (std::size_t i = begin; i < end; ++i) {
                           const double off = static_cast<double>(left[i]) - right[i];
                           total += off * off;
                         }
                         return total;
                       }) /
            static_cast<double>(n);
  });
}
inline tensor mse_loss_backward(context& c, const tensor& x, const tensor& target, double scale) {
  require_same("mse_loss_backward", x.shape(), target.shape());
  const tensor a = row_major(c, cast(c, x, precision::fp32)), b = row_major(c, cast(c, target, precision::fp32));
  const tensor dx = c.make_plain(x.shape());
  const float *left = a.as<float>(), *right = b.as<float>();
  float* to = dx.as<float>();
  const auto factor = static_cast<float>(2 * scale / static_cast<double>(elements(x.shape())));
  c.run_kernel([&] {
    launch(static_cast<std::size_t>(elements(x.shape())), [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
#pragma omp simd
      for (std::size_t i = begin; i < end; ++i) to[i] = native::math::squared_error_gradient(left[i], right[i], factor);
    });
  });
  return cast(c, dx, x.precision());
}

/// Sets *loss to the mean over logits x, all of which should be of class `target` (0 or 1), as in a GAN.
inline void binary_cross_entropy(context& c, const tensor& x, double target, double* loss) {
  require_some("binary_cross_entropy", x.shape());
  const tensor a = row_major(c, cast(c, x, precision::fp32));
  const float *from = a.as<float>(), wanted = static_cast<float>(target);
  const auto n = static_cast<std::size_t>(elements(x.shape()));
  c.run_kernel([&] {
    *loss = launch_sum(n,
                       [=](std::size_t begin, std::size_t end) {
                         double total = 0;
                         for (std::size_t i = begin; i < end; ++i)
                           total += double{native::math::binary_cross_entropy(from[i], wanted)};
                         return total;
                       }) /
            static_cast<double>(n);
  });
}
inline tensor binary_cross_entropy_backward(context& c, const tensor& x, double target, double scale) {
  const tensor a = row_major(c, cast(c, x, precision::fp32)), dx = c.make_plain(x.shape());
  const float *from = a.as<float>(), wanted = static_cast<float>(target);
  float* to = dx.as<float>();
  const auto factor = static_cast<float>(scale / static_cast<double>(elements(x.shape())));
  c.run_kernel([&] {
    launch(static_cast<std::size_t>(elements(x.shape())), [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
#pragma omp simd
      for (std::size_t i = begin; i < end; ++i)
        to[i] = native::math::binary_cross_entropy_gradient(from[i], wanted, factor);
    });
  });
  return cast(c, dx, x.precision());
}

/// Returns how many rows have their largest score at the target. Of equal scores the first counts.
inline std::int64_t count_correct(context& c, const tensor& logits, const indices& target) {
  (void)detail::counted("count_correct", logits.shape(), target);
  const tensor in = row_major(c, cast(c, logits, precision::fp32));
  const std::int64_t width = logits.shape()[1];
  std::int64_t right = 0;
  for (std::int64_t r = 0; r < logits.shape()[0]; ++r) {
    const float* row = in.as<float>() + r * width;
    right += std::max_element(row, row + width) - row == target.values()[static_cast<std::size_t>(r)];
  }
  return right;
}

}  // namespace comp::host
