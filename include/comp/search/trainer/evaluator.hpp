// SPDX-License-Identifier: Apache-2.0
// Runs plans on a trainer. It asks a ledger first whether a run is recorded already, keeps count of the batches that
// lead to the trainer's state, turns exceptions into failed trials, and tells the observers.
#pragma once

#include <algorithm>
#include <comp/core/clock.hpp>
#include <comp/search/observers.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <comp/search/trainer/findings.hpp>
#include <comp/search/trainer/run_samples.hpp>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <utility>
#include <vector>

namespace comp {

/// While it lives, something is on: `set(true)` is called at its begin and `set(false)` at its end. What that throws is
/// dropped, because the caller has to see the first exception.
class switch_on {
 public:
  explicit switch_on(std::function<void(bool)> set) : set_{std::move(set)} { set_(true); }
  switch_on(const switch_on&) = delete;
  switch_on& operator=(const switch_on&) = delete;
  ~switch_on() {
    try {
      set_(false);
    } catch (...) {
    }
  }

 private:
  std::function<void(bool)> set_;
};

/// A plan damaged the training of a trainer that cannot restore its state: from batch `since` on, counted from 0, every
/// loss is NaN, infinite or far above FP32's first ones, FP32's too.
struct damaged_training : error {
  explicit damaged_training(std::size_t batch)
      : error{fmt::format(
            "a plan damaged the training: every loss since batch {}, FP32's too, is NaN, infinite or far above "
            "FP32's first ones (the trainer cannot restore its state): begin the training anew, and give "
            "the trainer save() and restore()",
            batch)},
        since{batch} {}
  std::size_t since;
};

class evaluator {
 public:
  evaluator(any_trainer& trainer, any_observer& observers, outcome& log)
      : trainer_{trainer}, observers_{observers}, log_{log}, fp32_{log.graph.size()} {
    for (const trial& t : log.trials) ++repeats_[{t.stage, t.purpose, t.plan}];
    remember_start();
  }

  /// Makes the trainer's present state the start of a training.
  void remember_start() {
    trained_ = {};
    keep_state();
  }
  /// Rejects `p`, which damaged a state or whose batches failed: it is not taken again.
  void reject(const plan& p) { rejected_.insert(p); }
  bool rejects(const plan& p) const { return rejected_.contains(p); }
  /// Returns: the batches since the last sound state.
  const unchecked_batches& unchecked() const { return unchecked_; }
  /// Makes the trainer's present state a sound one.
  void trust_state() { unchecked_ = {}; }
  /// Makes the trainer's present state the one that a failed run is undone to.
  void keep_state() {
    kept_state_ = {};  // before the next one is made, because a state is large
    kept_state_ = save();
  }

  /// Returns: true if the trainer can save and restore its state.
  bool restores() const { return trainer_.has.save; }
  /// Returns: the trainer's present state; for a backend that cannot save, only the batches that led to it. A state is
  /// saved once, however often it is asked for, because a copy of all weights is large.
  checkpoint save() {
    std::shared_ptr<const void> now = saved_state_.lock();
    if (now == nullptr) now = trainer_.save();
    saved_state_ = now;
    return {std::move(now), trained_, unchecked_};
  }
  void restore(const checkpoint& to) {
    if (!restores()) return;
    trainer_.restore(to.state.get());
    trained_ = to.trained;
    unchecked_ = to.unchecked;
    saved_state_ = to.state;
  }
  void restore_kept_state() { restores() ? restore(kept_state_) : (void)trainer_.take_back(); }

  /// Returns: the batches that lead from the start to the trainer's state.
  const sample& trained() const { return trained_; }
  /// Returns: the seconds of all runs, those that were undone or recalled included.
  double seconds() const { return seconds_; }
  any_trainer& trainer() { return trainer_; }
  const outcome& log() const { return log_; }
  /// Returns: comp's own times of the batches, beside those that the trainer gave.
  const batch_clock& clock() const { return clock_; }
  /// Returns: the plan that "FP32" stands for.
  const plan& fp32() const { return fp32_; }
  /// From now on a bad batch under `p`, which was accepted, is attributed to the plan before it, as under FP32.
  void trust(const plan& p) {
    trusted_ = p;
    trainer_.trust(p);
  }
  void set_fp32(const plan& p) { fp32_ = p; }

