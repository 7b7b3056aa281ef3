// SPDX-License-Identifier: Apache-2.0
// A search in a loop that Python owns, behind comp.autocast: the loop's regions ask comp::online for the plan of the
// next batch, and step() tells what the batch gave. If the plan is known from a file, nothing is searched: it is
// guarded. The first batch is trained in FP32 to see its operators. If a plan is the first with its low precision, the
// batches that follow show how it is best run (executor_tuning.hpp), before the search is told of any. A loss far above
// FP32's ends that, because only the search can leave the plan. The search's thread runs no Python. The interpreter's
// lock is released while the loop waits for it. Ranks search as one. What a rank measures before the search is told of
// it, it measures as the slowest of them does.
#pragma once

#include <torch/csrc/utils/pybind.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <comp/comp.hpp>
#include <comp/files/plan_file.hpp>
#include <comp/observe/ledger.hpp>
#include <comp/search/online.hpp>
#include <comp_libtorch/comp_libtorch.hpp>
#include <comp_libtorch/plan/exchange.hpp>
#include <comp_libtorch/plan/plan_tuner.hpp>
#include <comp_libtorch/support/hardware.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "ranks.hpp"
#include "regions.hpp"

namespace comp::python {

/// A ledger that ends no training: a file of another model's search is written anew, and one that cannot be written, or
/// that another process writes to, is left.
class loop_ledger {
 public:
  explicit loop_ledger(std::string path) : path_{std::move(path)} {}

  void search_started(const search_info& info) {
    if (path_.empty()) return;
    is_own_ = attempt([&] { runs_.emplace(path_).search_started(info); });
    if (is_own_) return;
    const std::string why = problem_;
    is_own_ = attempt([&] { runs_.emplace(path_, ledger::mode::restart).search_started(info); });
    if (!info.warn) return;
    info.warn(is_own_ ? why + "; this loop writes it anew, and its search begins from its first batch"
                      : problem_ + "; what this loop's search learns is not kept");
  }
  /// Returns: true if this search has opened the file, so that no other one uses it.
  bool is_own() const { return is_own_; }
  std::optional<trial> recall(const trial& wanted) { return runs_ ? runs_->recall(wanted) : std::nullopt; }
  void trial_done(const trial& t) {
    if (runs_) (void)attempt([&] { runs_->trial_done(t); });
  }

 private:
  template <class F>
  bool attempt(F work) {
    try {
      work();
      return true;
    } catch (const file_error& error) {
      problem_ = error.what();
      runs_.reset();
      return false;
    }
  }

  std::string path_, problem_;
  bool is_own_ = false;
  std::optional<ledger> runs_;
};

struct loop_job {
  std::vector<std::pair<std::string, parameter_tree::named>> models;  // parameters as the forward reads them
  py::function trains;                                                // () -> bool: whether a model is in training mode
  py::function stepped;        // () -> bool: whether the one optimizer has stepped since step()
  py::function leave;          // (): a forward under a plan has left its regions
  py::function save, restore;  // (): keep and put back what the loop trains
  py::function is_sound;       // () -> bool: whether the weights are finite
  any_policy policy;
  search_settings settings;
  std::string ledger_path;    // empty: none
  std::string plan_path;      // of the plan that is known; empty: it is searched
  bool forced = false;        // use a known plan although this machine computes it slowly
  bool keeps_states = false;  // the caller keeps an optimizer's moments as the plan says
  std::size_t batches_per_epoch = 0;
  bool tune = true;  // measure how plans are best run
  bool protect_blocks = true;
  bool exchange = false;             // the plan has the format in which ranks exchange gradients
  std::vector<op_info> states = {};  // that the training keeps, as operators, which a loop's search leaves in FP32
  libtorch::freed_memory freed = libtorch::freed_memory::returned;
  std::shared_ptr<rank_team> ranks;  // null: it trains alone
};

class loop {
 public:
  explicit loop(loop_job given)
      : given_{std::move(given)},
        trees_{planned::trees_of(given_.models)},
        modules_{planned::named_modules(given_.models, trees_)},
        known_{given_.plan_path.empty() ? std::nullopt : std::optional{load_listing(given_.plan_path)}},
        program_{libtorch::on_device_of(modules_, program_settings_of(given_, known_))},
        device_{program_.settings().device},
        hardware_{libtorch::probe(device_)},
        agree_{given_.ranks == nullptr
                   ? libtorch::agreement{}
                   : [this](std::vector<double> own) { return given_.ranks->team().maximum(std::move(own)); }},
        tuning_{
            program_,
            libtorch::choices_on(given_.tune ? libtorch::executor_choices::measured : libtorch::executor_choices::fixed,
                                 agree_, hardware_),
            {},
            agree_},
        ledger_{given_.ledger_path},
        regions_{[this](const std::string& segment, bool no_gradients) {
                   return std::unique_ptr<libtorch::region>{new libtorch::region{open(segment, no_gradients)}};
                 },
                 [this]() -> libtorch::program& { return program_; }} {
    if (known_ && !given_.forced) libtorch::detail::require_useful(*known_, program_.settings(), hardware_);
    for (const libtorch::named_module& m : modules_) program_.name_parameters(*m.module, m.name);
    tuning_.expect_epochs_of(static_cast<std::int64_t>(given_.batches_per_epoch));
    regions_.at_end([this] {
      if (program_.lowers()) given_.leave();
    });
  }
  loop(const loop&) = delete;
  loop& operator=(const loop&) = delete;
  ~loop() { leave_to_parent(); }

