// SPDX-License-Identifier: Apache-2.0
// Times the search's plans against FP32 and every rule-based plan at the end, a batch of each in turns, so that the
// winner is not slower than any of them beyond noise. The paper has no such contest, and its plans are in places up to
// 10% slower than AMP's. All contestants are timed anew, whatever runs they had before.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/search/losses/loss_trials.hpp>
#include <comp/search/losses/sound_state.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/times/race.hpp>
#include <cstddef>
#include <functional>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace comp {

/// Returns: true for a plan that looks faster than FP32 by times whose 95% interval holds 1 and is wider than a fifth.
inline bool is_too_noisy(const contestant& c) {
  constexpr double wide = 1.2;
  const interval& at = c.over_fp32.bounds;  // infinite if there were too few pairs: then nothing was measured
  return c.over_fp32.ratio > 1 && at.low > 0 && at.low <= 1 && std::isfinite(at.high) && at.high > wide * at.low;
}

/// Returns: the warning that FP32 was kept because the times are too noisy; nothing if they are not.
inline std::optional<std::string> problem_of_noise(const outcome& result) {
  const std::vector<contestant>& contest = result.contest;
  const auto at = std::find_if(contest.begin(), contest.end(), [](const contestant& c) {
    return c.status == status::ok && !detail::is_rejected(c) && is_too_noisy(c);
  });
  if (at == contest.end()) return {};
  const interval& bounds = at->over_fp32.bounds;
  return fmt::format(
      "too noisy to tell: {} kept (\"{}\" is {:.2f} to {:.2f} times as fast, 95%): search again when nothing else runs on "
      "the machine, or with a higher {}",
      reference_name(result.graph), at->label, bounds.low, bounds.high,
      by_language("settings.race.fp32_rounds", "race={\"fp32_rounds\": ...}"));
}

/// Returns: FP32's entry, without times.
inline contestant fp32_contestant(const evaluator& run) {
  return {.label = std::string{reference_label(run.log().graph)}, .plan = run.fp32(), .over_fp32 = {1, {1, 1}}};
}

/// Runs further rounds of FP32 and the fastest plan if noise hides which of the two is faster: at most three times as
/// many as before. Their times only change `over_fp32`, because no other plan ran in these rounds.
inline void add_rounds(evaluator& run, const race_settings& settings, std::vector<contestant>& contest,
                       race_batches batches) {
  const auto fastest = std::ranges::max_element(
      contest, {}, [](const contestant& c) { return c.status == status::ok ? c.over_fp32.ratio : 0; });
  if (fastest == contest.end() || !is_too_noisy(*fastest)) return;
  std::vector<double> fp32_seconds = contest.front().seconds, fastest_seconds = fastest->seconds;
  fastest_seconds.resize(std::min(fastest_seconds.size(), fp32_seconds.size()));
  fp32_seconds.resize(fastest_seconds.size());
  const std::size_t rounds = std::max(settings.fp32_rounds, settings.min_rounds);
  for (int repetition = 0; repetition < 3 && is_too_noisy(*fastest); ++repetition) {
    std::vector<racer> pair_of_racers{{.plan = contest.front().plan, .label = contest.front().label},
                                      {.plan = fastest->plan, .label = fastest->label}};
    race{run, stage::contest, settings, rounds, batches}.run(pair_of_racers);
    if (pair_of_racers[0].status != status::ok || pair_of_racers[1].status != status::ok) return;
    fp32_seconds.insert(fp32_seconds.end(), pair_of_racers[0].seconds.begin(), pair_of_racers[0].seconds.end());
    fastest_seconds.insert(fastest_seconds.end(), pair_of_racers[1].seconds.begin(), pair_of_racers[1].seconds.end());
    fastest->over_fp32 = compare_paired(fp32_seconds, fastest_seconds);
  }
}