  /// Makes a trial of what `work(trial)` runs, or of what a ledger has for this stage, plan and repeat; such a trial is
  /// `recalled`, and the trainer's state is not the one that it ended in. Acceptance and times are set from the sample
  /// alone; a caller that knows more sets them again. `seconds_before`: the seconds of its sample that an earlier trial
  /// already counted.
  trial run(stage where, const plan& p, std::string label, auto work, purpose what = purpose::judge,
            std::optional<std::size_t> repeat = {}, double seconds_before = 0) {
    throw_if_stop_requested();
    trial t;
    t.number = log_.trials.size();
    t.stage = where;
    t.plan = p;
    t.label = std::move(label);
    t.purpose = what;
    t.repeat = repeat ? *repeat : repeats_[{where, what, p}]++;
    std::optional<trial> earlier;
    failure_ = nullptr;
    end_search_on_throw([&] { earlier = observers_.recall(t); });
    t.recalled = earlier.has_value();
    if (t.recalled) {
      t.sample = earlier->sample;
      ++log_.recalled;
      recalled_seconds_ += t.sample.seconds - seconds_before;
      seconds_ += t.sample.seconds - seconds_before;  // it was paid for, and budgets count it
      if (p != fp32_ && trains(t.purpose)) begin_unchecked(p);
    } else {
      end_search_on_throw([&] { observers_.trial_started(t); });
      run_and_catch(t, [&] { return work(t); });
    }
    if (trains(t.purpose)) plans_run_.insert({p, compiled_});
    detail::summarise_times(t);
    t.accepted = t.sample.ok();
    return t;
  }
  /// run() and record(), for a trial that is judged by its sample alone.
  trial run_and_record(stage where, const plan& p, std::string label, auto work, purpose what = purpose::judge,
                       std::optional<std::size_t> repeat = {}) {
    trial t = run(where, p, std::move(label), work, what, repeat);
    record(t);
    return t;
  }
  /// Runs `work`, and puts the trainer back to its present state.
  void run_and_undo(auto work) {
    const checkpoint here = save();
    work();
    restore(here);
  }
  /// Runs `work` so that what it throws ends the search. Observers, and FP32's batches that a candidate waits for, are
  /// run within a candidate's run; without this their exceptions would count as the candidate's failure.
  void end_search_on_throw(auto work) {
    try {
      work();
    } catch (...) {
      if (!search_error_) search_error_ = std::current_exception();  // the first one is the cause
      throw;
    }
  }

  /// Adds a trial to the outcome and tells the observers, after it was judged. It gets its number now, because others
  /// may have been recorded in the meantime. `batches_before`: the batches of its sample that an earlier trial already
  /// counted.
  void record(trial t, std::int64_t batches_before = 0) {
    t.number = log_.trials.size();
    auto& cost = log_.cost(t.stage);
    ++cost.runs;
    if (trains(t.purpose)) cost.batches += static_cast<std::size_t>(t.sample.batches - batches_before);
    log_.trials.push_back(t);
    end_search_on_throw([&] {
      if (observers_.trial_done(t)) stop_requested_ = true;
    });
    throw_if_stop_requested();
  }

  /// Trains the next batches under `p` until `so_far` has `batches` of them. `cut` looks at `so_far` after each batch
  /// and returns the status to end with, or status::ok to go on.
  void train(const trial& begun, const plan& p, std::size_t batches, sample& so_far, auto cut) {
    begin_batches(p);
    warmed_up_.insert({p, compiled_});
    while (so_far.ok() && static_cast<std::size_t>(so_far.batches) < batches) {
      const detail::stopwatch watch;
      saved_state_.reset();
      sample next = trainer_.run_batch();
      const double wall_seconds = watch.seconds();
      clock_.add(p, next.seconds, wall_seconds);
      detail::complete(next, wall_seconds);
      detail::raise_to_floor(next, log_.floor);
      count_as_trained(next);
      detail::append(so_far, next);
      if (loses_for_good(p, next)) so_far.status = status::not_finite;
      tell_observers(begun, so_far);
      if (stop_requested_) return;
      if (so_far.ok()) so_far.status = cut(so_far);
    }
  }

  /// Trains an epoch of `p` from the trainer's state. The trial is not recorded yet.
  trial run_epoch(stage where, const plan& p, std::string label, auto cut) {
    return run(where, p, std::move(label), [&](const trial& begun) {
      begin_batches(p);
      return run_watched_epoch(begun, cut);
    });
  }

  /// Has steps run compiled from now on, or operator by operator. Returns: whether a compiler has any part of a step.
  bool run_compiled(bool on) {
    const bool compiles = trainer_.run_compiled(on);
    compiled_ = compiles && on;
    return compiles;
  }
  /// Trains and times the next batch under `p`. Before a plan's first one a warm-up batch is trained, which is neither
  /// timed nor returned: it pays for what is made once (primitives, workspaces, compiled code). Compiled steps get a
  /// second one, because code is compiled anew when sizes vary.
  trial run_batch(stage where, const plan& p, std::string label) {
    return run_and_record(where, p, std::move(label), [&](const trial& begun) {
      sample warm_up, timed_batch;
      if (!warmed_up_.contains({p, compiled_})) {
        train(begun, p, compiled_ ? 2 : 1, warm_up, detail::never_cut);
        if (!warm_up.ok() || warm_up.not_finite > 0) return warm_up;
      }
      train(begun, p, 1, timed_batch, detail::never_cut);
      return timed_batch;
    });
  }
  /// Returns: true if times are modelled: those of a plan do not vary.
  bool times_are_modelled() const { return is_modelled(log_.hardware); }
  /// Returns: true if `p` has had a batch in this search, or a recalled one, that was compiled as batches are now.
  bool has_run(const plan& p) const { return plans_run_.contains({p, compiled_}); }