  regions& opened() { return regions_; }
  /// Ends the batch. `losses`: by name. `seconds`: of the batch; 0: those since its first region was entered.
  /// Throws: `error` if no region was entered, or the first batch has no operator.
  void step(const std::vector<std::pair<std::string, double>>& losses, double seconds) {
    require<error>(!regions_.open(),
                   "step() inside `with plan:` (the batch is not over): call it after the optimizer's step");
    if (take_failure()) return;
    require<error>(begun_,
                   "step() without a training forward in `with plan:` before it (forwards without gradients, and in "
                   "evaluation mode, belong to no batch): write `with plan:` around the forward");
    if (searches()) libtorch::synchronize(device_);
    if (seconds <= 0) seconds = since_.seconds();
    begun_ = false;
    ++batches_, ++batches_since_save_;
    if (ended_) return;
    if (search_ == nullptr) return end_recording();
    program_.end_step();
    sample of_batch{.loss = 0, .seconds = seconds, .batches = 1};
    for (const auto& [name, loss] : losses) {
      of_batch.loss += loss;
      if (losses.size() > 1) of_batch.losses.push_back(loss);
    }
    if (measurement_ && on_any_rank(looks_wrong(of_batch.loss))) measurement_.reset();
    if (found_ == nullptr && !program_.changes()) fp32_losses_.push_back(of_batch.loss);
    measurement_ ? measure(seconds) : tell(std::move(of_batch));
  }

  /// Treats the batch as one whose forward raised an exception. Returns: false if its plan lowers nothing.
  bool fail() {
    if (program_.lowers()) regions_.fail();
    return program_.lowers();
  }

  /// Returns: what the search found, and what the training after it left of that; null before.
  std::shared_ptr<const outcome> found() {
    const outcome* now = search_ == nullptr ? nullptr : search_->found();
    if (now != nullptr && found_ == nullptr) found_ = std::make_shared<outcome>(*now);
    return found_;
  }
  const plan& current_plan() const { return program_.current_plan(); }
  /// Returns: true if the ledger is this loop's, and not another process's.
  bool owns_ledger() const { return ledger_.is_own(); }
  bool searches() const { return !ended_ && (search_ == nullptr || !search_->is_over()); }
  std::size_t batches() const { return batches_; }
  std::size_t batches_undone() const { return batches_undone_; }
  std::pair<std::size_t, std::string> left() const {
    const libtorch::program_problems problems = program_.problems();
    const std::size_t count = problems.unknown + problems.mismatches + problems.ended_early;
    return {count, count > 0 ? problems.first : std::string{}};
  }
  /// Ends the search: all that follows trains as the last plan says.
  void end() {
    leave_to_parent();
    if (given_.ranks != nullptr) given_.ranks->team().hurry();  // others may go on, or be gone
    const py::gil_scoped_release others_run;
    measurement_.reset();
    search_.reset();
    ended_ = true;
  }

