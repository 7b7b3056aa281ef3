// SPDX-License-Identifier: Apache-2.0
// Runs plans on a trainer. It asks a ledger first whether a run is recorded already, keeps count of the batches that
// lead to the trainer's state, turns exceptions into failed trials, and tells the observers.
// Not here: which plan comes next (search_run.hpp), how losses are judged (loss_trials.hpp), and timing in turns
// (race.hpp).
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

  /// Makes the trainer's present state the start of a training.
  void remember_start() {
    trained_ = {};
    keep();
  }
  /// Makes the trainer's present state the one that a failed run is undone to.
  void keep() { kept_ = save(); }

  /// Returns: true where the trainer can save and restore its state.
  bool restores() const { return trainer_.has.save; }
  /// Returns: the trainer's present state; for a backend that cannot save, only the batches that led to it. A state is
  /// saved once, however often it is asked for, because a copy of all weights is large.
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
  /// Lets the search's epochs be scored, too, which costs a validation each.
  void score_epochs() { scores_ = true; }

  /// Returns: the batches that lead from the start to the trainer's state.
  const sample& trained() const { return trained_; }
  /// Returns: the seconds of all runs, those that were undone or recalled included.
  double seconds() const { return seconds_; }
  any_trainer& trainer() { return trainer_; }
  /// Returns: comp's own times of the batches, beside those that the trainer gave.
  const batch_clock& clock() const { return clock_; }
  /// Returns: the plan that "FP32" stands for.
  const plan& fp32() const { return fp32_; }
  void stand_for_fp32(const plan& p) { fp32_ = p; }

  /// Makes a trial of what `work(trial)` runs, or of what a ledger has for this stage, plan and repeat. Acceptance and
  /// times are set from the sample alone; a caller that knows more sets them again. `before`: the seconds of its sample
  /// that an earlier trial already counted.
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
  /// Runs `work` so that what it throws ends the search. Observers, and FP32's batches that a candidate waits for, are
  /// run within a candidate's run; without this their exceptions would count as the candidate's failure.
  template <class F>
  void apart(F work) {
    try {
      work();
    } catch (...) {
      if (!fatal_) fatal_ = std::current_exception();  // the first one is the cause
      throw;
    }
  }

  /// Adds a trial to the outcome and tells the observers, after it was judged. It gets its number now, because others
  /// may have been recorded in the meantime. `before`: the batches of its sample that an earlier trial already counted.
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

  /// Trains the next batches under `p` until `got` has `batches` of them. `cut` looks at `got` after each batch and
  /// returns the status to end with, or status::ok to go on.
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

  /// Trains an epoch of `p` from the trainer's state. The trial is not recorded yet.
  template <class Cut>
  trial epoch(stage where, const plan& p, std::string label, Cut cut) {
    return run(where, p, std::move(label), [&](const trial& begun) {
      trainer_.set_precision(p);
      return run_watched(begun, cut);
    });
  }
  /// Trains an epoch of the training after a search. It is never recalled from a ledger, because its purpose is the
  /// weights, not a result.
  template <class Cut>
  trial training_epoch(const plan& p, Cut cut) {
    may_recall_ = false;
    return epoch(stage::training, p, "", cut);
  }

  /// Trains and times the next batch under `p`. Before a plan's first one another batch is trained, which is neither
  /// timed nor returned: it pays for what is made once (compiled primitives, workspaces).
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
  /// Returns: true where `p` has had a batch in this search, or a recalled one.
  bool ran(const plan& p) const { return ran_.contains(p); }

  /// Returns: the numbers that `work(trainer)` gives about plan `p`, such as a profile; it leaves the trainer's state
  /// as it is. They are recorded like a run, so that a search that is resumed decides by the same numbers. Throws:
  /// `error` with the message of what `work` threw.
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

  /// Returns: true where the last trial came from a ledger. The trainer's state is then not the one that the trial
  /// ended in.
  bool recalled() const { return recalled_; }

  /// Tells the observers of something before the search ends, and adds it to the outcome's warnings.
  void warn(const std::string& sentence) {
    log_.warnings.push_back(sentence);
    observers_.warned(sentence);
  }

  /// Runs `work` and adds its wall time to a stage. Recalled runs are added with the time that they took once.
  template <class F>
  void timed(stage where, F&& work) {
    const auto begin = std::chrono::steady_clock::now();
    const double recalled_before = recalled_seconds_;
    work();
    log_.cost(where).seconds += detail::seconds_since(begin) + recalled_seconds_ - recalled_before;
  }

 private:
  // Runs `work` into t.sample. An exception becomes a status, and the state is put back.
  template <class Work>
  void measure(trial& t, Work work) {
    const auto begin = std::chrono::steady_clock::now();
    try {
      t.sample = work();
      if (trainer_.has.validate && is_epoch(t) && t.sample.ok()) t.sample.score = trainer_.validate();
    } catch (const interrupted&) {
      to_kept();
      if (fatal_) std::rethrow_exception(std::exchange(fatal_, nullptr));  // the exception that made it stop
      throw;
    } catch (const settings_error&) {  // the training itself cannot run, whatever the plan
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

  // Returns: true for a whole epoch, after which the trainer's score is asked for.
  bool is_epoch(const trial& t) const {
    // A label says that it runs beside the training, as evidence.
    if (t.stage == stage::training) return t.label.empty();
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
      stop_asked_ = true;  // measure() rethrows it
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
    // A backend may report our stop as stopped_early. The reason is known here.
    if (ended != status::ok && (got.ok() || got.status == status::stopped_early)) got.status = ended;
    if (got.batches <= 0) got.batches = batches_seen(got);
    detail::complete(got, detail::seconds_since(begin));
    count(got);
    return got;
  }

  // Returns: the batches of an epoch whose sample does not say how many it had.
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
  std::weak_ptr<const void> saved_;  // the trainer's present state, where it was saved already
  sample trained_ = {};
  double seconds_ = 0, recalled_seconds_ = 0;
  std::map<std::pair<stage, plan>, std::size_t> repeats_;
  std::set<plan> warm_, ran_;
  batch_clock clock_;
  std::exception_ptr fatal_;
  bool may_recall_ = true, recalled_ = false, stop_asked_ = false, scores_ = false;
};

}  // namespace comp
