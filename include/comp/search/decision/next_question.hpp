// SPDX-License-Identifier: Apache-2.0
// Chooses the plan to time next: the one whose answer saves most over the batches still to come, less what asking
// costs; none if no answer pays.
// Candidates are the cheapest plan under the present costs, and cheapest plans under costs drawn from what is still
// possible (Thompson sampling). Batches of accepted plans are training, so timing such a plan only costs the time by
// which it is slower, and its first batch, which is not timed. A plan with precisions that were not accepted costs a
// whole test of losses.
// Source: Thompson 1933; Frazier, Powell and Dayanik 2008 (the knowledge gradient).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/statistics.hpp>
#include <comp/search/decision/accepted_operators.hpp>
#include <comp/search/decision/learned_costs.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <cstddef>
#include <numbers>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <vector>

namespace comp {

/// Estimates from all races so far how much the ratio of two batches' times varies by noise alone. The median absolute
/// deviation is used, so that single hiccups of the machine do not count.
class ratio_noise {
 public:
  void add(std::span<const double> a, std::span<const double> b) {
    const std::size_t n = std::min(a.size(), b.size());
    if (n < 3 || a.data() == b.data()) return;
    std::vector<double> off;
    for (std::size_t i = 0; i < n; ++i) off.push_back(std::log(a[i] / b[i]));
    const double middle = median(off);
    for (double& o : off) o = std::abs(o - middle);
    const double weight = static_cast<double>(n - 1);
    deviation_ += (1.5 * median(off) - deviation_) * weight / (seen_ + weight);
    seen_ += weight;
  }
  /// Returns: the standard deviation of the logarithm of two batches' ratio.
  double of_a_batch() const { return deviation_; }
  /// Returns: the same for the median of `n` ratios.
  double of_mean(std::size_t n) const {
    return 1.25 * deviation_ / std::sqrt(static_cast<double>(std::max<std::size_t>(n, 1)));
  }

 private:
  double deviation_ = 0.05, seen_ = 3;
};

class next_question {
 public:
  /// Rounds of the race that answers a question.
  static constexpr std::size_t rounds = 6;

  next_question(const learned_costs& costs, const accepted_operators& accepted, const guided_start& from,
                double per_byte)
      : costs_{costs}, accepted_{accepted}, from_{from}, per_byte_{per_byte} {}

  struct question {
    comp::plan plan;
    double pays = 0;  // seconds that the training saves, less those that asking costs
  };

  /// Returns: the question that pays most; nothing if none pays. `best`: the fastest plan that was timed. `noise`:
  /// standard deviation of two batches' ratio. `test`: batches that a test of losses takes.
  std::optional<question> choose(const plan& best, double noise, const evaluator& run, std::size_t test) {
    std::optional<question> found;
    std::set<plan> seen{best};
    const auto look = [&](const precision_levels& levels, bool drawn) {
      const std::vector<plan> starts{best, accepted_.allowed()};
      const plan p = drawn ? costs_.perhaps_cheapest(levels, starts, per_byte_, random_)
                           : costs_.cheapest(levels, starts, per_byte_);
      if (!seen.insert(p).second || tried_.contains(p) || p.count_low() == 0) return;
      const double pays = worth(p, best, noise, run, test);
      if (pays > 0 && (!found || pays > found->pays)) found = question{p, pays};
    };
    const precision_levels open = open_levels();
    for (int i = 0; i == 0 || (costs_.resolves() && i < draws); ++i) {
      look(accepted_.levels(), i > 0);
      if (from_.lows.size() > 1) look(open, i > 0);
    }
    if (found && !accepted_.is_accepted(found->plan)) tried_.insert(found->plan);
    return found;
  }

 private:
  // Draws of costs per question; none if batches cannot tell single operators apart.
  static constexpr int draws = 8;

  // Operators that were accepted in one low precision may be proposed in the others, too.
  precision_levels open_levels() const {
    precision_levels open = accepted_.levels();
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i].size() > 1) open[i] = from_.levels[i];
    }
    return open;
  }

  // Returns: the expected value of max(x, 0) for a normal variable x, because a plan that turns out slower is not
  // taken.
  static double expected_gain(double mean, double deviation) {
    if (!(deviation > 0)) return std::max(mean, 0.0);
    const double z = mean / deviation;
    const double density = std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi);
    return mean * std::erfc(-z / std::numbers::sqrt2) / 2 + deviation * density;
  }

  // Returns: the seconds that the answer is expected to save over the batches to come, less what asking costs.
  double worth(const plan& p, const plan& best, double noise, const evaluator& run, std::size_t test) const {
    const double seconds = costs_.batch_seconds(p), gain = costs_.batch_seconds(best) - seconds,
                 spread = costs_.spread(p, best);
    const bool covered = accepted_.is_accepted(p);
    const double count = static_cast<double>(covered ? rounds : test);
    const double of_answer = seconds * noise / std::sqrt(count);
    // How far the answer is expected to move the estimate: s^2 / sqrt(s^2 + e^2), as in the knowledge gradient.
    const double told = spread * spread / std::hypot(spread, of_answer);
    const double first = run.has_run(p) ? 0 : 1;  // the first batch of a plan is not timed, and often slow
    const double cost = covered ? count * expected_gain(-gain, spread) + first * seconds : count * seconds;
    // The part of the promised gain that is believed.
    constexpr double trusted = 0.5;
    return trusted * expected_gain(gain, told) * std::max(accepted_.budget().to_come() - count, 0.0) - cost;
  }

  const learned_costs& costs_;
  const accepted_operators& accepted_;
  const guided_start& from_;
  double per_byte_;
  std::set<plan> tried_ = {};  // plans whose losses were asked about; none is asked about twice
  std::mt19937_64 random_{1};
};

}  // namespace comp
