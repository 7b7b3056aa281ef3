// SPDX-License-Identifier: Apache-2.0
// Runs the default strategy on one trainer: costs give the cheapest plan, losses decide which of its operators may be
// low, and races among accepted plans correct the costs. strategy/guided.hpp says why it searches so.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/statistics.hpp>
#include <comp/search/decision/accepted_operators.hpp>
#include <comp/search/decision/budget.hpp>
#include <comp/search/decision/learned_costs.hpp>
#include <comp/search/times/race.hpp>
#include <comp/strategy/guided.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <numbers>
#include <optional>
#include <random>
#include <set>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace comp {

/// Estimates from all races so far how much the ratio of two batches' times varies by noise alone. The median absolute
/// deviation is used, so that single hiccups of the machine do not count.
class ratio_noise {
 public:
  void add(std::span<const double> a, std::span<const double> b) {
    const std::size_t n = std::min(a.size(), b.size());
    if (n < 3 || a.data() == b.data()) return;
    std::vector<double> off;
    for (std::size_t i = 0; i < n; ++i) off.push_back(std::log(a[i] / b[i]));
    const double middle = median(off);
    for (double& o : off) o = std::abs(o - middle);
    const double weight = static_cast<double>(n - 1);
    // 1.5: a normal variable's standard deviation over its median absolute deviation.
    deviation_ += (1.5 * median(off) - deviation_) * weight / (weight_ + weight);
    weight_ += weight;
  }
  /// Returns: the standard deviation of the logarithm of two batches' ratio.
  double of_a_batch() const { return deviation_; }
  /// Returns: the same for the median of `n` ratios: a normal variable's median varies 1.25 times as much as its mean.
  double of_median(std::size_t n) const {
    return 1.25 * deviation_ / std::sqrt(static_cast<double>(std::max<std::size_t>(n, 1)));
  }

 private:
  double deviation_ = 0.05, weight_ = 3;  // before any race: 5%, which counts as three ratios
};

/// Returns: the expected value of max(x, 0) for a normal variable x: what a plan gains that is not taken if it turns
/// out slower.
inline double expected_gain(double mean, double deviation) {
  if (!(deviation > 0)) return std::max(mean, 0.0);
  const double z = mean / deviation;
  const double density = std::exp(-z * z / 2) / std::sqrt(2 * std::numbers::pi);
  return mean * std::erfc(-z / std::numbers::sqrt2) / 2 + deviation * density;
}

class guided_search {
 public:
  guided_search(const search_session& search, const strategy::guided& chosen, guided_start from)
      : search_{search},
        chosen_{chosen},
        from_{std::move(from)},
        costs_{search, from_.levels},
        accepted_{search, chosen.bisection, costs_, from_} {}

  /// Returns: the fastest plan that was found; FP32 if no plan was accepted. The trainer is left in the state after the
  /// batches of the accepted plans, so that they count as training.
  plan find() {
    search_.run.timed(stage::baseline, [&] { costs_.profile(from_.lows); });
    search_.run.timed(stage::losses, [&] {
      plan target = cheapest_with_rules();
      while (accepted_.find(target) == fp32() && target.has_scaled()) target = without_narrowest(target, from_.levels);
    });
    plan best = fp32();
    search_.run.timed(stage::times, [&] {
      best = refine();
      if (search_.settings.memory_limit > 0 || search_.settings.slowdown > 0) judge_smaller();
      if (search_.settings.memory_limit > 0) best = fit_memory(best);
      if (search_.settings.slowdown > 0) least_ = find_least_memory(best);
    });
    return best;
  }

  /// Returns: per operator, what was learned of it. What its precision saves is computed with all other operators as in
  /// `p`.
  std::vector<op_evidence> evidence_beside(const plan& p) const {
    return add_gains(accepted_.evidence(), costs_.costs(), p, fp32());
  }

