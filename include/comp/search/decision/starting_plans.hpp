// SPDX-License-Identifier: Apache-2.0
// Finds what a search knows before its first batch: which operators may change, the plan that "FP32" stands for, the
// rule-based plans and the rivals, and the signature of what it runs on. What can be refused without running a batch is
// refused here.
#pragma once

#include <algorithm>
#include <comp/autocast/rule_plan.hpp>
#include <comp/core/error.hpp>
#include <comp/core/rival.hpp>
#include <comp/policy/plan_name.hpp>
#include <comp/policy/tensor_core.hpp>
#include <comp/search/losses/turns.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/space/spaces.hpp>
#include <comp/search/times/race.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <comp/search/trainer/findings.hpp>
#include <cstddef>
#include <exception>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp {

/// Per operator, the precisions that it may have; that of the most conservative plan comes first.
using precision_levels = std::vector<std::vector<precision>>;
inline bool contains(const std::vector<precision>& levels, precision p) {
  return std::find(levels.begin(), levels.end(), p) != levels.end();
}

/// What a guided search starts from.
struct guided_start {
  precision_levels levels = {};          // per operator; that of the most conservative plan first
  std::vector<decision> decisions = {};  // the policy's answer for each operator
  std::vector<precision> lows = {};      // the low precisions that are searched, in order of preference
  std::vector<plan> rules = {};          // rule-based plans, rivals, an earlier search's plan
  std::size_t batches_per_epoch = 0;     // 0: not known
};

/// Returns: `base` with each operator in `low` that may have it.
inline plan lower_to(precision low, const plan& base, const precision_levels& levels) {
  return mix(base, plan{base.size(), low}, [&](std::size_t i) { return contains(levels[i], low); });
}

/// Returns: the widest precision that an operator is written in, and then the low ones to search in order of
/// preference: those of the settings, else those that the backend supports and its machine has units for (FP16 on most
/// CPUs is tens of times slower than FP32). FP32 is a low one for operators in FP64, and needs no unit. Throws:
/// `settings_error` for a precision that the backend does not support, or that no operator is as wide as, and if the
/// backend names none.
inline std::vector<precision> searched_precisions(const any_trainer& trainer, const op_graph& graph,
                                                  const search_settings& settings) {
  const std::vector<precision> supported = trainer.supported_precisions();
  require<settings_error>(!supported.empty(), "{}", detail::sentence_of_no_precisions);
  const hardware machine = trainer.hardware();
  const auto has = [&](precision p) { return std::ranges::find(supported, p) != supported.end(); };
  const precision widest = widest_written(graph);
  require<settings_error>(
      widest == precision::fp32 || has(widest),
      "the model has operators in fp64 (the backend supports {}): name fp64 among its precisions, or "
      "write the model in fp32",
      names_of(supported));
  const bool any_fp32 = widest == precision::fp32 || std::ranges::any_of(graph, [](const op_info& op) {
                          return op.choosable && op.as_written == precision::fp32;
                        });
  std::vector<precision> all{widest};
  for (const precision p : settings.precisions.empty() ? supported : settings.precisions) {
    require<settings_error>(has(p), "precision {} was asked for (the backend supports {}): leave it out", name(p),
                            names_of(supported));
    require<settings_error>(
        p != precision::fp64 || settings.precisions.empty() || widest == p,
        "precision fp64 was asked for (no operator is written in it, and plans only lower): leave it "
        "out, or write the model in fp64");
    const bool is_fast = policy::no_unit(p, machine).empty() && p != precision::bf16_fp32;  // no faster than BF16
    const bool is_searched = !settings.precisions.empty() || p == precision::fp32 || (any_fp32 && is_fast);
    if (is_searched && std::ranges::find(all, p) == all.end()) all.push_back(p);
  }
  return all;
}

