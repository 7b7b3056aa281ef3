// SPDX-License-Identifier: Apache-2.0
// Finds what a search knows before its first batch: which operators may change, the plan that "FP32" stands for, the
// rule-based plans and the rivals. What can be refused without running a batch is refused here.
#pragma once

#include <comp/autocast/rule_plan.hpp>
#include <comp/search/decision/harm_scores.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/space/candidate_space.hpp>
#include <comp/search/timing/rivals.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <comp/search/trainer/op_support.hpp>
#include <comp/search/trainer/signature.hpp>
#include <exception>
#include <utility>
#include <vector>

namespace comp {

class starting_plans {
 public:
  /// `log` has the graph and the hardware already. The precisions that are searched are written to it, and warnings.
  /// Throws: `settings_error`, `graph_error`, `plan_error`, and what the policy throws.
  starting_plans(any_trainer& trainer, any_policy policy, const search_settings& settings, outcome& log)
      : policy_{std::move(policy)}, settings_{settings}, log_{log} {
    const std::vector<precision> supported = trainer.supported_precisions();
    log.precisions = searched_precisions(trainer, settings);
    lows_.assign(log.precisions.begin() + 1, log.precisions.end());
    if (lows_.empty() && settings.precisions.empty() && supported.size() > 1) {
      log.warnings.push_back(
          "no precision below FP32 was searched: this machine computes none faster. Name those that are to be tried all the "
          "same in settings.precisions");
    }
    require<graph_error>(!log.graph.empty(),
                         "the model has no operators (there is nothing to plan): record a forward first");
    runs_ = op_support{trainer, log.graph, lows_};
    candidates_ = make_candidate_space(policy_, log.graph, log.hardware, lows_, settings.losses_tie, runs_);
    require_supported(candidates_, log.graph, supported, runs_);
    fp32_ = runs_.widest(log.graph);
    for (std::size_t i = 0; i < fp32_.size(); ++i) {
      if (is_fixed(i) && log.graph[i].choosable) fp32_[i] = candidates_.decisions[i].compute;
    }
    rivals_ = rivals_of(settings.rivals, log.graph, lows_, supported, runs_, log.warnings);
    for (rival& r : rivals_) r.plan = with_fixed(std::move(r.plan));
    if (trainer.has.own_autocast && any_may_change() && !settings.verbatim) add_autocast(trainer);
    if (trainer.has.tuned_fp32 && lows_.empty() && any_may_change() && !settings.verbatim) add_tuned(trainer);
  }

  /// Returns: the plan that "FP32" stands for: the most conservative one that the backend runs.
  const plan& fp32() const { return fp32_; }
  /// Puts `p` in the place of FP32, which does not fit in memory.
  void replace_fp32(const plan& p) { fp32_ = p; }
  /// Returns: the low precisions that are searched, in order of preference.
  const std::vector<precision>& lows() const { return lows_; }
  const op_support& runs() const { return runs_; }
  const candidate_space& candidates() const { return candidates_; }

  /// Returns: the plans to try as the reference if FP32 does not fit in memory: first the rule-based ones, then those
  /// with everything low.
  std::vector<plan> smaller() const {
    std::vector<plan> plans = rules();
    for (const precision low : lows_) {
      plan all = fp32_;
      for (std::size_t i = 0; i < all.size(); ++i) {
        if (log_.graph[i].choosable) all[i] = low;
      }
      plans.push_back(with_fixed(std::move(all)));
    }
    std::erase(plans, fp32_);
    return plans;
  }

  /// Returns: what a guided search starts from. Warns if an earlier search's plan does not fit this model.
  guided_start where_to_start() const {
    guided_start from{.decisions = candidates_.decisions, .lows = lows_, .batches_per_epoch = log_.batches_per_epoch};
    for (std::size_t i = 0; i < fp32_.size(); ++i) {
      std::vector<precision>& levels = from.levels.emplace_back(1, fp32_[i]);
      if (!may_change(i)) continue;
      for (const precision low : lows_) {
        if (low != fp32_[i] && runs_.supports(i, low)) levels.push_back(low);
      }
    }
    from.rules = rules();
    for (const precision low : lows_) from.rules.push_back(lowered_to(low, fp32_, from.levels));
    for (const rival& r : rivals_) from.rules.push_back(r.plan.as_autocast(false));
    if (settings_.warm_start.size() == fp32_.size()) {
      from.rules.push_back(with_fixed(settings_.warm_start.as_autocast(false)));
    } else if (!settings_.warm_start.empty()) {
      log_.warnings.push_back(fmt::format("the earlier plan was not used: it has {} operators, this model {}",
                                          settings_.warm_start.size(), fp32_.size()));
    }
    return from;
  }

