// SPDX-License-Identifier: Apache-2.0
// Searches a training that runs on several ranks as one, and trains on with what was found. All ranks call the same:
//   comp::ranks::team ranks{communicator};                          // comp_libtorch/ranks/process_group.hpp has one
//   const comp::outcome best = comp::ranks::search(ranks, comp::two_stage{policy}, trainer, observers...);
//   comp::ranks::train(ranks, comp::post_training{.epochs = 20}, trainer, best, observers...);
// or, in a loop that comp does not own (online.hpp):
//   comp::online search = comp::ranks::search_online(ranks, policy, graph, loop, settings, observers...);
// Rank 0 runs the search and decides everything; the others carry out what it asks for. All return the same. Observers
// are told on rank 0 alone. If a rank is gone or does not answer, all that are left throw `rank_error`.
// Use it if each rank has a replica of the model and the step averages the gradients.
// Guide: docs/how-to/ranks.md.
#pragma once

#include <comp/core/linkage.hpp>
#include <comp/ranks/communicator.hpp>
#include <comp/ranks/leader.hpp>
#include <comp/ranks/orders.hpp>
#include <comp/ranks/team.hpp>
#include <comp/search/online.hpp>
#include <comp/search/post_training.hpp>
#include <comp/search/two_stage.hpp>
#include <functional>
#include <string>
#include <type_traits>
#include <utility>

namespace comp::ranks {

namespace detail {

/// Rank 0: meets the others. Throws: `settings_error` if they cannot be searched as one, on all ranks.
COMP_INLINE acquaintance meet_ranks(any_trainer& trainer, team& ranks);
/// Others: carries out the orders of rank 0 up to the last. Returns: its result. Throws: what it says went wrong.
COMP_INLINE std::string follow(any_trainer& trainer, team& ranks);
/// Rank 0: runs `work` on all ranks as one, and gives its result, as bytes, to all.
COMP_INLINE void lead(any_trainer& trainer, team& ranks, const std::function<std::string(leading_trainer&)>& work);

/// Runs `work(trainer)` on rank 0, with a trainer for all ranks. Returns: its result, on all ranks.
template <class Result, class Work>
Result together(any_trainer& trainer, team& ranks, Work work) {
  if (!ranks.leads()) return unpacked<Result>(follow(trainer, ranks));
  Result result;
  lead(trainer, ranks, [&](leading_trainer& all) {
    result = work(all);
    for (const std::string& remark : all.remarks()) result.warnings.push_back(remark);
    return packed(result);
  });
  return result;
}

}  // namespace detail

/// As two_stage::run, on all ranks. Throws: as that; `settings_error`, naming the rank, if a rank has another model,
/// device or version of comp; `rank_error` if a rank is gone.
template <class P, class S1, class S2, class B, class... Observers>
outcome search(team& ranks, const two_stage<P, S1, S2>& how, B&& trainer, Observers&&... observers) {
  constexpr bool sound = expect_trainer<B>() && (expect_observer<std::remove_reference_t<Observers>>() && ...);
  if constexpr (!sound) {
    return {};
  } else {
    trainer_of<std::remove_reference_t<B>> own{trainer};
    outcome found = detail::together<outcome>(own, ranks, [&](any_trainer& all) {
      observer_list<std::remove_reference_t<Observers>...> all_observers{observers...};
      return comp::detail::run_search(on_machine(how.policy, all.hardware()), how.stage1, how.stage2, how.settings, all,
                                      all_observers);
    });
    found.graph = own.graph();
    return found;
  }
}

/// As post_training::run, on all ranks. Throws: as that; `rank_error` if a rank is gone.
template <class B, class... Observers>
training_result train(team& ranks, const post_training& how, B&& trainer, const outcome& found,
                      Observers&&... observers) {
  constexpr bool sound = expect_trainer<B>() && (expect_observer<std::remove_reference_t<Observers>>() && ...);
  if constexpr (!sound) {
    return {};
  } else {
    trainer_of<std::remove_reference_t<B>> own{trainer};
    return detail::together<training_result>(own, ranks, [&](any_trainer& all) {
      comp::detail::training_observers<std::remove_reference_t<Observers>...> all_observers{observers...};
      return comp::detail::train_after(how, all, all_observers, found);
    });
  }
}

/// As comp::online, on all ranks, each of which has a loop of its own: all change their plan at the same batch.
/// Losses, seconds and failures are as those of a search on ranks. If a rank is gone, plan() throws `rank_error`.
template <class P, class... Observers>
online search_online(team& ranks, P policy, op_graph graph, loop_info loop = {}, search_settings settings = {},
                     Observers&... observers) {
  return {std::move(graph), std::move(loop),
          [policy = std::move(policy), settings = std::move(settings), &ranks,
           &observers...](comp::detail::loop_trainer& trainer) {
            const two_stage<P> how{.policy = policy, .settings = settings};
            const outcome found = search(ranks, how, trainer, observers...);
            trainer.set_found(found);
            train(ranks, post_training{.epochs = settings.planned_epochs}, trainer, found);
          }};
}
/// The same for a plan that an earlier search found.
inline online train_online(team& ranks, outcome known, op_graph graph, loop_info loop = {},
                           search_settings settings = {}) {
  return {std::move(graph), std::move(loop),
          [known = std::move(known), settings = std::move(settings), &ranks](comp::detail::loop_trainer& trainer) {
            trainer_of<comp::detail::loop_trainer> own{trainer};
            const auto begin = [&](any_trainer& all) { return comp::detail::train_before_known(all, known, settings); };
            outcome found = detail::together<outcome>(own, ranks, begin);
            found.graph = own.graph();
            trainer.set_found(found);
            train(ranks, post_training{.epochs = settings.planned_epochs}, trainer, found);
          }};
}

}  // namespace comp::ranks

#if COMP_HEADER_ONLY
#include <comp/ranks/follower.hpp>
#endif
