// SPDX-License-Identifier: Apache-2.0
// The figures that report, summary, table and progress have in common, so that all four show the same: which plan won,
// how fast it is relative to others, how its loss changes, what the search cost, and how numbers are written for
// people. A loss is compared with FP32's on the same batches from the same state, relative to FP32's loss. Means of
// different batches are never compared, because a later batch of a training has a lower loss whatever its precision.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/error.hpp>
#include <comp/core/statistics.hpp>
#include <comp/search/losses/loss_test.hpp>
#include <comp/search/losses/paths.hpp>
#include <comp/search/outcome.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::detail {

/// How a run's mean loss differs from FP32's, relative to FP32's mean loss (or to its spread if the mean is nearly 0).
struct loss_change {
  double difference = 0;                                    // above 0: the run's loss is higher
  double radius = std::numeric_limits<double>::infinity();  // half of its confidence interval; infinity: not known
  std::size_t batches = 0;                                  // how many batches both trained
};

/// True for a run that was judged by its losses. First looks, and FP32 with perturbed roundings, are not judged.
inline bool is_judged(const trial& t) { return t.stage == stage::losses && t.purpose == purpose::judge; }

/// Returns: the change of `got` against `fp32`; nothing if they have no batches in common. Samples without curves are
/// taken to be of the same batches if they have equally many.
inline std::optional<loss_change> change_of(const sample& got, const sample& fp32) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  const std::size_t n = std::min(got.curve.size(), fp32.curve.size());
  if (n > 0) {
    const std::span<const double> base{fp32.curve.data(), n};
    double sum = 0;
    for (std::size_t i = 0; i < n; ++i) sum += got.curve[i] - base[i];
    const double change = sum / static_cast<double>(n) / loss_scale(base);
    return loss_change{std::isnan(change) ? infinity : change, infinity, n};
  }
  if (got.batches <= 0 || got.batches != fp32.batches) return std::nullopt;
  const double scale = fp32.loss != 0 ? std::abs(fp32.loss) : 1, change = (got.loss - fp32.loss) / scale;
  return loss_change{std::isnan(change) ? infinity : change, infinity, static_cast<std::size_t>(got.batches)};
}

/// Returns: the run by which a plan was judged by its losses; null if there is none.
inline const trial* judged_run(const plan& p, const outcome& result) {
  const auto at = std::find_if(result.trials.begin(), result.trials.end(),
                               [&](const trial& t) { return is_judged(t) && t.plan == p; });
  return at == result.trials.end() ? nullptr : &*at;
}

/// Returns: the change of a contestant's loss; nothing for FP32, and for a plan that was never judged by itself.
inline std::optional<loss_change> change_of(const contestant& c, const outcome& result) {
  if (result.contest.empty() || c.plan == result.contest.front().plan) return std::nullopt;
  if (c.loss && c.loss_batches > 0 && c.loss->line > 0) {
    return loss_change{result.higher_is_better ? -c.loss->difference : c.loss->difference, c.loss->radius,
                       c.loss_batches};
  }
  const trial* t = judged_run(c.plan, result);
  return t == nullptr ? std::nullopt : change_of(t->sample, result.baseline);
}

/// Returns: an accepted run whose plan lowers all operators that `p` lowers, to the same precisions; null if there is
/// none. For a plan that was not judged by itself no other run says as much.
inline const trial* covering_run(const plan& p, const outcome& result) {
  if (result.contest.empty()) return nullptr;
  const plan& fp32 = result.contest.front().plan;
  const auto covers = [&](const trial& t) {
    if (!is_judged(t) || !t.accepted || t.plan.size() != p.size()) return false;
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (p[i] != fp32[i] && p[i] != t.plan[i]) return false;
    }
    return true;
  };
  const auto at = std::find_if(result.trials.begin(), result.trials.end(), covers);
  return at == result.trials.end() ? nullptr : &*at;
}

