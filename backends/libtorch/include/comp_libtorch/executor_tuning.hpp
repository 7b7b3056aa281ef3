// SPDX-License-Identifier: Apache-2.0
// Chooses how a plan is run by measuring it: weights cast in each step or kept in low precision, images as they are or
// channels-last. Each choice is timed in turns against the default, and taken only when its 95% interval says faster.
// When that is done: docs/decisions.md, "The executor's choices". Not here: what the choices mean (settings.hpp).
#pragma once

#include <algorithm>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/statistics.hpp>
#include <comp_libtorch/settings.hpp>
#include <cstddef>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace comp::libtorch {

struct executor_choice {
  weight_casts weights = weight_casts::cast;
  memory_format images = memory_format::as_is;
  friend bool operator==(const executor_choice&, const executor_choice&) = default;
};

/// What was measured: how many times as fast the other choice was; NaN where it was not tried.
struct tuned_choice {
  executor_choice choice = {};
  paired_speedup keeping = {};
  paired_speedup channels_last = {};
};

struct tuning_settings {
  std::size_t rounds = 7;             // each a batch to get used to a choice and a batch that is timed, of both
  std::int64_t shortest_epoch = 150;  // [batches]: with fewer, measuring costs more than it can give back in a search
  std::int64_t trained_with = 500;    // [batches] in a row: then a plan is measured itself, whatever its like said
  double hopeless = 1.5;              // times FP32's batch: a plan that is slower is not worth measuring
};

namespace detail {

inline bool lowers(const op_graph& graph, const plan& p, std::string_view part_of_kind) {
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (is_low(p[i]) && graph[i].kind.find(part_of_kind) != std::string::npos) return true;
  }
  return false;
}

/// The low precision that most operators of `p` have; nothing for FP32. Plans that share it are alike in what pays.
inline std::optional<precision> prevailing(const plan& p) {
  std::map<precision, std::size_t> counts;
  for (const precision each : p) {
    if (traits(each).bytes < 4) ++counts[each];
  }
  const auto most = std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
  return most == counts.end() ? std::nullopt : std::optional{most->first};
}

}  // namespace detail

/// Measures the plan that is set. `use(choice)` switches; `batch()` trains a step and gives its seconds.
template <class Use, class Batch>
tuned_choice measured_choice(const op_graph& graph, const plan& p, const tuning_settings& settings, Use use,
                             Batch batch) {
  tuned_choice best;
  const auto speedup_of = [&](executor_choice other) {
    const executor_choice pair[] = {best.choice, other};
    std::vector<double> seconds[2];
    for (std::size_t round = 0; round < settings.rounds; ++round) {
      for (const std::size_t which : {round % 2, 1 - round % 2}) {
        use(pair[which]);
        (void)batch();
        seconds[which].push_back(batch());
      }
    }
    return compare_paired(seconds[0], seconds[1]);
  };
  const auto keep = executor_choice{weight_casts::keep, memory_format::as_is};
  best.keeping = speedup_of(keep);
  if (best.keeping.clearly_faster()) best.choice = keep;
  if (detail::lowers(graph, p, "conv")) {
    best.channels_last = speedup_of({best.choice.weights, memory_format::channels_last});
    if (best.channels_last.clearly_faster()) best.choice.images = memory_format::channels_last;
  }
  use(best.choice);
  return best;
}

/// Remembers what was measured, and says when to measure.
class tuning_memory {
 public:
  explicit tuning_memory(tuning_settings settings) : settings_{settings} {}
  const tuning_settings& settings() const { return settings_; }

  /// The choice for `p`: its own, else that of its like, else the default.
  executor_choice of(const plan& p) const {
    if (const auto own = exact_.find(p); own != exact_.end()) return own->second;
    const auto low = detail::prevailing(p);
    const auto alike = low ? alike_.find(*low) : alike_.end();
    return alike == alike_.end() ? executor_choice{} : alike->second;
  }

  /// True when `p` should be measured before it is run on.
  bool wants(const plan& p, std::int64_t batches_per_epoch, std::int64_t batches_in_a_row) const {
    const auto low = detail::prevailing(p);
    if (!low || exact_.contains(p)) return false;
    if (batches_in_a_row >= settings_.trained_with) return true;
    return !alike_.contains(*low) && batches_per_epoch >= settings_.shortest_epoch;
  }

  void learn(const plan& p, const executor_choice& found) {
    exact_[p] = found;
    if (const auto low = detail::prevailing(p)) alike_.try_emplace(*low, found);
  }

 private:
  tuning_settings settings_;
  std::map<plan, executor_choice> exact_;
  std::map<precision, executor_choice> alike_;
};

}  // namespace comp::libtorch
