// SPDX-License-Identifier: Apache-2.0
// Learning rates that a repeated step changes in another way than the first time: a scheduler in the user's step counts
// steps by itself, and a restored state does not have its count.
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

  /// Step `number` begins.
  void begin(std::vector<double> rates) { before_ = std::move(rates); }

  /// It has ended. Throws: `settings_error` when it changed rates as it did not when it was run before.
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
    const auto then = changes_.find(number);
    const bool same =
        then == changes_.end() ? after == before_ : then->second.first != before_ || then->second.second == after;
    if (same) return;
    const std::vector<double>& expected = then == changes_.end() ? before_ : then->second.second;
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
  std::uint64_t first_ = 0, next_ = 0;                                                    // steps that were run
};

/// Of each group of each optimizer; of a user's own options, which need not have one, nothing.
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
