// SPDX-License-Identifier: Apache-2.0
// Which operators may be low: the largest part of a wanted plan that is accepted, found in few questions
// (strategy/mending.hpp), and what was learned of each operator on the way. Lowering less than what is accepted counts
// as accepted. Source: CoMP paper, section 4.4 ("gradually return to a more conservative plan").
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/concepts.hpp>
#include <comp/search/convergence/loss_trials.hpp>
#include <comp/search/decision/harm_scores.hpp>
#include <comp/search/decision/learned_costs.hpp>
#include <comp/search/settings.hpp>
#include <comp/strategy/mending.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <utility>
#include <vector>

namespace comp {

class accepted_operators {
  using place = evaluator::place;

 public:
  accepted_operators(evaluator& run, outcome& log, const search_settings& settings, const mending_settings& mend,
                     loss_trials& trials, learned_costs& costs, const guided_start& from)
      : run_{run},
        log_{log},
        settings_{settings},
        mend_{mend},
        trials_{trials},
        costs_{costs},
        from_{from},
        fp32_{trials.reference().plan()},
        allowed_{fp32_} {
    for (std::size_t i = 0; i < fp32_.size(); ++i) levels_.push_back({fp32_[i]});
    log_.evidence.assign(fp32_.size(), {});
  }

  /// As much of `wanted` as is accepted. The trainer is left where the batches of that ended.
  const plan& find(const plan& wanted) {
    trials_.affords = [this, wanted](double seconds) { return left(gain(wanted)) > seconds; };
    if (!run_.restores()) start_from_rules(wanted);  // what harms cannot be undone: the mildest plan comes first
    if (wanted != allowed_ && !accepts(wanted)) {
      if (run_.restores()) start_from_rules(wanted);
      mend(wanted);
      settle();
    }
    for (std::size_t i = 0; i < wanted.size(); ++i) note(i, wanted[i]);
    add(allowed_);
    run_.restore(last_ ? *last_ : trials_.reference().start());
    return allowed_;
  }

  /// The same for a plan whose losses were refused although it is a part of one that was accepted: what was accepted
  /// before says nothing of its parts.
  const plan& find_again(const plan& wanted) {
    allowed_ = fp32_;
    for (std::size_t i = 0; i < fp32_.size(); ++i) levels_[i] = {fp32_[i]};
    before_.clear();
    last_.reset();
    kept_ = 0;
    return find(wanted);
  }

  /// Judges a plan whose operators have other precisions than those that were accepted, which they then may have too.
  /// The trainer stays where it is.
  void widen(const plan& p) {
    const evaluator::place here = run_.save();
    limit_test();
    const auto& got = trials_.judge(p);
    if (got.trial.sample.ok() && std::isfinite(got.trial.seconds)) costs_.learn(got.trial);
    if (got.trial.accepted) add(p);
    run_.restore(here);
    run_.keep();
  }