  /// Returns: the plans that take part in the contest: FP32, the rule-based plans, the rivals and `proposal`.
  std::vector<racer> racers(const plan& proposal) const {
    std::vector<racer> all;
    enter(all, fp32_, "fp32");
    for (const precision low : lows_) {
      if (has_rule(low)) enter(all, rule(low), fmt::format("rule-based {}", name(low)), true);
    }
    for (const rival& r : rivals_) enter(all, r.plan, r.label, r.rule_based);
    enter_found(all, proposal, log_.graph);
    return all;
  }

 private:
  bool is_fixed(std::size_t op) const { return candidates_.decisions[op].fixed; }
  bool may_change(std::size_t op) const { return log_.graph[op].choosable && !is_fixed(op); }
  bool any_may_change() const {
    for (std::size_t i = 0; i < fp32_.size(); ++i) {
      if (may_change(i)) return true;
    }
    return false;
  }

  // Rules that know 16 bits alone give 16 bits for narrower formats, too. That is no rule-based plan of the format.
  bool has_rule(precision low) const {
    const plan p = rule(low);
    return !is_scaled(low) || std::find(p.begin(), p.end(), low) != p.end();
  }
  std::vector<plan> rules() const {
    std::vector<plan> all;
    for (const precision low : lows_) {
      if (has_rule(low)) all.push_back(rule(low));
    }
    return all;
  }
  plan rule(precision low) const { return with_fixed(autocast::rule_plan(policy_, log_.graph, low)); }

  // An operator that the policy fixes has that precision in every plan, and no operator gets one that the backend
  // cannot run it in.
  plan with_fixed(plan p) const {
    p = runs_.with_substitutes(std::move(p));
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (is_fixed(i)) p[i] = fp32_[i];
    }
    return p;
  }

  // Adds the backend's own autocast as a rival. It runs by itself: comp's imitation of it could be slower than it, or
  // lower other operators, and would then be too easily beaten.
  void add_autocast(any_trainer& trainer) {
    for (const precision low : lows_) {
      if (low != precision::bf16 && low != precision::fp16) continue;
      try {
        plan real = trainer.own_autocast(low);
        require_fits(real, log_.graph);
        const plan by_operators = real.as_autocast(false);
        require<error>(with_fixed(by_operators) == by_operators,
                       "it gives operators another precision than the policy");
        if (real.count_low() > 0)
          rivals_.push_back({fmt::format("rule-based autocast {}", name(low)), std::move(real), true});
      } catch (const std::exception& e) {
        log_.warnings.push_back(fmt::format("the backend's own autocast to {} was no rival: {}", name(low), e.what()));
      }
    }
  }

  // Adds tuned FP32 as a rival, if no lower precision is searched: plans in those are tuned, too, and beat it.
  void add_tuned(any_trainer& trainer) {
    try {
      const plan tuned = trainer.tuned_fp32();
      if (tuned.is_tuned() && tuned.as_autocast(false) == fp32_)
        rivals_.push_back({label_of_found(tuned, log_.graph, rivals_), tuned});
    } catch (const settings_error&) {
      throw;
    } catch (const interrupted&) {
      throw;
    } catch (const std::exception& e) {
      log_.warnings.push_back(fmt::format("tuned FP32 was no rival: {}", e.what()));
    }
  }

  any_policy policy_;
  const search_settings& settings_;
  outcome& log_;
  std::vector<precision> lows_ = {};
  op_support runs_ = {};
  candidate_space candidates_ = {};
  plan fp32_ = {};
  std::vector<rival> rivals_ = {};
};

}  // namespace comp
