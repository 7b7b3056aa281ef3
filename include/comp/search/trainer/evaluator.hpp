// SPDX-License-Identifier: Apache-2.0
// Runs plans on a trainer and makes trials of the runs. A ledger that knows a run is asked first. Exceptions become
// failed trials, observers are told, and the batches that lead to the trainer's state are counted. Not here: which plan
// comes next (search_run.hpp), how losses are judged (loss_trials.hpp) and timing in turns (race.hpp).
#pragma once

#include <algorithm>
#include <chrono>
#include <comp/core/statistics.hpp>
#include <comp/search/observers.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <comp/search/trainer/batch_clock.hpp>
#include <comp/search/trainer/run_samples.hpp>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

namespace comp {

class evaluator {
 public:
  using place = checkpoint;

  evaluator(any_trainer& trainer, any_observer& observers, outcome& log)
      : trainer_{trainer}, observers_{observers}, log_{log}, fp32_{log.graph.size()} {
    for (const trial& t : log.trials) ++repeats_[{t.stage, t.plan}];
    remember_start();
  }

  /// The trainer's state now counts as the start of a training.
  void remember_start() {
    trained_ = {};
    keep();
  }
  /// A run that fails puts the trainer back to its state now.
  void keep() { kept_ = save(); }

  /// Whether the trainer's state can be put back.
  bool restores() const { return trainer_.has.save; }
  /// The trainer's state now; without it for a backend that cannot save. Saved once, however often it is asked for.
  place save() {
    std::shared_ptr<const void> now = saved_.lock();
    if (now == nullptr) now = trainer_.save();
    saved_ = now;
    return {std::move(now), trained_};
  }
  void restore(const place& to) {
    if (!restores()) return;
    trainer_.restore(to.state.get());
    trained_ = to.trained;
    saved_ = to.state;
  }
  void to_kept() { restore(kept_); }
  /// The search's epochs get scores, too.
  void score_epochs() { scores_ = true; }

  /// Returns: the batches that lead from the start of the search to the trainer's state, as one run.
  const sample& trained() const { return trained_; }
  /// Returns: the seconds of all runs, those that were undone and those that were recalled from a ledger, too.
  double seconds() const { return seconds_; }
  any_trainer& trainer() { return trainer_; }
  /// What comp's clock saw of the batches.
  const batch_clock& clock() const { return clock_; }
  /// The plan that "FP32" stands for.
  const plan& fp32() const { return fp32_; }
  void stand_for_fp32(const plan& p) { fp32_ = p; }

  /// Makes a trial of what `work(trial)` runs, or of what a ledger has for this stage, plan and repeat.
  /// `accepted` and the times are set from the sample alone; a caller that judges the trial sets them again. `before`:
  /// of its seconds, those that an earlier trial has.
  template <class Work>
  trial run(stage where, const plan& p, std::string label, Work work, std::optional<std::size_t> repeat = {},
            double before = 0) {
    stop_if_asked();
    trial t;
    t.number = log_.trials.size();
    t.stage = where;
    t.plan = p;
    t.label = std::move(label);
    t.repeat = repeat ? *repeat : repeats_[{where, p}]++;
    std::optional<trial> known;
    if (may_recall_) apart([&] { known = observers_.recall(t); });
    recalled_ = known.has_value();
    if (known) {
      t.sample = known->sample;
      ++log_.recalled;
      recalled_seconds_ += t.sample.seconds - before;
      seconds_ += t.sample.seconds - before;  // it was paid for, and budgets count it
    } else {
      apart([&] { observers_.trial_started(t); });
      measure(t, [&] { return work(t); });
      recalled_ = false;
    }
    if (t.repeat < profile_repeats) ran_.insert(p);
    detail::summarise_times(t);
    t.accepted = t.sample.ok();
    return t;
  }
  /// What `work` throws ends the search, also where it is done within a candidate's run, whose fault it is not:
  /// observers, and FP32's batches that a candidate waits for.
  template <class F>
  void apart(F work) {
    try {
      work();
    } catch (...) {
      if (!fatal_) fatal_ = std::current_exception();  // the first is why
      throw;
    }
  }