/// Returns: `part=value` pairs joined by "; ". What only chooses among trials (strategies, tolerance) is left out, so
/// that recorded runs can be used under other settings. A backend without a signature() is identified by its type, the
/// batches of an epoch, and FP32's first losses, `first_losses`; without these losses nothing tells its trainings
/// apart.
inline std::string search_signature(const any_trainer& trainer, const outcome& log, const search_settings& settings,
                                    const std::vector<double>& first_losses = {}) {
  std::string backend = trainer.signature();
  if (!trainer.has.signature) {
    if (log.batches_per_epoch > 0) backend += fmt::format("; batches={}", log.batches_per_epoch);
    const auto digits = [](double loss) { return fmt::format("{:.9g}", loss); };
    if (!first_losses.empty()) backend += "; losses=" + joined(first_losses, ",", digits);
  }
  if (!trainer.has.save && settings.criterion != criterion::scores) {
    // Losses of turns say nothing if they are cut into blocks of other lengths.
    const std::size_t planned = settings.planned_epochs * log.batches_per_epoch;
    const auto beside_fp32 = turn_lengths::of_training(planned, true);
    backend += planned == 0 ? fmt::format("; turns=of {} epochs", settings.planned_epochs)
                            : fmt::format("; turns={}/{}/{}", beside_fp32.reference, beside_fp32.candidate,
                                          turn_lengths::of_training(planned, false).candidate);
  }
  if (log.floor > 0) backend += fmt::format("; floor={:g}", log.floor);
  if (log.compiled) backend += "; compiled";
  const early_cut cut = settings.cut();
  return fmt::format("model={:016x}; backend={}; hardware={}/{}/{}; judged by={}; cut={:g},{:g},{},{:g},{:g},{}",
                     log.graph.fingerprint(), backend, log.hardware.name, log.hardware.compute_capability,
                     log.hardware.threads, name(settings.criterion), cut.slower_than_fp32, cut.slower_than_best,
                     cut.batches, cut.at_once, cut.diverged, cut.loss_batches);
}

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
/// `findings` says why. Throws: `settings_error` for a rival without a label, or with a label that the search itself
/// uses; `plan_error` as require_runs does, for a rival that is not rule-based.
inline std::vector<rival> rivals_of(const rival_source& source, const op_graph& graph, std::span<const precision> lows,
                                    std::span<const precision> supported, const op_support& support,
                                    std::vector<std::string>& findings) {
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
      findings.push_back(fmt::format("\"{}\" was no rival: {}", r.label, r.refusal));
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
  const auto has_label = [&](const Labelled& other) { return other.label == label; };
  for (int n = 2; std::any_of(others.begin(), others.end(), has_label); ++n) label = fmt::format("{} ({})", words, n);
  return label;
}

/// Enters a plan. Equal plans share a row and are timed once; their labels are joined, and name their family once:
/// "rule-based bf16 = tvm bf16".
inline void add_racer(std::vector<racer>& racers, const plan& p, std::string_view label, bool rule_based = false) {
  const auto row = std::find_if(racers.begin(), racers.end(), [&](const racer& r) { return r.plan == p; });
  if (row == racers.end()) {
    racers.push_back({.plan = p, .label = std::string{label}, .rule_based = rule_based});
    return;
  }
  row->rule_based = row->rule_based || rule_based;
  if (row->label == label) return;
  constexpr std::string_view family = "rule-based ";
  if (label.starts_with(family) && row->label.find(family) != std::string::npos) label.remove_prefix(family.size());
  row->label += " = ";
  row->label += label;
}

/// Adds a plan that the search found, once. FP32 is not added again, as it is there first.
inline void add_found_plan(std::vector<racer>& racers, const plan& p, const op_graph& graph) {
  const auto is_there = [&](const racer& r) {
    return r.plan == p && (&r == &racers.front() || r.label.find("comp: ") != std::string::npos);
  };
  if (std::none_of(racers.begin(), racers.end(), is_there)) add_racer(racers, p, label_of_found(p, graph, racers));
}

