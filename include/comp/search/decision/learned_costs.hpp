// SPDX-License-Identifier: Apache-2.0
// Learns on a trainer what operators and casts cost: from a profile in FP32 and one in each low precision, if the
// backend can profile, and then from whole batches. It then finds the cheapest plan under these costs. `harm_order`
// orders operators by the harm that lowering them is expected to do: by the errors that the backend measures
// (`sensitivity`), or else by the policy's lists.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <comp/core/concepts.hpp>
#include <comp/core/decision.hpp>
#include <comp/search/decision/budget.hpp>
#include <comp/search/decision/starting_plans.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <comp/strategy/cost_model.hpp>
#include <comp/strategy/min_cut.hpp>
#include <comp/strategy/plan_costs.hpp>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <random>
#include <set>
#include <utility>
#include <vector>

namespace comp {

namespace detail {

/// Computes how the casts of a plan change when one operator changes. Readers are counted per tensor once, so that each
/// operator takes time proportional to its edges only.
class cast_changes {
 public:
  cast_changes(const plan_costs& costs, const plan& p)
      : costs_{costs}, plan_{p}, counts_(costs.tensors.size()), uses_(p.size()) {
    for (std::uint32_t t = 0; t < costs.tensors.size(); ++t) {
      uses_[costs.tensors[t].producer].push_back({t, 0});
      for (const auto reader : costs.tensors[t].readers) {
        ++counts_[t][index_of(p[reader])];
        if (uses_[reader].empty() || uses_[reader].back().tensor != t) uses_[reader].push_back({t, 0});
        ++uses_[reader].back().reads;
      }
    }
  }

  /// Returns: the seconds that the casts around `op` cost more when it is in `to` than when it is in `from`. All other
  /// operators are as in the plan.
  double seconds(std::size_t op, precision from, precision to) const { return around(op, to) - around(op, from); }

 private:
  struct use {
    std::uint32_t tensor = 0;
    std::uint32_t reads = 0;  // how often the operator reads the tensor; 0: it produces it
  };

  double around(std::size_t op, precision as) const {
    double sum = 0;
    for (const use& u : uses_[op]) {
      const shared_tensor& t = costs_.tensors[u.tensor];
      auto readers = counts_[u.tensor];
      readers[index_of(plan_[op])] -= u.reads;
      readers[index_of(as)] += u.reads;
      const precision from = t.producer == op ? as : plan_[t.producer];
      readers[index_of(from)] = 0;
      for (const precision to : all_precisions) sum += readers[index_of(to)] > 0 ? costs_.cast(t, from, to) : 0;
    }
    return sum;
  }

