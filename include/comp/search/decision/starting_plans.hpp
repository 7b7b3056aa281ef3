// SPDX-License-Identifier: Apache-2.0
// Finds what a search knows before its first batch: which operators may change, the plan that "FP32" stands for, the
// rule-based plans and the rivals. What can be refused without running a batch is refused here.
#pragma once

#include <algorithm>
#include <comp/autocast/rule_plan.hpp>
#include <comp/core/error.hpp>
#include <comp/core/rival.hpp>
#include <comp/policy/plan_name.hpp>
#include <comp/search/decision/harm_scores.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/space/spaces.hpp>
#include <comp/search/times/race.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <comp/search/trainer/signature.hpp>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp {

/// Throws: `plan_error`, naming the rival, for a plan that does not fit the graph, has a precision that is not among
/// `supported`, or has an operator in a precision that the backend does not run it in.
inline void require_runs(const rival& r, const op_graph& graph, std::span<const precision> supported,
                         const op_support& support) {
  try {
    require_fits(r.plan, graph);
  } catch (const plan_error& e) {
    throw plan_error{fmt::format("rival \"{}\": {}", r.label, e.what())};
  }
  for (const precision p : r.plan) {
    require<plan_error>(std::find(supported.begin(), supported.end(), p) != supported.end(),
                        "rival \"{}\" has {} (the backend supports {}): leave it out", r.label, name(p),
                        names_of(supported));
  }
  for (std::size_t i = 0; i < r.plan.size(); ++i) {
    require<plan_error>(support.supports(i, r.plan[i]),
                        "rival \"{}\" has operator {} (\"{}\") in {} (the backend does not run {} in it): change it",
                        r.label, i, graph[i].name, name(r.plan[i]), graph[i].kind);
  }
}

/// Returns: the rivals that `source` makes, without those of systems that refuse the model or whose plans do not run:
/// `warnings` says why. Throws: `settings_error` for a rival without a label, or with a label that the search itself
/// uses; `plan_error` as require_runs does, for a rival that is not rule-based.
inline std::vector<rival> rivals_of(const rival_source& source, const op_graph& graph, std::span<const precision> lows,
                                    std::span<const precision> supported, const op_support& support,
                                    std::vector<std::string>& warnings) {
  if (!source) return {};
  std::vector<rival> all;
  for (rival& r : source(graph, lows)) {
    require<settings_error>(!r.label.empty() && r.label != "fp32" && r.label != "as written" && r.label != "comp" &&
                                !r.label.starts_with("comp:"),
                            "rival labelled \"{}\" (a label tells it apart from fp32 and comp): give it another",
                            r.label);
    try {
      if (r.refusal.empty()) require_runs(r, graph, supported, support);
    } catch (const plan_error& e) {
      if (!r.rule_based) throw;
      r.refusal = e.what();
    }
    if (r.refusal.empty()) {
      all.push_back(std::move(r));
    } else {
      warnings.push_back(fmt::format("\"{}\" was no rival: {}", r.label, r.refusal));
    }
  }
  return all;
}

/// Returns: the label of a plan that the search found, as in "comp: all but head.softmax in bf16". `others`: those that
/// have labels already, as labels are unique.
template <class Labelled>
std::string label_of_found(const plan& p, const op_graph& graph, const std::vector<Labelled>& others) {
  const std::string words = "comp: " + name(p, graph);
  std::string label = words;
  const auto taken = [&](const Labelled& other) { return other.label == label; };
  for (int n = 2; std::any_of(others.begin(), others.end(), taken); ++n) label = fmt::format("{} ({})", words, n);
  return label;
}