/// Returns a change as a text: "+0.22%", "-1.00%", "not finite".
inline std::string percent_text(double change) {
  if (!std::isfinite(change)) return "not finite";
  if (std::abs(change) < 0.001) return fmt::format("{:+.4f}%", std::round(1e6 * change) / 1e4 + 0.0);  // no "-0"
  return fmt::format(fmt::runtime(std::abs(change) < 10 ? "{:+.2f}%" : "{:+.3g}%"), 100 * change);
}

/// Returns "+0.22% +- 0.19% of 48 batches", without the radius if it is unknown.
inline std::string change_text(const loss_change& c) {
  std::string text = percent_text(c.difference);
  if (std::isfinite(c.difference) && std::isfinite(c.radius))
    text += c.radius > 1 ? " +- over 100%" : " +- " + percent_text(c.radius).substr(1);
  return text + fmt::format(" of {} batch{}", c.batches, c.batches == 1 ? "" : "es");
}

/// Returns the title of a table's column of losses. If scores decided, it shows how far a score is below FP32's.
inline std::string_view loss_title(const outcome& result) {
  return result.criterion == criterion::scores ? "below FP32's score" : "loss against FP32's";
}

/// Returns the runs of FP32 with perturbed roundings, which show how far one FP32 training strays from the next.
inline std::vector<const trial*> perturbed_runs(const outcome& result) {
  std::vector<const trial*> runs;
  for (const trial& t : result.trials) {
    const bool perturbed = t.purpose == purpose::perturbed;
    if (t.stage == stage::baseline && perturbed && t.sample.ok()) runs.push_back(&t);
  }
  return runs;
}

/// Judges a run by its losses alone. The answer is `go_on` if they leave open whether the plan harms the training.
inline loss_verdict evidence_of(const trial& t, const outcome& result) {
  const double worse = result.higher_is_better ? -1 : 1;
  const std::vector<double> fp32 = make_lower_better(result.baseline.curve, worse),
                            own = make_lower_better(t.sample.curve, worse);
  std::vector<std::vector<double>> spread, paths;
  for (const trial* run : perturbed_runs(result)) {
    spread.push_back(make_lower_better(run->sample.curve, worse));
    paths.push_back(loss_path(result.baseline.curve, run->sample.curve, worse));
  }
  loss_verdict got = judge({.tolerance = result.tolerance},
                           {.fp32 = fp32, .candidate = own, .spread = {spread.begin(), spread.end()}});
  if (beyond_doubt(loss_path(result.baseline.curve, t.sample.curve, worse), paths, result.tolerance))
    got.answer = loss_answer::rejected;
  return got;
}

/// Returns the change of a run's loss with its radius: the radius that the search gave the contestant or, if it gave
/// none, that of the run's losses.
inline std::optional<loss_change> change_of(const trial& t, const outcome& result) {
  auto change = change_of(t.sample, result.baseline);
  const bool curves = !result.baseline.curve.empty() && !t.sample.curve.empty();
  if (!change || !is_judged(t) || !t.sample.ok() || !curves) return change;
  const auto same = [&](const contestant& c) { return c.plan == t.plan && c.loss && c.loss_batches > 0; };
  const auto at = std::find_if(result.contest.begin(), result.contest.end(), same);
  change->radius = at != result.contest.end() ? at->loss->radius : evidence_of(t, result).radius;
  return change;
}

/// True for a run that was neither accepted nor shown to be worse than the tolerance: its mean change is within the
/// tolerance, or its losses leave open whether it is. Never true if scores decided, since a score is either high enough
/// or not.
inline bool is_undecided(const trial& t, const outcome& result) {
  if (!t.sample.ok() || t.accepted || !is_judged(t) || result.criterion == criterion::scores) return false;
  const auto change = change_of(t.sample, result.baseline);
  if (!change) return false;
  if ((result.higher_is_better ? -change->difference : change->difference) <= result.tolerance) return true;
  const bool curves = !t.sample.curve.empty() && !result.baseline.curve.empty();
  return curves && evidence_of(t, result).answer != loss_answer::rejected;
}