  /// Returns: the numbers that `work(trainer)` gives about plan `p`, such as a profile; it leaves the trainer's state
  /// as it is. They are recorded like a run, so that a search that is resumed decides by the same numbers. Throws: what
  /// `work` threw; `error` with its message if that was recorded.
  std::vector<double> record_numbers(const plan& p, std::string label, purpose what, auto work,
                                     std::optional<std::size_t> repeat = {}) {
    const trial t = run_and_record(
        stage::baseline, p, std::move(label),
        [&](const trial&) {
          const detail::stopwatch watch;
          trainer_.set_precision(p);
          sample answer{.loss = 0, .batches = 1, .curve = work(trainer_)};
          answer.seconds = seconds_of_numbers(watch.seconds());
          seconds_ += answer.seconds;
          return answer;
        },
        what, repeat);
    if (failure_) std::rethrow_exception(failure_);
    require<error>(t.sample.ok(), "{}",
                   t.sample.message.empty() ? std::string{name(t.sample.status)} : t.sample.message);
    return t.sample.curve;
  }

  /// Returns: for a trainer that cannot restore its state, the batch that a plan lost, counted from 0, if no batch has
  /// had a finite loss since then.
  const std::optional<std::size_t>& lost_since() const { return lost_since_; }
  /// Returns: the exception that ended the last failed run; null if none did.
  const std::exception_ptr& failure() const { return failure_; }

  /// Adds a sentence to the outcome's warnings and tells observers at once; nothing if there is no problem. A search
  /// that has started warns in no other way.
  void warn(const detail::problem& found) {
    if (found) detail::warn(log_, observers_, *found);
  }

  /// Runs `work` and adds its wall time to a stage. Recalled runs are added with the time that they took once.
  void timed(stage where, auto&& work) {
    const detail::stopwatch watch;
    const double recalled_before = recalled_seconds_;
    work();
    log_.cost(where).seconds += watch.seconds() + recalled_seconds_ - recalled_before;
  }

 private:
  // Runs `work` into t.sample. An exception becomes a status, and the state is put back.
  void run_and_catch(trial& t, auto work) {
    const detail::stopwatch watch;
    try {
      t.sample = work();
      if (trainer_.has.validate && needs_score(t) && t.sample.ok()) t.sample.score = trainer_.validate();
    } catch (const interrupted&) {
      restore_kept_state();
      if (search_error_)
        std::rethrow_exception(std::exchange(search_error_, nullptr));  // the exception that made it stop
      throw;
    } catch (const settings_error&) {  // the training itself cannot run, whatever the plan
      restore_kept_state();
      throw;
    } catch (...) {
      if (detail::fail_by_exception(t.sample)) failure_ = std::current_exception();
    }
    if (search_error_) {
      restore_kept_state();
      std::rethrow_exception(std::exchange(search_error_, nullptr));
    }
    detail::complete(t.sample, watch.seconds());
    if (stop_requested_) throw_if_stop_requested();
    if (!t.sample.ok()) restore_kept_state();
  }

  // Returns: true for a whole epoch, after which the trainer's score is asked for. Runs beside the training, which only
  // give evidence, have a label.
  bool needs_score(const trial& t) const {
    if (t.stage == stage::training) return t.label.empty();
    if (!restores()) return t.sample.batches > 1;
    return log_.criterion == criterion::scores && t.sample.batches >= static_cast<std::int64_t>(log_.batches_per_epoch);
  }

  // Returns the cost of numbers about a plan. This machine's clock would spend a budget of modelled batches at once, so
  // on a modelled GPU they cost one of FP32's batches at most.
  double seconds_of_numbers(double wall_seconds) const {
    const sample& fp32 = log_.baseline;
    if (!times_are_modelled() || fp32.batches <= 0) return wall_seconds;
    return std::min(wall_seconds, fp32.seconds / static_cast<double>(fp32.batches));
  }

  void begin_batches(const plan& p) {
    trainer_.set_precision(p);
    if (!trusts(p)) begin_unchecked(p);
  }
  bool trusts(const plan& p) const { return p == fp32_ || p == trusted_; }
  // Notes that batches under `p` follow, and keeps the state before the first of such batches: FP32 trains them again
  // from there if they damage the state.
  void begin_unchecked(const plan& p) {
    if (unchecked_.from == nullptr && restores())
      unchecked_ = {std::make_shared<const checkpoint>(save()), trainer_.count_extreme()};
    unchecked_.low = p;
  }

