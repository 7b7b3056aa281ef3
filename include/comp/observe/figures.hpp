// SPDX-License-Identifier: Apache-2.0
// What the report, the summary and the table say alike: who won, against whom, and numbers as a person reads them.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/statistics.hpp>
#include <comp/search/acceptance.hpp>
#include <comp/search/outcome.hpp>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::detail {

/// "52.1 ms", "812 us", "3.42 s"; "-" where not known.
inline std::string time_text(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds >= 100) return fmt::format("{:.0f} s", seconds);
  if (seconds >= 1) return fmt::format("{:.{}f} s", seconds, seconds >= 10 ? 1 : 2);
  if (seconds >= 0.1) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds >= 1e-3) return fmt::format("{:.{}f} ms", seconds * 1e3, seconds >= 0.01 ? 1 : 2);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

/// A round number of seconds, at an axis: "50 ms".
inline std::string tick_text(double seconds) {
  if (seconds >= 1) return fmt::format("{:.4g} s", seconds);
  return seconds >= 1e-3 || seconds == 0 ? fmt::format("{:.4g} ms", seconds * 1e3)
                                         : fmt::format("{:.4g} us", seconds * 1e6);
}

/// "118 MiB", "2.4 GiB"; "-" where not measured.
inline std::string bytes_text(std::int64_t bytes) {
  if (bytes <= 0) return "-";
  const auto value = static_cast<double>(bytes);
  if (value >= 0x1p30) return fmt::format("{:.2f} GiB", value / 0x1p30);
  if (value >= 0x1p20) return fmt::format("{:.{}f} MiB", value / 0x1p20, value >= 100 * 0x1p20 ? 0 : 1);
  return fmt::format("{:.0f} KiB", std::ceil(value / 0x1p10));
}

/// Five digits, zeros kept so that losses line up: "2.3000".
inline std::string loss_text(double loss) {
  if (!std::isfinite(loss)) return std::isnan(loss) ? "not a number" : "infinite";
  const double size = std::abs(loss);
  if (size != 0 && (size < 1e-3 || size >= 1e6)) return fmt::format("{:.4e}", loss);
  const int digits = size == 0 ? 0 : static_cast<int>(std::floor(std::log10(size)));
  return fmt::format("{:.{}f}", loss, std::max(0, 4 - digits));
}

/// "6.5%"; "-" for a share of nothing.
inline std::string share_text(double share) { return std::isfinite(share) ? fmt::format("{:.3g}%", 100 * share) : "-"; }

/// "1.42x".
inline std::string ratio_text(double ratio) { return std::isfinite(ratio) ? fmt::format("{:.2f}x", ratio) : "-"; }

/// "1.38 to 1.45"; "unknown" for an interval that is not bounded.
inline std::string bounds_text(const interval& bounds) {
  if (!std::isfinite(bounds.low) || !std::isfinite(bounds.high)) return "unknown";
  return fmt::format("{:.2f} to {:.2f}", bounds.low, bounds.high);
}

/// The contestant that has the found plan; none when there was no contest.
template <std::same_as<outcome> Outcome>
const contestant* winner_of(const Outcome& found) {
  for (const contestant& c : found.contest) {
    if (c.plan == found.plan) return &c;
  }
  return nullptr;
}

template <std::same_as<outcome> Outcome>
const contestant* fp32_of(const Outcome& found) {
  return found.contest.empty() ? nullptr : &found.contest.front();
}

/// The fastest rule-based plan that ran; none when there was none.
template <std::same_as<outcome> Outcome>
const contestant* rule_based_of(const Outcome& found) {
  const contestant* best = nullptr;
  for (const contestant& c : found.contest) {
    if (c.label.find("rule-based") == std::string::npos || c.status != status::ok || c.seconds.empty()) continue;
    if (best == nullptr || c.over_fp32.ratio > best->over_fp32.ratio) best = &c;
  }
  return best;
}

/// How many times as fast `a` is as `b`, from the rounds that both ran.
inline paired_speedup over(const contestant& a, const contestant& b) {
  if (&a == &b) return {1, {1, 1}};
  return compare_paired(b.seconds, a.seconds);
}

/// What an operator counts of: "14 of 20 operators in bf16, 2 in fp16".
inline std::string counts_text(const plan& p) {
  std::string text;
  for (const precision each : all_precisions) {
    const auto count = std::count(p.begin(), p.end(), each);
    if (count == 0 || each == precision::fp32) continue;
    text += text.empty() ? fmt::format("{} of {} operators in {}", count, p.size(), name(each))
                         : fmt::format(", {} in {}", count, name(each));
  }
  return text.empty() ? fmt::format("all {} operators in fp32", p.size()) : text;
}

/// Seconds of an epoch: its own where one was run, else what its batches say; NaN where neither is known.
template <std::same_as<outcome> Outcome>
double epoch_seconds(const contestant& c, const Outcome& found) {
  if (c.epoch && c.epoch->ok()) return c.epoch->seconds;
  return median(c.seconds) * static_cast<double>(found.baseline.batches);
}

/// Runs of one plan in one stage: an epoch, or all batches that were timed.
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

template <std::same_as<outcome> Outcome>
std::vector<trial_group> grouped_trials(const Outcome& found) {
  std::vector<trial_group> groups;
  std::map<std::pair<stage, plan>, std::size_t> known;
  for (const trial& t : found.trials) {
    auto at = groups.size();
    if (by_batches(t.stage)) at = known.try_emplace({t.stage, t.plan}, at).first->second;
    if (at == groups.size()) groups.push_back({&t, {}});
    if (!t.sample.ok() && groups[at].shown->sample.ok()) groups[at].shown = &t;
    groups[at].runs.push_back(&t);
  }
  return groups;
}

}  // namespace comp::detail
