// SPDX-License-Identifier: Apache-2.0
// Learns on a trainer what operators and casts cost: from a profile in FP32 and one in each low precision, if the
// backend can profile, and then from whole batches. It then finds the cheapest plan under these costs.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <comp/core/concepts.hpp>
#include <comp/search/decision/budget.hpp>
#include <comp/search/decision/harm_scores.hpp>
#include <comp/search/outcome.hpp>
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
  cast_changes(const plan_costs& costs, const plan& p) : costs_{costs}, counts_(costs.tensors.size()), of_(p.size()) {
    for (std::uint32_t t = 0; t < costs.tensors.size(); ++t) {
      of_[costs.tensors[t].producer].push_back({t, 0});
      for (const auto reader : costs.tensors[t].readers) {
        ++counts_[t][index_of(p[reader])];
        if (of_[reader].empty() || of_[reader].back().tensor != t) of_[reader].push_back({t, 0});
        ++of_[reader].back().reads;
      }
    }
    plan_ = &p;
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
    for (const use& u : of_[op]) {
      const shared_tensor& t = costs_.tensors[u.tensor];
      auto wanted = counts_[u.tensor];
      wanted[index_of((*plan_)[op])] -= u.reads;
      wanted[index_of(as)] += u.reads;
      const precision from = t.producer == op ? as : (*plan_)[t.producer];
      wanted[index_of(from)] = 0;
      for (const precision to : all_precisions) sum += wanted[index_of(to)] > 0 ? costs_.cast(t, from, to) : 0;
    }
    return sum;
  }

  const plan_costs& costs_;
  const plan* plan_ = nullptr;
  std::vector<std::array<std::uint32_t, precision_count>> counts_;  // per tensor and precision: readers
  std::vector<std::vector<use>> of_;                                // per operator
};

}  // namespace detail

/// Returns: `evidence` with `saves` and `casts` set: the seconds that an operator saves in its `low` precision compared
/// with the one in `base`, and the seconds of casts that this adds, with all other operators as in `chosen`. Takes time
/// linear in operators and edges. Requires: all arguments describe the same operators.
inline std::vector<op_evidence> weighed(std::vector<op_evidence> evidence, const plan_costs& costs, const plan& chosen,
                                        const plan& base) {
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
      : search_{search}, fp32_{search.fp32()}, model_{search.log.graph, levels} {}

  /// Profiles FP32 and each precision of `lows`. A precision in which a batch is hopelessly slow is dropped instead,
  /// because its profile would take as long.
  void profile(const std::vector<precision>& lows) {
    model_.learn_batch(fp32_, search_.trials.fp32_seconds());
    profile(fp32_);
    for (const precision low : lows) {
      const plan all = lowered_to(low, fp32_, model_.levels());
      if (all == fp32_) continue;
      if (hopeless(all, low)) {
        dropped_.insert(low);
      } else {
        profile(all);
      }
    }
  }
  bool dropped(precision p) const { return dropped_.contains(p); }

  /// Learns the time of a batch from those that judged the losses of `t`. They ran at another moment than FP32's
  /// batches, when the machine may have been faster or slower, so their time is never trusted to better than 1%.
  void learn(const trial& t) {
    const double known = std::log(t.bounds.high / t.bounds.low) / 4;
    model_.learn_batch(t.plan, t.seconds, std::isfinite(known) && known > 0 ? std::max(known, 0.01) : 0.03);
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
    std::set<precision> lows;
    for (std::size_t i = 0; i < costs.size(); ++i) {
      for (const precision p : all_precisions) {
        double& seconds = costs.seconds[i][index_of(p)];
        const bool may = p == fp32_[i] || (!dropped(p) && contains(levels[i], p));
        if (!may) seconds = std::numeric_limits<double>::infinity();
        if (std::isfinite(seconds) && p != fp32_[i]) lows.insert(p);
        seconds += per_byte * model_.bytes(i, p);
      }
    }
    plan best = strategy::min_cut_plan(costs, fp32_);
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
  bool hopeless(const plan& all, precision low) {
    if (low == precision::bf16 || low == precision::tf32) return false;
    const double fp32 = search_.trials.fp32_seconds();
    const auto work = [&](const trial& begun) {
      search_.run.restore(search_.trials.reference().start());
      sample got;
      search_.run.train(begun, all, 1, got, detail::cut_if_not_finite);
      if (got.ok() && got.seconds > 1.5 * fp32) search_.run.train(begun, all, 2, got, detail::cut_if_not_finite);
      return got;
    };
    const trial t = search_.run.run(stage::losses, all, fmt::format("all {}", name(low)), work, purpose::first_look);
    search_.run.record(t);
    if (!t.sample.ok() || t.sample.batch_seconds.empty()) return false;  // some operators may run in it nevertheless
    const double slower = t.sample.batch_seconds.back() / fp32;
    if (slower <= too_slow) return false;
    search_.log.warnings.push_back(fmt::format(
        "{} was not searched: a batch with all operators in it took {:.3g} times FP32's", name(low), slower));
    return true;
  }

  void profile(const plan& p) {
    if (!search_.run.trainer().has.profile) return;
    constexpr const char* instead = "costs were estimated from operations and bytes";
    try {
      const std::vector<double> flat = search_.run.record_numbers(p, "profile", purpose::profile, [](auto& trainer) {
        std::vector<double> each;
        for (const op_time& t : trainer.profile()) each.insert(each.end(), {t.forward, t.backward});
        return each;
      });
      std::vector<op_time> times(flat.size() / 2);
      for (std::size_t i = 0; i < times.size(); ++i) times[i] = {flat[2 * i], flat[2 * i + 1]};
      if (!model_.learn_profile(p, times)) {
        search_.log.warnings.push_back(
            fmt::format("a profile of {} operators was not used (one time for each of {} is "
                        "needed, finite, not negative, not all zero): {}",
                        times.size(), p.size(), instead));
      }
    } catch (const interrupted&) {
      throw;
    } catch (const std::exception& e) {
      search_.log.warnings.push_back(fmt::format("no profile ({}): {}", e.what(), instead));
      search_.run.restore_kept_state();
    }
  }

  search_session search_;
  plan fp32_;
  cost_model model_;
  std::set<precision> dropped_ = {};
};

}  // namespace comp