  /// Records a trial of run() once it is judged, and tells the observers. It gets its number here, because others may
  /// have been recorded meanwhile.
  /// `before`: of its batches, those that an earlier trial has.
  void record(trial t, std::int64_t before = 0) {
    t.number = log_.trials.size();
    auto& cost = log_.cost(t.stage);
    ++cost.runs;
    if (t.repeat < profile_repeats) cost.batches += static_cast<std::size_t>(t.sample.batches - before);
    log_.trials.push_back(t);
    apart([&] {
      if (observers_.trial_done(t)) stop_asked_ = true;
    });
    stop_if_asked();
  }

  /// Trains the next batches under `p` from where the trainer is, until `got` has `batches` of them. `cut` looks at it
  /// after each batch and names the status with which to end, or status::ok to go on.
  template <class Cut>
  void train(const trial& as, const plan& p, std::size_t batches, sample& got, Cut cut) {
    trainer_.set_precision(p);
    warm_.insert(p);
    while (got.ok() && static_cast<std::size_t>(got.batches) < batches) {
      const auto begin = std::chrono::steady_clock::now();
      saved_.reset();
      sample next = trainer_.run_batch();
      const double seen = detail::seconds_since(begin);
      clock_.add(p, next.seconds, seen);
      detail::complete(next, seen);
      count(next);
      detail::append(got, next);
      tell(as, got);
      if (stop_asked_) return;
      if (got.ok()) got.status = cut(got);
    }
  }

  /// One epoch of `p` from where the trainer is, not recorded yet.
  template <class Cut>
  trial epoch(stage where, const plan& p, std::string label, Cut cut) {
    return run(where, p, std::move(label), [&](const trial& begun) {
      trainer_.set_precision(p);
      return run_watched(begun, cut);
    });
  }
  /// The same of a training after the search, which is never recalled: it is no experiment.
  template <class Cut>
  trial training_epoch(const plan& p, Cut cut) {
    may_recall_ = false;
    return epoch(stage::training, p, "", cut);
  }

  /// The next batch under `p`; the state moves on. A batch before a plan's first one pays for what that makes (compiled
  /// primitives, workspaces); it is neither timed nor told.
  trial batch(stage where, const plan& p, std::string label) {
    const trial t = run(where, p, std::move(label), [&](const trial& begun) {
      sample first, got;
      if (!warm_.contains(p)) {
        train(begun, p, 1, first, detail::any_status);
        if (!first.ok()) return first;
      }
      train(begun, p, 1, got, detail::any_status);
      return got;
    });
    record(t);
    return t;
  }
  /// Returns: true where `p` has had a batch in this search, be it recalled.
  bool ran(const plan& p) const { return ran_.contains(p); }

  /// Numbers that `work(trainer)` gives about plan `p`, which leaves the state as it is: a profile's, a score's. They
  /// go through the ledger like a run, so a search that is resumed decides by the same ones. Throws: `error` with what
  /// it threw.
  template <class F>
  std::vector<double> numbers(const plan& p, std::string label, std::size_t repeat, F work) {
    const trial t = run(
        stage::baseline, p, std::move(label),
        [&](const trial&) {
          const auto begin = std::chrono::steady_clock::now();
          trainer_.set_precision(p);
          sample got{.loss = 0, .batches = 1, .curve = work(trainer_)};
          got.seconds = detail::seconds_since(begin);
          seconds_ += got.seconds;
          return got;
        },
        repeat);
    record(t);
    require<error>(t.sample.ok(), "{}",
                   t.sample.message.empty() ? std::string{name(t.sample.status)} : t.sample.message);
    return t.sample.curve;
  }

  /// Returns: true where the last trial came from a ledger, so that the trainer's state is not the one after it.
  bool recalled() const { return recalled_; }

  /// Tells a person of something before the search ends; it stands in the outcome's warnings, too.
  void warn(const std::string& sentence) {
    log_.warnings.push_back(sentence);
    observers_.warned(sentence);
  }

