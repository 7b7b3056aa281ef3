// SPDX-License-Identifier: Apache-2.0
// Stage 1, by epochs: each candidate trains one epoch from the common start; the fastest whose loss is accepted wins.
// When none is accepted the allow-operators themselves are put in question: they are lowered kind by kind, from FP32.
// Source: CoMP paper, section 3.2 and algorithm 1; "gradually return to a more conservative plan": section 4.4.
#pragma once

#include <array>
#include <comp/search/candidate_space.hpp>
#include <comp/search/early_cut.hpp>
#include <comp/search/evaluator.hpp>
#include <comp/search/stage_zero.hpp>
#include <comp/strategy/greedy.hpp>
#include <cstddef>
#include <limits>
#include <map>
#include <optional>
#include <utility>
#include <vector>

namespace comp {

template <class Evaluator>
class stage_one {
 public:
  using epoch_type = finished_epoch<typename Evaluator::state>;

  /// `baseline`: the FP32 epoch, which is also the result for the all-FP32 plan.
  stage_one(Evaluator& run, outcome& log, const search_settings& settings, const epoch_type& baseline)
      : run_{run}, log_{log}, settings_{settings}, baseline_{baseline} {
    done_.emplace(baseline.result.plan, baseline.result);
  }

  /// Returns: the fastest accepted epoch of a plan other than FP32; nothing when there is none.
  template <SearchStrategy S>
  std::optional<epoch_type> operator()(const S& strategy, const candidate_space& candidates) {
    try_all(strategy.start(candidates.space));
    if (!best_) back_off(candidates);
    return std::move(best_);
  }

 private:
  template <class Run>
  void try_all(Run strategy) {
    for (auto plans = strategy.ask(1); !plans.empty(); plans = strategy.ask(1)) {
      for (const plan& p : plans) strategy.tell(try_one(p));
    }
  }

  trial try_one(const plan& p) {
    if (const auto known = done_.find(p); known != done_.end()) return known->second;
    const double best_seconds = best_ ? best_->result.seconds : std::numeric_limits<double>::infinity();
    trial t = run_.epoch(stage::epochs, p, "", candidate_cut{settings_.cut, log_.baseline, best_seconds});
    if (t.accepted && t.seconds < best_seconds) {
      best_.emplace(epoch_type{t, {}});
      if (Evaluator::restores && !run_.recalled()) best_->end = run_.save();
    }
    done_.emplace(p, t);
    return t;
  }

  // The lowered operators, FP32 or low per group, everything else FP32.
  void back_off(const candidate_space& candidates) {
    group_builder groups{log_.graph, settings_.epochs_tie};
    for (std::size_t i = 0; i < candidates.roles.size(); ++i) {
      if (candidates.roles[i] == op_role::lowered)
        groups.add(i, std::array{precision::fp32, candidates.space.base()[i]});
    }
    for (const op_group& group : candidates.space.groups()) {  // allow-operators with several low precisions
      if (group.levels.front() == precision::fp32) continue;
      std::vector<precision> levels{precision::fp32};
      levels.insert(levels.end(), group.levels.begin(), group.levels.end());
      for (const auto op : group.operators) groups.add(op, levels);
    }
    search_space space{baseline_.result.plan, groups.take()};
    if (space.groups().empty()) return;
    log_.warnings.push_back(
        "no candidate of stage 1 was accepted with every allow-operator low: they were lowered one group at a time");
    try_all(strategy::greedy{.both_ends = false}.start(std::move(space)));
  }

  Evaluator& run_;
  outcome& log_;
  const search_settings& settings_;
  const epoch_type& baseline_;
  std::map<plan, trial> done_;
  std::optional<epoch_type> best_;
};

}  // namespace comp
