// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <comp/core/statistics.hpp>
#include <numeric>
#include <random>

namespace {

// Probability that at most `rank` of `n` fair coins show heads, summed in the logarithm.
double at_most(std::size_t rank, std::size_t n) {
  double sum = 0;
  for (std::size_t k = 0; k <= rank; ++k) {
    const double log_choose = std::lgamma(static_cast<double>(n) + 1) - std::lgamma(static_cast<double>(k) + 1) -
                              std::lgamma(static_cast<double>(n - k) + 1);
    sum += std::exp(log_choose - static_cast<double>(n) * std::log(2.0));
  }
  return sum;
}

std::vector<double> counting(std::size_t n) {
  std::vector<double> values(n);
  std::iota(values.begin(), values.end(), 0.0);
  return values;
}

}  // namespace

TEST_CASE("the median is the middle, or the mean of the two in the middle") {
  CHECK(comp::median({3, 1, 2}) == 2);
  CHECK(comp::median({4, 1, 3, 2}) == 2.5);
  CHECK(comp::median({5}) == 5);
  CHECK(std::isnan(comp::median({})));
}

TEST_CASE("the median does not depend on the order") {
  CHECK(rc::check([](std::vector<int> drawn) {
    RC_PRE(!drawn.empty());
    std::vector<double> values(drawn.begin(), drawn.end());
    const double middle = comp::median(values);
    std::ranges::sort(values);
    const std::size_t n = values.size();
    RC_ASSERT(middle == (values[(n - 1) / 2] + values[n / 2]) / 2);
  }));
}

TEST_CASE("fewer than six values bound nothing") {
  for (std::size_t n = 0; n < 6; ++n) {
    const auto bounds = comp::median_interval(counting(n));
    CHECK(std::isinf(bounds.low));
    CHECK(std::isinf(bounds.high));
  }
}

TEST_CASE("the interval is the tightest of order statistics that holds the median with 95%") {
  for (std::size_t n = 6; n <= 300; ++n) {
    CAPTURE(n);
    const auto bounds = comp::median_interval(counting(n));
    const auto rank = static_cast<std::size_t>(bounds.low);
    CHECK(bounds.high == static_cast<double>(n - 1 - rank));
    CHECK(1 - 2 * at_most(rank, n) >= 0.95);
    CHECK(1 - 2 * at_most(rank + 1, n) < 0.95);
  }
}

TEST_CASE("a skewed distribution's median is held as often as promised") {
  std::mt19937_64 generator{11};
  std::exponential_distribution<double> draw{1};
  int held = 0;
  for (int i = 0; i < 2000; ++i) {
    std::vector<double> values(15);
    for (double& value : values) value = draw(generator);
    const auto bounds = comp::median_interval(values);
    held += bounds.low <= std::log(2.0) && std::log(2.0) <= bounds.high;
  }
  CHECK(held > 1880);  // 96.5% promised for 15 values: 1930, standard deviation 8
}

TEST_CASE("the drift of the machine cancels in paired times") {
  std::vector<double> slow, fast;
  for (int i = 0; i < 20; ++i) {
    const double drift = 1 + 0.2 * i;
    slow.push_back(1.25 * drift);
    fast.push_back(drift);
  }
  const auto speedup = comp::compare_paired(slow, fast);
  CHECK(speedup.ratio == doctest::Approx(1.25));
  CHECK(speedup.clearly_faster());
  CHECK_FALSE(speedup.clearly_slower());
  CHECK(comp::compare_paired(fast, slow).clearly_slower());
}

TEST_CASE("noise alone is neither faster nor slower") {
  std::vector<double> a, b;
  for (int i = 0; i < 20; ++i) {
    a.push_back(i % 2 == 0 ? 1.1 : 1.0);
    b.push_back(i % 2 == 0 ? 1.0 : 1.1);
  }
  const auto speedup = comp::compare_paired(a, b);
  CHECK_FALSE(speedup.clearly_faster());
  CHECK_FALSE(speedup.clearly_slower());
}

TEST_CASE("too few pairs decide nothing") {
  const std::vector<double> slow{2, 2, 2, 2, 2}, fast{1, 1, 1, 1, 1};
  CHECK(comp::compare_paired(slow, fast).ratio == 2);
  CHECK_FALSE(comp::compare_paired(slow, fast).clearly_faster());
  CHECK(std::isnan(comp::compare_paired({}, fast).ratio));
}
