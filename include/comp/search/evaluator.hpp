// SPDX-License-Identifier: Apache-2.0
// Runs one plan for one epoch or one batch: asks a ledger first, starts candidates from the common state, watches the
// loss, turns exceptions into failed trials, and tells the observers. Not here: which plan comes next (two_stage.hpp)
// and timing in turns (race.hpp).
#pragma once

#include <chrono>
#include <cmath>
#include <comp/core/concepts.hpp>
#include <comp/core/statistics.hpp>
#include <comp/search/acceptance.hpp>
#include <comp/search/observers.hpp>
#include <comp/search/settings.hpp>
#include <cstddef>
#include <exception>
#include <map>
#include <new>
#include <optional>
#include <set>
#include <string>
#include <type_traits>
#include <utility>
#include <variant>
#include <vector>

namespace comp {

namespace detail {

template <class B>
struct state_of {
  using type = std::monostate;
};
template <saves B>
struct state_of<B> {
  using type = std::remove_cvref_t<decltype(std::declval<B&>().save())>;
};

inline double seconds_since(std::chrono::steady_clock::time_point start) {
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Fills in what a backend left out, and refuses an "ok" without a usable loss.
inline void complete(sample& got, double wall_seconds) {
  if (got.seconds <= 0) got.seconds = wall_seconds;
  if (got.ok() && got.batches <= 0) got.batches = 1;
  if (got.ok() && !std::isfinite(got.loss)) got.status = status::not_finite;
  for (const double loss : got.losses) {
    if (got.ok() && !std::isfinite(loss)) got.status = status::not_finite;
  }
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

template <Backend B, class Observers>
class evaluator {
 public:
  using state = typename detail::state_of<B>::type;
  static constexpr bool restores = detail::saves<B>;

  evaluator(B& trainer, Observers& observers, outcome& log) : trainer_{trainer}, observers_{observers}, log_{log} {
    for (const trial& t : log.trials) ++repeats_[{t.stage, t.plan}];
    remember_start();
  }

  /// Candidates start from the trainer's state now.
  void remember_start() { start_ = save(); }

  /// The trainer's state now; nothing for a backend that cannot save.
  state save() {
    if constexpr (restores) return trainer_.save();
    return {};
  }
  void restore(const state& s) {
    if constexpr (restores) trainer_.restore(s);
  }
  /// Puts the trainer back to where every candidate starts.
  void to_start() { restore(start_); }

  /// One epoch of `p` from the common start. `cut` looks at the epoch so far after each batch and names the status with
  /// which to end it, or status::ok to go on.
  template <class Cut>
  trial epoch(stage where, const plan& p, std::string label, Cut cut) {
    return run(where, p, std::move(label), [&](const trial& begun) {
      to_start();
      trainer_.set_precision(p);
      return run_watched(begun, cut);
    });
  }

  /// One epoch of `p` from where the trainer is; never recalled, because it is training and no experiment.
  template <class Cut>
  trial next_epoch(stage where, const plan& p, Cut cut) {
    may_recall_ = false;
    return run(where, p, "", [&](const trial& begun) {
      trainer_.set_precision(p);
      return run_watched(begun, cut);
    });
  }

  /// The next batch under `p`; the state moves on. A batch before a plan's first one pays for what that makes (compiled
  /// primitives, workspaces); it is neither kept nor told.
  trial batch(stage where, const plan& p, std::string label) {
    return run(where, p, std::move(label), [&](const trial&) {
      trainer_.set_precision(p);
      if (warm_.insert(p).second) {
        sample first = trainer_.run_batch();
        if (!first.ok() && first.status != status::not_finite) return first;
      }
      const auto begin = std::chrono::steady_clock::now();
      sample got = trainer_.run_batch();
      if (got.seconds <= 0) got.seconds = detail::seconds_since(begin);
      return got;
    });
  }

  /// True when the last trial came from a ledger, so the trainer's state is not what it left.
  bool recalled() const { return recalled_; }

  /// Adds wall time to a stage, beside what its runs take.
  template <class F>
  void timed(stage where, F&& work) {
    const auto begin = std::chrono::steady_clock::now();
    const double recalled_before = recalled_seconds_;
    work();
    log_.cost(where).seconds += detail::seconds_since(begin) + recalled_seconds_ - recalled_before;
  }

 private:
  template <class Work>
  trial run(stage where, const plan& p, std::string label, Work work) {
    stop_if_asked();
    trial t;
    t.number = log_.trials.size();
    t.stage = where;
    t.plan = p;
    t.label = std::move(label);
    t.repeat = repeats_[{where, p}]++;
    const auto known = may_recall_ ? observers_.recall(t) : std::nullopt;
    recalled_ = known.has_value();
    if (recalled_) {
      t.sample = known->sample;
      recalled_seconds_ += t.sample.seconds;
    } else {
      observers_.trial_started(t);
      measure(t, [&] { return work(t); });
    }
    detail::summarise_times(t);
    auto& cost = log_.cost(where);
    ++cost.runs;
    cost.batches += static_cast<std::size_t>(t.sample.batches);
    const bool judged = where == stage::epochs || where == stage::training;
    t.accepted = judged ? accepted(log_.baseline, t.sample, log_.tolerance) : t.sample.ok();
    log_.trials.push_back(t);
    if (observers_.trial_done(t)) stop_asked_ = true;
    stop_if_asked();
    return t;
  }

  // Runs `work` into t.sample; whatever it throws becomes a status, and the state is put back.
  template <class Work>
  void measure(trial& t, Work work) {
    const auto begin = std::chrono::steady_clock::now();
    const auto fail = [&](status how, const char* what) {
      t.sample.status = how;
      t.sample.message = what;
    };
    try {
      t.sample = work();
      if constexpr (detail::validates<B>) {
        if (t.sample.ok() && t.sample.batches > 1) t.sample.score = trainer_.validate();
      }
    } catch (const interrupted&) {
      to_start();
      throw;
    } catch (const out_of_memory& e) {
      fail(status::out_of_memory, e.what());
    } catch (const std::bad_alloc& e) {
      fail(status::out_of_memory, e.what());
    } catch (const std::exception& e) {
      fail(status::failed, e.what());
    }
    if (observer_failed_) {
      to_start();
      std::rethrow_exception(std::exchange(observer_failed_, nullptr));
    }
    detail::complete(t.sample, detail::seconds_since(begin));
    if (stop_asked_) stop_if_asked();
    if (!t.sample.ok()) to_start();
  }

  template <class Cut>
  sample run_watched(const trial& begun, Cut cut) {
    if constexpr (!detail::stops<B>) {
      return trainer_.run_epoch();
    } else {
      status ended = status::ok;
      const stop_predicate watch = [&](const sample& so_far) {
        try {
          observers_.batch_done(begun, so_far);
          if (observers_.stop_requested()) stop_asked_ = true;
        } catch (...) {
          observer_failed_ = std::current_exception();
          return true;
        }
        if (ended == status::ok) ended = cut(so_far);
        return stop_asked_ || ended != status::ok;
      };
      sample got = trainer_.run_epoch(watch);
      // A backend may name a stop of ours stopped_early itself; why it was stopped is ours to say.
      if (ended != status::ok && (got.ok() || got.status == status::stopped_early)) got.status = ended;
      return got;
    }
  }

  void stop_if_asked() {
    if (!stop_asked_ && !observers_.stop_requested()) return;
    to_start();
    throw interrupted{
        fmt::format("search stopped after {} runs (it was asked to): start it again with the same ledger to go on",
                    log_.trials.size())};
  }

  B& trainer_;
  Observers& observers_;
  outcome& log_;
  state start_;
  std::map<std::pair<stage, plan>, std::size_t> repeats_;
  std::set<plan> warm_;
  std::exception_ptr observer_failed_;
  double recalled_seconds_ = 0;
  bool may_recall_ = true, recalled_ = false, stop_asked_ = false;
};

}  // namespace comp