  /// Returns: the largest part of `p` whose losses are accepted. Call it if the losses of `p` itself were rejected in
  /// the end.
  plan bisect_again(const plan& p) {
    plan part = fp32();
    search_.run.timed(stage::losses, [&] { part = accepted_.find_again(p); });
    return part;
  }
  /// Returns: the cheapest plan of accepted operators without the formats of `p` that have the fewest bits; if `p`
  /// lowers states, `p` without that.
  plan without_narrowest(const plan& p) const {
    const op_graph& graph = search_.log.graph;
    if (!lowers_states(p, graph)) return without_narrowest(p, accepted_.levels());
    return mix(p, fp32(), [&](std::size_t i) { return graph[i].is_state; });
  }
  /// Returns: how many of FP32's batches what is left of the budget pays for.
  double batches_left() const { return accepted_.budget().seconds_left(0) / search_.trials.fp32_seconds(); }
  /// Returns: the plan of least memory that is slower than the fastest by settings.slowdown at most; empty if the
  /// settings do not ask for one, or none was found.
  const plan& least_memory() const { return least_; }
  /// Returns: true if each operator of `p` has a precision that it also has in an accepted plan.
  bool is_accepted(const plan& p) const { return accepted_.is_accepted(p); }
  /// Returns: true if the losses of `p` are accepted; false if the budget is spent.
  bool accepts_losses(const plan& p, const std::string& label) {
    return accepted_.budget().seconds_left(0) > 0 && accepted_.judge(p, label).trial.accepted;
  }
  /// Returns: the plan with everything low that was accepted together.
  const plan& accepted_plan() const { return accepted_.accepted_plan(); }
  /// Learns times from the contest's batches. Plans with operators that were not accepted are left out, and so is the
  /// backend's own autocast, which is no plan of operators.
  void learn(const std::vector<contestant>& contest) {
    std::vector<racer> racers;
    for (const contestant& c : contest) {
      if (is_accepted(c.plan) && !c.plan.runs_autocast() && !c.plan.is_tuned())
        racers.push_back({.plan = c.plan, .seconds = c.seconds, .status = c.status});
    }
    if (racers.empty()) return;
    const auto longest = std::ranges::max_element(racers, {}, [](const racer& r) { return r.seconds.size(); });
    std::iter_swap(racers.begin(), longest);
    learn(racers);
  }
  /// Returns: the seconds of a batch under `p` that the costs learned so far predict.
  double predict(const plan& p) const { return costs_.batch_seconds(p); }
  /// Returns: true if these costs say with 97.5% confidence that `p` is faster than `than`.
  bool is_faster(const plan& p, const plan& than) const {
    return costs_.batch_seconds(than) - costs_.batch_seconds(p) > 2 * costs_.spread(p, than);
  }

 private:
  const plan& fp32() const { return search_.run.fp32(); }

  plan without_narrowest(const plan& p, precision_levels levels) const {
    const auto bytes = [](precision q) { return traits(q).bytes; };
    const double fewest = bytes(*std::ranges::min_element(p, {}, bytes));
    for (auto& of : levels)  // the first, FP32, may have as many: TF32 is stored like it
      of.erase(std::remove_if(of.begin() + 1, of.end(), [&](precision q) { return bytes(q) <= fewest; }), of.end());
    return costs_.cheapest(levels, from_.rules, byte_price());
  }

  // Returns: the cheapest plan, joined with what else the rules and rivals lower. They are judged together because any
  // mixture of accepted operators may be raced afterwards without another test of losses.
  plan cheapest_with_rules() const {
    std::vector<plan> rules = from_.rules;
    plan target = costs_.cheapest(from_.levels, from_.rules, byte_price());
    std::ranges::sort(rules, {}, [&](const plan& p) { return costs_.batch_seconds(p); });
    const auto is_high = [&](std::size_t i) { return target[i] == fp32()[i]; };
    for (const plan& rule : rules) {
      target = mix(target, rule, [&](std::size_t i) {
        return is_high(i) && contains(from_.levels[i], rule[i]) && !costs_.is_dropped(i, rule[i]);
      });
    }
    if (search_.settings.memory_limit == 0 && search_.settings.slowdown == 0) return target;
    const plan small = costs_.cheapest(from_.levels, from_.rules, memory_price());
    return mix(target, small, is_high);  // operators that save memory may be wanted later
  }

  // Returns: the price of a byte [s] at which memory outweighs time: all operators' results together cost ten batches.
  double memory_price() const { return 10 * search_.trials.fp32_seconds() / std::max(costs_.bytes(fp32()), 1.0); }

  // Returns: the price of a byte [s]: all operators' results together cost a hundredth of a batch, so that memory only
  // decides between plans that are about equally fast.
  double byte_price() const { return 0.01 * search_.trials.fp32_seconds() / std::max(costs_.bytes(fp32()), 1.0); }
  plan cheapest_accepted(const std::vector<plan>& starts, double per_byte) const {
    return costs_.cheapest(accepted_.levels(), starts, per_byte);
  }