class starting_plans {
 public:
  /// `log` has the graph and the hardware already, and gets the precisions that are searched. `findings`: gets what the
  /// user should know, a sentence each.
  /// Throws: `settings_error`, `graph_error`, `plan_error`, and what the policy throws.
  starting_plans(any_trainer& trainer, const any_policy& policy, const search_settings& settings, outcome& log,
                 std::vector<std::string>& findings)
      : settings_{settings}, log_{log} {
    const std::vector<precision> supported = trainer.supported_precisions();
    log.precisions = searched_precisions(trainer, log.graph, settings);
    lows_.assign(log.precisions.begin() + 1, log.precisions.end());
    add_formats_of_states(trainer, log);
    if (lows_.empty() && settings.precisions.empty() && supported.size() > 1) {
      findings.push_back(
          fmt::format("no precision below FP32 was searched: this machine computes none faster. Name those that are to "
                      "be tried all the same in {}",
                      setting("precisions")));
    }
    require<graph_error>(!log.graph.empty(),
                         "the model has no operators (there is nothing to plan): record a forward first");
    runs_ = op_support{trainer, log.graph, lows_, !settings.precisions.empty()};
    candidates_ = make_candidate_space(policy, log.graph, log.hardware, lows_, settings.losses_tie, runs_);
    require_supported(candidates_, log.graph, supported, runs_);
    fp32_ = runs_.widest(log.graph);
    bool any_may_change = false;
    for (std::size_t i = 0; i < fp32_.size(); ++i) {
      if (is_fixed(i) && log.graph[i].choosable) fp32_[i] = candidates_.decisions[i].compute;
      any_may_change = any_may_change || may_change(i);
    }
    for (const precision low : lows_) {
      const bool of_head = low == precision::bf16_fp32 && contains(lows_, precision::bf16);
      plan p = autocast::rule_plan(policy, log.graph, of_head ? precision::bf16 : low);
      if (of_head) raise_head(p, log.graph);
      p = with_fixed(std::move(p));
      // Rules that know 16 bits alone give 16 bits for narrower formats, too. That is no rule-based plan of the format.
      if (!is_scaled(low) || std::find(p.begin(), p.end(), low) != p.end())
        rules_.push_back({of_head ? "rule-based bf16, head in bf16>fp32" : fmt::format("rule-based {}", name(low)),
                          std::move(p), true});
    }
    rivals_ = rivals_of(settings.rivals, log.graph, lows_, supported, runs_, findings);
    for (rival& r : rivals_) r.plan = with_fixed(std::move(r.plan));
    if (widest_written(log.graph) == precision::fp64 && contains(lows_, precision::fp32) && !settings.verbatim)
      rivals_.push_back({"rule-based all fp32", all_in(precision::fp32), true});
    if (any_may_change && !settings.verbatim) {
      if (trainer.has.own_autocast) add_autocast(trainer, findings);
      if (trainer.has.tuned_fp32 && lows_.empty()) add_tuned(trainer, findings);
    }
    if (!settings.warm_start.empty() && settings.warm_start.size() != fp32_.size()) {
      findings.push_back(fmt::format("the earlier plan was not used: it has {} operators, this model {}",
                                     settings.warm_start.size(), fp32_.size()));
    }
  }

  /// Returns: the most conservative plan that the backend runs, which "FP32" stands for if it fits in memory
  /// (evaluator::fp32).
  const plan& fp32() const { return fp32_; }
  /// Returns: the low precisions that are searched, in order of preference.
  const std::vector<precision>& lows() const { return lows_; }
  const op_support& runs() const { return runs_; }
  const candidate_space& candidates() const { return candidates_; }

  /// Returns: the plans to try as the reference if FP32 does not fit in memory: first the rule-based ones, then those
  /// with everything low.
  std::vector<plan> smaller_plans() const {
    std::vector<plan> plans = rules();
    for (const precision low : lows_) plans.push_back(all_in(low));
    std::erase(plans, fp32_);
    return plans;
  }

  /// Returns: what a guided search starts from. `fp32`: the plan that "FP32" stands for. `states`: whether states may
  /// be lowered, which takes a long test.
  guided_start where_to_start(const plan& fp32, bool states = false) const {
    guided_start from{.decisions = candidates_.decisions, .lows = lows_, .batches_per_epoch = log_.batches_per_epoch};
    for (std::size_t i = 0; i < fp32.size(); ++i) {
      std::vector<precision>& levels = from.levels.emplace_back(1, fp32[i]);
      const bool is_state = log_.graph[i].is_state;
      if (!may_change(i) || (is_state && !states)) continue;
      for (const precision low : is_state ? of_states_ : lows_) {
        if (low != fp32[i] && runs_.supports(i, low)) levels.push_back(low);
        if (!contains(from.lows, low)) from.lows.push_back(low);
      }
    }
    from.rules = rules();
    for (const precision low : lows_) from.rules.push_back(lower_to(low, fp32, from.levels));
    for (const rival& r : rivals_) from.rules.push_back(r.plan.operator_by_operator());
    if (settings_.warm_start.size() == fp32.size())
      from.rules.push_back(with_fixed(settings_.warm_start.operator_by_operator()));
    return from;
  }

