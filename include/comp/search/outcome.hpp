// SPDX-License-Identifier: Apache-2.0
// What a search gives back: the plan, what it was compared with, why each operator has its precision, and what it cost.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <comp/core/decision.hpp>
#include <comp/core/execution.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/later_plan.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/statistics.hpp>
#include <comp/core/trial.hpp>
#include <comp/search/settings.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace comp {

/// Whether a plan trains as well as FP32, by the batches that were trained so far.
enum class loss_answer : std::uint8_t { go_on, accepted, rejected };

/// What the losses of the same batches say about a plan and FP32.
struct loss_verdict {
  loss_answer answer = loss_answer::go_on;  // accepted, rejected, or not decided
  double difference = 0;                    // how far the mean loss is above FP32's, relative as the tolerance is
  double radius = 0;                        // half of its confidence interval; infinity if there are too few batches
  double line = 0;                          // what `difference` has to be under
  double at_end = 0;                        // what it is expected to grow to in the planned training; 0: not counted
};

/// Returns: true if a loss is above the tolerance by more than the estimate may be wrong. A rejected plan for which
/// this is false is undecided rather than harmful.
inline bool is_shown_worse(const loss_verdict& loss, double tolerance) {
  return loss.difference - (std::isfinite(loss.radius) ? loss.radius : 0) > tolerance;
}

/// A plan of the final comparison.
struct contestant {
  std::string label = {};            // what the plan is called: "fp32", "rule-based bf16", "comp: all but head in bf16"
  comp::plan plan = {};              // the plan
  std::vector<double> seconds = {};  // time of each of its batches
  paired_speedup over_fp32 = {};     // how many times as fast as FP32 it is
  std::int64_t peak_bytes = 0;       // most memory in use; 0: not measured
  std::optional<loss_verdict> loss = {};   // how its losses were judged; empty: they were not
  std::size_t loss_batches = 0;            // by how many batches
  std::size_t lost = 0;                    // its lost batches on which FP32 trained
  std::string tie = {};                    // the label of a plan that is as fast within noise; empty: the times decided
  comp::status status = comp::status::ok;  // not ok: a run failed, and it left
  bool rule_based = false;                 // true: a rule-based plan
};

namespace detail {
/// Returns: true if its losses were judged and not accepted, whether they were shown to be worse or left undecided.
inline bool is_rejected(const contestant& c) { return c.loss && c.loss->answer == loss_answer::rejected; }
}  // namespace detail

/// What a guided search learned of an operator.
struct op_evidence {
  enum class kind : std::uint8_t {
    none,         // it has no precision of its own
    fixed,        // the policy fixes its precision
    unsupported,  // the backend runs it in none of the precisions that were searched
    dropped,      // a batch with all operators in the precision was too slow to look further
    harmful,      // a plan was rejected for it: lowered alone, or together with what was accepted before
    undecided,    // it was low in a rejected plan only, and no question was asked of it alone
    unasked,      // no plan with it low was judged, because by the costs none would pay
    accepted      // a plan with it in `low` was accepted
  };
  kind what = kind::none;
  precision low = precision::fp32;  // which low precision
  std::size_t others_low = 0;       // if harmful: how many accepted operators were low, too
  double difference =
      std::numeric_limits<double>::quiet_NaN();             // if harmful: loss_verdict::difference of the rejected plan
  double saves = std::numeric_limits<double>::quiet_NaN();  // [s] of a batch that `low` saves, casts left out
  double casts = std::numeric_limits<double>::quiet_NaN();  // [s] that `low` adds in casts; below 0: it saves some
};

/// Why an operator has its precision.
struct op_reason {
  comp::category category = comp::category::follow;  // what the policy says
  bool decided_by_losses = false;                    // true: losses decided (the paper's Stage1_OP_list)
  std::string text = {};                             // the reason, in a sentence
};

/// What one stage of the search cost.
struct stage_cost {
  std::size_t runs = 0;     // its runs
  std::size_t batches = 0;  // batches of these
  double seconds = 0;       // its wall time, with putting states back and warming up
};

