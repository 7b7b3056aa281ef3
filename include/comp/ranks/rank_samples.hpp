// SPDX-License-Identifier: Apache-2.0
// What all ranks trained, as one sample: the time of the slowest, the mean of the losses, the most memory, and the
// failure of any. Ranks count alike in the mean, because a data-parallel training averages their gradients alike.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <comp/core/lost_batches.hpp>
#include <comp/core/sample.hpp>
#include <cstddef>
#include <functional>
#include <string>
#include <vector>

namespace comp::ranks::detail {

/// Folds what `get` gives of a sample over all ranks, element by element; gives nothing if their lengths differ.
std::vector<double> folded(const std::vector<sample>& ranks, auto get, auto fold) {
  std::vector<double> all = std::invoke(get, ranks.front());
  for (std::size_t r = 1; r < ranks.size(); ++r) {
    const std::vector<double>& other = std::invoke(get, ranks[r]);
    if (other.size() != all.size()) return {};
    for (std::size_t i = 0; i < all.size(); ++i) all[i] = fold(all[i], other[i]);
  }
  return all;
}

std::vector<double> mean_over(const std::vector<sample>& ranks, auto get) {
  std::vector<double> all = folded(ranks, get, [](double a, double b) { return a + b; });
  for (double& each : all) each /= static_cast<double>(ranks.size());
  return all;
}

/// Returns: how badly a run ended. A failure that other ranks' failures follow from counts as worst.
constexpr int badness(status s) {
  constexpr int order[] = {0, 2, 3, 5, 1, 4};  // ok, diverged, not_finite, out_of_memory, stopped_early, failed
  return order[static_cast<std::size_t>(s)];
}

/// Returns: the message of rank `r`, with its number.
inline std::string said_by(std::size_t r, const std::string& message) { return fmt::format("rank {}: {}", r, message); }

/// Returns: the ranks' samples as one. If they are of different lengths, the run has failed.
inline sample of_all_ranks(const std::vector<sample>& ranks) {
  sample all = ranks.front();
  all.loss = 0;
  std::size_t worst = 0;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    const sample& one = ranks[r];
    all.loss += one.loss / static_cast<double>(ranks.size());
    all.seconds = std::max(all.seconds, one.seconds);
    all.not_finite = std::max(all.not_finite, one.not_finite);
    all.peak_bytes = std::max(all.peak_bytes, one.peak_bytes);
    const bool says_more = ranks[worst].message.empty() && !one.message.empty();
    const int more = badness(one.status) - badness(ranks[worst].status);
    if (more > 0 || (more == 0 && says_more)) worst = r;
  }
  all.losses = mean_over(ranks, &sample::losses);
  all.curve = mean_over(ranks, &sample::curve);
  all.batch_seconds = folded(ranks, &sample::batch_seconds, [](double a, double b) { return std::max(a, b); });
  for (std::size_t i = 0; i < all.curves.size(); ++i) {
    all.curves[i] = mean_over(
        ranks, [i](const sample& run) { return i < run.curves.size() ? run.curves[i] : std::vector<double>{}; });
  }
  if (!all.curve.empty()) all.not_finite = count_lost(all.curve);
  all.status = ranks[worst].status;
  all.message = ranks[worst].message.empty() ? "" : said_by(worst, ranks[worst].message);
  const auto [shortest, longest] =
      std::minmax_element(ranks.begin(), ranks.end(), [](auto& a, auto& b) { return a.batches < b.batches; });
  if (all.ok() && shortest->batches != longest->batches) {
    all.status = status::failed;
    all.message = fmt::format(
        "rank {} trained {} batches and rank {} {} (an epoch ends on all ranks at once): give each rank as many, or the "
        "trainer run_epoch(stop) and batches_per_epoch()",
        shortest - ranks.begin(), shortest->batches, longest - ranks.begin(), longest->batches);
  }
  return all;
}

/// Returns: the part of a run that a batch added: its totals, and the last element of each series.
inline sample without_history(const sample& so_far) {
  const auto last_of = [](const std::vector<double>& all) {
    return all.empty() ? all : std::vector<double>{all.back()};
  };
  sample now{.loss = so_far.loss, .losses = so_far.losses, .seconds = so_far.seconds, .batches = so_far.batches};
  now.not_finite = so_far.not_finite;
  now.peak_bytes = so_far.peak_bytes;
  now.held = so_far.held;
  now.batch_seconds = last_of(so_far.batch_seconds);
  now.curve = last_of(so_far.curve);
  for (const auto& curve : so_far.curves) now.curves.push_back(last_of(curve));
  now.status = so_far.status;
  now.message = so_far.message;
  return now;
}
/// Makes a run out of its `before` and what the last batch added.
inline sample with_history(const sample& before, sample now) {
  const auto prepend = [](std::vector<double>& to, const std::vector<double>& earlier) {
    if (!to.empty()) to.insert(to.begin(), earlier.begin(), earlier.end());
  };
  if (!now.curve.empty()) now.not_finite = before.not_finite + count_lost(now.curve);
  prepend(now.batch_seconds, before.batch_seconds);
  prepend(now.curve, before.curve);
  for (std::size_t i = 0; i < std::min(now.curves.size(), before.curves.size()); ++i)
    prepend(now.curves[i], before.curves[i]);
  return now;
}

}  // namespace comp::ranks::detail
