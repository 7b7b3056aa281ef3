// SPDX-License-Identifier: Apache-2.0
// Samples of runs made of batches: what a backend left out filled in, batches joined, times summed up, failures named.
#pragma once

#include <algorithm>
#include <chrono>
#include <cmath>
#include <comp/core/error.hpp>
#include <comp/core/sample.hpp>
#include <comp/core/statistics.hpp>
#include <comp/core/trial.hpp>
#include <cstddef>
#include <exception>
#include <memory>
#include <new>
#include <utility>
#include <vector>

namespace comp {

/// A state of the trainer, and what was trained from the search's start to it. Copies share the state.
struct checkpoint {
  std::shared_ptr<const void> state = {};
  sample trained = {};
};

namespace detail {

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Makes `got` a failed run of the exception that is being handled.
inline void fail_by_exception(sample& got) {
  const auto fail = [&](status how, const char* what) {
    got.status = how;
    got.message = what;
  };
  try {
    throw;
  } catch (const out_of_memory& e) {
    fail(status::out_of_memory, e.what());
  } catch (const std::bad_alloc& e) {
    fail(status::out_of_memory, e.what());
  } catch (const std::exception& e) {
    fail(status::failed, e.what());
  } catch (...) {
    fail(status::failed, "an exception that is no std::exception");
  }
}

inline bool finite(const sample& got) {
  return std::isfinite(got.loss) &&
         std::all_of(got.losses.begin(), got.losses.end(), [](double loss) { return std::isfinite(loss); });
}

/// How a run ends by its losses so far.
inline status finite_status(const sample& got) { return finite(got) ? status::ok : status::not_finite; }
inline status any_status(const sample&) { return status::ok; }

/// Fills in what a backend left out or got wrong, and refuses an "ok" without a usable loss.
inline void complete(sample& got, double wall_seconds) {
  const auto usable = [](double seconds) { return seconds > 0 && std::isfinite(seconds); };
  if (!usable(got.seconds)) got.seconds = wall_seconds;
  if (!std::all_of(got.batch_seconds.begin(), got.batch_seconds.end(), usable)) got.batch_seconds.clear();
  if (got.ok() && got.batches <= 0) got.batches = 1;
  if (got.ok() && !finite(got)) got.status = status::not_finite;
}

/// Adds a batch, or several, to a run: means of losses, sums of seconds, each batch's loss and time.
inline void append(sample& run, const sample& next) {
  const auto before = static_cast<double>(run.batches), more = static_cast<double>(next.batches);
  const auto mean = [&](double old, double now) {
    return before == 0 ? now : (old * before + now * more) / (before + more);
  };
  run.loss = mean(run.loss, next.loss);
  run.losses.resize(next.losses.size());
  for (std::size_t i = 0; i < next.losses.size(); ++i) run.losses[i] = mean(run.losses[i], next.losses[i]);
  run.batches += next.batches;
  run.seconds += next.seconds;
  run.peak_bytes = std::max(run.peak_bytes, next.peak_bytes);
  const bool one = next.batches == 1;
  const auto add = [one](std::vector<double>& to, const std::vector<double>& from, double single) {
    if (!from.empty()) {
      to.insert(to.end(), from.begin(), from.end());
    } else if (one) {
      to.push_back(single);
    }
  };
  add(run.curve, next.curve, next.loss);
  add(run.batch_seconds, next.batch_seconds, next.seconds);
  run.curves.resize(next.losses.size());
  for (std::size_t i = 0; i < next.losses.size(); ++i) {
    add(run.curves[i], i < next.curves.size() ? next.curves[i] : std::vector<double>{}, next.losses[i]);
  }
  run.status = next.status;
  if (!next.message.empty()) run.message = next.message;
}

/// Batches `from` to `to` of a run.
inline sample part_of(const sample& run, std::size_t from, std::size_t to) {
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
  return part;
}

/// Sets `seconds` and `bounds` of a trial from its batches. The first batch is left out: it pays for what is made once.
inline void summarise_times(trial& t) {
  if (!t.sample.ok()) return;
  std::vector<double> times = t.sample.batch_seconds;
  if (times.size() > 3) times.erase(times.begin());
  t.seconds = times.empty() ? t.sample.seconds / static_cast<double>(t.sample.batches) : median(times);
  t.bounds = median_interval(std::move(times));
}

}  // namespace detail
}  // namespace comp
