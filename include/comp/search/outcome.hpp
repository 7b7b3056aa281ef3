// SPDX-License-Identifier: Apache-2.0
// What a search gives back: the plan, what it was compared with, why each operator has its precision, and what it cost.
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <comp/core/decision.hpp>
#include <comp/core/execution.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/statistics.hpp>
#include <comp/core/trial.hpp>
#include <comp/search/acceptance.hpp>
#include <comp/search/loss_test.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <vector>

namespace comp {

/// A plan of the final head-to-head, timed in turns with the others.
struct contestant {
  std::string label = {};  // "fp32", "rule-based bf16", "comp: all but head in bf16"
  comp::plan plan = {};
  std::vector<double> seconds = {};        // of each batch, in the order of the rounds
  paired_speedup over_fp32 = {};           // how many times as fast as FP32
  std::int64_t peak_bytes = 0;             // most memory in use during a batch; 0: not measured
  std::optional<sample> epoch = {};        // a whole epoch from the common start, where one was run
  std::optional<loss_verdict> loss = {};   // against FP32 on the same batches, where it was judged
  std::size_t loss_batches = 0;            // so many of them
  std::size_t lost = 0;                    // batches of the contest that it lost and FP32 does not
  std::string tie = {};                    // label of one that is as fast within noise, where that decided nothing
  comp::status status = comp::status::ok;  // not ok: it left the contest
  bool rule_based = false;                 // what rules give without a search
};

/// What a guided search learned of an operator.
struct op_fate {
  enum class kind : std::uint8_t {
    none,         // it has no precision of its own
    fixed,        // by the policy
    unsupported,  // the backend runs it in none of the precisions that were searched
    dropped,      // a batch with all operators in the precision was too slow to look further
    harmful,      // a plan was rejected for it: lowered alone, or beside what was accepted before
    undecided,    // it was low in a rejected plan only, and no question was asked of it alone
    unasked,      // no plan with it low was judged: by the costs none pays
    accepted      // a plan with it in `low` was accepted
  };
  kind what = kind::none;
  precision low = precision::fp32;  // that it is about
  std::size_t others_low = 0;       // harmful: so many accepted operators were low beside it
  double difference =
      std::numeric_limits<double>::quiet_NaN();             // harmful: of the rejected plan's loss, see loss_verdict
  double saves = std::numeric_limits<double>::quiet_NaN();  // [s] of a batch, by running it in `low`, casts left out
  double casts = std::numeric_limits<double>::quiet_NaN();  // [s] that this adds in casts around it; below 0: spares
};

/// Why an operator has its precision.
struct op_reason {
  comp::category category = comp::category::follow;  // what the policy said
  bool decided_by_epochs = false;                    // in the paper's Stage1_OP_list
  std::string text = {};                             // one sentence
};

/// What one stage cost.
struct stage_cost {
  std::size_t runs = 0;     // epochs or batches
  std::size_t batches = 0;  // trained
  double seconds = 0;       // wall time, restoring and warming up included
};

/// Repeats from these on are runs apart: FP32 again with its roundings perturbed, a first look at a precision, and
/// numbers of operators (profiles, sensitivities), which judge nothing.
inline constexpr std::size_t perturbed_repeats = 1'000'000, first_look_repeats = 2'000'000, profile_repeats = 3'000'000;

struct outcome {
  comp::plan plan = {};
  double speedup = 1;                // over FP32, median of the paired batches of the contest
  interval speedup_bounds = {1, 1};  // 95%
  comp::execution execution = {};    // how the backend runs the plan, where it says
  op_graph graph = {};
  comp::hardware hardware = {};
  std::vector<precision> precisions = {};  // that were searched, FP32 first
  sample baseline = {};                    // FP32's batches from the start
  std::size_t trained_batches = 0;         // that the trainer's state has behind it when the search ends
  std::size_t batches_per_epoch = 0;       // 0: not known
  sample trained = {};                     // those batches as one run: curve, times, mean loss
  std::vector<contestant> contest = {};    // FP32 first
  std::vector<trial> trials = {};          // every run, in order
  std::size_t recalled = 0;                // of them, how many came from a ledger
  std::vector<op_fate> fates = {};         // one per operator, of a guided search; else empty
  std::vector<op_reason> reasons = {};     // one per operator
  std::vector<comp::plan> fallbacks = {};  // ever more conservative, from the plan itself to all FP32
  std::array<stage_cost, 5> costs = {};    // by `stage`
  double run_seconds = 0;                  // of all that was run, kept or undone
  double batch_seconds = 0;                // of a batch under the found plan, median
  std::vector<std::string> warnings = {};
  comp::criterion criterion = {};  // by which plans were judged
  double tolerance = 0.01;         // of the loss, relative
  bool higher_is_better = false;   // of the loss: settings.direction
  std::int64_t memory_limit = 0;   // bytes that the plan was to stay within; 0: none

  const stage_cost& cost(stage s) const { return costs[static_cast<std::size_t>(s)]; }
  stage_cost& cost(stage s) { return costs[static_cast<std::size_t>(s)]; }

  /// Contestants that no other beats: each is faster, needs less memory or has the lower loss than any other one, by
  /// more than is noise. By index, fastest first; without those that failed or whose losses were rejected.
  std::vector<std::size_t> front() const;

  /// Whole epochs that the trainer's state has behind it when the search ends.
  std::size_t trained_epochs() const { return batches_per_epoch > 0 ? trained_batches / batches_per_epoch : 0; }

  /// Seconds that the search took beyond what the batches that it trained take under the found plan.
  double overhead_seconds() const {
    double all = 0;
    for (const stage_cost& each : costs) all += each.seconds;
    return std::max(0.0, all - static_cast<double>(trained_batches) * batch_seconds);
  }

  /// The overhead as a part of the whole of `epochs` epochs with the found plan: the paper's figure, for 100 epochs.
  /// NaN where it is not known how long an epoch is.
  double overhead_share(std::size_t epochs = 100) const {
    const double training = batch_seconds * static_cast<double>(batches_per_epoch * epochs);
    if (!(training > 0)) return std::numeric_limits<double>::quiet_NaN();
    return overhead_seconds() / (overhead_seconds() + training);
  }
};

namespace detail {

/// Whether `a` is nowhere worse than `b` and somewhere better.
inline bool dominates(const contestant& a, const contestant& b) {
  constexpr double noise = 0.003;  // of time and of memory, relative
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
    return c.status == status::ok && std::isfinite(c.over_fp32.ratio) &&
           (!c.loss || c.loss->answer != loss_answer::rejected);
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