/// Times the racers; FP32 is the first. A racer that is hopelessly slower than FP32 stops early and keeps its times.
inline std::vector<contestant> time_contest(evaluator& run, const race_settings& settings, std::vector<racer> racers,
                                            race_batches batches = {}) {
  if (racers.size() > 1) racers.front().rounds_at_most = settings.fp32_rounds;
  race{run, stage::contest, settings, settings.contest_rounds, batches}.run(racers);
  const plan last = run.unchecked().low;
  const bool is_sound = leave_sound(run, stage::contest, true);
  if (!is_sound) run.reject(last);
  std::vector<contestant> contest;
  for (racer& r : racers) {
    contestant& c = contest.emplace_back();
    c.label = std::move(r.label);
    c.plan = std::move(r.plan);
    c.over_fp32 = compare_paired(contest.size() == 1 ? r.seconds : contest.front().seconds, r.seconds);
    c.seconds = std::move(r.seconds);
    c.peak_bytes = r.peak_bytes;
    c.status = !is_sound && c.plan == last ? status::not_finite : r.status;
    c.lost = r.lost;
    c.rule_based = r.rule_based;
  }
  if (!contest.empty()) contest.front().over_fp32 = {1, {1, 1}};
  add_rounds(run, settings, contest, batches);
  return contest;
}

/// Adds to a contestant what its losses said. If it had too few rounds together with FP32, its time relative to FP32
/// comes from the batches that judged its losses, unless the contest timed compiled steps: these batches were not.
inline void describe(contestant& c, const outcome& log, const loss_trials& trials) {
  const auto* answer = trials.find(c.plan);
  if (answer == nullptr) return;
  const trial& t = answer->trial;
  c.loss = answer->verdict;
  c.loss_batches = static_cast<std::size_t>(t.sample.batches);
  if (c.seconds.empty()) c.status = t.sample.status;
  if (c.peak_bytes == 0) c.peak_bytes = t.sample.peak_bytes;
  if (log.compiled) return;
  constexpr std::size_t enough = 6;  // pairs; fewer give no 95% interval
  const std::vector<double>&fp32_seconds = log.baseline.batch_seconds, &judged_seconds = t.sample.batch_seconds;
  const std::size_t pairs = std::min(fp32_seconds.size(), judged_seconds.size());
  if (std::min(log.contest.front().seconds.size(), c.seconds.size()) < enough) {
    if (pairs > enough) {  // both ran the same batches, though not in turns; the first pays for what is made once
      c.over_fp32 = compare_paired(std::span{fp32_seconds}.subspan(1, pairs - 1),
                                   std::span{judged_seconds}.subspan(1, pairs - 1));
    } else if (!std::isfinite(c.over_fp32.ratio) && t.sample.ok() && t.bounds.low > 0) {  // both ran in turns
      const double fp32_batch = trials.fp32_seconds();
      c.over_fp32 = {fp32_batch / t.seconds, {fp32_batch / t.bounds.high, fp32_batch / t.bounds.low}};
    }
  }
  if (c.seconds.size() < enough) c.seconds = judged_seconds;
}

/// Describes all contestants. One without batches to pair with FP32's is compared with a contestant that has some, and
/// the two ratios are multiplied.
inline void describe_contest(outcome& log, const loss_trials& trials) {
  for (contestant& c : log.contest) describe(c, log, trials);
  contestant& fp32 = log.contest.front();
  const contestant* link = nullptr;
  for (const contestant& c : log.contest) {
    if (&c != &fp32 && std::isfinite(c.over_fp32.ratio) && !c.seconds.empty()) link = &c;
  }
  for (contestant& c : log.contest) {
    if (link == nullptr || &c == &fp32 || std::isfinite(c.over_fp32.ratio)) continue;
    const paired_speedup over_link = compare_paired(link->seconds, c.seconds);
    c.over_fp32.ratio = link->over_fp32.ratio * over_link.ratio;
    c.over_fp32.bounds = {link->over_fp32.bounds.low * over_link.bounds.low,
                          link->over_fp32.bounds.high * over_link.bounds.high};
  }
  if (fp32.seconds.empty() && !log.compiled) fp32.seconds = log.baseline.batch_seconds;
}

