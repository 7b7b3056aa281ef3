// SPDX-License-Identifier: Apache-2.0
// Compares the seconds that a trainer gives its batches with comp's own clock. A trainer may know better, where a
// device works on after run_batch() has returned. Over batches of one plan in a row, however, both have to take the
// same time.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/plan.hpp>
#include <comp/core/statistics.hpp>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp {

class batch_clock {
 public:
  /// Adds a batch under `p`. `told`: the seconds that the trainer gave, 0 where it gave none. `seen`: those of comp's
  /// clock.
  void add(const plan& p, double told, double seen) {
    const bool same = last_ == p;
    if (told > 0 && std::isfinite(told)) {
      if (same) {
        auto& of = in_a_row_[p];
        of.told.push_back(told);
        of.seen.push_back(seen);
      } else if (!last_.empty() && std::abs(std::log(seen / last_seen_)) > clear) {
        ++changes_;
        late_ += std::abs(std::log(told / last_seen_)) < clear / 2 ? 1U : 0U;
      }
    }
    if (!same) last_ = p;
    last_seen_ = seen;
  }

  /// Returns: how the trainer's times contradict comp's clock, by FP32's batches and those of the plan with most
  /// batches; nothing where they agree.
  std::optional<std::string> contradiction(const plan& fp32) const {
    const auto a = times_of(fp32);
    if (!a || a->seen < shortest) return {};
    if (a->told / a->seen > 1.5) {
      return fmt::format(
          "run_batch() gives {:.3g} as the seconds of a batch that takes {:.3g} s by comp's clock (times decide which plan "
          "wins): give the wall time in seconds, or leave 0 and comp takes the time itself",
          a->told, a->seen);
    }
    if (changes_ >= 2 && late_ * 5 >= changes_ * 4) {
      return "run_batch() gives the seconds of the batch before (after a change of plans they fit that one by comp's clock): "
             "give this batch's, or leave 0 and comp takes the time itself";
    }
    const auto other = std::max_element(in_a_row_.begin(), in_a_row_.end(), [&](const auto& p, const auto& q) {
      return (p.first == fp32 ? 0 : p.second.told.size()) < (q.first == fp32 ? 0 : q.second.told.size());
    });
    const auto b = times_of(other->first);
    if (!b || other->first == fp32) return {};
    const double told = a->told / b->told, seen = a->seen / b->seen;
    if (std::abs(std::log(told / seen)) < clear) return {};
    return fmt::format(
        "a plan is {:.2f} times as fast as FP32 by the seconds of run_batch(), {:.2f} times by comp's clock: look at what is "
        "timed (sample.seconds is the wall time of the whole batch, data loading included), or leave 0 and comp takes the "
        "time itself",
        told, seen);
  }

 private:
  struct both {
    double told = 0, seen = 0;
  };
  struct rows {
    std::vector<double> told = {}, seen = {};
  };
  static constexpr double clear = 0.18;       // a ratio's logarithm above which two times differ: a fifth
  static constexpr double shortest = 0.5e-3;  // [s]; in shorter batches most of the time goes into calls and clocks

  // Returns: the medians of both times; nothing for few batches, which may be slow by chance.
  std::optional<both> times_of(const plan& p) const {
    const auto at = in_a_row_.find(p);
    if (at == in_a_row_.end() || at->second.told.size() < 6) return {};
    return both{median(at->second.told), median(at->second.seen)};
  }

  std::map<plan, rows> in_a_row_ = {};
  plan last_ = {};
  double last_seen_ = 0;
  // Changes of plan after which comp's clock shows another time, and those of them after which the given time stayed.
  std::size_t changes_ = 0, late_ = 0;
};

}  // namespace comp
