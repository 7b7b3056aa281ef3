// SPDX-License-Identifier: Apache-2.0
// The two stages of the paper to the letter, for paper_search.hpp, which lists what the paper leaves open.
// Source: CoMP paper, algorithms 1 and 2; sections 3.2, 3.3 and 4.4.
#pragma once

#include <comp/core/concepts.hpp>
#include <comp/core/statistics.hpp>
#include <comp/search/convergence/loss_trials.hpp>
#include <comp/search/decision/session.hpp>
#include <comp/search/decision/starting_plans.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/space/segments.hpp>
#include <comp/search/space/watched_strategy.hpp>
#include <comp/search/timing/contest.hpp>
#include <comp/search/timing/rivals.hpp>
#include <functional>
#include <limits>
#include <utility>
#include <vector>

namespace comp {

class paper_stages {
 public:
  paper_stages(const search_session& search, const starting_plans& plans)
      : search_{search}, plans_{plans}, segments_(search.log.graph.size(), segment_kind::decided) {
    require<settings_error>(search.run.restores(),
                            "the paper's search runs each plan from the same state (this backend has no save() and "
                            "restore()): give it both, or use comp::two_stage");
  }

  /// Returns: the plan of both stages. The contest in the log has FP32 and that plan.
  plan find(const any_strategy& stage1, const any_strategy& stage2) {
    const outcome& log = search_.log;
    const candidate_space& candidates = plans_.candidates();
    const bool losses = search_.settings.stages != stages::times_only;
    best_ = {.plan = plans_.fp32(), .sample = log.baseline};
    if (losses) search_.run.timed(stage::losses, [&] { by_epochs(stage1, candidates); });
    stage_one_plan_ = best_.plan;
    if (search_.settings.stages != stages::losses_only) {
      search_space space;
      if (losses) {
        auto undecided = make_segment_space(log.graph, candidates.roles, best_.plan, tie::none, plans_.runs());
        segments_ = std::move(undecided.kinds);
        space = std::move(undecided.space);
      } else {
        space = space_without_losses(candidates, log.graph, plans_.lows(), tie::none, plans_.runs());
      }
      search_.run.timed(stage::times, [&] { by_batches(stage2, space); });
    }
    enter_contest();
    return best_.plan;
  }
  const plan& stage_one_plan() const { return stage_one_plan_; }
  /// Returns: per operator, whether stage 1 decided it, stage 2 enumerated it, or it follows its neighbours.
  const std::vector<segment_kind>& segments() const { return segments_; }

 private:
  // Algorithm 1: an epoch of each plan, and of those whose loss is accepted the one whose epoch took the least time.
  void by_epochs(const any_strategy& strategy, const candidate_space& candidates) {
    each_plan(strategy, candidates.space, [&](const plan& p) {
      trial t = search_.trials.judge(p).trial;
      t.accepted = t.accepted && t.sample.not_finite == 0;  // there is no loss scaling, which would skip a lost batch
      if (t.accepted && t.sample.seconds < best_.sample.seconds) best_ = t;
      return t;
    });
  }

  // Algorithm 2: the first batch of an epoch of each plan, and the one that took the least time.
  void by_batches(const any_strategy& strategy, const search_space& space) {
    if (space.groups().empty() && space.base() == plans_.fp32()) return;
    double least = std::numeric_limits<double>::infinity();
    each_plan(strategy, space, [&](const plan& p) {
      const trial t = search_.run.run(stage::times, p, {}, [&](const trial& begun) {
        sample batch;
        search_.run.restore(search_.trials.reference().start());
        search_.run.train(begun, p, 1, batch, detail::never_cut);
        return batch;
      });
      search_.run.record(t);
      if (t.sample.ok() && t.sample.seconds < least) {
        least = t.sample.seconds;
        best_ = t;
      }
      return t;
    });
  }

  void each_plan(const any_strategy& strategy, const search_space& space,
                 const std::function<trial(const plan&)>& run) {
    watched_strategy asked{strategy.start(space), space, search_.log.graph};
    for (auto plans = asked.ask(1); !plans.empty(); plans = asked.ask(1)) asked.tell(run(plans.front()));
    if (!asked.warning().empty()) search_.log.warnings.push_back(asked.warning());
  }

  void enter_contest() {
    std::vector<contestant>& contest = search_.log.contest;
    const sample& fp32 = search_.log.baseline;
    contest.assign(1, {.label = "fp32", .plan = plans_.fp32(), .over_fp32 = {1, {1, 1}}});
    if (best_.plan != plans_.fp32()) {
      contestant& found = contest.emplace_back();
      found.label = label_of_found(best_.plan, search_.log.graph, contest);
      found.plan = best_.plan;
      found.peak_bytes = best_.sample.peak_bytes;
      found.seconds = best_.sample.batch_seconds;
      found.over_fp32 = compare_paired(fp32.batch_seconds, found.seconds);
      found.over_fp32.ratio = median(fp32.batch_seconds) / median(found.seconds);  // the first batches may be slow
    }
    contest.front().seconds = fp32.batch_seconds;
    contest.front().peak_bytes = fp32.peak_bytes;
    if (search_.trials.known(best_.plan) != nullptr) describe_contest(search_.log, search_.trials);
  }

  search_session search_;
  const starting_plans& plans_;
  std::vector<segment_kind> segments_;
  trial best_ = {};
  plan stage_one_plan_ = {};
};

}  // namespace comp