 private:
  libtorch::region open(const std::string& segment, bool no_gradients) {
    if (no_gradients) return evaluate();
    const bool trains = given_.trains().cast<bool>();
    if (!trains && recorded_training_) return evaluate();
    (void)take_failure();
    const bool again = begun_ && std::ranges::find(segments_, segment) != segments_.end();
    if (again && given_.stepped().cast<bool>()) {
      begun_ = false;
      throw error{
          "`with plan:` again after the optimizer's step (step() was not called, so nobody knows what the batch gave): "
          "call plan.step(loss) when a batch is over"};
    }
    if (search_ == nullptr && !ended_) {
      if (!begun_ || trains != recorded_training_) program_.record(true);
      recorded_training_ = trains;
    } else if (!begun_ && !ended_) {
      begin_batch();
    }
    if (!begun_) {
      segments_.clear();
      since_ = {};
    }
    begun_ = true;
    if (!again) segments_.push_back(segment);
    const bool known = program_.is_recording() || program_.is_recorded();
    const bool changes = found() == nullptr || program_.changes() || program_.may_read_low() || !given_.protect_blocks;
    return known && changes ? program_.enter(segment) : program_.enter_unplanned();
  }
  /// Opens a region of a forward that is no part of a batch. While the search tries plans it is FP32.
  libtorch::region evaluate() {
    return found() != nullptr && program_.lowers() ? program_.evaluate() : program_.enter_unplanned();
  }

  void begin_batch() {
    const plan* next = nullptr;
    {
      const py::gil_scoped_release others_run;
      next = &search_->plan();
    }
    if (!measurement_) {
      tuning_.set_plan(*next);
      if (tuning_.needs_measuring()) measurement_.emplace(program_.options_of(*next), libtorch::quick({}));
      if (measurement_ && measurement_->done()) end_measurement();
    }
    if (measurement_) libtorch::use(program_, measurement_->next());
    program_.profile(measurement_ ? measurement_->times_operators() : search_->times_operators());
    if (found() != nullptr && search_->found()->plan != found_->plan) {  // the training gave it up
      found_->plan = search_->found()->plan;
      found_->speedup = 1;
      found_->speedup_bounds = {1, 1};
      found_->execution = tuning_.execution();
    }
    if (!search_->is_over()) libtorch::synchronize(device_);
  }
  void measure(double seconds) {
    measurement_->add(
        tuning_.of_slowest({seconds, measurement_->times_operators() ? program_.times() : std::vector<op_time>{}}));
    if (measurement_->done()) end_measurement();
  }
  void end_measurement() {
    tuning_.learn(program_.current_plan(), measurement_->best());
    libtorch::use(program_, measurement_->best().choice);
    measurement_.reset();
  }
  bool on_any_rank(bool here) const { return agree_ ? agree_({here ? 1.0 : 0.0})[0] > 0 : here; }
  bool looks_wrong(double loss) const {
    const double sign = given_.settings.direction == loss_direction::higher_is_better ? -1 : 1;
    const comp::detail::recent_losses last{fp32_losses_, sign};
    return !std::isfinite(loss) || (last.enough && sign * loss > 2 * last.high - last.low);
  }
  void tell(sample of_batch) {
    const py::gil_scoped_release others_run;
    search_->tell(std::move(of_batch));
  }

  /// Drops the batch if an exception has left one of its regions: a plan that lowers has failed. Returns: true if so.
  bool take_failure() {
    if (!regions_.failed()) return false;
    regions_.forget_failure();
    if (!std::exchange(begun_, false) || search_ == nullptr || !program_.lowers()) return true;
    measurement_.reset();
    tell(
        {.status = status::failed, .message = "the forward raised an exception, or changed the format of a parameter"});
    return true;
  }

