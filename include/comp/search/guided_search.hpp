// SPDX-License-Identifier: Apache-2.0
// One guided search on one trainer: see strategy/guided.hpp for what it does and why.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/search/accepted_operators.hpp>
#include <comp/search/fates.hpp>
#include <comp/search/learned_costs.hpp>
#include <comp/search/race.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/trials.hpp>
#include <comp/strategy/guided.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <utility>
#include <vector>

namespace comp {

class guided_search {
 public:
  guided_search(evaluator& run, outcome& log, const search_settings& settings, const strategy::guided& chosen,
                loss_trials& trials, guided_start from)
      : run_{run},
        log_{log},
        settings_{settings},
        chosen_{chosen},
        trials_{trials},
        from_{std::move(from)},
        fp32_{trials.reference().plan()},
        costs_{run, log, trials, from_.levels},
        accepted_{run, log, settings, chosen.mend, trials, costs_, from_} {}

  /// Returns: the fastest plan that was found, FP32 where none is accepted. The trainer is where the accepted plans'
  /// batches ended.
  plan operator()() {
    run_.timed(stage::baseline, [&] { costs_.profile(from_.lows); });
    run_.timed(stage::epochs, [&] { (void)accepted_(joined()); });
    plan fastest_plan = fp32_;
    run_.timed(stage::batches, [&] {
      fastest_plan = refined();
      if (settings_.memory_limit > 0) fastest_plan = within_memory(std::move(fastest_plan));
      if (settings_.slowdown > 0) least_ = least_memory(fastest_plan);
    });
    weigh(log_.fates, costs_.costs(), fastest_plan, fp32_);
    return fastest_plan;
  }

  /// The least memory within settings.slowdown of what was found; empty: not asked for, or not found.
  const plan& least_memory() const { return least_; }
  /// True for a plan that lowers nothing that is not known to train.
  bool covers(const plan& p) const { return accepted_.covers(p); }
  /// All that may be low; what any plan of this search is a part of.
  const plan& allowed() const { return accepted_.allowed(); }
  /// Whether the budget is not spent yet.
  bool may_go_on() const { return accepted_.left(0) > 0; }
  /// Seconds of a batch, as far as the costs are known by now.
  double predicted(const plan& p) const { return costs_(p); }

 private:
  // The cheapest plan, and what the rules lower beside it: what is accepted of that can be raced freely afterwards.
  plan joined() {
    std::vector<plan> starts = from_.rules, rules = from_.rules;
    for (const precision low : from_.lows) starts.push_back(lowered_to(low, fp32_, from_.levels));
    plan wanted = costs_.cheapest(starts, nullptr, byte_price());
    std::sort(rules.begin(), rules.end(), [&](const plan& a, const plan& b) { return costs_(a) < costs_(b); });
    for (const plan& rule : rules) {
      for (std::size_t i = 0; i < wanted.size(); ++i) {
        const auto& levels = from_.levels[i];
        const bool may = std::find(levels.begin(), levels.end(), rule[i]) != levels.end() && !costs_.dropped(rule[i]);
        if (wanted[i] == fp32_[i] && may) wanted[i] = rule[i];
      }
    }
    if (settings_.memory_limit == 0 && settings_.slowdown == 0) return wanted;
    const plan small = costs_.cheapest(starts, nullptr, dear_bytes());  // what saves memory may be wanted later
    for (std::size_t i = 0; i < wanted.size(); ++i) {
      if (wanted[i] == fp32_[i]) wanted[i] = small[i];
    }
    return wanted;
  }

  // A price at which bytes decide.
  double dear_bytes() const { return 10 * trials_.fp32_seconds() / std::max(costs_.bytes(fp32_), 1.0); }

  // Of plans that are as fast the one that stores less: the memory of all operators together is worth so much of a
  // batch.
  double byte_price() const {
    const double bytes = costs_.bytes(fp32_);
    return bytes > 0 ? chosen_.memory_worth * trials_.fp32_seconds() / bytes : 0;
  }
  plan proposed(const std::vector<plan>& starts, double per_byte) const {
    return costs_.cheapest(starts, &accepted_.allowed(), per_byte);
  }

