// SPDX-License-Identifier: Apache-2.0
// Runs stage 1 of the paper: each plan that a strategy asks for is judged by its losses, and the fastest accepted one
// wins (plan* of algorithm 1).
// Not here: what is done if none is accepted (staged_search.hpp). Source: CoMP paper, section 3.2 and algorithm 1.
#pragma once

#include <comp/search/convergence/loss_trials.hpp>
#include <comp/search/space/watched_strategy.hpp>
#include <optional>
#include <vector>

namespace comp {

class stage_one {
 public:
  stage_one(loss_trials& trials, outcome& log) : trials_{trials}, log_{log} {
    fp32_.plan = trials.reference().plan();
    fp32_.sample = log.baseline;
    detail::summarise_times(fp32_);
    fp32_.accepted = true;
  }

  /// Returns: the fastest accepted plan other than FP32; nothing if there is none.
  std::optional<trial> run(const any_strategy& strategy, const search_space& space) {
    watched_strategy run{strategy.start(space), space, log_.graph};
    for (auto plans = run.ask(1); !plans.empty(); plans = run.ask(1)) {
      for (const plan& p : plans) run.tell(with_lower_better(judge_one(p)));
    }
    if (!run.warning().empty()) log_.warnings.push_back(run.warning());
    return fastest_accepted_;
  }
  /// Returns: the fastest plan that ran but whose losses were rejected; nothing if there is none.
  const std::optional<trial>& refused() const { return fastest_refused_; }

 private:
  trial judge_one(const plan& p) {
    if (p == fp32_.plan) return fp32_;
    const trial& t = trials_.judge(p).trial;
    std::optional<trial>& fastest = t.accepted ? fastest_accepted_ : fastest_refused_;
    if (t.sample.ok() && (!fastest || t.seconds < fastest->seconds)) fastest = t;
    return t;
  }

  // Strategies take lower losses for better ones, so that losses that are maximised change their sign.
  trial with_lower_better(trial t) const {
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

  loss_trials& trials_;
  outcome& log_;
  trial fp32_;
  std::optional<trial> fastest_accepted_ = {}, fastest_refused_ = {};
};

}  // namespace comp