  const plan& allowed() const { return allowed_; }
  /// Of each operator, the precisions that it has in plans that are accepted, FP32's first.
  const precision_levels& levels() const { return levels_; }
  /// True for a plan that lowers nothing that is not accepted.
  bool is_accepted(const plan& p) const {
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (!contains(levels_[i], p[i])) return false;
    }
    return true;
  }
  /// `p` with only what is accepted lowered.
  plan accepted_part(plan p) const {
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (!contains(levels_[i], p[i])) p[i] = fp32_[i];
    }
    return p;
  }

  /// A plan with accepted operators alone took so long in a race, whose batches are kept. Recalled ones count: a search
  /// that is resumed decides as it did.
  void record_time(double seconds) {
    best_seconds_ = std::min(best_seconds_, seconds);
    for (; counted_ < log_.trials.size(); ++counted_) {
      const trial& t = log_.trials[counted_];
      if (t.stage == stage::batches) kept_ += t.sample.batches;
    }
  }
  /// Batches of the training that are still to come; many where it is not known how long an epoch is.
  double to_come() const {
    if (from_.batches_per_epoch == 0) return 1000;
    const double planned = static_cast<double>(settings_.planned_epochs * from_.batches_per_epoch);
    return std::max(planned - static_cast<double>(behind()), 0.0);
  }

  /// Seconds that the search may still cost beyond the batches that it keeps. `gain`: what further questions could save
  /// of a batch, in seconds: beside the budget a quarter of that may be spent, in all at most eight times the budget.
  double left(double gain) const {
    if (from_.batches_per_epoch == 0) return std::numeric_limits<double>::infinity();
    const double batch = std::min(best_seconds_, trials_.fp32_seconds());
    const double planned = static_cast<double>(settings_.planned_epochs * from_.batches_per_epoch) * batch;
    const double share = std::min(8 * settings_.budget, settings_.budget + gain / batch / 4);
    return share * planned - (run_.seconds() - static_cast<double>(behind()) * batch);
  }

 private:
  // Batches of the training that are done.
  std::int64_t behind() const {
    if (run_.restores()) return kept_;
    std::int64_t all = 0;
    for (const trial& t : log_.trials) all += t.repeat < profile_repeats ? t.sample.batches : 0;
    return all;
  }

  void add(const plan& p) {
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (!contains(levels_[i], p[i])) levels_[i].push_back(p[i]);
    }
  }
  double gain(const plan& p) const { return std::max(costs_.batch_seconds(allowed_) - costs_.batch_seconds(p), 0.0); }

  // A whole test may take what is left of the budget, each of its batches also one of FP32's, and a few in any case.
  void limit_test() {
    const std::size_t least = 2 * trials_.least();
    const std::size_t epoch = std::max(from_.batches_per_epoch > 0 ? from_.batches_per_epoch : 256, least);
    const double more = std::max(left(0), 0.0) / (2 * trials_.fp32_seconds());
    const double most = static_cast<double>(log_.baseline.batches) + more;
    trials_.at_most(most < static_cast<double>(epoch) ? std::max(static_cast<std::size_t>(most), least) : epoch);
  }

  bool accepts(const plan& p, bool quick = false) {
    if (!quick) limit_test();
    const auto* before = trials_.known(p);
    const bool fresh = before == nullptr || (!quick && !before->settled);
    const auto& got = trials_.judge(p, {}, quick);
    if (fresh && got.trial.sample.ok() && std::isfinite(got.trial.seconds)) {
      costs_.learn(got.trial);
      if (got.trial.accepted) best_seconds_ = std::min(best_seconds_, got.trial.seconds);
    }
    if (!got.trial.accepted) return false;
    if (allowed_ != fp32_) before_.push_back(allowed_);
    allowed_ = p;
    if (got.end) last_ = got.end;
    kept_ = got.trial.sample.batches;  // known of a recalled trial too
    counted_ = log_.trials.size();
    return true;
  }

  // What was answered from few batches is judged at the level; what fails gives way to what was accepted before it.
  void settle() {
    std::vector<plan> ladder;
    ladder.swap(before_);
    while (allowed_ != fp32_ && !trials_.known(allowed_)->settled) {
      const plan now = allowed_;
      if (accepts(now)) return;
      allowed_ = ladder.empty() ? fp32_ : ladder.back();
      if (!ladder.empty()) ladder.pop_back();
      const auto* known = trials_.known(allowed_);
      last_ = known != nullptr ? known->end : std::nullopt;
      kept_ = last_ ? last_->trained.batches : 0;
    }
  }

  // A rule-based plan that is accepted is what all others are added to.
  void start_from_rules(const plan& wanted) {
    std::vector<plan> rules;
    for (const plan& rule : from_.rules) {
      plan part = fp32_;
      for (std::size_t i = 0; i < part.size(); ++i) {
        if (rule[i] == wanted[i]) part[i] = rule[i];
      }
      if (part != fp32_ && part != wanted) rules.push_back(std::move(part));
    }
    std::sort(rules.begin(), rules.end(),
              [&](const plan& a, const plan& b) { return costs_.batch_seconds(a) < costs_.batch_seconds(b); });
    for (const plan& rule : rules) {
      if (accepts(rule, true)) return;
    }
  }

  // What is refused in one precision may do in another: asked once, beside what was accepted.
  void mend(const plan& wanted) {
    const std::vector<std::size_t> harmful = mend_once(wanted);
    plan other = allowed_;
    for (const auto i : harmful) {
      const auto& levels = from_.levels[i];
      const auto at = std::find_if(levels.begin() + 1, levels.end(),
                                   [&](precision p) { return p != wanted[i] && !costs_.dropped(p); });
      if (at != levels.end()) other[i] = *at;
    }
    if (other == allowed_ || trials_.known(other) != nullptr || !(left(gain(other)) > 0)) return;
    if (!accepts(other, true)) (void)mend_once(other);
  }

  struct item {
    std::size_t op;
    double gain, order;
  };
  static void sort_by_harm(std::vector<item>& items) {
    std::sort(items.begin(), items.end(), [](const item& a, const item& b) {
      return a.order != b.order ? a.order < b.order : a.gain != b.gain ? a.gain > b.gain : a.op < b.op;
    });
  }

  // Of each item, its place in the policy's order: for scores that turn out to be wrong.
  std::vector<std::size_t> places_by_policy(std::vector<item> items) const {
    const std::vector<double> order = detail::policy_order(from_.decisions);
    std::vector<std::size_t> at(fp32_.size()), places;
    for (std::size_t i = 0; i < items.size(); ++i) at[items[i].op] = i;
    for (item& i : items) i.order = order[i.op];
    sort_by_harm(items);
    places.resize(items.size());
    for (std::size_t place = 0; place < items.size(); ++place) places[at[items[place].op]] = place;
    return places;
  }

  // Returns: the operators that were refused by themselves.
  std::vector<std::size_t> mend_once(const plan& wanted) {
    const plan base = allowed_;
    if (!(left(gain(wanted)) > 0)) return {};
    bool scored = false;
    const std::vector<item> items = items_of(wanted, scored);
    std::vector<double> gains;
    double all = 0;
    std::size_t safe = 0;
    for (const item& i : items) gains.push_back(i.gain), all += i.gain, safe += !scored && i.order == 0;
    mending mender{gains, safe, scored, mend_, places_by_policy(items)};
    const auto plan_of = [&](const std::vector<std::size_t>& question) {
      plan p = base;
      for (const auto i : question) p[items[i].op] = wanted[items[i].op];
      return p;
    };
    std::size_t known = 0;
    plan refused = wanted;
    for (auto question = mender.next(); question && left(all) > 0; question = mender.next()) {
      const plan p = plan_of(*question);
      const bool yes = accepts(p, true);
      if (!yes) refused = p;  // what is left of it when a part is accepted is to blame
      mender.tell(yes);
      if (mender.harmful().size() > known) blame(items[mender.harmful()[known++]].op, refused);
    }
    allowed_ = plan_of(mender.accepted());
    std::vector<std::size_t> harmful;
    for (const auto i : mender.harmful()) harmful.push_back(items[i].op);
    return harmful;
  }

  std::vector<item> items_of(const plan& wanted, bool& scored) {
    const plan_costs costs = costs_.costs();
    const std::vector<double> order =
        detail::harm_order(run_, log_, from_, trials_.reference().start(), fp32_, wanted, scored);
    std::vector<item> items;
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] == allowed_[i]) continue;
      const double now = costs.seconds[i][index_of(allowed_[i])], gained = now - costs.seconds[i][index_of(wanted[i])];
      items.push_back({i, std::max(gained, 1e-4 * now), order[i]});
    }
    sort_by_harm(items);
    return items;
  }

  void blame(std::size_t op, const plan& with) {
    op_evidence& evidence = log_.evidence[op];
    evidence.what = op_evidence::kind::harmful;
    evidence.low = with[op];
    evidence.others_low = 0;
    for (std::size_t i = 0; i < with.size(); ++i) evidence.others_low += i != op && with[i] != fp32_[i] ? 1U : 0U;
    if (const auto* judged = trials_.known(with)) evidence.difference = judged->verdict.difference;
  }

  void note(std::size_t op, precision wanted) {
    op_evidence& evidence = log_.evidence[op];
    using enum op_evidence::kind;
    const auto& levels = from_.levels[op];
    if (allowed_[op] != fp32_[op]) {
      evidence = {.what = accepted, .low = allowed_[op]};
    } else if (evidence.what == harmful) {
      return;
    } else if (!log_.graph[op].choosable) {
      evidence.what = none;
    } else if (levels.size() == 1) {
      evidence.what = from_.decisions[op].fixed ? fixed : unsupported;
    } else if (wanted != fp32_[op]) {
      evidence = {.what = undecided, .low = wanted};
    } else {
      const auto may = std::find_if(levels.begin() + 1, levels.end(), [&](precision p) { return !costs_.dropped(p); });
      evidence = may == levels.end() ? op_evidence{.what = dropped, .low = levels[1]}
                                     : op_evidence{.what = unasked, .low = *may};
    }
  }

  evaluator& run_;
  outcome& log_;
  const search_settings& settings_;
  const mending_settings& mend_;
  loss_trials& trials_;
  learned_costs& costs_;
  const guided_start& from_;
  plan fp32_, allowed_;
  precision_levels levels_ = {};
  std::vector<plan> before_ = {};  // accepted before `allowed_`, ever more of it
  std::optional<place> last_ = {};
  std::int64_t kept_ = 0;    // batches of the training that are behind `last_`
  std::size_t counted_ = 0;  // trials that are in it
  double best_seconds_ = std::numeric_limits<double>::infinity();
};

}  // namespace comp
