// SPDX-License-Identifier: Apache-2.0
// What the report, the summary, the table and the progress say alike: who won, against whom, how fast and at what
// cost. Not here: numbers as texts (observe/number_text.hpp). Losses are compared on the same batches only
// (observe/loss_change.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/statistics.hpp>
#include <comp/observe/loss_change.hpp>
#include <comp/observe/number_text.hpp>
#include <comp/search/outcome.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::detail {

/// Most bytes in use during any run of a contestant's plan; 0: not measured.
inline std::int64_t peak_of(const contestant& c, const outcome& result) {
  std::int64_t most = c.peak_bytes;
  if (most > 0) return most;
  for (const trial& t : result.trials) {
    if (t.plan == c.plan) most = std::max(most, t.sample.peak_bytes);
  }
  return most;
}

/// Whether a contestant needs more memory than the plan was to stay within.
inline bool above_limit(const contestant& c, const outcome& result) {
  return result.memory_limit > 0 && peak_of(c, result) > result.memory_limit;
}

/// Whether no other contestant beats this one in time, memory and loss.
inline bool is_on_front(const contestant& c, const outcome& result) {
  const auto front = result.front();
  return std::any_of(front.begin(), front.end(), [&](std::size_t i) { return &result.contest[i] == &c; });
}

/// A sentence of who is on that front, where it leaves a choice.
inline std::string front_text(const outcome& result) {
  const auto front = result.front();
  if (front.size() < 2) return {};
  return fmt::format("In time, memory and loss taken together no other plan beats these: {}.\n",
                     joined(front, "; ", [&](std::size_t i) { return result.contest[i].label; }));
}

/// The contestant that has the found plan; none when there was no contest.
inline const contestant* winner_of(const outcome& result) {
  for (const contestant& c : result.contest) {
    if (c.plan == result.plan) return &c;
  }
  return nullptr;
}

inline const contestant* fp32_of(const outcome& result) {
  return result.contest.empty() ? nullptr : &result.contest.front();
}

/// The fastest rule-based plan that ran; none when there was none.
inline const contestant* rule_based_of(const outcome& result) {
  const contestant* best = nullptr;
  for (const contestant& c : result.contest) {
    if (!c.rule_based || c.status != status::ok || c.seconds.empty()) continue;
    if (best == nullptr || c.over_fp32.ratio > best->over_fp32.ratio) best = &c;
  }
  return best;
}

/// True where batches of it were run in turns with the others.
inline bool raced(const contestant& c, const outcome& result) {
  return std::any_of(result.trials.begin(), result.trials.end(),
                     [&](const trial& t) { return t.stage == stage::contest && t.plan == c.plan; });
}

/// Seconds of batches of a contestant: those of the contest, or where these are too few for an interval all that were
/// run of its plan, but for the first of a run, which pays for what is made once.
inline std::vector<double> batch_times(const contestant& c, const outcome& result) {
  constexpr std::size_t for_an_interval = 6;
  if (c.seconds.size() >= for_an_interval) return c.seconds;
  std::vector<double> all;
  for (const trial& t : result.trials) {
    const std::vector<double>& times = t.sample.batch_seconds;
    if (t.plan != c.plan || t.repeat >= perturbed_repeats || !t.sample.ok() || times.empty()) continue;
    all.insert(all.end(), times.begin() + (times.size() > 3 ? 1 : 0), times.end());
  }
  return all.size() > c.seconds.size() ? all : c.seconds;
}

/// Label of one that is as fast within noise, of those for which that is known; empty: none.
inline std::string tie_of(const contestant& c, const outcome& result) {
  const auto other = std::find_if(result.contest.begin(), result.contest.end(),
                                  [&](const contestant& each) { return each.label == c.tie; });
  const bool known = other != result.contest.end() && c.seconds.size() >= 6 && other->seconds.size() >= 6;
  return known ? c.tie : "";
}

/// How many times as fast `a` is as `b`, from the rounds that both ran; without bounds where one of them ran none.
inline paired_speedup over(const contestant& a, const contestant& b, const outcome& result) {
  if (&a == &b) return {1, {1, 1}};
  if (raced(a, result) && raced(b, result)) return compare_paired(b.seconds, a.seconds);
  return {a.over_fp32.ratio / b.over_fp32.ratio, {}};
}