  /// Returns: the plans that take part in the contest: `fp32`, the rule-based plans, the rivals and `proposal`.
  std::vector<racer> racers(const plan& fp32, const plan& proposal) const {
    std::vector<racer> all;
    add_racer(all, fp32, reference_label(log_.graph));
    for (const rival& r : rules_) add_racer(all, r.plan, r.label, true);
    for (const rival& r : rivals_) add_racer(all, r.plan, r.label, r.rule_based);
    add_found_plan(all, proposal, log_.graph);
    return all;
  }

 private:
  bool is_fixed(std::size_t op) const { return candidates_.decisions[op].fixed; }
  bool may_change(std::size_t op) const { return log_.graph[op].choosable && !is_fixed(op); }
  std::vector<plan> rules() const {
    std::vector<plan> all;
    for (const rival& r : rules_) all.push_back(r.plan);
    return all;
  }
  // Gives the last product that `p` has in BF16, which mostly is the head, a result in FP32.
  void raise_head(plan& p, const op_graph& graph) const {
    for (std::size_t i = p.size(); i-- > 0;) {
      const bool is_product = p[i] == precision::bf16 && policy::is_contraction(graph[i]);
      if (is_product && runs_.supports(i, precision::bf16_fp32)) return void(p[i] = precision::bf16_fp32);
    }
  }
  plan all_in(precision low) const {
    const auto takes_low = [&](std::size_t i) { return log_.graph[i].choosable && !log_.graph[i].is_state; };
    return with_fixed(mix(fp32_, plan{fp32_.size(), low}, takes_low));
  }

  // States may also have formats that this machine computes slowly, unless the user named others: they are only kept in
  // them.
  void add_formats_of_states(const any_trainer& trainer, outcome& log) {
    of_states_ = lows_;
    if (!settings_.precisions.empty() || !trainer.has.supports) return;
    for (const precision p : trainer.supported_precisions()) {
      const auto keeps = [&](const op_info& op) { return op.is_state && trainer.supports(op, p); };
      if (!is_low(p) || contains(log.precisions, p) || std::ranges::none_of(log.graph, keeps)) continue;
      of_states_.push_back(p);
      log.precisions.push_back(p);
    }
  }

  // An operator that the policy fixes has that precision in every plan, and no operator gets one that the backend
  // cannot run it in.
  plan with_fixed(plan p) const {
    return mix(runs_.with_substitutes(std::move(p)), fp32_, [&](std::size_t i) { return is_fixed(i); });
  }

  // Adds the backend's own autocast as a rival. It runs by itself: comp's imitation of it could be slower than it, or
  // lower other operators, and would then be too easily beaten.
  void add_autocast(any_trainer& trainer, std::vector<std::string>& findings) {
    for (const precision low : lows_) {
      if (low != precision::bf16 && low != precision::fp16) continue;
      try {
        plan real = trainer.own_autocast(low);
        require_fits(real, log_.graph);
        const plan by_operators = real.operator_by_operator();
        require<error>(with_fixed(by_operators) == by_operators,
                       "it gives operators another precision than the policy");
        if (real.count_lowered(log_.graph) > 0)
          rivals_.push_back({fmt::format("rule-based autocast {}", name(low)), std::move(real), true});
      } catch (const std::exception& e) {
        findings.push_back(fmt::format("the backend's own autocast to {} was no rival: {}", name(low), e.what()));
      }
    }
  }

  // Adds tuned FP32 as a rival, if no lower precision is searched: plans in those are tuned, too, and beat it.
  void add_tuned(any_trainer& trainer, std::vector<std::string>& findings) {
    try {
      const plan tuned = trainer.tuned_fp32();
      if (tuned.is_tuned() && tuned.operator_by_operator() == fp32_)
        rivals_.push_back({label_of_found(tuned, log_.graph, rivals_), tuned});
    } catch (const settings_error&) {
      throw;
    } catch (const interrupted&) {
      throw;
    } catch (const std::exception& e) {
      findings.push_back(fmt::format("tuned FP32 was no rival: {}", e.what()));
    }
  }

  const search_settings& settings_;
  const outcome& log_;
  std::vector<precision> lows_ = {}, of_states_ = {};
  op_support runs_ = {};
  candidate_space candidates_ = {};
  plan fp32_ = {};
  std::vector<rival> rules_ = {}, rivals_ = {};
};

}  // namespace comp