  /// Adds wall time to a stage.
  template <class F>
  void timed(stage where, F&& work) {
    const auto begin = std::chrono::steady_clock::now();
    const double recalled_before = recalled_seconds_;
    work();
    log_.cost(where).seconds += detail::seconds_since(begin) + recalled_seconds_ - recalled_before;
  }

 private:
  // Runs `work` into t.sample; whatever it throws becomes a status, and the state is put back.
  template <class Work>
  void measure(trial& t, Work work) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      t.sample = work();
      if (trainer_.has.validate && is_epoch(t) && t.sample.ok()) t.sample.score = trainer_.validate();
    } catch (const interrupted&) {
      to_kept();
      if (fatal_) std::rethrow_exception(std::exchange(fatal_, nullptr));  // why it was stopped
      throw;
    } catch (const settings_error&) {  // of the training: no plan would do better
      to_kept();
      throw;
    } catch (...) {
      detail::fail_by_exception(t.sample);
    }
    if (fatal_) {
      to_kept();
      std::rethrow_exception(std::exchange(fatal_, nullptr));
    }
    detail::complete(t.sample, detail::seconds_since(begin));
    if (stop_asked_) stop_if_asked();
    if (!t.sample.ok()) to_kept();
  }

  // After which the trainer's score is asked for.
  bool is_epoch(const trial& t) const {
    if (t.stage == stage::training) return t.label.empty();  // else beside the training, for evidence
    if (!restores()) return t.sample.batches > 1;
    return scores_ && t.sample.batches >= static_cast<std::int64_t>(log_.batches_per_epoch);
  }

  void count(const sample& more) {
    detail::append(trained_, more);
    trained_.status = status::ok;
    seconds_ += more.seconds;
  }

  void tell(const trial& begun, const sample& so_far) {
    try {
      apart([&] {
        observers_.batch_done(begun, so_far);
        if (observers_.stop_requested()) stop_asked_ = true;
      });
    } catch (...) {
      stop_asked_ = true;  // measure() throws it on
    }
  }

  template <class Cut>
  sample run_watched(const trial& begun, Cut cut) {
    sample got;
    saved_.reset();
    const auto begin = std::chrono::steady_clock::now();
    status ended = status::ok;
    got = trainer_.run_epoch([&](const sample& so_far) {
      tell(begun, so_far);
      if (ended == status::ok) ended = cut(so_far);
      return stop_asked_ || ended != status::ok;
    });
    // A backend may name a stop of ours stopped_early itself; why it was stopped is ours to say.
    if (ended != status::ok && (got.ok() || got.status == status::stopped_early)) got.status = ended;
    if (got.batches <= 0) got.batches = batches_seen(got);
    detail::complete(got, detail::seconds_since(begin));
    count(got);
    return got;
  }

  // Of an epoch that does not say how many batches it had.
  std::int64_t batches_seen(const sample& got) const {
    const std::size_t seen = std::max(got.curve.size(), got.batch_seconds.size());
    return static_cast<std::int64_t>(got.ok() ? std::max(seen, log_.batches_per_epoch) : seen);
  }

  void stop_if_asked() {
    if (!stop_asked_ && !observers_.stop_requested()) return;
    to_kept();
    throw interrupted{
        fmt::format("search stopped after {} runs (it was asked to): start it again with the same ledger to go on",
                    log_.trials.size())};
  }

  any_trainer& trainer_;
  any_observer& observers_;
  outcome& log_;
  plan fp32_;
  place kept_;
  std::weak_ptr<const void> saved_;  // the trainer's state, as long as it is the one that was saved
  sample trained_ = {};
  double seconds_ = 0, recalled_seconds_ = 0;
  std::map<std::pair<stage, plan>, std::size_t> repeats_;
  std::set<plan> warm_, ran_;
  batch_clock clock_;
  std::exception_ptr fatal_;
  bool may_recall_ = true, recalled_ = false, stop_asked_ = false, scores_ = false;
};

}  // namespace comp
