// SPDX-License-Identifier: Apache-2.0
// Stage 1: each plan that a strategy asks for is judged by its losses; the fastest that is accepted wins.
// When none is accepted the allow-operators themselves are put in question: they are lowered kind by kind, from FP32.
// Source: CoMP paper, section 3.2 and algorithm 1; "gradually return to a more conservative plan": section 4.4.
#pragma once

#include <array>
#include <comp/search/asking.hpp>
#include <comp/search/candidate_space.hpp>
#include <comp/search/op_support.hpp>
#include <comp/search/trials.hpp>
#include <comp/strategy/greedy.hpp>
#include <cstddef>
#include <optional>
#include <span>
#include <vector>

namespace comp {

class stage_one {
 public:
  stage_one(loss_trials& trials, outcome& log, const search_settings& settings, const op_support& runs)
      : trials_{trials}, log_{log}, settings_{settings}, runs_{runs} {
    fp32_.plan = trials.reference().plan();
    fp32_.sample = log.baseline;
    detail::summarise_times(fp32_);
    fp32_.accepted = true;
  }

  /// Returns: the fastest accepted plan other than FP32; nothing when there is none.
  std::optional<trial> operator()(const any_strategy& strategy, const candidate_space& candidates) {
    try_all(strategy, candidates.space);
    if (!best_) back_off(candidates);
    return best_;
  }

 private:
  void try_all(const any_strategy& strategy, const search_space& space) {
    asking run{strategy.start(space), space, log_.graph};
    for (auto plans = run.ask(1); !plans.empty(); plans = run.ask(1)) {
      for (const plan& p : plans) run.tell(lower_is_better(try_one(p)));
    }
    if (!run.warning().empty()) log_.warnings.push_back(run.warning());
  }

  trial try_one(const plan& p) {
    if (p == fp32_.plan) return fp32_;
    const trial& t = trials_(p).trial;
    if (t.accepted && (!best_ || t.seconds < best_->seconds)) best_ = t;
    return t;
  }

  // Strategies know no direction: the losses that they are told are turned where higher is better.
  trial lower_is_better(trial t) const {
    if (!log_.higher_is_better) return t;
    t.sample.loss = -t.sample.loss;
    const auto turn = [](std::vector<double>& losses) {
      for (double& loss : losses) loss = -loss;
    };
    turn(t.sample.losses);
    turn(t.sample.curve);
    for (auto& curve : t.sample.curves) turn(curve);
    return t;
  }

  // The lowered operators, FP32 or low per group, everything else FP32; what lacks FP32 has its widest precision.
  void back_off(const candidate_space& candidates) {
    group_builder groups{log_.graph, settings_.epochs_tie};
    const auto add = [&](std::size_t op, std::span<const precision> lows) {
      std::vector<precision> levels;
      add_levels(levels, op, lows, runs_);
      if (levels.size() > 1) groups.add(op, levels);
    };
    for (std::size_t i = 0; i < candidates.roles.size(); ++i) {
      if (candidates.roles[i] == op_role::lowered) add(i, std::array{candidates.space.base()[i]});
    }
    for (const op_group& group : candidates.space.groups()) {
      for (const auto op : group.operators) {  // allow-operators with several low precisions
        if (group.levels.front() != runs_.widest(op)) add(op, group.levels);
      }
    }
    const search_space space{fp32_.plan, groups.take()};
    if (space.groups().empty()) return;
    log_.warnings.push_back(
        "no candidate of stage 1 was accepted with every allow-operator low: they were lowered one group at a time");
    try_all(strategy::greedy{.both_ends = false}, space);
  }

  loss_trials& trials_;
  outcome& log_;
  const search_settings& settings_;
  const op_support& runs_;
  trial fp32_;
  std::optional<trial> best_;
};

}  // namespace comp
