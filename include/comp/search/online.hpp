// SPDX-License-Identifier: Apache-2.0
// Searches in a loop that comp does not own. The loop asks under which plan its next batch trains, and tells what the
// batch gave:
//   comp::online search{comp::policy::pytorch{}, graph};
//   for (const batch& b : data) {
//     model.set_precision(search.plan());
//     const double loss = model.train(b);
//     search.tell({.loss = loss});
//   }
// It is the search of comp::two_stage, and the training after it, on a trainer whose batches are the loop's. The loop
// cannot give a batch again, so FP32 and a plan take turns (losses/turns.hpp). A plan whose losses explode or are not
// finite is left at once, and a rejected plan is not tried again. All batches are training; only those of a rejected
// plan's last block are undone, if the loop can keep its state and put it back (loop_info::save, restore).
// The search runs in a thread of its own, so that it can wait for a batch anywhere; of the two threads one always waits
// for the other. With a coroutine each function between the search and a batch would have to be one.
#pragma once

#include <comp/core/clock.hpp>
#include <comp/core/error.hpp>
#include <comp/core/execution.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/sample.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/post_training.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/trainer/run_samples.hpp>
#include <comp/search/two_stage.hpp>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <limits>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

namespace comp {

/// What comp cannot see of a loop.
struct loop_info {
  comp::hardware hardware = {};  // decides which sizes suit the matrix units; empty: not known
  std::vector<precision> precisions = {precision::fp32, precision::bf16, precision::fp16};  // that the model runs in
  std::size_t batches_per_epoch = 64;  // settings.planned_epochs counts in them; FP32 trains so many first, 64 at most
  // Keeps the loop's weights and optimizer, in place of those that it kept before, and puts them back. The loop's
  // thread calls them, between batches. None: batches of a rejected plan stay.
  std::function<void()> save = {}, restore = {};
  // Whether the loop's weights are finite: asked before a kept state goes, because a plan's last batch may have damaged
  // them although its loss was finite. None: they are taken to be.
  std::function<bool()> is_sound = {};
  std::function<bool(const op_info&, precision)> supports = {};  // none: each operator runs in each of `precisions`
  std::function<comp::execution(const plan&)> execution = {};  // how a plan runs, beyond its precisions; for plan files
  // The times of the operators in the last batch, which the loop measures if times_operators() is true before it. None:
  // costs are learned from whole batches alone.
  std::function<std::vector<op_time>()> times = {};
};

namespace detail {

/// The trainer that a loop is to the search: a batch is asked of the loop, and waited for.
class loop_trainer {
 public:
  /// Thrown in the search's thread when the loop has ended.
  struct loop_ended : interrupted {
    loop_ended() : interrupted{"the loop has ended (no batch follows): search in a longer one to go on"} {}
  };

  loop_trainer(op_graph graph, loop_info about)
      : graph_{std::move(graph)}, about_{std::move(about)}, plan_{as_written_} {}

  // ---- the search's side: a Backend ----
  const op_graph& graph() const { return graph_; }
  comp::hardware hardware() const { return about_.hardware; }
  std::vector<precision> supported_precisions() const { return about_.precisions; }
  std::uint64_t batches_per_epoch() const { return about_.batches_per_epoch; }
  bool supports(const op_info& op, precision p) const { return !about_.supports || about_.supports(op, p); }
  comp::execution execution() const { return about_.execution ? about_.execution(plan_) : comp::execution{}; }
  void set_precision(const plan& p) {
    const std::lock_guard lock{mutex_};
    plan_ = p;
    begins_block_ = true;
  }
  bool take_back() {
    const std::lock_guard lock{mutex_};
    if (!is_kept_ || batches_ == kept_batches_) return false;
    return puts_back_ = true;
  }
  sample run_batch() {
    std::unique_lock lock{mutex_};
    asked_ = true;
    changed_.notify_all();
    changed_.wait(lock, [&] { return answer_.has_value() || ended_; });
    if (!answer_) throw loop_ended{};
    return *std::exchange(answer_, std::nullopt);
  }
  sample run_epoch(const stop_predicate& stop = [](const sample&) { return false; }) {
    sample all{.loss = 0};
    while (static_cast<std::size_t>(all.batches) < about_.batches_per_epoch) {
      sample next = run_batch();
      complete(next, next.seconds);
      append(all, next);
      if (stop(all)) break;
      if (!next.ok()) {
        all.status = next.status;
        all.message = next.message;
        break;
      }
    }
    return all;
  }

  void trust(const plan& p) {
    const std::lock_guard lock{mutex_};
    trusted_ = p;
  }
  void go_on_under(const plan& p) {
    const std::lock_guard lock{mutex_};
    if (found_) found_->plan = p;
  }
  bool can_profile() const { return about_.times != nullptr; }
  /// Trains a batch, and another one whose operators the loop times. They are undone if the plan is not FP32.
  std::vector<op_time> profile() {
    (void)run_batch();
    {
      const std::lock_guard lock{mutex_};
      times_operators_ = true;
    }
    (void)run_batch();
    if (!is_fp32()) (void)take_back();
    return std::exchange(operator_times_, {});
  }

