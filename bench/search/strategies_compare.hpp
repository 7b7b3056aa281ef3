// SPDX-License-Identifier: Apache-2.0
// Runs a strategy on a space until it ends or a budget of evaluations is spent, and says what it reached.
#pragma once

#include <algorithm>
#include <chrono>
#include <comp/core/search_space.hpp>
#include <comp/core/strategy.hpp>
#include <comp/core/trial.hpp>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <unordered_set>
#include <utility>

namespace bench {

/// A space with what is known of it.
struct arena {
  comp::search_space space;
  std::function<comp::trial(const comp::plan&)> measure;  // what a search sees
  std::function<double(const comp::plan&)> truth;         // seconds without noise
  double best = 0;                                        // seconds of the best plan known
  std::size_t budget = 256;                               // evaluations
};

struct reached {
  std::size_t evaluations = 0, distinct = 0;
  bool ended = false;        // by itself, not by the budget
  double fp32 = 0;           // true seconds of the most conservative plan
  double found = 0;          // true seconds of the accepted plan that was measured as the fastest
  double early = 0;          // the same after the first 32 evaluations
  double seconds_in_it = 0;  // spent in ask and tell
  std::string refused = {};  // why it did not start
};

/// Requires: measure accepts the most conservative plan.
reached run_strategy(const comp::SearchStrategy auto& strategy, const arena& in) {
  using clock = std::chrono::steady_clock;
  reached got;
  try {
    auto run = strategy.start(in.space);
    got.fp32 = got.found = got.early = in.truth(in.space.conservative());
    std::unordered_set<comp::plan> distinct;
    std::optional<comp::trial> best;
    while (got.evaluations < in.budget) {
      auto begin = clock::now();
      const auto plans = run.ask(1);
      got.seconds_in_it += std::chrono::duration<double>(clock::now() - begin).count();
      got.ended = plans.empty();
      if (got.ended) break;
      const comp::trial result = in.measure(plans.front());
      begin = clock::now();
      run.tell(result);
      got.seconds_in_it += std::chrono::duration<double>(clock::now() - begin).count();
      distinct.insert(result.plan);
      ++got.evaluations;
      if (result.accepted && (!best || result.seconds < best->seconds)) {
        best = result;
        got.found = in.truth(result.plan);
      }
      if (got.evaluations <= 32) got.early = got.found;
    }
    got.distinct = distinct.size();
  } catch (const comp::space_error& e) {
    got.refused = e.what();
  }
  return got;
}

/// A strategy of any type, made for a budget and a seed.
struct contender {
  std::string name;
  std::function<reached(const arena&, std::uint64_t seed)> run;
};

/// `make(budget, seed)`: the strategy's settings.
contender named(std::string name, auto make) {
  return {std::move(name),
          [make](const arena& in, std::uint64_t seed) { return run_strategy(make(in.budget, seed), in); }};
}

}  // namespace bench