  void count_as_trained(const sample& more) {
    detail::append(trained_, more);
    trained_.status = status::ok;
    seconds_ += more.seconds;
    if (unchecked_.from != nullptr) unchecked_.count += static_cast<std::size_t>(more.batches);
  }

  // For a trainer that cannot restore its state: answers a bad last batch of `run`. If the loop takes back the last
  // block (take_back()), the block's plan is rejected; else `p` is, unless it is FP32 or the data may be the cause.
  // Returns: true if the run of `p` ends here. Throws: `damaged_training` if FP32 then loses batch after batch.
  bool loses_for_good(const plan& p, const sample& run) {
    if (restores() || unchecked_.low.empty()) return false;
    if (!detail::ends_badly(log_, run)) {
      lost_since_.reset();
      return false;
    }
    if (is_own_fault(run) && trainer_.take_back()) {  // also if FP32 is the first to show the harm
      lost_since_.reset();
      reject(unchecked_.low);
      return !trusts(p);
    }
    if (!lost_since_) lost_since_ = static_cast<std::size_t>(trained_.batches - 1), lost_by_fp32_ = 0;
    if (p == fp32_ && ++lost_by_fp32_ >= lost_in_a_row_that_damage)
      end_search_on_throw([&] { throw damaged_training{*lost_since_}; });
    if (p == fp32_ || !is_own_fault(run)) return false;
    reject(p);
    return true;
  }
  // Returns: true if the data cannot be the cause of a bad batch, because they do not make FP32 lose one.
  bool is_own_fault(const sample& run) const {
    return detail::ends_badly(log_, run) && (log_.baseline.not_finite == 0 || !ends_lost(run));
  }

  void tell_observers(const trial& begun, const sample& so_far) {
    try {
      end_search_on_throw([&] {
        observers_.batch_done(begun, so_far);
        if (observers_.stop_requested()) stop_requested_ = true;
      });
    } catch (...) {
      stop_requested_ = true;  // run_and_catch() rethrows it
    }
  }

  sample run_watched_epoch(const trial& begun, auto cut) {
    saved_state_.reset();
    const detail::stopwatch watch;
    status cut_status = status::ok;
    const bool is_low = begun.plan != fp32_;
    sample epoch = trainer_.run_epoch([&](const sample& so_far) {
      tell_observers(begun, so_far);
      if (cut_status == status::ok) cut_status = cut(so_far);
      if (is_low && !restores() && is_own_fault(so_far)) cut_status = status::not_finite;
      return stop_requested_ || cut_status != status::ok;
    });
    // A backend may report our stop as stopped_early. The reason is known here.
    if (cut_status != status::ok && (epoch.ok() || epoch.status == status::stopped_early)) epoch.status = cut_status;
    if (epoch.batches <= 0) epoch.batches = count_batches(epoch);
    detail::complete(epoch, watch.seconds());
    detail::raise_to_floor(epoch, log_.floor);
    count_as_trained(epoch);
    if (loses_for_good(begun.plan, epoch)) epoch.status = status::not_finite;
    return epoch;
  }

  // Returns: the batches of an epoch whose sample does not say how many it had.
  std::int64_t count_batches(const sample& epoch) const {
    const std::size_t length = std::max(epoch.curve.size(), epoch.batch_seconds.size());
    return static_cast<std::int64_t>(epoch.ok() ? std::max(length, log_.batches_per_epoch) : length);
  }

  void throw_if_stop_requested() {
    if (!stop_requested_ && !observers_.stop_requested()) return;
    restore_kept_state();
    throw interrupted{
        fmt::format("search stopped after {} runs (it was asked to): start it again with the same ledger to go on",
                    log_.trials.size())};
  }

  any_trainer& trainer_;
  any_observer& observers_;
  outcome& log_;
  plan fp32_, trusted_ = {};
  checkpoint kept_state_;
  std::weak_ptr<const void> saved_state_;  // the trainer's present state, if it was saved already
  sample trained_ = {};
  unchecked_batches unchecked_ = {};
  // If the state cannot be restored: the batch that a plan lost, after which no loss was finite, counted from 0; and
  // how many of FP32's followed it.
  std::optional<std::size_t> lost_since_ = {};
  std::int64_t lost_by_fp32_ = 0;
  double seconds_ = 0, recalled_seconds_ = 0;
  std::map<std::tuple<stage, purpose, plan>, std::size_t> repeats_;
  std::set<plan> rejected_;
  std::set<std::pair<plan, bool>> warmed_up_, plans_run_;  // each with whether its steps were compiled
  batch_clock clock_;
  std::exception_ptr search_error_, failure_;
  bool stop_requested_ = false, compiled_ = false;
};

}  // namespace comp