  // ---- the loop's side ----
  bool times_operators() const {
    const std::lock_guard lock{mutex_};
    return times_operators_;
  }
  /// Waits until the search asks for a batch, or is over, and puts the state back if the search says so. Returns: the
  /// plan of the next batch.
  const plan& wait() {
    std::unique_lock lock{mutex_};
    changed_.wait(lock, [&] { return asked_ || over_; });
    const bool puts_back = std::exchange(puts_back_, false);
    if (puts_back) batches_ = kept_batches_;
    lock.unlock();  // the loop's functions may wait for another lock
    if (puts_back) about_.restore();
    return plan_;
  }
  /// As wait(), and has the loop keep its state before a block of another plan than FP32. The kept state stays until
  /// FP32, or a trusted plan, has trained a batch to which the search did not object, because damage that the block did
  /// may first show there. If the weights are not finite when the kept state would be dropped, the kept state is put
  /// back, and the search is told of a lost batch.
  const plan& begin_batch() {
    while (true) {
      const plan& next = wait();
      std::unique_lock lock{mutex_};
      const bool is_unconfirmed = is_kept_ && !another_has_trained_, is_trusted = is_fp32() || plan_ == trusted_;
      // A trusted plan confirms the block before it, and begins a block of its own only after that.
      const bool new_block = begins_block_ && !(is_trusted && is_unconfirmed && plan_ != kept_plan_);
      const bool drops_kept = is_kept_ && (new_block || !is_unconfirmed);
      const bool keeps_state = new_block && !is_fp32() && !over_ && about_.save;
      lock.unlock();  // the loop's functions may wait for another lock
      const bool is_sound = !(drops_kept || keeps_state) || !about_.is_sound || about_.is_sound();
      if (drops_kept && kept_is_sound_ && !is_sound && lose_batch()) continue;
      if (keeps_state) about_.save();
      lock.lock();
      another_has_trained_ = false;
      begins_block_ = begins_block_ && !new_block;
      if (drops_kept || new_block) is_kept_ = keeps_state;
      if (!keeps_state) return next;
      kept_batches_ = batches_;
      kept_plan_ = plan_;
      kept_is_sound_ = is_sound;
      return next;
    }
  }
  /// Returns: true if the search takes the batch, or is over and drops it; false if it asked for none.
  bool give(sample of_batch) {
    std::vector<op_time> times = times_operators() ? about_.times() : std::vector<op_time>{};
    const std::lock_guard lock{mutex_};
    times_operators_ = false;
    operator_times_ = std::move(times);
    if (!std::exchange(asked_, false)) return over_;
    another_has_trained_ = is_kept_ && plan_ != kept_plan_;
    ++batches_;
    last_seconds_ = of_batch.seconds;
    answer_ = std::move(of_batch);
    changed_.notify_all();
    return true;
  }
  /// No batch follows.
  void end() {
    const std::lock_guard lock{mutex_};
    ended_ = true;
    changed_.notify_all();
  }

  // ---- what the search's thread tells the loop's ----
  void set_found(outcome found) {
    const std::lock_guard lock{mutex_};
    found_ = std::move(found);
    found_->trained_batches = batches_;
  }
  const outcome* found() const {
    const std::lock_guard lock{mutex_};
    return found_ ? &*found_ : nullptr;
  }
  bool is_over() const {
    const std::lock_guard lock{mutex_};
    return over_;
  }
  void set_over(std::exception_ptr failure) {
    const std::lock_guard lock{mutex_};
    over_ = true;
    failure_ = std::move(failure);
    changed_.notify_all();
  }
  std::exception_ptr take_failure() {
    const std::lock_guard lock{mutex_};
    return std::exchange(failure_, nullptr);
  }

 private:
  bool is_fp32() const { return plan_ == as_written_; }
  // Has wait() put the kept state back, and tells the search of a lost batch. Returns: false if the loop is at that
  // state.
  bool lose_batch() {
    const std::lock_guard lock{mutex_};
    if (batches_ == kept_batches_) return false;
    puts_back_ = true;
    another_has_trained_ = false;
    if (!std::exchange(asked_, false)) return true;
    answer_ = sample{.loss = std::numeric_limits<double>::quiet_NaN(), .seconds = last_seconds_, .batches = 1};
    changed_.notify_all();
    return true;
  }

