// SPDX-License-Identifier: Apache-2.0
// The two-stage search of the paper. By a policy, strategies and settings it finds a plan whose loss is accepted and
// which is not slower than FP32 or a rule-based plan, beyond noise.
// Use: comp::two_stage search{policy, stage1, stage2}; comp::outcome best = search.run(trainer, observers...);
// Source: CoMP paper, section 3. What comp adds to it, and why: docs/understand/paper.md.
#pragma once

#include <comp/core/concepts.hpp>
#include <comp/core/linkage.hpp>
#include <comp/search/observers.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <comp/strategy/greedy.hpp>
#include <comp/strategy/guided.hpp>
#include <type_traits>

namespace comp {

namespace detail {
/// Stands for a policy that was not given, so that the error can say so.
struct no_policy {
  decision classify(const op_info&) const { return {}; }
};

/// Runs a search; defined in search_run.hpp. `policy`: adapted to the trainer's machine.
COMP_INLINE outcome run_search(const any_policy& policy, const any_strategy& stage1, const any_strategy& stage2,
                               const search_settings& settings, any_trainer& trainer, any_observer& observers);
}  // namespace detail

/// The settings of a search; copy it, keep it, run it on any number of trainers.
template <class P, class S1 = strategy::guided, class S2 = strategy::greedy>
struct two_stage {
  static_assert(!std::is_same_v<P, detail::no_policy>,
                "two_stage needs a policy: comp::two_stage{comp::policy::pytorch{}}");
  static_assert(!std::is_same_v<S1, strategy::guided> || std::is_same_v<S2, strategy::greedy>,
                "strategy::guided does both stages: leave the second strategy out, or give another first one");

  P policy = {};
  S1 stage1 = {};  // proposes plans that are judged by losses; strategy::guided, the default, does both stages
  S2 stage2 = {};  // proposes plans that are judged by times
  search_settings settings = {};

  /// Searches a plan for `trainer`. The trainer is left in the state after outcome.trained_batches batches, those of
  /// FP32 and of accepted plans; comp::post_training goes on from there. After an exception the trainer is in FP32, and
  /// back at the start if it can restore its state.
  /// Throws: `settings_error`, `space_error` before anything is run; `comp::error` if FP32 itself does not train;
  /// `interrupted` if an observer asked to stop; what observers throw.
  template <class B, class... Observers>
  outcome run(B&& trainer, Observers&&... observers) const {
    constexpr bool sound = expect_policy<P>() && expect_strategy<S1>() && expect_strategy<S2>() &&
                           expect_trainer<B>() && (expect_observer<std::remove_reference_t<Observers>>() && ...);
    if constexpr (!sound) {
      return {};  // or the compiler's sentence would be lost among errors that follow from it
    } else {
      observer_list<std::remove_reference_t<Observers>...> list{observers...};
      trainer_of<std::remove_reference_t<B>> erased{trainer};
      return detail::run_search(on_machine(policy, erased.hardware()), stage1, stage2, settings, erased, list);
    }
  }
};

two_stage()->two_stage<detail::no_policy>;
template <class P>
two_stage(P) -> two_stage<P>;
template <class P, class S1>
two_stage(P, S1) -> two_stage<P, S1>;
template <class P, class S1, class S2>
two_stage(P, S1, S2) -> two_stage<P, S1, S2>;
template <class P, class S1, class S2>
two_stage(P, S1, S2, search_settings) -> two_stage<P, S1, S2>;

}  // namespace comp

#if COMP_HEADER_ONLY
#include <comp/search/search_run.hpp>
#endif