/// The same for a contestant, by the search's loss_verdict and, if that leaves it open, by its run.
inline bool is_undecided(const contestant& c, const outcome& result) {
  if (!is_rejected(c) || result.criterion == criterion::scores || is_shown_worse(*c.loss, result.tolerance))
    return false;
  const trial* t = judged_run(c.plan, result);
  return c.loss->difference <= result.tolerance || t == nullptr || t->accepted || is_undecided(*t, result);
}

/// Returns a table's text on a contestant's loss: "+0.22% +- 0.19% of 48 batches", followed by ", rejected" if it was
/// shown to be above the tolerance, or by ", undecided" if it was neither shown to be above nor accepted. "-" for FP32
/// and if nothing is known.
inline std::string loss_cell(const contestant& c, const outcome& result) {
  if (const auto change = change_of(c, result))
    return change_text(*change) + (!is_rejected(c) ? "" : is_undecided(c, result) ? ", undecided" : ", rejected");
  const bool fp32 = !result.contest.empty() && c.plan == result.contest.front().plan;
  return !fp32 && covering_run(c.plan, result) != nullptr ? "part of an accepted plan" : "-";
}

/// Formats a time: "52.1 ms", "812 us", "3.42 s"; "-" if it is not known.
inline std::string time_text(double seconds) {
  if (!std::isfinite(seconds)) return "-";
  if (seconds == 0) return "0 s";
  if (seconds >= 100) return fmt::format("{:.0f} s", seconds);
  if (seconds >= 1) return fmt::format("{:.{}f} s", seconds, seconds >= 10 ? 1 : 2);
  if (seconds >= 0.1) return fmt::format("{:.0f} ms", seconds * 1e3);
  if (seconds >= 1e-3) return fmt::format("{:.{}f} ms", seconds * 1e3, seconds >= 0.01 ? 1 : 2);
  return fmt::format("{:.3g} us", seconds * 1e6);
}

/// Formats a size: "118 MiB", "2.4 GiB"; "-" if it was not measured.
inline std::string bytes_text(std::int64_t bytes) {
  if (bytes <= 0) return "-";
  const auto value = static_cast<double>(bytes);
  if (value >= 0x1p30) return fmt::format("{:.2f} GiB", value / 0x1p30);
  if (value >= 0x1p20) return fmt::format("{:.{}f} MiB", value / 0x1p20, value >= 100 * 0x1p20 ? 0 : 1);
  if (value < 0x1p10) return fmt::format("{} B", bytes);
  return fmt::format("{:.0f} KiB", std::ceil(value / 0x1p10));
}

/// Formats a share: "6.5%"; "-" if it is not known.
inline std::string share_text(double share) { return std::isfinite(share) ? fmt::format("{:.3g}%", 100 * share) : "-"; }

/// Formats a speedup: "1.42x".
inline std::string ratio_text(double ratio) { return std::isfinite(ratio) ? fmt::format("{:.2f}x", ratio) : "-"; }

/// Formats an interval: "1.38 to 1.45"; "unknown" if it is not bounded.
inline std::string bounds_text(const interval& bounds) {
  if (!std::isfinite(bounds.low) || !std::isfinite(bounds.high)) return "unknown";
  return fmt::format("{:.2f} to {:.2f}", bounds.low, bounds.high);
}

/// Returns the most bytes in use during any run of a contestant's plan; 0: not measured.
inline std::int64_t peak_of(const contestant& c, const outcome& result) {
  std::int64_t most = c.peak_bytes;
  if (most > 0) return most;
  for (const trial& t : result.trials) {
    if (t.plan == c.plan) most = std::max(most, t.sample.peak_bytes);
  }
  return most;
}

/// Returns what the training held in the last run of a contestant's plan; nothing if the trainer does not say.
inline std::optional<held_bytes> held_of(const contestant& c, const outcome& result) {
  std::optional<held_bytes> last;
  for (const trial& t : result.trials) {
    if (t.plan == c.plan && t.sample.held) last = t.sample.held;
  }
  return last;
}