  void end_recording() {
    program_.record(false);
    require<error>(program_.is_recorded(),
                   "the first batch has no operator in `with plan:` (there is nothing to choose a precision of): write "
                   "`with plan:` around the forward");
    std::vector<precision> known = libtorch::supported_precisions(hardware_, false);
    std::erase_if(known, [](precision p) { return is_scaled(p); });
    loop_info about{.hardware = hardware_,
                    .precisions = std::move(known),
                    .batches_per_epoch = given_.batches_per_epoch,
                    .save =
                        [this] {
                          const py::gil_scoped_acquire python;
                          given_.save();
                          batches_since_save_ = 0;
                        },
                    .restore =
                        [this] {
                          const py::gil_scoped_acquire python;
                          given_.restore();
                          batches_undone_ += std::exchange(batches_since_save_, 0);
                        },
                    .is_sound =
                        [this] {
                          const py::gil_scoped_acquire python;
                          return !on_any_rank(!given_.is_sound().cast<bool>());
                        },
                    // An exception in the forward would be the user's.
                    .supports =
                        [this](const op_info& op, precision p) {
                          if (op.is_state) return p == precision::fp32;
                          if (libtorch::is_exchange(op)) return p != precision::tf32;
                          if (p == precision::fp16 && op.beyond_fp16) return false;
                          if (p == precision::bf16_fp32) return program_.is_linear_layer(op);
                          return !is_low(p) || op.as_written == precision::fp32;
                        },
                    .execution =
                        [this](const plan& p) {
                          const bool tunable = libtorch::detail::is_tunable(p, program_.graph());
                          const auto* tuned = tunable ? tuning_.find(p) : nullptr;
                          return tuned == nullptr ? comp::execution{} : libtorch::execution_of(*tuned);
                        },
                    .times = [this] { return program_.times(); }};
    if (known_) {
      outcome known = fit_known();
      search_.reset(given_.ranks == nullptr
                        ? new online{std::move(known), program_.graph(), std::move(about), given_.settings}
                        : new online{ranks::train_online(given_.ranks->team(), std::move(known), program_.graph(),
                                                         std::move(about), given_.settings)});
      return;
    }
    search_.reset(given_.ranks == nullptr
                      ? new online{given_.policy, program_.graph(), std::move(about), given_.settings, ledger_}
                      : new online{ranks::search_online(given_.ranks->team(), given_.policy, program_.graph(),
                                                        std::move(about), given_.settings, ledger_)});
  }

  static libtorch::program_settings program_settings_of(const loop_job& given,
                                                        const std::optional<plan_listing>& known) {
    const libtorch::program_settings settings{.freed = given.freed,
                                              .protect_blocks = given.protect_blocks,
                                              .tries_low = true,
                                              .exchange = given.exchange,
                                              .states = given.states};
    return known ? libtorch::detail::with_operators_of(*known, settings, given.forced) : settings;
  }
  /// Returns: the plan of the file for the operators that were recorded.
  /// Throws: `plan_error` if it is one for another model.
  outcome fit_known() {
    const op_graph& graph = program_.graph();
    const auto fit = [&](const plan_listing& listing) {
      return listing.operators ? libtorch::fitted_by_name(listing, graph, given_.forced) : fitted(listing, graph);
    };
    const plan_listing first = known_->at(0);
    loaded_plan loaded = fit(first);
    if (first.made_for) comp::detail::warn_of_hardware(loaded.made_for, hardware_, loaded);
    for (std::string& left_out : tuning_.learn(loaded, hardware_)) loaded.warnings.push_back(std::move(left_out));
    std::string moments = libtorch::detail::moments_that_nobody_keeps(first, loaded.plan, graph);
    if (!given_.keeps_states && !moments.empty()) loaded.warnings.push_back(std::move(moments));
    outcome known{.plan = loaded.plan, .execution = loaded.execution, .warnings = std::move(loaded.warnings)};
    for (const later_plan& next : known_->later)
      known.later.push_back({next.batch, fit(known_->at(next.batch)).plan, next.reason});
    if (known_->speedup) known.speedup = *known_->speedup;
    return known;
  }

  /// A process that was forked, as a DataLoader's worker is, does not have the search's thread, which cannot be joined.
  void leave_to_parent() {
    if (::getpid() != process_) (void)search_.release();
  }

  loop_job given_;
  pid_t process_ = ::getpid();
  std::vector<std::shared_ptr<parameter_tree>> trees_;
  std::vector<libtorch::named_module> modules_;
  std::optional<plan_listing> known_;  // the file's plan, if it is known
  libtorch::program program_;
  c10::Device device_;
  comp::hardware hardware_;
  libtorch::agreement agree_;
  libtorch::plan_tuner tuning_;
  std::optional<libtorch::choice_measurement> measurement_;  // while it goes on
  comp::detail::stopwatch since_;                            // the first region of the batch was entered
  bool begun_ = false;                                       // a region of the batch was entered
  bool recorded_training_ = false;                           // the recorded forward was one in training mode
  bool ended_ = false;                                       // no search follows
  std::vector<double> fp32_losses_;                          // of the search's batches in FP32
  std::vector<std::string> segments_;                        // that the batch has entered
  std::size_t batches_ = 0, batches_since_save_ = 0, batches_undone_ = 0;
  std::shared_ptr<outcome> found_;
  loop_ledger ledger_;
  regions regions_;
  std::unique_ptr<online> search_;  // destroyed first: its thread uses the members above
};

}  // namespace comp::python
