// SPDX-License-Identifier: Apache-2.0
// Makes samples of runs: fills in what a backend left out, joins batches, summarises times, and names failures.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/error.hpp>
#include <comp/core/lost_batches.hpp>
#include <comp/core/sample.hpp>
#include <comp/core/statistics.hpp>
#include <comp/core/trial.hpp>
#include <comp/search/outcome.hpp>
#include <cstddef>
#include <exception>
#include <limits>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace comp {

struct checkpoint;

/// The batches since the last state that is known to be sound, because FP32 alone made it or because it was checked
/// (sound_state.hpp). Other plans may damage a state although their own losses are finite.
struct unchecked_batches {
  std::shared_ptr<const checkpoint> from = {};  // the last sound state; null: the present state is sound
  std::int64_t extreme = -1;                    // how many values of `from` are NaN, infinite or huge; -1: not counted
  std::size_t count = 0;                        // how many batches led from `from` to the present state
  plan low = {};                                // the last plan other than FP32 among them
};

/// A state of the trainer, and all batches that led from the search's start to it. Copies share the state.
struct checkpoint {
  std::shared_ptr<const void> state = {};
  sample trained = {};
  unchecked_batches unchecked = {};
};

namespace detail {

/// Sets the status and the message of `run` from the exception that is being handled. Returns: true for a
/// std::exception.
inline bool fail_by_exception(sample& run) {
  const auto fail = [&](status how, const char* what) {
    run.status = how;
    run.message = what;
    return true;
  };
  try {
    throw;
  } catch (const out_of_memory& e) {
    return fail(status::out_of_memory, e.what());
  } catch (const std::bad_alloc& e) {
    return fail(status::out_of_memory, e.what());
  } catch (const std::exception& e) {
    return fail(status::failed, e.what());
  } catch (...) {
    return !fail(status::failed, "an exception that is no std::exception");
  }
}

/// Returns: status::not_finite if a run loses batch after batch, so that its weights are damaged; else status::ok.
inline status cut_if_not_finite(const sample& run) { return keeps_losing(run) ? status::not_finite : status::ok; }
inline status never_cut(const sample&) { return status::ok; }

/// Fills in what a backend left out or got wrong. `wall_seconds`: comp's own time of the run. A single batch without a
/// usable loss is a lost one; a longer run in which no loss is usable ended as not_finite.
inline void complete(sample& run, double wall_seconds) {
  const auto is_time = [](double seconds) { return seconds > 0 && std::isfinite(seconds); };
  if (!is_time(run.seconds)) run.seconds = wall_seconds;
  if (!std::all_of(run.batch_seconds.begin(), run.batch_seconds.end(), is_time)) run.batch_seconds.clear();
  if (run.ok() && run.batches <= 0) run.batches = 1;
  if (run.batches <= 1 && (run.status == status::not_finite || (run.ok() && !is_finite(run)))) {
    run.status = status::ok;
    run.loss = std::numeric_limits<double>::quiet_NaN();
    run.curve.clear();
    run.not_finite = run.batches = 1;
  } else if (run.ok()) {
    if (static_cast<std::int64_t>(run.curve.size()) == run.batches) leave_out_lost(run);
    // Of several losses only the means may be known, and one lost batch makes these unknown.
    const bool usable = run.not_finite > 0 ? std::isfinite(run.loss) && !keeps_losing(run) : is_finite(run);
    if (!usable) run.status = status::not_finite;
  }
}

/// Raises what lies below settings.floor to it: the losses of a run, and their mean.
inline void raise_to_floor(sample& run, double floor) {
  const auto raise = [floor](double& mean, std::vector<double>& losses) {
    if (mean < floor) mean = floor;
    if (std::ranges::none_of(losses, [floor](double loss) { return loss < floor; })) return;
    for (double& loss : losses) loss = loss < floor ? floor : loss;
    mean = mean_of(finite_of(losses));
  };
  if (floor <= 0) return;
  raise(run.loss, run.curve);
  run.curves.resize(run.losses.size());
  for (std::size_t i = 0; i < run.losses.size(); ++i) raise(run.losses[i], run.curves[i]);
}

/// Adds batches to a run: losses become means over all batches that are not lost, seconds become sums, and the loss and
/// time of each batch are appended.
inline void append(sample& run, const sample& next) {
  const auto before = static_cast<double>(run.batches - run.not_finite),
             added = static_cast<double>(next.batches - next.not_finite);
  const auto mean = [&](double mean_before, double mean_added) {
    return added == 0 && run.batches > 0 ? mean_before
           : before == 0                 ? mean_added
                                         : (mean_before * before + mean_added * added) / (before + added);
  };
  run.loss = mean(run.loss, next.loss);
  // A lost batch may have none of several losses.
  const std::size_t losses = added == 0 ? std::max(run.losses.size(), next.losses.size()) : next.losses.size();
  const auto loss_of = [&](std::size_t i) {
    return i < next.losses.size() ? next.losses[i] : std::numeric_limits<double>::quiet_NaN();
  };
  run.losses.resize(losses);
  for (std::size_t i = 0; i < losses; ++i) run.losses[i] = mean(run.losses[i], loss_of(i));
  run.batches += next.batches;
  run.not_finite += next.not_finite;
  run.seconds += next.seconds;
  run.peak_bytes = std::max(run.peak_bytes, next.peak_bytes);
  if (next.held) run.held = next.held;
  const bool is_one_batch = next.batches == 1;
  const auto add = [is_one_batch](std::vector<double>& to, const std::vector<double>& from, double of_the_batch) {
    if (!from.empty()) {
      to.insert(to.end(), from.begin(), from.end());
    } else if (is_one_batch) {
      to.push_back(of_the_batch);
    }
  };
  add(run.curve, next.curve, next.loss);
  add(run.batch_seconds, next.batch_seconds, next.seconds);
  run.curves.resize(losses);
  for (std::size_t i = 0; i < losses; ++i) {
    add(run.curves[i], i < next.curves.size() ? next.curves[i] : std::vector<double>{}, loss_of(i));
  }
  run.status = next.status;
  if (!next.message.empty()) run.message = next.message;
}

/// Returns: the batches of a run from `from` up to, but without, `to`.
inline sample slice(const sample& run, std::size_t from, std::size_t to) {
  const auto count = static_cast<double>(to - from);
  const auto cut = [&](const std::vector<double>& all) {
    if (all.size() < to) return std::vector<double>{};
    return std::vector<double>(all.begin() + static_cast<std::ptrdiff_t>(from),
                               all.begin() + static_cast<std::ptrdiff_t>(to));
  };
  sample part{.loss = run.loss, .losses = run.losses, .batches = static_cast<std::int64_t>(to - from)};
  part.peak_bytes = run.peak_bytes;
  part.curve = cut(run.curve);
  part.batch_seconds = cut(run.batch_seconds);
  part.seconds = run.seconds * count / std::max(static_cast<double>(run.batches), 1.0);
  if (!part.curve.empty()) part.loss = mean_of(part.curve);
  if (!part.batch_seconds.empty()) part.seconds = mean_of(part.batch_seconds) * count;
  for (std::size_t i = 0; i < run.curves.size(); ++i) {
    part.curves.push_back(cut(run.curves[i]));
    if (!part.curves[i].empty() && i < part.losses.size()) part.losses[i] = mean_of(part.curves[i]);
  }
  leave_out_lost(part);
  return part;
}

/// Sets `seconds` and `bounds` of a trial from its batches. The first batch is left out, because it pays for what is
/// made once (compiled primitives, workspaces).
inline void summarise_times(trial& t) {
  if (!t.sample.ok()) return;
  std::vector<double> times = t.sample.batch_seconds;
  if (times.size() > 3) times.erase(times.begin());
  t.seconds = times.empty() ? t.sample.seconds / static_cast<double>(t.sample.batches) : median(times);
  t.bounds = median_interval(std::move(times));
}

// Recognises a batch after which the weights may be damaged: its loss is not finite, or it has exploded.

/// Returns: 1 if a larger loss is worse, else -1.
inline double loss_sign_of(const outcome& log) { return log.higher_is_better ? -1 : 1; }

/// The lowest and the highest of the last 16 losses of a run; lower is better.
struct recent_losses {
  recent_losses(const std::vector<double>& curve, double loss_sign) {
    std::vector<double> last = finite_of(curve);
    if (last.size() > 16) last.erase(last.begin(), last.end() - 16);
    for (double& loss : last) loss *= loss_sign;
    enough = last.size() >= 4;
    if (!enough) return;
    low = *std::ranges::min_element(last);
    high = *std::ranges::max_element(last);
  }
  bool enough;
  double low = 0, high = 0;
};

/// Returns: true if the loss is so far above those of FP32's first batches that weights must have exploded.
inline bool explodes(const outcome& log, double loss) {
  const recent_losses first{log.baseline.curve, loss_sign_of(log)};
  return first.enough &&
         loss_sign_of(log) * loss > first.high + 100 * std::max(first.high - first.low, std::abs(first.high));
}
/// Returns: true if the last loss of `run` is not finite, or explodes.
inline bool ends_badly(const outcome& log, const sample& run) {
  return ends_lost(run) || explodes(log, run.curve.empty() ? run.loss : run.curve.back());
}

}  // namespace detail

}  // namespace comp