  const plan_costs& costs_;
  const plan& plan_;
  std::vector<std::array<std::uint32_t, precision_count>> counts_;  // per tensor and precision: readers
  std::vector<std::vector<use>> uses_;                              // per operator
};

/// Returns: the factor for an operator's measured error. An error is measured in a few steps, and hides what builds
/// up over a training; the policy's lists hold experience of that.
inline double risk_of(category by_policy) {
  return by_policy == category::allow ? 0.25 : by_policy == category::deny ? 1 : 0.5;
}

/// Returns: per operator, its error in the precision that `target` gives it, times its risk; infinity if `target` does
/// not lower it. An error that is NaN counts as infinite.
/// Throws: what the backend throws; `error` if the number of scores is not that of the operators.
inline std::vector<double> errors_of(evaluator& run, const guided_start& from, const checkpoint& start,
                                     const plan& fp32, const plan& target) {
  static constexpr double infinity = std::numeric_limits<double>::infinity();
  std::vector<double> all(target.size(), infinity);
  for (const precision low : from.lows) {
    if (std::find(target.begin(), target.end(), low) == target.end()) continue;
    run.restore(start);
    const auto measure = [low](auto& trainer) {
      std::vector<double> measured;
      for (const op_error& e : trainer.sensitivity(low)) {
        measured.push_back(std::isnan(e.output) || std::isnan(e.gradient) ? infinity : std::max(e.output, e.gradient));
      }
      return measured;
    };
    const std::vector<double> errors = run.record_numbers(fp32, fmt::format("sensitivity to {}", name(low)),
                                                          purpose::sensitivity, measure, index_of(low));
    require<error>(errors.size() == target.size(), "{} scores for {} operators", errors.size(), target.size());
    for (std::size_t i = 0; i < target.size(); ++i) {
      if (target[i] == low) all[i] = errors[i] * risk_of(from.decisions[i].category);
    }
  }
  return all;
}

/// Returns: per operator 0 if the policy allows low precision, 1 if it has no opinion, 2 if it denies it.
inline std::vector<double> policy_order(const std::vector<decision>& decisions) {
  std::vector<double> order(decisions.size());
  std::transform(decisions.begin(), decisions.end(), order.begin(), [](const decision& by_policy) {
    return by_policy.category == category::allow ? 0 : by_policy.category == category::deny ? 2 : 1;
  });
  return order;
}

/// Returns: per operator a number that grows with its expected harm: its error, if the backend measures it (`scored` is
/// then set to true), else its place in the policy's order. `start`: the state that FP32 began from.
inline std::vector<double> harm_order(evaluator& run, const guided_start& from, const checkpoint& start,
                                      const plan& fp32, const plan& target, bool& scored) {
  if (run.trainer().has.sensitivity) {
    try {
      std::vector<double> by_error = errors_of(run, from, start, fp32, target);
      scored = true;
      return by_error;
    } catch (const interrupted&) {
      throw;
    } catch (const std::exception& e) {
      run.warn(
          fmt::format("sensitivities were not used ({}): operators were tried in the order of "
                      "the policy's lists",
                      e.what()));
      run.restore_kept_state();
    }
  }
  return policy_order(from.decisions);
}

}  // namespace detail

/// Returns: `evidence` with `saves` and `casts` set: the seconds that an operator saves in its `low` precision compared
/// with the one in `base`, and the seconds of casts that this adds, with all other operators as in `chosen`. Takes time
/// linear in operators and edges. Requires: all arguments describe the same operators.
inline std::vector<op_evidence> add_gains(std::vector<op_evidence> evidence, const plan_costs& costs,
                                          const plan& chosen, const plan& base) {
  const detail::cast_changes casts{costs, chosen};
  for (std::size_t i = 0; i < evidence.size(); ++i) {
    op_evidence& f = evidence[i];
    if (f.low == base[i]) continue;
    f.saves = costs.seconds[i][index_of(base[i])] - costs.seconds[i][index_of(f.low)];
    f.casts = casts.seconds(i, base[i], f.low);
  }
  return evidence;
}

class learned_costs {
 public:
  /// `levels`: per operator, the precisions that it may have; that of the most conservative plan comes first.
  learned_costs(const search_session& search, const precision_levels& levels)
      : search_{search}, model_{search.log.graph, levels} {}

  /// Profiles FP32 and each precision of `lows`. A precision in which a batch is hopelessly slow is dropped instead,
  /// because its profile would take as long. States may have it all the same: nothing is computed in it there.
  void profile(const std::vector<precision>& lows) {
    const plan& fp32 = search_.fp32();
    model_.learn_batch(fp32, search_.trials.fp32_seconds());
    profile(fp32);
    for (const precision low : lows) {
      const auto is_state = [&](std::size_t i) { return search_.log.graph[i].is_state; };
      plan all = lower_to(low, fp32, model_.levels());
      const plan computes = mix(all, fp32, is_state);
      if (computes != fp32 && is_hopeless(computes, low, all != computes)) {
        hopeless_.insert(low);
        all = mix(fp32, all, is_state);
      }
      if (all != fp32) profile(all);
    }
  }
  /// Returns: whether operator `op` is not to have `p`.
  bool is_dropped(std::size_t op, precision p) const {
    return hopeless_.contains(p) && !search_.log.graph[op].is_state;
  }

  /// Learns the time of a batch from those that judged the losses of `t`. They ran at another moment than FP32's
  /// batches, when the machine may have been faster or slower, so their time is never trusted to better than 1%.
  void learn(const trial& t) {
    const double error = std::log(t.bounds.high / t.bounds.low) / 4;
    model_.learn_batch(t.plan, t.seconds, std::isfinite(error) && error > 0 ? std::max(error, 0.01) : 0.03);
  }
  /// Learns that a batch under `p` took `ratio` times as long as one under `beside` in the same rounds. `spread`: the
  /// standard deviation of `ratio`, relative to it.
  void learn(const plan& p, const plan& beside, double ratio, double spread) {
    model_.learn_pair(p, beside, ratio, spread);
  }

  double batch_seconds(const plan& p) const { return model_.batch_seconds(p); }
  const plan_costs& costs() const { return model_.costs(); }
  /// Returns: the standard deviation of the predicted difference between the two plans [s].
  double spread(const plan& p, const plan& q) const { return model_.spread(p, q); }

