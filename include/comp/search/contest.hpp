// SPDX-License-Identifier: Apache-2.0
// The final head-to-head: the search's plans against FP32 and against every rule-based plan, batch by batch in turns.
// The winner is so never slower than any of them beyond noise; the paper's is up to 10% slower than AMP in places.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/search/outcome.hpp>
#include <comp/search/race.hpp>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace comp {

/// Times the entrants, FP32 first. Those that are hopelessly slower than FP32 stop early but keep what was
/// measured.
template <class Evaluator>
std::vector<contestant> hold_contest(Evaluator& run, const race_settings& settings, std::vector<racer> entrants) {
  race<Evaluator>{run, stage::contest, settings, settings.contest_rounds}(entrants, false);
  std::vector<contestant> contest;
  for (racer& r : entrants) {
    contestant& c = contest.emplace_back();
    c.label = std::move(r.label);
    c.plan = std::move(r.plan);
    c.over_fp32 = compare_paired(contest.front().seconds.empty() ? r.seconds : contest.front().seconds, r.seconds);
    c.seconds = std::move(r.seconds);
    c.peak_bytes = r.peak_bytes;
    c.status = r.status;
  }
  if (!contest.empty()) contest.front().over_fp32 = {1, {1, 1}};
  return contest;
}

/// The order in which contestants are offered as the winner: fastest first, only those that ran and are clearly faster
/// than FP32, and FP32 last. A contestant that comes first by noise alone gives way to one that already has an accepted
/// epoch.
inline std::vector<std::size_t> ranking(const std::vector<contestant>& contest) {
  std::vector<std::size_t> order;
  for (std::size_t i = 1; i < contest.size(); ++i) {
    if (contest[i].status == status::ok && contest[i].over_fp32.clearly_faster()) order.push_back(i);
  }
  std::sort(order.begin(), order.end(), [&](std::size_t a, std::size_t b) {
    const double first = contest[a].over_fp32.ratio, second = contest[b].over_fp32.ratio;
    return first != second ? first > second : a < b;
  });
  const auto known = std::find_if(order.begin(), order.end(),
                                  [&](std::size_t i) { return contest[i].epoch && contest[i].epoch->ok(); });
  const auto beats_known = [&](std::size_t i) {
    return compare_paired(contest[*known].seconds, contest[i].seconds).clearly_faster();
  };
  if (known != order.end() && std::none_of(order.begin(), known, beats_known))
    std::rotate(order.begin(), known, known + 1);
  order.push_back(0);
  return order;
}

}  // namespace comp
