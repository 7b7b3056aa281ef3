// SPDX-License-Identifier: Apache-2.0
// What a search strategy must offer: settings that start a run, and a run that asks for plans and is told what they
// gave. The same strategy so runs serially, resumed from a ledger, or against recorded results.
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
concept is_told = !starts<S> || requires(run_of<S> & run, const trial& seen) {
  run.tell(seen);
};
}  // namespace detail

// A sentence stays on one line:
// clang-format off
/// True for a SearchStrategy. For another class it does not compile, and the errors say, a sentence each, what is missing.
template <class S, bool Aloud = true>
constexpr bool expect_strategy() {
  using namespace detail;
  static_assert(!Aloud || std::copyable<S>, "a SearchStrategy needs: settings that are copyable");
  static_assert(!Aloud || starts<S>, "a SearchStrategy needs: run start(comp::search_space) const");
  static_assert(!Aloud || asks<S>, "a SearchStrategy's run needs: std::vector<comp::plan> ask(std::size_t at_most)");
  static_assert(!Aloud || is_told<S>, "a SearchStrategy's run needs: void tell(const comp::trial&)");
  return std::copyable<S> && starts<S> && asks<S> && is_told<S>;
}

/// Settings that a user writes down; `start` makes the state of one search, so two searches share nothing and the same
/// settings give the same search again, whatever the timing. Also meant:
///   ask(n) gives up to n plans of the space, none twice; none at all when there is nothing left to try. What was asked for
///   is told, in the order of asking, before the next ask.
///   tell(trial): `accepted` and `seconds` decide; `sample` has the rest, its losses so that lower is better.
///   at_most(), optional: how many plans a run that was just started will ask for at most; for a progress bar.
template <class S>
concept SearchStrategy = expect_strategy<S, false>() || unmet<"no SearchStrategy: static_assert(comp::expect_strategy<T>()) says why">();
// clang-format on

}  // namespace comp