/// Returns: what the losses of a contestant that was not accepted said.
inline std::string why_not_accepted(const contestant& c, double tolerance) {
  const loss_verdict& loss = *c.loss;
  const bool is_measured = loss.line > 0 && std::isfinite(loss.difference) && std::isfinite(loss.radius);
  if (!is_measured) return "its loss was not accepted";
  const std::string found =
      fmt::format("its loss is {:+.2f}% +- {:.2f}% above FP32's", 100 * loss.difference, 100 * loss.radius);
  if (is_shown_worse(loss, tolerance)) return found + ", which is more than the tolerance";
  if (loss.at_end > tolerance)
    return fmt::format("{} after {} batches and grows, by the end of the training to some {:.1f}%", found,
                       c.loss_batches, 100 * loss.at_end);
  return found + ", which leaves open whether it is within the tolerance";
}

/// Returns: the warning for the fastest plan if its own losses were not accepted. `is_part`: those of a plan that
/// lowers more were.
inline std::string why_not_taken(const contestant& fastest, double tolerance, bool is_part) {
  return fmt::format(
      "\"{}\" was fastest and is not taken ({}{}): raise {} to take it, or {} to judge it by more "
      "batches",
      fastest.label, why_not_accepted(fastest, tolerance),
      !is_part || fastest.loss->at_end > tolerance ? "" : ", although a plan that lowers more was accepted",
      setting("tolerance"), setting("budget"));
}

/// Returns: the warning for FP32 (`reference`), kept because the losses of a plan that is faster decided nothing.
inline std::string why_fp32_is_kept(std::string_view reference, const contestant& faster, double tolerance) {
  return fmt::format(
      "{} is kept although \"{}\" is {:.2f} to {:.2f} times as fast (95%; {}): search again when losses fall evenly, later "
      "in the training or with more data, or raise {} to judge it by more batches, or {}",
      reference, faster.label, faster.over_fp32.bounds.low, faster.over_fp32.bounds.high,
      why_not_accepted(faster, tolerance), setting("budget"), setting("tolerance"));
}

/// Returns: how many times as fast `a` is as `b`. Against FP32 that is `over_fp32`, which may have more rounds
/// (add_rounds()).
inline paired_speedup speedup_over(const contestant& a, const contestant& b, const contestant& fp32) {
  if (&b == &fp32 && std::isfinite(a.over_fp32.ratio)) return a.over_fp32;
  if (&a == &fp32 && std::isfinite(b.over_fp32.ratio)) return inverse(b.over_fp32);
  return compare_paired(b.seconds, a.seconds);
}

/// Gives the seconds of a batch under a plan by the costs of operators and casts; NaN if these are not known.
using time_prediction = std::function<double(const plan&)>;

/// Returns: for each contestant the logarithm of its time relative to one of them; infinity for one that cannot win. If
/// the race is clear its times count; else the learned costs count, because they draw on all races. If these are not
/// known, a plan that is not clearly faster than FP32 counts as no faster. `memory_limit`: contestants that need more
/// bytes cannot win if another one fits; 0: no limit.
inline std::vector<double> times_to_rank(const std::vector<contestant>& contest, const time_prediction& predict,
                                         std::int64_t memory_limit = 0) {
  std::vector<double> times(contest.size(), std::numeric_limits<double>::infinity());
  const auto ran = [](const contestant& c) {
    return c.status == status::ok && !c.seconds.empty() && !detail::is_rejected(c);
  };
  const auto fits = [&](const contestant& c) { return ran(c) && (memory_limit == 0 || c.peak_bytes <= memory_limit); };
  const bool some_fit = std::any_of(contest.begin(), contest.end(), fits);
  const auto usable = [&](const contestant& c) { return some_fit ? fits(c) : ran(c); };
  // All are compared with one contestant: of those with the most rounds, the one thought fastest, because times
  // relative to a slow one hardly tell two fast ones apart.
  const auto reference =
      std::max_element(contest.begin(), contest.end(), [&](const contestant& a, const contestant& b) {
        const std::size_t of_a = usable(a) ? a.seconds.size() : 0, of_b = usable(b) ? b.seconds.size() : 0;
        return of_a != of_b ? of_a < of_b : predict(a.plan) > predict(b.plan);
      });
  for (std::size_t i = 0; i < contest.size(); ++i) {
    const contestant& c = contest[i];
    const double expected = std::log(predict(c.plan) / predict(reference->plan));
    if (i == 0 && c.seconds.empty() && std::isfinite(expected))
      times[i] = expected;  // FP32 may have had no round, if rounds are scarce
    if (!usable(c)) continue;
    if (&c == &*reference) {
      times[i] = 0;
      continue;
    }
    const paired_speedup slowdown = speedup_over(*reference, c, contest.front());
    const bool clear = slowdown.clearly_faster() || slowdown.clearly_slower();
    times[i] = clear || !std::isfinite(expected) ? std::log(slowdown.ratio) : expected;
  }
  for (std::size_t i = 1; i < contest.size() && std::isfinite(times[0]); ++i) {
    if (contest[i].over_fp32.within_noise() && !std::isfinite(predict(contest[i].plan)))
      times[i] = std::max(times[i], times[0]);
  }
  return times;
}

