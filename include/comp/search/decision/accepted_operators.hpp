// SPDX-License-Identifier: Apache-2.0
// Finds which operators may be low: the largest part of a target plan whose losses are accepted, in few questions
// (strategy/bisection.hpp), and what was learned of each operator on the way. A plan that lowers a part of what was
// accepted counts as accepted, but is judged before it wins. Source: CoMP paper, section 4.4 ("gradually return to a
// more conservative plan").
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/search/decision/budget.hpp>
#include <comp/search/decision/learned_costs.hpp>
#include <comp/strategy/bisection.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp {

class accepted_operators {
 public:
  accepted_operators(const search_session& search, const bisection_settings& chosen, learned_costs& costs,
                     const guided_start& from)
      : search_{search}, bisection_{chosen}, costs_{costs}, from_{from} {
    begin_from_fp32();
  }

  /// Returns: the largest part of `target` whose losses were accepted. The trainer is left in the state after the
  /// batches that judged it.
  const plan& find(const plan& target) {
    target_ = target;
    // A trainer that cannot restore keeps what a harmful plan did to it, so the mildest plan comes first.
    if (!search_.run.restores()) start_from_rules(target);
    if (target != accepted_ && !ask(target)) {
      if (search_.run.restores()) start_from_rules(target);
      bisect(target);
      judge_at_level();
    }
    for (std::size_t i = 0; i < target.size(); ++i) evidence_[i] = evidence_of(i, target[i]);
    add(accepted_);
    search_.run.restore(accepted_state_ ? *accepted_state_ : search_.trials.reference().start());
    return accepted_;
  }

  /// Like find(), but forgets what was accepted before. Call it if `target` was rejected although it is a part of an
  /// accepted plan.
  const plan& find_again(const plan& target) {
    begin_from_fp32();
    budget_.set_trained_batches(0);
    return find(target);
  }

  /// Judges the losses of `p`, at no more cost than the budget has left.
  const loss_trials::result& judge(const plan& p, std::string label = {}, bool quick = false) {
    const auto affords = [this](double seconds) { return budget_.seconds_left(gain(target_)) > seconds; };
    return search_.trials.judge(p, {.label = std::move(label), .quick = quick, .affords = affords});
  }

  /// Judges a plan whose operators have other precisions than those that were accepted. If it is accepted, they may
  /// have these, too. The trainer's state stays as it is.
  void judge_wider(const plan& p) {
    search_.run.run_and_undo([&] {
      search_.trials.set_max_batches(budget_.batches_of_a_test());
      const auto& answer = judge(p);
      if (answer.trial.sample.ok() && std::isfinite(answer.trial.seconds)) costs_.learn(answer.trial);
      if (answer.trial.accepted) add(p);
    });
    search_.run.keep_state();
  }

