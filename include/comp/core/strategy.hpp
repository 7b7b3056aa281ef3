// SPDX-License-Identifier: Apache-2.0
// What a search strategy must offer: settings with start(), which makes a run; and a run that asks for plans to try and
// is told their results. A strategy never trains by itself, so the same one works on a trainer, on a search that is
// resumed from a ledger, or on recorded results.
#pragma once

#include <comp/core/search_space.hpp>
#include <comp/core/trial.hpp>
#include <comp/core/unmet.hpp>
#include <concepts>
#include <cstddef>
#include <vector>

namespace comp {

namespace detail {
template <class S>
using run_of = decltype(std::declval<const S&>().start(std::declval<search_space>()));
template <class S>
concept starts = requires(const S& s, const search_space& over) {
  s.start(over);
};
template <class S>
concept asks = !starts<S> || requires(run_of<S> & run) {
  { run.ask(std::size_t{1}) } -> std::same_as<std::vector<plan>>;
};
template <class S>
concept is_told = !starts<S> || requires(run_of<S> & run, const trial& result) {
  run.tell(result);
};
}  // namespace detail

// Compilers quote one source line of a failed assertion, so each sentence has to stay on one line:
// clang-format off
/// Checks that `S` models SearchStrategy, and says what is missing if it does not: each failed assertion is a sentence.
template <class S, bool Aloud = true>
constexpr bool expect_strategy() {
  using namespace detail;
  static_assert(!Aloud || std::copyable<S>, "a SearchStrategy needs: settings that are copyable");
  static_assert(!Aloud || starts<S>, "a SearchStrategy needs: run start(comp::search_space) const");
  static_assert(!Aloud || asks<S>, "a SearchStrategy's run needs: std::vector<comp::plan> ask(std::size_t at_most)");
  static_assert(!Aloud || is_told<S>, "a SearchStrategy's run needs: void tell(const comp::trial&)");
  return std::copyable<S> && starts<S> && asks<S> && is_told<S>;
}

/// A SearchStrategy holds only the settings that a user chose; start() makes the state of one search. So two searches share
/// nothing, and the same settings with the same results give the same search again. What syntax cannot say:
///   ask(n)        Returns up to n plans of the space, none of them a second time; no plan when nothing is left to try. All
///                 of them are told, in the order of asking, before the next ask.
///   tell(trial)   Takes one result. `accepted` and `seconds` are what a strategy decides by; `sample` has the rest; of
///                 its losses, lower is better.
///   at_most()     Optional: how many plans a run that has just started will ask for at most; progress bars show it.
template <class S>
concept SearchStrategy = expect_strategy<S, false>() || unmet<"no SearchStrategy: static_assert(comp::expect_strategy<T>()) says why">();
// clang-format on

}  // namespace comp
