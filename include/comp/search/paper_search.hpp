// SPDX-License-Identifier: Apache-2.0
// The search of the CoMP paper to the letter, by the engine of comp::two_stage:
//   comp::outcome found = comp::paper_search{comp::policy::pytorch{}}.run(trainer, observers...);
// FP32 trains an epoch. Stage 1 enumerates the precisions of the operators on the policy's lists that do not suit the
// tensor cores, an epoch for each plan from the same state; of the plans whose loss is below 101% of FP32's the fastest
// is taken. Stage 2 enumerates the operators between decided ones of different precision, a batch for each plan; the
// fastest is taken, without a look at its loss. Only NaN ends an epoch early.
// What the paper leaves open, and what is done here:
//   - FP32's own epoch is one of those that stage 1 chooses among. So its plan is not slower than FP32, and is FP32 if
//     no other is accepted: more conservative plans ("gradually return to", section 4.4) are among those enumerated.
//   - An epoch with any loss that is not finite is rejected.
//   - Operators at either end of the model follow their one decided neighbour; on a graph that is no chain, operators
//     between several decided ones are enumerated if any two of these differ (space/spaces.hpp).
//   - The fixed operators of stage 1 keep low precision also if stage 2 would run faster without.
//   - All batches of the search are undone, since the paper's training begins after it.
// The paper scales no losses in FP16: switch that off in the trainer, or plans pass that would not.
// docs/understand/paper.md says what comp does beyond it, and why.
#pragma once

#include <comp/search/two_stage.hpp>
#include <comp/strategy/exhaustive.hpp>
#include <cstdint>
#include <utility>

namespace comp {

/// Returns: `settings` as the paper's search has them; what says nothing of its method stays.
inline search_settings paper_settings(search_settings settings) {
  settings.criterion = criterion::epoch_losses;
  settings.losses_tie = settings.times_tie = tie::none;
  settings.self_check = false;
  settings.verbatim = true;
  return settings;
}

template <class P>
struct paper_search {
  P policy = {};
  precision low = precision::fp16;           // beside FP32
  double tolerance = paper_tolerance;        // how far above FP32's a plan's loss may be, as a part of it
  comp::stages stages = comp::stages::both;  // one stage alone: the paper's ablation (section 4.6)
  std::uint64_t limit = 1024;                // plans of a stage; a larger space is refused

  /// Searches a plan for `trainer`, which is left at the start. Throws: what two_stage::run throws; `settings_error` if
  /// the trainer cannot save and restore its state; `space_error` if a stage has more than `limit` plans.
  template <class B, class... Observers>
  outcome run(B&& trainer, Observers&&... observers) const {
    const strategy::exhaustive all{.limit = limit};
    search_settings settings{.tolerance = tolerance, .precisions = {low}, .stages = stages};
    return two_stage{policy, all, all, paper_settings(std::move(settings))}.run(trainer, observers...);
  }
};

template <class P>
paper_search(P) -> paper_search<P>;
template <class P>
paper_search(P, precision) -> paper_search<P>;

}  // namespace comp