  // Races among plans of what is accepted, each followed by the cheapest plan under the costs that it corrected.
  plan refined() {
    const plan& allowed = accepted_.allowed();
    if (allowed == fp32_) return fp32_;
    std::vector<racer> first;
    const auto enter = [&](const plan& p) {
      const bool there = std::any_of(first.begin(), first.end(), [&](const racer& r) { return r.plan == p; });
      if (p != fp32_ && !there) first.push_back({.plan = p});
    };
    enter(allowed);
    enter(proposed({allowed}, byte_price()));
    for (const plan& rule : from_.rules) enter(accepted_.within(rule));
    const auto* tested = trials_.known(allowed);
    const bool timed = tested != nullptr && std::isfinite(tested->trial.seconds);
    measured_[allowed] = timed ? tested->trial.seconds : costs_(allowed);
    plan best = first.size() > 1 ? fastest(first) : allowed;
    for (std::size_t i = 0; i < chosen_.proposals; ++i) {
      const plan next = proposed({best, allowed}, byte_price());
      if (measured_.contains(next) || next == fp32_ || costs_(next) > costs_(best) * (1 - chosen_.worth)) break;
      std::vector<racer> two{{.plan = best}, {.plan = next}};
      best = fastest(two);
    }
    return best;
  }

  // Times are taken relative to the first racer's, which is known.
  plan fastest(std::vector<racer>& racers) {
    race{run_,
         stage::batches,
         settings_.race,
         settings_.race.max_rounds,
         {.trains = true, .same_batches = trials_.lengths_differ()}}(racers, true);
    const racer& base = racers.front();
    const double seconds = measured_.at(base.plan);
    for (const racer& r : racers) {
      if (r.peak_bytes > 0) peaks_[r.plan] = r.peak_bytes;
      if (r.status != status::ok || base.status != status::ok) continue;
      const double took = &r == &base ? seconds : seconds / compare_paired(base.seconds, r.seconds).ratio;
      if (!std::isfinite(took)) continue;
      measured_[r.plan] = took;
      if (&r != &base) costs_.learn(r.plan, took);
    }
    plan best = base.plan;
    for (const racer& r : racers) {
      if (r.status == status::ok && measured_.contains(r.plan) && judged(r.plan) < judged(best)) best = r.plan;
    }
    accepted_.took(measured_.at(best));
    return best;
  }
  // What was measured and what the costs say, which have seen more batches than one race.
  double judged(const plan& p) const { return std::sqrt(measured_.at(p) * std::max(costs_(p), 1e-12)); }

  // The fastest plan whose measured peak is within the limit. Returns: the least where nothing accepted is small
  // enough.
  plan within_memory(const plan& best) {
    const std::int64_t limit = settings_.memory_limit;
    if (best == fp32_ || peak_of(best, best) == 0 || peak_of(best, best) <= limit) return best;
    plan least = best;
    for_smaller(best, [&](const plan& next) {
      if (spares(next, least, best)) least = next;
      return peak_of(least, best) > limit;
    });
    return least;
  }

  // The least measured peak of plans that are no slower than the setting allows.
  plan least_memory(const plan& best) {
    plan least = best;
    const double slowest = 1 + settings_.slowdown;
    for_smaller(best, [&](const plan& next) {
      if (costs_(next) > costs_(best) * slowest) return false;
      if (spares(next, least, best) && measured_.at(next) <= measured_.at(best) * slowest) least = next;
      return true;
    });
    return least;
  }

  // Plans of what is accepted that store ever less: bytes get a price, which is doubled. Until `look(plan)` is false.
  template <class Look>
  void for_smaller(const plan& best, Look look) {
    plan last = best;
    double price = std::max(4 * byte_price(), 1e-4 * dear_bytes());
    for (int doubled = 0; best != fp32_ && doubled < 14; ++doubled, price *= 2) {
      const plan next = proposed({best, accepted_.allowed()}, price);
      if (next != last && next != best && !look(next)) return;
      last = next;
    }
  }

  // Whether `next` ran, and with a lower peak than `least`.
  bool spares(const plan& next, const plan& least, const plan& best) {
    const std::int64_t peak = peak_of(next, best);
    return peak > 0 && measured_.contains(next) && peak < peak_of(least, best);
  }

  // Measured beside `best`; 0: the backend does not say.
  std::int64_t peak_of(const plan& p, const plan& best) {
    if (!peaks_.contains(p)) {
      std::vector<racer> two{{.plan = best}, {.plan = p}};
      if (p == best) two.pop_back();
      (void)fastest(two);
    }
    return peaks_.contains(p) ? peaks_.at(p) : 0;
  }

  evaluator& run_;
  outcome& log_;
  const search_settings& settings_;
  const strategy::guided& chosen_;
  loss_trials& trials_;
  guided_start from_;
  plan fp32_, least_ = {};
  learned_costs costs_;
  accepted_operators accepted_;
  std::map<plan, double> measured_ = {};
  std::map<plan, std::int64_t> peaks_ = {};
};

}  // namespace comp