/// What a search found.
struct outcome {
  comp::plan plan = {};                // the winner; the trainer has it when the search ends
  std::vector<later_plan> later = {};  // plans that its training is to change to
  double speedup = 1;                  // how many times as fast as FP32 the winner is: the median over pairs of batches
  interval speedup_bounds = {1, 1};    // its 95% confidence interval
  comp::execution execution = {};      // how the backend runs it, beyond its precisions
  bool compiled = false;               // true: the contest timed compiled steps
  op_graph graph = {};                 // its operators
  comp::hardware hardware = {};        // the machine that was searched on
  std::vector<precision> precisions = {};  // those searched; FP32 comes first
  sample baseline = {};                    // FP32's batches, from the search's start
  std::size_t trained_batches = 0;         // the training's batches up to the trainer's state, which the search did
  std::size_t batches_per_epoch = 0;       // 0: not known
  /// The batch, counted from 0, since which every loss is bad, if a plan damaged a state that cannot be restored.
  std::optional<std::size_t> damaged_since = {};
  sample trained = {};                     // the `trained_batches` as one run
  std::vector<contestant> contest = {};    // the contest's plans; FP32 comes first
  std::vector<trial> trials = {};          // every run of the search, in order
  std::size_t recalled = 0;                // how many of `trials` a ledger had
  std::vector<op_evidence> evidence = {};  // what a guided search learned of each operator
  std::vector<op_reason> reasons = {};     // why each operator has its precision
  std::vector<comp::plan> fallbacks = {};  // plans to fall back to: the winner first, the most conservative one last
  std::array<stage_cost, 5> costs = {};    // by `stage`
  double run_seconds = 0;                  // time of all runs, undone ones too
  double batch_seconds = 0;                // median time of a batch under the winner
  std::vector<std::string> warnings = {};  // what makes the result doubtful, and what to do
  comp::criterion criterion = {};          // what decided whether a plan trains
  double tolerance = paper_tolerance;      // settings.tolerance
  double floor = 0;                        // settings.floor
  bool higher_is_better = false;           // settings.direction
  std::int64_t memory_limit = 0;           // settings.memory_limit

  const stage_cost& cost(stage s) const { return costs[static_cast<std::size_t>(s)]; }
  stage_cost& cost(stage s) { return costs[static_cast<std::size_t>(s)]; }

  /// Returns: the indices of the contestants that no other one beats: none is as good in time, memory and loss, within
  /// noise, and better in one. The fastest comes first.
  /// Left out are those that failed or were rejected.
  std::vector<std::size_t> front() const;

  /// Returns: the whole epochs that the search trained.
  std::size_t trained_epochs() const { return batches_per_epoch > 0 ? trained_batches / batches_per_epoch : 0; }

  /// Returns: what the search cost: its wall time [s], less the time that its `trained_batches` take under the winner.
  /// Of modelled batches nothing is subtracted.
  double overhead_seconds() const {
    double all = 0;
    for (const stage_cost& each : costs) all += each.seconds;
    if (is_modelled(hardware)) return all;
    return std::max(0.0, all - static_cast<double>(trained_batches) * batch_seconds);
  }

  /// Returns: overhead_seconds() as a fraction of a training of `epochs` epochs, search included (the paper's section
  /// 4.5). NaN if the length of an epoch is not
  /// known.
  double overhead_share(std::size_t epochs = 100) const {
    const double training = batch_seconds * static_cast<double>(batches_per_epoch * epochs);
    if (!(training > 0) || is_modelled(hardware)) return std::numeric_limits<double>::quiet_NaN();
    return overhead_seconds() / (overhead_seconds() + training);
  }
};

namespace detail {

/// Returns: true if `a` is nowhere worse than `b` and somewhere better, beyond noise.
inline bool dominates(const contestant& a, const contestant& b) {
  constexpr double noise = 0.003;  // relative; of time and of memory
  const auto loss = [](const contestant& c) { return c.loss ? c.loss->difference : 0.0; };
  const auto sure = [](const contestant& c) { return c.loss && std::isfinite(c.loss->radius) ? c.loss->radius : 0.0; };
  const double faster = std::log(a.over_fp32.ratio / b.over_fp32.ratio), better = loss(b) - loss(a);
  const bool sized = a.peak_bytes > 0 && b.peak_bytes > 0;
  const double smaller = sized ? std::log(static_cast<double>(b.peak_bytes) / static_cast<double>(a.peak_bytes)) : 0.0;
  const double loss_noise = std::max(sure(a), sure(b));
  if (faster < -noise || smaller < -noise || better < -loss_noise) return false;
  return faster > noise || smaller > noise || better > loss_noise;
}

}  // namespace detail

inline std::vector<std::size_t> outcome::front() const {
  std::vector<std::size_t> indices;
  const auto usable = [](const contestant& c) {
    return c.status == status::ok && std::isfinite(c.over_fp32.ratio) && !detail::is_rejected(c);
  };
  for (std::size_t i = 0; i < contest.size(); ++i) {
    const bool beaten = std::any_of(contest.begin(), contest.end(), [&](const contestant& other) {
      return usable(other) && detail::dominates(other, contest[i]);
    });
    if (usable(contest[i]) && !beaten) indices.push_back(i);
  }
  std::sort(indices.begin(), indices.end(), [this](std::size_t a, std::size_t b) {
    const double first = contest[a].over_fp32.ratio, second = contest[b].over_fp32.ratio;
    return first != second ? first > second : a < b;
  });
  return indices;
}

}  // namespace comp
