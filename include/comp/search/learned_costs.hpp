// SPDX-License-Identifier: Apache-2.0
// Learns on a trainer what operators and casts cost: a profile in FP32 and one in each low precision, where the backend
// can, then whole batches. Gives the cheapest plan under what is known. Not here: the arithmetic
// (strategy/cost_model.hpp, strategy/min_cut.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/concepts.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/trials.hpp>
#include <comp/strategy/cost_model.hpp>
#include <comp/strategy/min_cut.hpp>
#include <cstddef>
#include <exception>
#include <limits>
#include <set>
#include <utility>
#include <vector>

namespace comp {

/// The plan with each operator in `low` that may have it, and else as in `base`.
inline plan lowered_to(precision low, const plan& base, const std::vector<std::vector<precision>>& levels) {
  plan all = base;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (std::find(levels[i].begin(), levels[i].end(), low) != levels[i].end()) all[i] = low;
  }
  return all;
}

class learned_costs {
 public:
  /// `levels`: per operator, what it has in the most conservative plan first.
  learned_costs(evaluator& run, outcome& log, loss_trials& trials, const std::vector<std::vector<precision>>& levels)
      : run_{run}, log_{log}, trials_{trials}, fp32_{trials.reference().plan()}, model_{log.graph, levels} {}

  /// Profiles FP32 and each of `lows`, but those in which a batch takes hopelessly long.
  void profile(const std::vector<precision>& lows) {
    model_.learn_batch(fp32_, trials_.fp32_seconds());
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

  /// A batch under `p` took so many seconds.
  void learn(const plan& p, double seconds) { model_.learn_batch(p, seconds); }

  double operator()(const plan& p) const { return model_(p); }
  plan_costs costs() const { return model_.costs(); }

  /// The cheapest plan of which each operator is as in `low` or as in FP32; a second of `per_byte` is paid for each
  /// byte that is stored. Costs of precisions that were dropped count as infinite. With several low precisions the best
  /// of those that expansion moves reach from `starts`.
  plan cheapest(const std::vector<plan>& starts, const plan* low = nullptr, double per_byte = 0) const {
    plan_costs costs = model_.costs();
    std::set<precision> lows;
    for (std::size_t i = 0; i < costs.size(); ++i) {
      for (const precision p : all_precisions) {
        double& seconds = costs.seconds[i][index_of(p)];
        const bool may = p == fp32_[i] || (low != nullptr ? p == (*low)[i] : !dropped(p));
        if (!may) seconds = std::numeric_limits<double>::infinity();
        if (!std::isfinite(seconds) || p == fp32_[i]) continue;
        lows.insert(p);
      }
      for (const precision p : all_precisions) costs.seconds[i][index_of(p)] += per_byte * model_.bytes(i, p);
    }
    plan best = strategy::min_cut_plan(costs, fp32_);
    if (lows.size() < 2) return best;
    for (const plan& start : starts) {
      if (!std::isfinite(costs(start))) continue;
      plan other = strategy::min_cut_plan(costs, start);
      if (costs(other) < costs(best)) best = std::move(other);
    }
    return best;
  }
  /// Bytes that operators hand on under `p`.
  double bytes(const plan& p) const {
    double sum = 0;
    for (std::size_t i = 0; i < p.size(); ++i) sum += model_.bytes(i, p[i]);
    return sum;
  }

 private:
  static constexpr double too_slow = 3;  // times FP32

  // A batch with everything in `low` tells: FP16 on a CPU can be 50 times slower. BF16 and TF32 never are.
  bool hopeless(const plan& all, precision low) {
    if (low == precision::bf16 || low == precision::tf32) return false;
    const double fp32 = trials_.fp32_seconds();
    const auto work = [&](const trial& begun) {
      run_.restore(trials_.reference().start());
      sample got;
      run_.train(begun, all, 1, got, detail::finite_status);
      if (got.ok() && got.seconds > 1.5 * fp32) run_.train(begun, all, 2, got, detail::finite_status);
      return got;
    };
    const trial t = run_.run(stage::epochs, all, fmt::format("all {}", name(low)), work, first_look_repeats);
    run_.record(t);
    if (!t.sample.ok() || t.sample.batch_seconds.empty()) return false;  // some operators may run in it nevertheless
    const double slower = t.sample.batch_seconds.back() / fp32;
    if (slower <= too_slow) return false;
    log_.warnings.push_back(fmt::format(
        "{} was not searched: a batch with all operators in it took {:.3g} times FP32's", name(low), slower));
    return true;
  }

  void profile(const plan& p) {
    if (!run_.trainer().has.profile) return;
    constexpr const char* instead = "costs were estimated from operations and bytes";
    try {
      const std::vector<double> flat = run_.numbers(p, "profile", profile_repeats, [](auto& trainer) {
        std::vector<double> each;
        for (const op_time& t : trainer.profile()) each.insert(each.end(), {t.forward, t.backward});
        return each;
      });
      std::vector<op_time> times(flat.size() / 2);
      for (std::size_t i = 0; i < times.size(); ++i) times[i] = {flat[2 * i], flat[2 * i + 1]};
      if (!model_.learn_profile(p, times)) {
        log_.warnings.push_back(
            fmt::format("a profile of {} operators was not used (one time for each of {} is "
                        "needed, finite, not negative, not all zero): {}",
                        times.size(), p.size(), instead));
      }
    } catch (const interrupted&) {
      throw;
    } catch (const std::exception& e) {
      log_.warnings.push_back(fmt::format("no profile ({}): {}", e.what(), instead));
      run_.to_kept();
    }
  }

  evaluator& run_;
  outcome& log_;
  loss_trials& trials_;
  plan fp32_;
  cost_model model_;
  std::set<precision> dropped_ = {};
};

}  // namespace comp
