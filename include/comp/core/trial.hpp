// SPDX-License-Identifier: Apache-2.0
// A trial: one run of one plan in a search. Strategies learn from trials, a ledger keeps them and a report shows them.
#pragma once

#include <cmath>
#include <comp/core/fields.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/sample.hpp>
#include <comp/core/statistics.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

namespace comp {

/// Which part of a search a run belongs to.
enum class stage : std::uint8_t {
  baseline,  // stage 0: FP32
  losses,    // stage 1: candidates judged by their losses
  times,     // stage 2: candidates judged by the time of batches
  contest,   // the final comparison
  training   // the winner's epochs
};

constexpr std::string_view name(stage s) {
  constexpr std::string_view names[] = {"baseline", "losses", "times", "contest", "training"};
  return names[static_cast<std::size_t>(s)];
}

/// What a run is for. Those from `profile` on train no batch (trains()).
enum class purpose : std::uint8_t {
  judge,        // its loss or its time is compared
  perturbed,    // with perturbed roundings: how much equally good trainings differ; `repeat` is the seed
  first_look,   // one batch: is a precision hopelessly slow?
  check,        // FP32 trains on from a state that other plans left (sound_state.hpp)
  profile,      // not trained: seconds of each operator's forward and backward are the sample's `curve`
  sensitivity,  // not trained: each operator's error in the precision of index `repeat`
  compile       // not trained: seconds that compiling a step takes
};

constexpr std::string_view name(purpose p) {
  constexpr std::string_view names[] = {"judge",   "perturbed",   "first_look", "check",
                                        "profile", "sensitivity", "compile"};
  return names[static_cast<std::size_t>(p)];
}

/// Returns: false for runs that give numbers about operators; these train no batch.
constexpr bool trains(purpose p) { return p < purpose::profile; }

/// One run of a search.
struct trial {
  std::size_t number = 0;                     // counted from 0
  comp::stage stage = comp::stage::baseline;  // the part of the search
  comp::plan plan = {};                       // its plan
  comp::purpose purpose = comp::purpose::judge;
  std::size_t repeat = 0;    // how many runs of this stage, plan and purpose came before
  comp::sample sample = {};  // its result
  bool accepted = false;     // its loss is within the tolerance; if none is judged: it ran to its end
  double seconds = std::numeric_limits<double>::infinity();  // median time of a batch; infinity: the run did not finish
  interval bounds = {};                                      // 95% confidence interval of `seconds`
  std::string label = {};                                    // "fp32", "rule-based bf16"; empty: a candidate
  bool recalled = false;                                     // true: a ledger had it, and the trainer did not run it
};

void fields(auto& io, trial& t) {
  io("number", t.number);
  io("stage", t.stage, stage::training, std::pair{"epochs", stage::losses}, std::pair{"batches", stage::times});
  io("plan", t.plan);
  io("purpose", t.purpose, if_any, purpose::compile);
  io("repeat", t.repeat);
  io("accepted", t.accepted);
  io("seconds", t.seconds, 0);
  io("bounds", t.bounds);
  io("sample", t.sample);
  io("label", t.label, if_any);
}

/// Returns: true for the same run of a search, in this process or recorded by another.
inline bool is_same_run(const trial& a, const trial& b) {
  return a.stage == b.stage && a.purpose == b.purpose && a.repeat == b.repeat && a.plan == b.plan;
}

/// Returns: true when `a` was accepted and its interval lies wholly below that of `b`; if an interval is unknown, the
/// medians decide. A strategy that compared medians alone would accept noise as progress.
inline bool clearly_faster(const trial& a, const trial& b) {
  if (!a.accepted) return false;
  if (!b.accepted) return true;
  if (!std::isfinite(a.bounds.high) || !std::isfinite(b.bounds.low)) return a.seconds < b.seconds;
  return a.bounds.high < b.bounds.low;
}

}  // namespace comp
