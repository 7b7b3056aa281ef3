// SPDX-License-Identifier: Apache-2.0
// Compares the seconds that a trainer gives its batches with comp's own clock. A trainer may know better if a device
// works on after run_batch() has returned. Over batches of one plan in a row, however, both have to take the same time.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/plan.hpp>
#include <comp/core/statistics.hpp>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <vector>

namespace comp {

class batch_clock {
 public:
  /// Adds a batch under `p`. `reported`: the seconds that the trainer gave, 0 if it gave none. `measured`: those of
  /// comp's clock.
  void add(const plan& p, double reported, double measured) {
    const bool same_plan = last_plan_ == p;
    if (reported > 0 && std::isfinite(reported)) {
      if (same_plan) {
        auto& times = times_in_a_row_[p];
        times.reported.push_back(reported);
        times.measured.push_back(measured);
      } else if (!last_plan_.empty() && std::abs(std::log(measured / last_measured_)) > clear_log_ratio) {
        ++plan_changes_;
        late_reports_ += std::abs(std::log(reported / last_measured_)) < clear_log_ratio / 2 ? 1U : 0U;
      }
    }
    if (!same_plan) last_plan_ = p;
    last_measured_ = measured;
  }

  /// Returns: how the trainer's times contradict comp's clock, by FP32's batches and those of the plan with most
  /// batches; nothing if they agree.
  std::optional<std::string> find_contradiction(const plan& fp32) const {
    const auto fp32_times = medians_of(fp32);
    if (!fp32_times || fp32_times->measured < shortest_batch) return {};
    if (fp32_times->reported / fp32_times->measured > 1.5) {
      return fmt::format(
          "run_batch() gives {:.3g} as the seconds of a batch that takes {:.3g} s by comp's clock (times decide which plan "
          "wins): give the wall time in seconds, or leave 0 and comp takes the time itself",
          fp32_times->reported, fp32_times->measured);
    }
    if (plan_changes_ >= 2 && late_reports_ * 5 >= plan_changes_ * 4) {
      return "run_batch() gives the seconds of the batch before (after a change of plans they fit that one by comp's clock): "
             "give this batch's, or leave 0 and comp takes the time itself";
    }
    const auto most_timed =
        std::max_element(times_in_a_row_.begin(), times_in_a_row_.end(), [&](const auto& p, const auto& q) {
          return (p.first == fp32 ? 0 : p.second.reported.size()) < (q.first == fp32 ? 0 : q.second.reported.size());
        });
    const auto plan_times = medians_of(most_timed->first);
    if (!plan_times || most_timed->first == fp32) return {};
    const double reported = fp32_times->reported / plan_times->reported,
                 measured = fp32_times->measured / plan_times->measured;
    if (std::abs(std::log(reported / measured)) < clear_log_ratio) return {};
    return fmt::format(
        "a plan is {:.2f} times as fast as FP32 by the seconds of run_batch(), {:.2f} times by comp's clock: look at what is "
        "timed (sample.seconds is the wall time of the whole batch, data loading included), or leave 0 and comp takes the "
        "time itself",
        reported, measured);
  }

 private:
  struct median_times {
    double reported = 0, measured = 0;
  };
  struct batch_times {
    std::vector<double> reported = {}, measured = {};
  };
  static constexpr double clear_log_ratio = 0.18;  // a ratio's logarithm above which two times differ: a fifth
  static constexpr double shortest_batch =
      0.5e-3;  // [s]; in shorter batches most of the time goes into calls and clocks

  // Returns: the medians of both times; nothing for few batches, which may be slow by chance.
  std::optional<median_times> medians_of(const plan& p) const {
    const auto at = times_in_a_row_.find(p);
    if (at == times_in_a_row_.end() || at->second.reported.size() < 6) return {};
    return median_times{median(at->second.reported), median(at->second.measured)};
  }

  std::map<plan, batch_times> times_in_a_row_ = {};
  plan last_plan_ = {};
  double last_measured_ = 0;
  // Changes of plan after which comp's clock shows another time, and how many left the trainer's time unchanged.
  std::size_t plan_changes_ = 0, late_reports_ = 0;
};

}  // namespace comp
