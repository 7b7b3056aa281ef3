// SPDX-License-Identifier: Apache-2.0
// Means, and medians with confidence intervals. The intervals assume no distribution, because run times have a long
// tail and drift with the machine's load.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstddef>
#include <limits>
#include <numeric>
#include <span>
#include <vector>

namespace comp {

struct interval {
  double low = -std::numeric_limits<double>::infinity();
  double high = std::numeric_limits<double>::infinity();
  friend bool operator==(const interval&, const interval&) = default;
};

/// Returns: the mean; 0 for no values.
inline double mean_of(std::span<const double> values) {
  const double sum = std::accumulate(values.begin(), values.end(), 0.0);
  return values.empty() ? 0 : sum / static_cast<double>(values.size());
}

/// Returns: the median; NaN for no values.
inline double median(std::vector<double> values) {
  if (values.empty()) return std::numeric_limits<double>::quiet_NaN();
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::nth_element(values.begin(), middle, values.end());
  if (values.size() % 2 == 1) return *middle;
  return (*middle + *std::max_element(values.begin(), middle)) / 2;
}

/// Returns: an interval between two of the sorted values that holds the median of the distribution with at least 95%
/// probability; unbounded for fewer than 6 values, since even their whole range covers only 93.75% or less. How many
/// values lie below the median is binomial with probability 1/2, which gives the two ranks. Source: David and Nagaraja,
/// Order Statistics, 3rd ed., section 7.1.
inline interval median_interval(std::vector<double> values) {
  const std::size_t n = values.size();
  if (n < 6) return {};
  std::sort(values.begin(), values.end());
  double term = std::exp2(-static_cast<double>(n));  // P(X = 0) for X ~ Binomial(n, 1/2)
  double tail = term;
  std::size_t below = 0;  // largest rank with P(X <= rank) <= 2.5%
  while (below + 1 < n / 2) {
    term *= static_cast<double>(n - below) / static_cast<double>(below + 1);
    if (tail + term > 0.025) break;
    tail += term;
    ++below;
  }
  return {values[below], values[n - 1 - below]};
}

/// How many times as fast `b` is as `a`. The times are taken in turns (a_0, b_0, a_1, b_1, ...), so that a machine that
/// gets slower slows both and leaves their ratio.
struct paired_speedup {
  double ratio = std::numeric_limits<double>::quiet_NaN();  // median of a_i / b_i
  interval bounds = {};                                     // 95% confidence interval of the ratio

  bool clearly_faster() const { return bounds.low > 1; }
  bool clearly_slower() const { return bounds.high < 1; }
  /// True if the interval is known and leaves open which of the two is faster.
  bool within_noise() const {
    return std::isfinite(bounds.low) && std::isfinite(bounds.high) && !clearly_faster() && !clearly_slower();
  }
};

/// Returns: how many times as fast `a` is as `b`, from the opposite.
inline paired_speedup inverse(const paired_speedup& other) {
  return {1 / other.ratio, {1 / other.bounds.high, 1 / other.bounds.low}};
}

inline paired_speedup compare_paired(std::span<const double> a, std::span<const double> b) {
  std::vector<double> ratios(std::min(a.size(), b.size()));
  for (std::size_t i = 0; i < ratios.size(); ++i) ratios[i] = a[i] / b[i];
  return {median(ratios), median_interval(ratios)};
}

}  // namespace comp