  // Races plans made of accepted operators, and then asks about further plans as long as the answers are worth their
  // cost.
  plan refine() {
    const plan& all = accepted_.accepted_plan();
    if (all == fp32()) return all;
    std::vector<racer> first;
    const auto enter = [&](const plan& p) {
      const bool there = std::any_of(first.begin(), first.end(), [&](const racer& r) { return r.plan == p; });
      if (p != fp32() && !there) first.push_back({.plan = p});
    };
    enter(all);
    enter(cheapest_accepted({all}, byte_price()));
    for (const plan& rule : from_.rules) enter(accepted_.restrict_to_accepted(rule));
    timed_.insert(all);
    if (first.size() > 1) race_and_learn(first, search_.settings.race.min_rounds);
    const double price = byte_price();
    for (std::size_t i = 0; i < chosen_.questions; ++i) {
      const plan best = fastest_plan();
      const std::optional<plan> next = next_question(best, price);
      if (!next) break;
      if (!accepted_.is_accepted(*next)) {
        judge_new_precision(*next);
        continue;
      }
      std::vector<racer> two{{.plan = best}, {.plan = *next}};
      race_and_learn(two, rounds_of_question);
    }
    return fastest_plan();
  }

  // Chooses the next question: a plan to race, if its operators are accepted, else a plan whose losses are judged.
  // Returns: the one that pays most; nothing if none pays. `best`: the fastest plan that was timed. `price`: of a byte
  // [s].
  std::optional<plan> next_question(const plan& best, double price) {
    const std::vector<plan> starts{best, accepted_.accepted_plan()};
    std::vector<precision_levels> spaces{accepted_.levels()};
    if (from_.lows.size() > 1) spaces.push_back(open_levels());
    std::set<plan> known = questions_;
    known.insert({fp32(), best});
    std::optional<plan> found;
    double most = 0;
    for (int i = 0; i < (costs_.resolves() ? draws_per_question : 1); ++i) {
      for (const precision_levels& space : spaces) {
        plan p =
            i == 0 ? costs_.cheapest(space, starts, price) : costs_.perhaps_cheapest(space, starts, price, random_);
        if (!known.insert(p).second) continue;
        if (const double pays = worth(p, best); pays > most) found = std::move(p), most = pays;
      }
    }
    if (found && !accepted_.is_accepted(*found)) questions_.insert(*found);
    return found;
  }

  // Operators that were accepted in one low precision may be proposed in the others, too.
  precision_levels open_levels() const {
    precision_levels open = accepted_.levels();
    for (std::size_t i = 0; i < open.size(); ++i) {
      if (open[i].size() > 1) open[i] = from_.levels[i];
    }
    return open;
  }

  // Returns: the seconds that the answer about `p` is expected to save over the batches to come, less what asking
  // costs.
  double worth(const plan& p, const plan& best) const {
    const double seconds = costs_.batch_seconds(p), gain = costs_.batch_seconds(best) - seconds,
                 spread = costs_.spread(p, best);
    const bool is_race = accepted_.is_accepted(p);
    const double count = static_cast<double>(is_race ? rounds_of_question : search_.trials.min_batches());
    const double error = seconds * noise_.of_a_batch() / std::sqrt(count);
    // How far the answer is expected to move the estimate: s^2 / sqrt(s^2 + e^2), as in the knowledge gradient.
    const double informative_spread = spread * spread / std::hypot(spread, error);
    const double first = search_.run.has_run(p) ? 0 : 1;  // the first batch of a plan is not timed, and often slow
    // A race trains, so it costs what `p` is slower; a test of losses may be undone, so it costs all its batches.
    const double cost = is_race ? count * expected_gain(-gain, spread) + first * seconds : count * seconds;
    constexpr double part_to_believe = 0.5;  // of the promised gain
    const double gain_per_batch = part_to_believe * expected_gain(gain, informative_spread);
    return gain_per_batch * std::max(accepted_.budget().to_come() - count, 0.0) - cost;
  }

  // Judges a plan with a precision that its operators were not accepted in. First the plan with all accepted operators
  // in the new precision that `target` uses most: if it is accepted, so is any mixture. If that plan was judged before,
  // `target` itself.
  void judge_new_precision(const plan& target) {
    std::map<precision, std::size_t> uses;
    for (std::size_t i = 0; i < target.size(); ++i) {
      if (!contains(accepted_.levels()[i], target[i])) ++uses[target[i]];
    }
    const precision low = std::ranges::max_element(uses, {}, [](const auto& use) { return use.second; })->first;
    const plan all = lower_to(low, accepted_.accepted_plan(), open_levels());
    const plan& question = search_.trials.find(all) == nullptr ? all : target;
    accepted_.judge_wider(question);
    if (search_.trials.find(question)->trial.accepted) timed_.insert(question);
  }

  // Judges once the formats that store less than the accepted ones. Call it if memory counts: next_question() asks only
  // about plans that save time.
  void judge_smaller() {
    const plan& all = accepted_.accepted_plan();
    const plan small = costs_.cheapest(open_levels(), {all}, memory_price());
    if (!accepted_.is_accepted(small) && questions_.insert(small).second && accepted_.budget().seconds_left(0) > 0)
      accepted_.judge_wider(small);
  }