/// Returns a sentence with the plans that no other one beats; empty if there is only one, and so no choice.
inline std::string front_text(const outcome& result) {
  const auto front = result.front();
  if (front.size() < 2) return {};
  return fmt::format("In time, memory and loss taken together no other plan beats these: {}.\n",
                     joined(front, "; ", [&](std::size_t i) { return result.contest[i].label; }));
}

/// Returns: the contestant with the found plan; null when there was no contest.
inline const contestant* winner_of(const outcome& result) {
  for (const contestant& c : result.contest) {
    if (c.plan == result.plan) return &c;
  }
  return nullptr;
}

/// Returns: the fastest rule-based plan that ran and whose loss was not rejected; the fastest of all if each was
/// rejected; null when none ran.
inline const contestant* rule_based_of(const outcome& result) {
  const auto rank = [](const contestant& c) { return std::pair{!is_rejected(c), c.over_fp32.ratio}; };
  const contestant* best = nullptr;
  for (const contestant& c : result.contest) {
    if (!c.rule_based || c.status != status::ok || c.seconds.empty()) continue;
    if (best == nullptr || rank(c) > rank(*best)) best = &c;
  }
  return best;
}

/// True if batches of the contestant were run in turns with the others.
inline bool raced(const contestant& c, const outcome& result) {
  return std::any_of(result.trials.begin(), result.trials.end(),
                     [&](const trial& t) { return t.stage == stage::contest && t.plan == c.plan; });
}

/// Returns the seconds of a contestant's batches: those of the contest or, if these are too few for an interval, those
/// of all runs of its plan, unless only the contest ran compiled. The first batch of a run is left out, since it pays
/// for things that are made once (kernels, memory).
inline std::vector<double> batch_times(const contestant& c, const outcome& result) {
  constexpr std::size_t for_an_interval = 6;
  if (c.seconds.size() >= for_an_interval || result.compiled) return c.seconds;
  std::vector<double> all;
  for (const trial& t : result.trials) {
    const std::vector<double>& times = t.sample.batch_seconds;
    if (t.plan != c.plan || t.purpose != purpose::judge || !t.sample.ok() || times.empty()) continue;
    all.insert(all.end(), times.begin() + (times.size() > 3 ? 1 : 0), times.end());
  }
  return all.size() > c.seconds.size() ? all : c.seconds;
}

/// Returns: the label of a contestant that is as fast within noise; empty if there is none, or too few batches show it.
inline std::string tie_of(const contestant& c, const outcome& result) {
  const auto other = std::find_if(result.contest.begin(), result.contest.end(),
                                  [&](const contestant& each) { return each.label == c.tie; });
  const bool known = other != result.contest.end() && c.seconds.size() >= 6 && other->seconds.size() >= 6;
  return known ? c.tie : "";
}

/// Returns how many times as fast `a` is as `b`, from the rounds in which both ran. If one of them ran in none, their
/// speeds over FP32 are divided, and the bounds are unknown.
inline paired_speedup over(const contestant& a, const contestant& b, const outcome& result) {
  if (&a == &b) return {1, {1, 1}};
  if (raced(a, result) && raced(b, result)) return compare_paired(b.seconds, a.seconds);
  return {a.over_fp32.ratio / b.over_fp32.ratio, {}};
}

/// Returns "1.15 times as fast as FP32 (95%: 1.14 to 1.16)" or "as fast as FP32 within noise (95%: 0.98 to 1.02)".
inline std::string faster_text(const paired_speedup& s, std::string_view than) {
  if (s.within_noise()) return fmt::format("as fast as {} within noise (95%: {})", than, bounds_text(s.bounds));
  const std::string bounds = std::isfinite(s.bounds.low) ? fmt::format(" (95%: {})", bounds_text(s.bounds)) : "";
  return fmt::format("{:.2f} times as fast as {}{}", s.ratio, than, bounds);
}