/// True where an interval that is known leaves open which of the two is faster.
inline bool within_noise(const paired_speedup& s) {
  return std::isfinite(s.bounds.low) && std::isfinite(s.bounds.high) && !s.clearly_faster() && !s.clearly_slower();
}

/// "1.15 times as fast as FP32 (95%: 1.14 to 1.16)", "as fast as FP32 within noise (95%: 0.98 to 1.02)".
inline std::string faster_text(const paired_speedup& s, std::string_view than) {
  if (within_noise(s)) return fmt::format("as fast as {} within noise (95%: {})", than, bounds_text(s.bounds));
  const std::string bounds = std::isfinite(s.bounds.low) ? fmt::format(" (95%: {})", bounds_text(s.bounds)) : "";
  return fmt::format("{:.2f} times as fast as {}{}", s.ratio, than, bounds);
}

/// Seconds of an epoch: its own where one was run, else what its batches say where it is known how many an epoch has;
/// NaN where neither is.
inline double epoch_seconds(const contestant& c, const outcome& result) {
  if (c.epoch && c.epoch->ok()) return c.epoch->seconds;
  if (result.batches_per_epoch == 0) return std::nan("");
  return median(batch_times(c, result)) * static_cast<double>(result.batches_per_epoch);
}

/// What a stage does, whichever search runs it.
constexpr std::string_view in_words(stage s) {
  constexpr std::string_view words[] = {"FP32 baseline", "Judged by losses", "Timed in turns", "Final contest",
                                        "Training"};
  return words[static_cast<std::size_t>(s)];
}

/// "accepted", "rejected", "undecided", "a first look" for a run that judges nothing, "ok" for a batch and for a repeat
/// with perturbed roundings; else the status.
inline std::string_view fate_text(const trial& t, const outcome& result) {
  if (!t.sample.ok()) return name(t.sample.status);
  if (t.repeat >= first_look_repeats) return "a first look";
  if (t.stage == stage::baseline || t.repeat >= perturbed_repeats) return "ok";
  if (is_undecided(t, result)) return "undecided";
  return t.stage == stage::epochs || t.stage == stage::training ? (t.accepted ? "accepted" : "rejected") : "ok";
}

/// Seconds that the batches which count as training take under the found plan: no cost of the search.
inline double kept_seconds(const outcome& result) {
  return result.trained_batches > 0 ? static_cast<double>(result.trained_batches) * result.batch_seconds : 0;
}

inline double search_seconds(const outcome& result) {
  double all = 0;
  for (const stage_cost& each : result.costs) all += each.seconds;
  return all;
}

/// "6.3% of 100 epochs"; where it is not known how long an epoch is it says that.
inline std::string overhead_text(const outcome& result) {
  const double share = result.overhead_share();
  return std::isfinite(share) ? share_text(share) + " of 100 epochs" : "the length of an epoch is not known";
}

/// Runs of one plan in one stage: one that was judged, or all batches that were timed.
struct trial_group {
  const trial* shown = nullptr;  // the first; of a plan that failed the run that did
  std::vector<const trial*> runs = {};

  /// Median seconds per batch; NaN where none ended well.
  double seconds() const {
    std::vector<double> finished;
    for (const trial* t : runs) {
      if (std::isfinite(t->seconds)) finished.push_back(t->seconds);
    }
    return median(std::move(finished));
  }
};

constexpr bool by_batches(stage s) { return s == stage::batches || s == stage::contest; }

inline std::vector<trial_group> grouped_trials(const outcome& result) {
  std::vector<trial_group> groups;
  std::map<std::pair<stage, plan>, std::size_t> known;
  for (const trial& t : result.trials) {
    if (t.repeat >= profile_repeats) continue;  // numbers of operators, no batches
    auto at = groups.size();
    if (by_batches(t.stage)) at = known.try_emplace({t.stage, t.plan}, at).first->second;
    if (at == groups.size()) groups.push_back({&t, {}});
    if (!t.sample.ok() && groups[at].shown->sample.ok()) groups[at].shown = &t;
    groups[at].runs.push_back(&t);
  }
  return groups;
}

}  // namespace comp::detail
