// SPDX-License-Identifier: Apache-2.0
// A user's own LibTorch training as a comp::Backend with every capability: models, optimizers and batches stay as they
// are, and the step is a function of the user's.
//   comp::libtorch::trainer trainer{{.modules = {{"net", net}}, .optimizers = {&optimizer}}, batches,
//                                   [&](comp::libtorch::step& s, const auto& batch) {
//     auto loss = s.forward([&] { return cross_entropy(net->forward(batch.data), batch.target); });
//     s.backward(loss);
//     s.update(optimizer);
//   }, [&] { return accuracy(net, test); }};                                   // the score may be left out
// The same state and plan give the same losses bit for bit, as far as LibTorch's operators do.
// Not here: the search (comp/search); training with a plan from a file and no trainer (planned_region.hpp).
#pragma once

#include <algorithm>
#include <comp/core/concepts.hpp>
#include <comp_libtorch/plan/instrumentation.hpp>
#include <comp_libtorch/plan/plan_tuner.hpp>
#include <comp_libtorch/plan/program.hpp>
#include <comp_libtorch/support/exceptions.hpp>
#include <comp_libtorch/support/hardware.hpp>
#include <comp_libtorch/support/memory.hpp>
#include <comp_libtorch/support/perturbation.hpp>
#include <comp_libtorch/train/data_order.hpp>
#include <comp_libtorch/train/grad_scaler.hpp>
#include <comp_libtorch/train/measured_run.hpp>
#include <comp_libtorch/train/rate_watch.hpp>
#include <comp_libtorch/train/setup.hpp>
#include <comp_libtorch/train/step.hpp>
#include <comp_libtorch/train/stored_training.hpp>
#include <comp_libtorch/train/training_signature.hpp>
#include <comp_libtorch/train/training_state.hpp>
#include <comp_libtorch/train/validation.hpp>
#include <concepts>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace comp::libtorch {