/// Returns the seconds of an epoch, the median time of a batch times the batches of an epoch; NaN if that number is
/// unknown.
inline double epoch_seconds(const contestant& c, const outcome& result) {
  if (result.batches_per_epoch == 0) return std::nan("");
  return median(batch_times(c, result)) * static_cast<double>(result.batches_per_epoch);
}

/// The name of a stage for people. It says what is done, since other strategies than the paper's have these stages,
/// too.
constexpr std::string_view in_words(stage s) {
  constexpr std::string_view words[] = {"FP32 baseline", "Judged by losses", "Timed in turns", "Final contest",
                                        "Training"};
  return words[static_cast<std::size_t>(s)];
}

/// Returns how a run ended: "accepted", "rejected" or "undecided" for one that was judged by its losses; "a first look"
/// for one that only asks whether a precision is fast at all; "a check" for FP32's batches from a state that other
/// plans left; "ok" for a timed batch and for FP32 with perturbed roundings; the status if it failed.
inline std::string_view fate_text(const trial& t, const outcome& result) {
  if (!t.sample.ok()) return name(t.sample.status);
  if (t.purpose == purpose::check) return "a check";
  if (t.purpose == purpose::first_look) return "a first look";
  if (t.stage == stage::baseline || t.purpose != purpose::judge) return "ok";
  if (is_undecided(t, result)) return "undecided";
  return t.stage == stage::losses || t.stage == stage::training ? (t.accepted ? "accepted" : "rejected") : "ok";
}

/// Returns the seconds that the batches which the search trained would take under the found plan. They are no cost of
/// the search, because the training needs these batches anyway.
inline double kept_seconds(const outcome& result) {
  return result.trained_batches > 0 ? static_cast<double>(result.trained_batches) * result.batch_seconds : 0;
}

inline double search_seconds(const outcome& result) {
  double all = 0;
  for (const stage_cost& each : result.costs) all += each.seconds;
  return all;
}

/// Returns "6.3% of 100 epochs", or a text that says why no part of a training is known.
inline std::string overhead_text(const outcome& result) {
  const double share = result.overhead_share();
  if (is_modelled(result.hardware)) return "by this machine's clock";
  return std::isfinite(share) ? share_text(share) + " of 100 epochs" : "the length of an epoch is not known";
}

/// Runs that are shown as one line: a run that was judged by its losses, or all timed batches of one plan in one stage.
struct trial_group {
  const trial* shown = nullptr;  // the run that stands for the group: the first, or the first that failed
  std::vector<const trial*> runs = {};

  /// Returns the median seconds per batch; NaN if no run ended well.
  double seconds() const {
    std::vector<double> finished;
    for (const trial* t : runs) {
      if (std::isfinite(t->seconds)) finished.push_back(t->seconds);
    }
    return median(std::move(finished));
  }
};

/// True for stages that time plans in turns, one batch each. Their losses say nothing of a plan, because each batch was
/// trained after batches of other plans.
constexpr bool is_timed(stage s) { return s == stage::times || s == stage::contest; }

/// Returns the runs of an outcome in groups. All turns of a plan in one stage are one group; otherwise a table of runs
/// would mostly have lines of single batches.
inline std::vector<trial_group> grouped_trials(const outcome& result) {
  std::vector<trial_group> groups;
  std::map<std::pair<stage, plan>, std::size_t> known;
  for (const trial& t : result.trials) {
    if (!trains(t.purpose)) continue;  // a profile or a sensitivity, which is no batch
    auto at = groups.size();
    if (is_timed(t.stage)) at = known.try_emplace({t.stage, t.plan}, at).first->second;
    if (at == groups.size()) groups.push_back({&t, {}});
    if (!t.sample.ok() && groups[at].shown->sample.ok()) groups[at].shown = &t;
    groups[at].runs.push_back(&t);
  }
  return groups;
}

}  // namespace comp::detail