/// Enters a plan. Equal plans share a row and are timed once; their labels are joined, and name their family once:
/// "rule-based bf16 = tvm bf16".
inline void enter(std::vector<racer>& racers, const plan& p, std::string_view label, bool rule_based = false) {
  const auto known = std::find_if(racers.begin(), racers.end(), [&](const racer& r) { return r.plan == p; });
  if (known == racers.end()) {
    racers.push_back({.plan = p, .label = std::string{label}, .rule_based = rule_based});
    return;
  }
  known->rule_based = known->rule_based || rule_based;
  if (known->label == label) return;
  constexpr std::string_view family = "rule-based ";
  if (label.starts_with(family) && known->label.find(family) != std::string::npos) label.remove_prefix(family.size());
  known->label += " = ";
  known->label += label;
}

/// Enters a plan that the search found, once. FP32 is not entered again, as it is there first.
inline void enter_found(std::vector<racer>& racers, const plan& p, const op_graph& graph) {
  const auto is_entered = [&](const racer& r) {
    return r.plan == p && (&r == &racers.front() || r.label.find("comp: ") != std::string::npos);
  };
  if (std::none_of(racers.begin(), racers.end(), is_entered)) enter(racers, p, label_of_found(p, graph, racers));
}

class starting_plans {
 public:
  /// `log` has the graph and the hardware already. The precisions that are searched are written to it, and warnings.
  /// Throws: `settings_error`, `graph_error`, `plan_error`, and what the policy throws.
  starting_plans(any_trainer& trainer, any_policy policy, const search_settings& settings, outcome& log)
      : policy_{std::move(policy)}, settings_{settings}, log_{log} {
    const std::vector<precision> supported = trainer.supported_precisions();
    log.precisions = searched_precisions(trainer, log.graph, settings);
    lows_.assign(log.precisions.begin() + 1, log.precisions.end());
    if (lows_.empty() && settings.precisions.empty() && supported.size() > 1) {
      log.warnings.push_back(
          fmt::format("no precision below FP32 was searched: this machine computes none faster. Name those that are to "
                      "be tried all the same in {}",
                      setting("precisions")));
    }
    require<graph_error>(!log.graph.empty(),
                         "the model has no operators (there is nothing to plan): record a forward first");
    runs_ = op_support{trainer, log.graph, lows_, !settings.precisions.empty()};
    candidates_ = make_candidate_space(policy_, log.graph, log.hardware, lows_, settings.losses_tie, runs_);
    require_supported(candidates_, log.graph, supported, runs_);
    fp32_ = runs_.widest(log.graph);
    for (std::size_t i = 0; i < fp32_.size(); ++i) {
      if (is_fixed(i) && log.graph[i].choosable) fp32_[i] = candidates_.decisions[i].compute;
    }
    rivals_ = rivals_of(settings.rivals, log.graph, lows_, supported, runs_, log.warnings);
    for (rival& r : rivals_) r.plan = with_fixed(std::move(r.plan));
    if (widest_written(log.graph) == precision::fp64 && contains(lows_, precision::fp32) && !settings.verbatim)
      rivals_.push_back({"rule-based all fp32", all_in(precision::fp32), true});
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
    for (const precision low : lows_) plans.push_back(all_in(low));
    std::erase(plans, fp32_);
    return plans;
  }

  /// Returns: what a guided search starts from. Warns if an earlier search's plan does not fit this model. `states`:
  /// whether states may be lowered, which takes a long test.
  guided_start where_to_start(bool states = false) const {
    guided_start from{.decisions = candidates_.decisions, .lows = lows_, .batches_per_epoch = log_.batches_per_epoch};
    for (std::size_t i = 0; i < fp32_.size(); ++i) {
      std::vector<precision>& levels = from.levels.emplace_back(1, fp32_[i]);
      if (!may_change(i) || (log_.graph[i].is_state && !states)) continue;
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
    enter(all, fp32_, reference_label(log_.graph));
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
  plan all_in(precision low) const {
    plan all = fp32_;
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (log_.graph[i].choosable && !log_.graph[i].is_state) all[i] = low;
    }
    return with_fixed(std::move(all));
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
        if (real.count_lowered(log_.graph) > 0)
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