  /// Returns: the plan with everything low that was accepted together.
  const plan& accepted_plan() const { return accepted_; }
  /// Returns: per operator, the precisions that it has in accepted plans; FP32's comes first.
  const precision_levels& levels() const { return levels_; }
  /// Returns: true if each operator of `p` has a precision that it also has in an accepted plan, and `p` has damaged no
  /// state.
  bool is_accepted(const plan& p) const {
    if (search_.run.rejects(p)) return false;
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (!contains(levels_[i], p[i])) return false;
    }
    return true;
  }
  /// Returns: `p` with each operator put back to FP32 whose precision was not accepted.
  plan restrict_to_accepted(const plan& p) const {
    return mix(p, fp32(), [&](std::size_t i) { return !contains(levels_[i], p[i]); });
  }
  /// Returns: per operator, what the losses of plans said of it.
  const std::vector<op_evidence>& evidence() const { return evidence_; }
  question_budget& budget() { return budget_; }
  const question_budget& budget() const { return budget_; }

 private:
  const plan& fp32() const { return search_.run.fp32(); }
  void begin_from_fp32() {
    accepted_ = fp32();
    levels_.clear();
    for (const precision p : accepted_) levels_.push_back({p});
    evidence_.resize(accepted_.size());
    earlier_accepted_.clear();
    accepted_state_.reset();
  }
  void add(const plan& p) {
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (!contains(levels_[i], p[i])) levels_[i].push_back(p[i]);
    }
  }
  // Returns: the seconds of a batch that `p` saves over `accepted_`.
  double gain(const plan& p) const { return std::max(costs_.batch_seconds(accepted_) - costs_.batch_seconds(p), 0.0); }

  // Judges the losses of `p`. If they are accepted, `p` becomes `accepted_`, and its batches count as training.
  // Returns: true if they are. `quick`: the fewest batches decide; judge_at_level() later repeats the test for the plan
  // that came of it.
  bool ask(const plan& p, bool quick = false) {
    if (!quick) search_.trials.set_max_batches(budget_.batches_of_a_test());
    const auto* before = search_.trials.find(p);
    const bool is_new = before == nullptr || (!quick && !before->is_final);
    const auto& answer = judge(p, {}, quick);
    if (is_new && answer.trial.sample.ok() && std::isfinite(answer.trial.seconds)) {
      costs_.learn(answer.trial);
      if (answer.trial.accepted) budget_.record_time(answer.trial.seconds);
    }
    if (!answer.trial.accepted) return false;
    if (accepted_ != fp32()) earlier_accepted_.push_back(accepted_);
    accepted_ = p;
    if (answer.end) accepted_state_ = answer.end;
    budget_.count_trial_as_training(answer.trial);
    return true;
  }

  // Quick answers may be wrong, so the plan that they led to is judged at the level. If it fails, the plan that was
  // accepted before it is judged instead.
  void judge_at_level() {
    std::vector<plan> earlier;
    earlier.swap(earlier_accepted_);
    while (accepted_ != fp32() && !search_.trials.find(accepted_)->is_final) {
      const plan now = accepted_;
      if (ask(now)) return;
      accepted_ = earlier.empty() ? fp32() : earlier.back();
      if (!earlier.empty()) earlier.pop_back();
      const auto* before = search_.trials.find(accepted_);
      accepted_state_ = before != nullptr ? before->end : std::nullopt;
      budget_.set_trained_batches(accepted_state_ ? accepted_state_->trained.batches : 0);
    }
  }

  // Judges the part of `target` that each rule-based plan lowers, the cheapest first, up to the first that is accepted.
  // To that part bisect() adds other operators.
  void start_from_rules(const plan& target) {
    std::vector<plan> rules;
    for (const plan& rule : from_.rules) {
      plan part = mix(fp32(), rule, [&](std::size_t i) { return rule[i] == target[i]; });
      if (part != fp32() && part != target) rules.push_back(std::move(part));
    }
    std::ranges::sort(rules, {}, [&](const plan& p) { return costs_.batch_seconds(p); });
    for (const plan& rule : rules) {
      if (ask(rule, true)) return;
    }
  }

  // An operator that harms in one precision may do no harm in another. That is asked once, together with what was
  // accepted.
  void bisect(const plan& target) {
    const std::vector<std::size_t> harmful = bisect_once(target);
    plan other = accepted_;
    for (const auto i : harmful) {
      const auto& levels = from_.levels[i];
      const auto at = std::find_if(levels.begin() + 1, levels.end(),
                                   [&](precision p) { return p != target[i] && !costs_.is_dropped(i, p); });
      if (at != levels.end()) other[i] = *at;
    }
    if (other == accepted_ || search_.trials.find(other) != nullptr || !(budget_.seconds_left(gain(other)) > 0)) return;
    if (!ask(other, true)) (void)bisect_once(other);
  }

  // An operator that may be lowered: the seconds that this saves, and its place among those that may harm.
  struct item {
    std::size_t op;
    double gain, order;
  };
  static void sort_by_harm(std::vector<item>& items) {
    std::sort(items.begin(), items.end(), [](const item& a, const item& b) {
      return a.order != b.order ? a.order < b.order : a.gain != b.gain ? a.gain > b.gain : a.op < b.op;
    });
  }

  // Returns: per item, its place in the policy's order, which takes over if the scores turn out to be wrong.
  std::vector<std::size_t> places_by_policy(std::vector<item> items) const {
    const std::vector<double> order = detail::policy_order(from_.decisions);
    std::vector<std::size_t> at(accepted_.size()), places(items.size());
    for (std::size_t i = 0; i < items.size(); ++i) at[items[i].op] = i;
    for (item& i : items) i.order = order[i.op];
    sort_by_harm(items);
    for (std::size_t place = 0; place < items.size(); ++place) places[at[items[place].op]] = place;
    return places;
  }

  // Returns: the operators that were rejected by themselves.
  std::vector<std::size_t> bisect_once(const plan& target) {
    const plan base = accepted_;
    if (!(budget_.seconds_left(gain(target)) > 0)) return {};
    bool scored = false;
    const std::vector<item> items = items_of(target, scored);
    std::vector<double> gains;
    double all = 0;
    std::size_t safe = 0;
    for (const item& i : items) {
      gains.push_back(i.gain);
      all += i.gain;
      if (!scored && i.order == 0) ++safe;
    }
    bisection parts{gains, safe, scored, bisection_, places_by_policy(items)};
    const auto plan_of = [&](const std::vector<std::size_t>& question) {
      plan p = base;
      for (const auto i : question) p[items[i].op] = target[items[i].op];
      return p;
    };
    std::size_t records = 0;
    plan rejected = target;
    for (auto question = parts.next(); question && budget_.seconds_left(all) > 0; question = parts.next()) {
      const plan p = plan_of(*question);
      const bool passes = ask(p, true);
      if (!passes) rejected = p;  // once a part of it is accepted, the harm is attributed to the rest
      parts.tell(passes);
      if (parts.harmful().size() > records) record_harm(items[parts.harmful()[records++]].op, rejected);
    }
    accepted_ = plan_of(parts.accepted());
    std::vector<std::size_t> harmful;
    for (const auto i : parts.harmful()) harmful.push_back(items[i].op);
    return harmful;
  }

  std::vector<item> items_of(const plan& target, bool& scored) {
    const plan_costs costs = costs_.costs();
    const std::vector<double> order =
        detail::harm_order(search_.run, from_, search_.trials.reference().start(), fp32(), target, scored);
    std::vector<item> items;
    for (std::size_t i = 0; i < target.size(); ++i) {
      if (target[i] == accepted_[i]) continue;
      const double seconds = costs.seconds[i][index_of(accepted_[i])], low = costs.seconds[i][index_of(target[i])];
      items.push_back({i, std::max(seconds - low, 1e-4 * seconds), order[i]});
    }
    sort_by_harm(items);
    return items;
  }

  void record_harm(std::size_t op, const plan& rejected) {
    op_evidence harm{.what = op_evidence::kind::harmful, .low = rejected[op]};
    for (std::size_t i = 0; i < rejected.size(); ++i) harm.others_low += i != op && rejected[i] != fp32()[i] ? 1U : 0U;
    if (const auto* answer = search_.trials.find(rejected)) harm.difference = answer->verdict.difference;
    evidence_[op] = harm;
  }

  // Returns: what is known of an operator now. `low`: the precision that was to be found out about.
  op_evidence evidence_of(std::size_t op, precision low) const {
    using enum op_evidence::kind;
    const auto& levels = from_.levels[op];
    if (accepted_[op] != fp32()[op]) return {.what = accepted, .low = accepted_[op]};
    if (evidence_[op].what == harmful) return evidence_[op];
    if (!search_.log.graph[op].choosable) return {.what = none};
    if (levels.size() == 1) return {.what = from_.decisions[op].fixed ? fixed : unsupported};
    if (low != fp32()[op]) return {.what = undecided, .low = low};
    const auto may =
        std::find_if(levels.begin() + 1, levels.end(), [&](precision p) { return !costs_.is_dropped(op, p); });
    return may == levels.end() ? op_evidence{.what = dropped, .low = levels[1]}
                               : op_evidence{.what = unasked, .low = *may};
  }

  search_session search_;
  const bisection_settings& bisection_;
  learned_costs& costs_;
  const guided_start& from_;
  plan accepted_ = {}, target_ = {};
  question_budget budget_{search_, from_.batches_per_epoch};
  precision_levels levels_ = {};
  std::vector<op_evidence> evidence_ = {};
  std::vector<plan> earlier_accepted_ = {};        // accepted before `accepted_`, each a part of the next
  std::optional<checkpoint> accepted_state_ = {};  // the state after the batches that judged `accepted_`
};

}  // namespace comp
