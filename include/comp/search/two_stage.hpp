// SPDX-License-Identifier: Apache-2.0
// The two-stage search: policy, strategies and settings in, a plan out that is never slower than FP32 or the rule-based
// plans beyond noise, and whose loss is accepted.
// Use: comp::two_stage search{policy, stage1, stage2}; comp::outcome best = search.run(trainer, observers...);
// Source: CoMP paper, section 3. What comp adds to it, and why: docs/decisions.md, "The search".
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
/// In place of a policy that was not given.
struct no_policy {
  decision classify(const op_info&) const { return {}; }
};

/// Defined in search_run.hpp. `policy`: as it is on the trainer's machine.
COMP_INLINE outcome run_search(const any_policy& policy, const any_strategy& stage1, const any_strategy& stage2,
                               const search_settings& settings, any_trainer& trainer, any_observer& observers);
}  // namespace detail

/// The settings of a search; copy it, keep it, run it on any number of trainers.
template <class P, class S1 = strategy::guided, class S2 = strategy::greedy>
struct two_stage {
  static_assert(!std::is_same_v<P, detail::no_policy>,
                "two_stage needs a policy: comp::two_stage{comp::policy::pytorch{}}");

  P policy = {};
  S1 stage1 = {};  // judged by losses; strategy::guided, the default, does both stages
  S2 stage2 = {};  // judged by times
  search_settings settings = {};

  /// Searches the plan for `trainer`, which is left with outcome.trained_batches trained: FP32's and those of plans
  /// that were accepted; comp::post_training goes on from there. After an exception it is at the start (where it can be
  /// restored), in FP32. Throws: `settings_error`, `space_error` before anything is run; `comp::error` when FP32 itself
  /// does not train; `interrupted` when an observer asked to stop; what observers throw.
  template <class B, class... Observers>
  outcome run(B&& trainer, Observers&&... observers) const {
    constexpr bool sound = expect_policy<P>() && expect_strategy<S1>() && expect_strategy<S2>() &&
                           expect_trainer<B>() && (expect_observer<std::remove_reference_t<Observers>>() && ...);
    if constexpr (!sound) {
      return {};  // or the sentence would be lost among what follows from it
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
