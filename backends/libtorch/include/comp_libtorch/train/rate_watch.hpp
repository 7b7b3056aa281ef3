// SPDX-License-Identifier: Apache-2.0
// Finds learning rates that a repeated step changes in another way than the first time. A scheduler in the user's step
// counts steps by itself, and a restored state does not bring its count back.
#pragma once

#include <torch/optim/optimizer.h>

#include <comp/core/error.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

class rate_watch {
 public:
  /// `advice`: what to do about it.
  explicit rate_watch(std::string advice) : advice_{std::move(advice)} {}

  /// A step begins, at these rates.
  void begin(std::vector<double> rates) { before_ = std::move(rates); }

  /// Step `number` has ended, at the rates `after`. Throws: `settings_error` if it changed rates otherwise than when it
  /// ran before.
  void end(const std::vector<double>& after, std::uint64_t number) {
    if (number < first_ || number > next_) {
      changes_.clear();
      first_ = next_ = number;
    }
    if (number == next_) {
      ++next_;
      if (after != before_) changes_.emplace(number, std::pair{before_, after});
      return;
    }
    const auto earlier = changes_.find(number);
    const bool same = earlier == changes_.end() ? after == before_
                                                : earlier->second.first != before_ || earlier->second.second == after;
    if (same) return;
    const std::vector<double>& expected = earlier == changes_.end() ? before_ : earlier->second.second;
    std::size_t i = 0;
    while (i + 1 < after.size() && i + 1 < expected.size() && after[i] == expected[i]) ++i;
    throw settings_error{fmt::format(
        "learning rate {} after step {} was {:g} when that step ran before, now {:g} (a scheduler in the step counts "
        "steps by itself, and a restored state does not bring its count back): {}",
        i, number, expected[i], after[i], advice_)};
  }

 private:
  std::string advice_;
  std::vector<double> before_;
  std::map<std::uint64_t, std::pair<std::vector<double>, std::vector<double>>> changes_;  // by step: before and after
  std::uint64_t first_ = 0, next_ = 0;  // steps from first_ up to next_ were run
};

/// Reads the learning rate of each group of each optimizer. A user's own options need not have one: then nothing is
/// read.
class learning_rates {
 public:
  std::vector<double> operator()(const std::vector<torch::optim::Optimizer*>& optimizers) {
    std::vector<double> all;
    try {
      for (auto* optimizer : optimizers) {
        for (const auto& group : optimizer->param_groups()) {
          if (known_ && group.has_options()) all.push_back(group.options().get_lr());
        }
      }
    } catch (const c10::Error&) {
      known_ = false;
      all.clear();
    }
    return all;
  }

 private:
  bool known_ = true;
};

}  // namespace comp::libtorch::detail