template <BatchSource Source, bool Validates = false>
class trainer
    : public std::conditional_t<Validates, detail::with_validation<trainer<Source, Validates>>,
                                detail::without_validation>,
      public std::conditional_t<detail::stores_place<Source>, detail::with_stored_state<trainer<Source, Validates>>,
                                detail::without_stored_state> {
 public:
  using batch_type = typename Source::batch_type;
  using step_function = std::function<void(step&, batch_type&)>;
  using score_function = std::function<double()>;

  /// The whole state of the training. Memory: training_state.hpp.
  struct state {
    training_state training = {};
    scaling::state scaler = {};
    double pending_factor = 1;  // loss scale of the gradients that wait for an update
    std::uint64_t steps = 0;
    std::remove_cvref_t<decltype(std::declval<Source&>().position())> position = {};
    std::int64_t bytes() const { return training.bytes(); }
  };

  /// Throws: `settings_error`. Nothing is run before the graph is asked for.
  trainer(setup given, Source batches, step_function each_batch, score_function score = {})
      : setup_{std::move(given)},
        source_{std::move(batches)},
        step_{std::move(each_batch)},
        score_{std::move(score)},
        device_{device_of(setup_.modules)},
        hardware_{probe(device_)},
        program_{on_device_of(setup_.modules, setup_.program)},
        scaler_{setup_.scaling} {
    require_usable(setup_);
    if (!setup_.agree) {
      require_one_rank(
          "a trainer, which compares plans by their times,",
          "give setup::agree and search on all ranks with comp::ranks::search (in Python: call "
          "torch.distributed.init_process_group before comp.search), or search in one process and give each "
          "rank the plan file, planned_region{models, \"plan.json\"}");
    }
    for (const named_module& m : setup_.modules) {
      program_.name_parameters(*m.module, m.name);
      scaler_.name_parameters(*m.module, m.name);
    }
    signature_ = signature_of(setup_, source_.signature());
  }
  trainer(const trainer&) = delete;
  trainer& operator=(const trainer&) = delete;

  /// Returns: the operators of a step. The first call trains a step to see them, and undoes it: the user's step
  /// function is called once more than there are steps. Throws: `graph_error` when none was in a region.
  const op_graph& graph() {
    record();
    return program_.graph();
  }
  Source& batches() { return source_; }
  program& executor() { return program_; }

  /// Trains under `p` from now on. A plan with plan::runs_autocast() trains under LibTorch's own autocast alone
  /// (own_autocast()).
  /// Throws: `plan_error` for a plan that does not fit the graph, has a precision that the device lacks, or is marked
  /// as autocast's and differs from what that does.
  void set_precision(const plan& p) {
    require_fits(p, graph());
    for (std::size_t i = 0; i < p.size(); ++i) {
      require<plan_error>(computes_in(p[i], hardware_, detail::emulates(program_.settings())),
                          "plan gives operator {} {} (LibTorch on this device has no such precision): choose another",
                          i, name(p[i]));
    }
    if (p.runs_autocast()) detail::require_same(p, own_autocast(autocast_precision(p)), graph());
    tuning_.set_plan(p);
  }
  /// Trains under a plan from a file, run as it was best run when it was found. If that was on a machine like this one,
  /// it is not measured again. Returns: sentences on what of the file was not taken.
  std::vector<std::string> set_precision(const loaded_plan& from) {
    const auto left_out = tuning_.learn(from, hardware_);
    set_precision(from.plan);
    return left_out;
  }

  /// Measures how FP32 is best run, on a CPU, for a model with convolutions or another operator that comp has a kernel
  /// for, unless the executor's choices are fixed. The state and the plan are as before.
  /// Returns: FP32 with plan::is_tuned() set; plain FP32 where that is as fast.
  plan tuned_fp32() {
    (void)batches_per_epoch();  // says whether measuring is worth its time
    record();
    const plan fp32{graph().size()}, tuned = fp32.as_tuned();
    if (!tuning_.may_tune_fp32()) return fp32;
    tune_by([&] {
      tuning_.set_plan(tuned);
      if (tuning_.needs_measuring()) tuning_.measure_unless_hopeless([&] { return train_one().seconds; });
      return true;
    });
    const tuned_choice* found = tuning_.find(tuned);
    return found != nullptr && found->choice != executor_choice{} ? tuned : fp32;
  }
  /// Returns: how the current plan is run, as far as that was measured or is fixed; nothing for FP32 that is not tuned
  /// and for autocast's.
  comp::execution execution() const { return tuning_.execution(); }

  /// Trains from the beginning of an epoch to its end. An epoch that run_batch() began is left.
  sample run_epoch() {
    return run_epoch([](const sample&) { return false; });
  }
  sample run_epoch(const stop_predicate& stop) {
    return translated([&] {
      prepare();
      source_.begin_epoch();
      detail::measured_run run = begin_run();
      while (run.goes_on(stop)) {
        std::optional<batch_type> batch = source_.next();
        if (!batch) break;
        run.add(train(*batch));
      }
      const sample all = run.result(program_.problems(), scaler_.state().scale);
      detail::require_batch(all.batches > 0);
      if (!compiled_) tuning_.trained_epoch(all);
      return all;
    });
  }
  /// Trains the next batch; after an epoch's last the next epoch begins.
  sample run_batch() {
    return translated([&] {
      prepare();
      const sample one = train_one();
      if (!compiled_) tuning_.trained(one);
      return one;
    });
  }

  /// Returns: the whole state of the training, which restore() puts back.
  state save() {
    return translated([&]() -> state {
      used_gradients_.zero();
      return {save_training(setup_, device_), scaler_.state(), pending_factor_, steps_, source_.position()};
    });
  }
  void restore(const state& from) {
    translated([&] {
      used_gradients_.zero();
      restore_training(from.training, setup_, device_);
      scaler_.load(from.scaler);
      pending_factor_ = from.pending_factor;
      steps_ = from.steps;
      source_.seek(from.position);
    });
  }

  /// Returns: how many values of weights, pending gradients, buffers, optimizers' states and what the user adds
  /// (extra_state) are NaN, infinite or above 1e7.
  std::int64_t count_extreme() {
    return translated([&] {
      used_gradients_.zero();
      std::vector<at::Tensor> all = tensors_held(setup_);
      if (setup_.extra.others) std::ranges::copy(setup_.extra.others(), std::back_inserter(all));
      return libtorch::count_extreme(all);
    });
  }

  std::vector<precision> supported_precisions() const {
    return libtorch::supported_precisions(hardware_, detail::emulates(program_.settings()));
  }
  /// Of all operators only linear layers run in formats below 16 bits, as on GPUs: where they are not emulated, those
  /// of sizes that the units take. Gradients travel in 16 bits or 32.
  bool supports(const op_info& op, precision p) const {
    return is_scaled(p) ? program_.takes_scaled(op) : p != precision::tf32 || !is_exchange(op);
  }
  comp::hardware hardware() const { return hardware_; }
  /// Returns: models, weights (which tell the seed that made them), data, optimizers and settings, in words, as they
  /// were when the trainer was made.
  std::string signature() const { return signature_; }

  /// Returns: the seconds of each operator in a step under the current plan, medians of a few steps. The state is as
  /// before.
  std::vector<op_time> profile() {
    prepare();
    return run_and_undo([&] { return detail::operator_times(program_, setup_.profile_steps, [&] { train_next(); }); });
  }

  /// Returns: what lowering each operator alone does to its output and gradients, measured in the next step; 0 for
  /// those that no plan lowers, infinity for one that LibTorch does not run in `low`. The state and the plan are as
  /// before.
  /// Throws: `settings_error` for a precision that the device lacks.
  std::vector<op_error> sensitivity(precision low) {
    require<settings_error>(computes_in(low, hardware_, detail::emulates(program_.settings())),
                            "sensitivity in {} (LibTorch on this device has no such precision): choose another",
                            name(low));
    record();
    return run_and_undo([&] { return detail::lowering_errors(program_, low, [&] { train_next(); }); });
  }

  /// Returns: what LibTorch's own autocast to `low` gives each operator, as seen in a step under it, which is undone.
  /// The plan is marked, so that set_precision() trains under that autocast. Throws: `error` where the step does not
  /// run under it.
  plan own_autocast(precision low) {
    if (const auto known = autocast_.find(low); known != autocast_.end()) return known->second;
    record();
    return autocast_[low] = run_and_undo([&] { return detail::autocast_plan(program_, low, [&] { train_next(); }); });
  }

  /// Has steps run compiled from now on, or operator by operator, by setup::run_compiled. Returns: whether a compiler
  /// has any part of a step. A step shows it, so the graph has to be known.
  bool run_compiled(bool on) {
    record();
    bool compiles = setup_.run_compiled && setup_.run_compiled(on);
    if (setup_.agree) compiles = setup_.agree({compiles ? 1.0 : 0.0})[0] > 0;
    compiled_ = compiles && on;
    return compiles;
  }

  /// Moves each weight by about half a unit in its last place, at random: see perturbation.hpp. restore() undoes it.
  void perturb(std::uint64_t seed) {
    translated([&] { libtorch::perturb(tensors_of(setup_.modules, false), seed); });
  }

  /// Returns: the batches of an epoch, as the source says or counted; 0: not known (a loader too large to be read
  /// ahead).
  std::uint64_t batches_per_epoch() {
    std::uint64_t batches = 0;
    if constexpr (requires {
                    { source_.batches_per_epoch() } -> std::integral;
                  }) {
      batches = translated([&] { return static_cast<std::uint64_t>(source_.batches_per_epoch()); });
    } else {
      if (!counted_) counted_ = run_and_undo([&] { return detail::count_batches(source_); });
      batches = *counted_;
    }
    const double shortest =
        setup_.agree ? -setup_.agree({-static_cast<double>(batches)})[0] : static_cast<double>(batches);
    tuning_.expect_epochs_of(static_cast<std::int64_t>(shortest));
    return batches;
  }

  /// Measures how the current plan is best run, and runs it so from now on. Returns: the choice; nothing for autocast's
  /// plan, which LibTorch runs. The state is as before.
  tuned_choice tune() {
    record();
    return tune_by([&] { return tuning_.measure([&] { return train_one().seconds; }); });
  }

 private:
  friend class detail::with_validation<trainer>;
  friend class detail::with_stored_state<trainer>;

  step_result train(batch_type& batch) {
    scaler_.give_up();
    const bool scaled = scales(setup_, program_.current_plan());
    rescale_pending(scaled ? scaler_.state().scale : 1);
    detail::trained_step s{program_,      scaled ? &scaler_ : nullptr,           used_gradients_, steps_,
                           setup_.update, setup_.agree ? &setup_.agree : nullptr};
    if (!setup_.extra.save) rate_watch_.begin(rates_(setup_.optimizers));
    step_(s, batch);
    s.finish();
    if (!setup_.extra.save) rate_watch_.end(rates_(setup_.optimizers), steps_);
    step_result result = s.result();
    ++steps_;
    return result;
  }
  /// Brings the gradients that wait for an update to one loss scale. They come from several batches, whose plans may
  /// differ in whether losses are scaled.
  void rescale_pending(double factor) {
    if (factor == pending_factor_) return;
    used_gradients_.zero();
    const torch::NoGradGuard no_grad;
    for (const at::Tensor& parameter : tensors_of(setup_.modules, false)) {
      if (parameter.grad().defined()) parameter.mutable_grad().mul_(factor / pending_factor_);
    }
    pending_factor_ = factor;
  }
  step_result train_next() {
    batch_type batch = detail::next_batch(source_);
    return train(batch);
  }
  sample train_one() {
    detail::measured_run run = begin_run();
    run.add(train_next());
    return run.result(program_.problems(), scaler_.state().scale);
  }

  detail::measured_run begin_run() {
    program_.clear_problems();
    return {device_, device_.is_cpu() ? bytes_held(tensors_held(setup_)) + program_.kept_bytes() : 0};
  }

  /// Runs `work`, and then puts the state and the plan back, also where it throws. Returns: what `work` returns.
  auto run_and_undo(auto work) {
    return translated([&] {
      const state before = save();
      const plan chosen = program_.current_plan();
      return detail::and_always(work, [&] {
        if (chosen.size() > 0 && chosen != program_.current_plan()) program_.set_plan(chosen);
        restore(before);
      });
    });
  }

  /// Trains a step to see its operators, and undoes it; does nothing where that is done.
  void record() {
    if (program_.recorded()) return;
    run_and_undo([&] {
      detail::record_step(program_, [&] { train_next(); });
      return true;
    });
  }

  /// Prepares a run: measures how the plan is best run, where that is worth its time. Compiled steps are run by their
  /// compiler's choices.
  void prepare() {
    record();
    if (compiled_ || !tuning_.needs_measuring()) return;
    tune_by([&] { return tuning_.measure_unless_hopeless([&] { return train_one().seconds; }); });
  }

  /// Measures how the plan is best run. Training code may fail by comp's kernels or by channels-last images alone: it
  /// writes what a kernel has saved, or takes a view of an image. So these are left out where a step throws, and what
  /// still throws fails the plan. Ranks would have to leave them out together, so there the step fails the plan.
  auto tune_by(auto measure) {
    for (bool again = false;; again = true) {
      try {
        return run_and_undo([&] {
          if (again) {  // the plan itself, by ATen alone
            tuning_.set_plan(program_.current_plan());
            (void)train_one();
          }
          return measure();
        });
      } catch (const settings_error&) {
        throw;
      } catch (const interrupted&) {
        throw;
      } catch (const error&) {
        if (setup_.agree || !tuning_.leave_out_more()) throw;
      }
    }
  }

  setup setup_;
  Source source_;
  step_function step_;
  score_function score_;
  c10::Device device_;
  comp::hardware hardware_;
  program program_;
  grad_scaler scaler_;
  used_gradients used_gradients_;
  detail::learning_rates rates_;
  detail::rate_watch rate_watch_{"give setup::extra its save and restore, or set rates by step::number()"};
  double pending_factor_ = 1;
  std::uint64_t steps_ = 0;
  std::string signature_;
  plan_tuner tuning_{program_, choices_on(setup_, hardware_), {}, setup_.agree};
  std::map<precision, plan> autocast_;  // by its low precision
  std::optional<std::uint64_t> counted_;
  bool compiled_ = false;  // steps run compiled
};

template <class Source, class Step>
trainer(setup, Source, Step) -> trainer<Source, false>;
template <class Source, class Step, class Score>
trainer(setup, Source, Step, Score) -> trainer<Source, true>;

}  // namespace comp::libtorch