  op_graph graph_;
  plan as_written_ = as_written(graph_);  // FP32, of a model in FP32
  loop_info about_;
  plan plan_;
  mutable std::mutex mutex_ = {};
  std::condition_variable changed_ = {};
  bool begins_block_ = false;         // a plan was set, and no batch has begun under it
  bool is_kept_ = false;              // the loop keeps the state before the last block of another plan than FP32
  comp::plan kept_plan_ = {};         // the plan of that block
  bool kept_is_sound_ = false;        // the kept state is finite
  comp::plan trusted_ = {};           // a bad batch under this plan is attributed to the plan before it
  bool another_has_trained_ = false;  // the last batch was under another plan than kept_plan_, and none has begun since
  bool puts_back_ = false;            // wait() is to have the loop put the kept state back
  std::size_t batches_ = 0, kept_batches_ = 0;  // how many batches led to the loop's state, and to the kept state
  double last_seconds_ = 0;                     // what the last batch took
  bool asked_ = false;                          // the search waits for a batch
  bool ended_ = false;                          // the loop gives no more batches
  bool over_ = false;                           // the search and the training after it are over
  bool times_operators_ = false;                // the loop is to time the operators of the next batch
  std::optional<sample> answer_ = {};
  std::vector<op_time> operator_times_ = {};  // of the last batch
  std::optional<outcome> found_ = {};
  std::exception_ptr failure_ = {};
};

}  // namespace detail

class online {
 public:
  /// `graph`: the operators of a batch. Nothing is run before the first plan(). `observers`: of the search, whose
  /// thread calls them; they have to live longer.
  template <class P, class... Observers>
  online(P policy, op_graph graph, loop_info loop = {}, search_settings settings = {}, Observers&... observers)
      : online{
            std::move(graph), std::move(loop),
            [policy = std::move(policy), settings = std::move(settings), &observers...](detail::loop_trainer& trainer) {
              outcome found = two_stage<P>{.policy = policy, .settings = settings}.run(trainer, observers...);
              trainer.set_found(found);
              post_training{.epochs = settings.planned_epochs}.run(trainer, found);
            }} {}
  /// Searches for nothing: trains under a plan that an earlier search found, after a few batches in FP32, and guards it
  /// as the training after a search is guarded. `known`: its plan, which may have later ones, and its execution.
  /// plan() throws: `plan_error` for plans of another model.
  online(outcome known, op_graph graph, loop_info loop = {}, search_settings settings = {})
      : online{std::move(graph), std::move(loop),
               [known = std::move(known), settings = std::move(settings)](detail::loop_trainer& trainer) {
                 trainer_of<detail::loop_trainer> erased{trainer};
                 const outcome found = detail::train_before_known(erased, known, settings);
                 trainer.set_found(found);
                 post_training{.epochs = settings.planned_epochs}.run(trainer, found);
               }} {}
  /// For ranks (ranks.hpp). `work`: the search, which tells the trainer what it found, and the training after it.
  online(op_graph graph, loop_info loop, std::function<void(detail::loop_trainer&)> work)
      : trainer_{std::move(graph), std::move(loop)}, work_{std::move(work)} {}
  online(const online&) = delete;
  online& operator=(const online&) = delete;
  ~online() {
    trainer_.end();
    if (thread_.joinable()) thread_.join();
  }

  /// Returns: the plan under which the next batch is to train. Before the search has begun to compare plans this is
  /// FP32, and after the planned training its last plan.
  /// Throws: what the search throws, once: `settings_error` for settings that cannot be used, `error` if FP32 does not
  /// train; the plan is FP32 from then on.
  const comp::plan& plan() {
    if (!thread_.joinable()) thread_ = std::thread{[this] { work(); }};
    const comp::plan& next = trainer_.begin_batch();
    if (const std::exception_ptr failure = trainer_.take_failure()) std::rethrow_exception(failure);
    since_ = {};
    return next;
  }
  /// Takes what the batch gave: at least its loss. Its seconds are those since plan() unless they are given. When it
  /// returns, the loop's state is back if the search rejected the plan, and found() is known if it has ended.
  /// Throws: `error` if plan() was not called since the last batch.
  void tell(sample of_batch) {
    if (of_batch.seconds <= 0) of_batch.seconds = since_.seconds();
    require<error>(trainer_.give(std::move(of_batch)),
                   "tell() without plan() before it (each batch trains under a plan): call plan() before the batch");
    (void)trainer_.wait();
  }

  /// Returns: true if the loop is to time the operators of the next batch (loop_info::times). Ask it after plan().
  bool times_operators() const { return trainer_.times_operators(); }
  /// Returns: what the search found; nullptr while it goes on, or if it failed. If the training after it gives the plan
  /// up, it has the one that goes on.
  const outcome* found() const { return trainer_.found(); }
  /// Returns: true if the search and the planned training after it have ended, so that nothing is compared any more.
  bool is_over() const { return trainer_.is_over(); }

 private:
  void work() {
    std::exception_ptr failure;
    try {
      work_(trainer_);
    } catch (const detail::loop_trainer::loop_ended&) {
    } catch (...) {
      failure = std::current_exception();
      trainer_.set_precision(as_written(trainer_.graph()));
    }
    trainer_.set_over(std::move(failure));
  }

  detail::loop_trainer trainer_;
  std::function<void(detail::loop_trainer&)> work_;
  std::thread thread_ = {};
  detail::stopwatch since_ = {};
};

}  // namespace comp