  /// Returns: the cheapest plan whose operators have precisions of `levels`; dropped precisions are left out.
  /// `per_byte`: what each stored byte costs besides time [s]. Two precisions make this a minimum cut, which is exact.
  /// More make it NP-hard: expansion moves then start from FP32 and from each of `starts`, and the best result counts.
  plan cheapest(const precision_levels& levels, const std::vector<plan>& starts, double per_byte = 0) const {
    return cheapest(model_.costs(), levels, starts, per_byte);
  }
  /// Returns: the cheapest plan under costs drawn from what the batches leave possible, so that plans whose costs are
  /// still uncertain are also proposed (Thompson sampling).
  plan perhaps_cheapest(const precision_levels& levels, const std::vector<plan>& starts, double per_byte,
                        std::mt19937_64& random) const {
    return cheapest(model_.drawn(random), levels, starts, per_byte);
  }
  /// Returns: true if the time of a batch can tell single operators apart.
  bool resolves() const { return model_.resolves(); }
  /// Returns: the bytes of all operators' results under `p`.
  double bytes(const plan& p) const {
    double sum = 0;
    for (std::size_t i = 0; i < p.size(); ++i) sum += model_.bytes(i, p[i]);
    return sum;
  }

 private:
  plan cheapest(plan_costs costs, const precision_levels& levels, const std::vector<plan>& starts,
                double per_byte) const {
    const plan& fp32 = search_.fp32();
    std::set<precision> lows;
    for (std::size_t i = 0; i < costs.size(); ++i) {
      for (const precision p : all_precisions) {
        double& seconds = costs.seconds[i][index_of(p)];
        const bool may = p == fp32[i] || (!is_dropped(i, p) && contains(levels[i], p));
        if (!may) seconds = std::numeric_limits<double>::infinity();
        if (std::isfinite(seconds) && p != fp32[i]) lows.insert(p);
        seconds += per_byte * model_.bytes(i, p);
      }
    }
    plan best = strategy::min_cut_plan(costs, fp32);
    if (lows.size() < 2) return best;
    for (const plan& start : starts) {
      if (!std::isfinite(costs.seconds_of(start))) continue;
      plan other = strategy::min_cut_plan(costs, start);
      if (costs.seconds_of(other) < costs.seconds_of(best)) best = std::move(other);
    }
    return best;
  }

  static constexpr double too_slow = 3;  // a batch that takes this many times FP32's is hopeless

  // Runs one batch with everything in `low`: FP16 on a CPU can be 50 times slower than FP32. A slow one is run once
  // more, because a first batch may only be warming up. BF16 and TF32 have never been hopeless and are not tried.
  bool is_hopeless(const plan& all, precision low, bool keeps_states) {
    if (low == precision::bf16 || low == precision::tf32) return false;
    const double fp32 = search_.trials.fp32_seconds();
    const auto work = [&](const trial& begun) {
      search_.run.restore(search_.trials.reference().start());
      sample run;
      search_.run.train(begun, all, 1, run, detail::cut_if_not_finite);
      if (run.ok() && run.seconds > 1.5 * fp32) search_.run.train(begun, all, 2, run, detail::cut_if_not_finite);
      return run;
    };
    const trial t =
        search_.run.run_and_record(stage::losses, all, fmt::format("all {}", name(low)), work, purpose::first_look);
    if (!t.sample.ok() || t.sample.batch_seconds.empty()) return false;  // some operators may run in it nevertheless
    const double slower = t.sample.batch_seconds.back() / fp32;
    if (slower <= too_slow) return false;
    search_.run.warn(fmt::format("{} was not searched{}: a batch with all operators in it took {:.3g} times FP32's",
                                 name(low), keeps_states ? ", but for what the training keeps" : "", slower));
    return true;
  }

  void profile(const plan& p) {
    if (!search_.run.trainer().has.profile) return;
    constexpr const char* instead = "costs were estimated from operations and bytes";
    try {
      const std::vector<double> flat = search_.run.record_numbers(p, "profile", purpose::profile, [](auto& trainer) {
        std::vector<double> seconds;
        for (const op_time& t : trainer.profile()) seconds.insert(seconds.end(), {t.forward, t.backward});
        return seconds;
      });
      std::vector<op_time> times(flat.size() / 2);
      for (std::size_t i = 0; i < times.size(); ++i) times[i] = {flat[2 * i], flat[2 * i + 1]};
      if (!model_.learn_profile(p, times)) {
        search_.run.warn(
            fmt::format("a profile of {} operators was not used (one time for each of {} is "
                        "needed, finite, not negative, not all zero): {}",
                        times.size(), p.size(), instead));
      }
    } catch (const interrupted&) {
      throw;
    } catch (const std::exception& e) {
      search_.run.warn(fmt::format("no profile ({}): {}", e.what(), instead));
      search_.run.restore_kept_state();
    }
  }

  search_session search_;
  cost_model model_;
  std::set<precision> hopeless_ = {};
};

}  // namespace comp
