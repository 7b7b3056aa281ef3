// SPDX-License-Identifier: Apache-2.0
// Trains on with the found plan under a guard that watches the loss. If a loss is suspicious (guard.hpp), or not finite
// in batch after batch, the last good state is restored, and FP32 trains the epoch instead. If FP32's loss is as bad,
// the plan is kept and trains on.
// Some harm is too slow for that, and for the few batches of a search. So FP32 trains next to the plan from the plan's
// start, as long as an answer takes, and again in epochs without progress (shadow.hpp).
// If FP32 is clearly better, its training is kept, and bisection finds the harmful operators (harm_bisection.hpp). If
// that would cost more than it saves, the next plan of `outcome::fallbacks` takes over. FP32 itself is never given up
// for its loss; the result's warnings then say what was seen. A single batch whose loss is not finite is left out of
// means and reported.
// On a backend that cannot restore its state FP32 trains blocks among the plan's batches instead, and halves of a plan
// that harms take turns until the harmful operator is found (fp32_blocks.hpp). Kept states: that at the epoch's start,
// the last one that was checked, and two of a comparison.
// The plan may also change without harm: to those of `outcome::later`, and to a higher precision for the last part of
// the training (plan_changes.hpp). Harm that begins late and slowly while the loss still falls is not found.
// Source: CoMP paper, section 4.4 ("gradually return to a more conservative plan, even FP32").
#pragma once

#include <comp/core/concepts.hpp>
#include <comp/core/linkage.hpp>
#include <comp/core/training_progress.hpp>
#include <comp/search/observers.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <comp/search/training/guard.hpp>
#include <cstddef>
#include <optional>
#include <type_traits>
#include <utility>

namespace comp {

/// The training after a search (the paper's post-training): post_training{.epochs = 20}.run(trainer, found).
struct post_training {
  std::size_t epochs = 1;     // how many in all, with those of the search
  guard_settings guard = {};  // when the plan is compared with FP32
  /// The fraction of the training, at its end, that may have a higher precision. At its
  /// beginning both train the same batches, and the higher one stays if its loss is shown to
  /// be lower.
  double finish = 0;

  using fallback = training_fallback;
  using result = training_result;

  /// Trains `trainer` on from the state that the search left it in. An epoch that the search began is finished first.
  /// Throws: `comp::error` if not even FP32 trains; `interrupted` as a search does.
  template <class B, class... Observers>
  result run(B&& trainer, const outcome& search, Observers&&... observers) const;

  /// Goes on with a training from what an observer's training_progressed() was told, perhaps in another process.
  /// `trainer` has to be in the state that it had then. Throws: as run(); `plan_error` for plans of another model.
  template <class B, class... Observers>
  result go_on(B&& trainer, training_progress from, Observers&&... observers) const;
};

namespace detail {
/// The observers of a training. Nothing is recalled from a ledger, because a training is run for its weights.
template <Observer... Observers>
struct training_observers : observer_list<Observers...> {
  using observer_list<Observers...>::observer_list;
  std::optional<trial> recall(const trial&) final { return std::nullopt; }
};

COMP_INLINE training_result train_after(const post_training& settings, any_trainer& trainer, any_observer& observers,
                                        const outcome& search);
COMP_INLINE training_result train_on(const post_training& settings, any_trainer& trainer, any_observer& observers,
                                     training_progress from);
/// Trains the first batches in FP32, 64 at most, so that a training under a plan that an earlier search found has
/// losses to compare with. `known`: that plan, its later ones, how it runs. Returns: the outcome of a search that found
/// them. Throws: `plan_error` for plans of another model; `error` if FP32 does not train.
COMP_INLINE outcome train_before_known(any_trainer& trainer, outcome known, const search_settings& settings);
}  // namespace detail

template <class B, class... Observers>
post_training::result post_training::run(B&& trainer, const outcome& search, Observers&&... observers) const {
  constexpr bool sound = expect_trainer<B>() && (expect_observer<std::remove_reference_t<Observers>>() && ...);
  if constexpr (!sound) {
    return {};
  } else {
    detail::training_observers<std::remove_reference_t<Observers>...> list{observers...};
    trainer_of<std::remove_reference_t<B>> erased{trainer};
    return detail::train_after(*this, erased, list, search);
  }
}

template <class B, class... Observers>
post_training::result post_training::go_on(B&& trainer, training_progress from, Observers&&... observers) const {
  constexpr bool sound = expect_trainer<B>() && (expect_observer<std::remove_reference_t<Observers>>() && ...);
  if constexpr (!sound) {
    return {};
  } else {
    detail::training_observers<std::remove_reference_t<Observers>...> list{observers...};
    trainer_of<std::remove_reference_t<B>> erased{trainer};
    return detail::train_on(*this, erased, list, std::move(from));
  }
}

}  // namespace comp

#if COMP_HEADER_ONLY
#include <comp/search/training/guarded_training.hpp>
#endif