  // Returns: the fastest of the timed plans by the costs, which know all races. A single race is too noisy to decide
  // by.
  plan fastest_plan() const {
    return *std::ranges::min_element(timed_, {}, [&](const plan& p) { return costs_.batch_seconds(p); });
  }

  // Races the plans and learns their times relative to the first racer's, because the machine's load cancels in a
  // ratio.
  void race_and_learn(std::vector<racer>& racers, std::size_t rounds) {
    race{search_.run,
         stage::times,
         search_.settings.race,
         rounds,
         {.trains = true, .same_batches = search_.trials.lengths_differ()}}
        .run(racers);
    for (const racer& r : racers) {
      if (r.peak_bytes > 0) peaks_[r.plan] = r.peak_bytes;
      if (r.status == status::ok) timed_.insert(r.plan);
    }
    learn(racers);
    accepted_.budget().count_races_as_training(costs_.batch_seconds(fastest_plan()));
  }
  // Learns how much times vary, and each racer's time relative to the first.
  void learn(const std::vector<racer>& racers) {
    const racer& base = racers.front();
    for (const racer& r : racers) noise_.add(base.seconds, r.seconds);
    for (const racer& r : racers) {
      const std::size_t both = std::min(base.seconds.size(), r.seconds.size());
      if (&r == &base || r.status != status::ok || base.status != status::ok || both == 0) continue;
      costs_.learn(r.plan, base.plan, 1 / compare_paired(base.seconds, r.seconds).ratio, noise_.of_median(both));
    }
  }

  // Returns: the fastest plan whose measured peak memory is within the limit; if there is none, the one with the lowest
  // peak.
  plan fit_memory(const plan& best) {
    const std::int64_t limit = search_.settings.memory_limit;
    if (best == fp32() || peak_of(best, best) == 0 || peak_of(best, best) <= limit) return best;
    plan least = best;
    for_smaller(best, [&](const plan& next) {
      if (needs_less_memory(next, least, best)) least = next;
      return peak_of(least, best) > limit;
    });
    return least;
  }

  // Returns: the plan with the lowest measured peak among those that are no slower than settings.slowdown allows.
  plan find_least_memory(const plan& best) {
    plan least = best;
    const auto is_too_slow = [&](const plan& p) {
      return costs_.batch_seconds(p) > costs_.batch_seconds(best) * (1 + search_.settings.slowdown);
    };
    for_smaller(best, [&](const plan& next) {
      if (is_too_slow(next)) return false;
      if (needs_less_memory(next, least, best) && !is_too_slow(next)) least = next;  // its race may have shown it slow
      return true;
    });
    return least;
  }

  // Proposes plans of accepted operators that store ever less, until `look(plan)` is false. Each stored byte gets a
  // price in seconds that doubles from plan to plan, so that memory counts more and more against time.
  void for_smaller(const plan& best, auto look) {
    plan last = best;
    double price = std::max(4 * byte_price(), 1e-4 * memory_price());
    for (int doubled = 0; best != fp32() && doubled < 14; ++doubled, price *= 2) {
      const plan next = cheapest_accepted({best, accepted_.accepted_plan()}, price);
      if (next != last && next != best && !look(next)) return;
      last = next;
    }
  }

  // Returns: true if `next` ran, with a lower peak than `least`.
  bool needs_less_memory(const plan& next, const plan& least, const plan& best) {
    const std::int64_t peak = peak_of(next, best);
    return peak > 0 && timed_.contains(next) && peak < peak_of(least, best);
  }

  // Returns: the peak memory of a batch under `p` [bytes], measured in a race against `best`, which also shows its
  // time; 0 if the backend does not measure it.
  std::int64_t peak_of(const plan& p, const plan& best) {
    if (!peaks_.contains(p)) {
      std::vector<racer> two{{.plan = best}, {.plan = p}};
      if (p == best) two.pop_back();
      race_and_learn(two, search_.settings.race.max_rounds);
    }
    return peaks_.contains(p) ? peaks_.at(p) : 0;
  }

  // Rounds of the race that answers a question; draws of costs per question, none if batches cannot tell operators
  // apart.
  static constexpr std::size_t rounds_of_question = 6;
  static constexpr int draws_per_question = 8;

  search_session search_;
  const strategy::guided& chosen_;
  guided_start from_;
  plan least_ = {};
  learned_costs costs_;
  accepted_operators accepted_;
  std::set<plan> timed_ = {};      // accepted plans among which fastest_plan() chooses
  std::set<plan> questions_ = {};  // plans whose losses were asked about; none is asked about twice
  std::mt19937_64 random_{1};
  ratio_noise noise_ = {};
  std::map<plan, std::int64_t> peaks_ = {};
};

}  // namespace comp