/// Returns: the order in which contestants are offered as the winner, the fastest first and up to FP32. Among those as
/// fast as the first, FP32 comes first, then the lower loss, then the smaller memory. Contestants that tie with the
/// first have its label in `tie`. `slowdown`: if above 0, those slower than the fastest by this fraction at most are
/// ordered by memory.
inline std::vector<std::size_t> ranking(std::vector<contestant>& contest, const time_prediction& predict,
                                        std::int64_t memory_limit = 0, double slowdown = 0) {
  constexpr double noticeable = 0.003;  // logarithms of times that differ by less are equal
  const double largest_slowdown = std::max(noticeable, std::log1p(slowdown));
  const std::vector<double> times = times_to_rank(contest, predict, memory_limit);
  std::vector<std::size_t> order;
  for (std::size_t i = 0; i < contest.size(); ++i) {
    if (std::isfinite(times[i]) || i == 0) order.push_back(i);
  }
  const auto loss_of = [&](std::size_t i) { return contest[i].loss ? contest[i].loss->difference : 0.0; };
  std::sort(order.begin(), order.end(),
            [&](std::size_t a, std::size_t b) { return times[a] != times[b] ? times[a] < times[b] : a < b; });
  // The contestants before `end_of_ties` are as fast as the first.
  const auto end_of_ties = std::find_if(
      order.begin(), order.end(), [&](std::size_t i) { return times[i] > times[order.front()] + largest_slowdown; });
  if (slowdown > 0) {
    const auto memory = [&](std::size_t i) {  // last if it is not known
      return contest[i].peak_bytes > 0 ? contest[i].peak_bytes : std::numeric_limits<std::int64_t>::max();
    };
    std::sort(order.begin(), end_of_ties, [&](std::size_t a, std::size_t b) {
      return memory(a) != memory(b) ? memory(a) < memory(b) : times[a] < times[b];
    });
  } else if (const auto fp32 = std::find(order.begin(), end_of_ties, 0); fp32 != end_of_ties) {
    std::rotate(order.begin(), fp32, fp32 + 1);
  }
  if (slowdown == 0 && order.front() != 0) {
    std::sort(order.begin(), end_of_ties, [&](std::size_t a, std::size_t b) {
      if (loss_of(a) != loss_of(b)) return loss_of(a) < loss_of(b);
      return contest[a].peak_bytes != contest[b].peak_bytes ? contest[a].peak_bytes < contest[b].peak_bytes
                                                            : times[a] < times[b];
    });
  }
  order.erase(std::find(order.begin(), order.end(), 0) + 1, order.end());
  const contestant& first = contest[order.front()];
  for (std::size_t i = 1; i < contest.size(); ++i) {
    contestant& c = contest[i];
    if (&c != &first && speedup_over(c, first, contest.front()).within_noise()) c.tie = first.label;
  }
  return order;
}

}  // namespace comp
