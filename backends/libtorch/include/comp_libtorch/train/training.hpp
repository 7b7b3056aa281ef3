// SPDX-License-Identifier: Apache-2.0
// What a trainer does: trains, measures, saves and undoes steps. What each member promises stands in trainer.hpp.
#pragma once

#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <comp/core/concepts.hpp>
#include <comp/core/error.hpp>
#include <comp/core/stored_state.hpp>
#include <comp/policy/kind_name.hpp>
#include <comp_libtorch/plan/exchange.hpp>
#include <comp_libtorch/plan/instrumentation.hpp>
#include <comp_libtorch/plan/plan_tuner.hpp>
#include <comp_libtorch/plan/program.hpp>
#include <comp_libtorch/support/exceptions.hpp>
#include <comp_libtorch/support/hardware.hpp>
#include <comp_libtorch/support/memory.hpp>
#include <comp_libtorch/support/perturbation.hpp>
#include <comp_libtorch/train/grad_scaler.hpp>
#include <comp_libtorch/train/kept_moments.hpp>
#include <comp_libtorch/train/measured_run.hpp>
#include <comp_libtorch/train/rate_watch.hpp>
#include <comp_libtorch/train/setup.hpp>
#include <comp_libtorch/train/step.hpp>
#include <comp_libtorch/train/stored_training.hpp>
#include <comp_libtorch/train/trainer.hpp>
#include <comp_libtorch/train/training_signature.hpp>
#include <comp_libtorch/train/training_state.hpp>
#include <cstdint>
#include <functional>
#include <iterator>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace comp::libtorch {

namespace detail {

struct saved_training {
  training_state training = {};
  scaling::state scaler = {};
  double pending_factor = 1;  // loss scale of the gradients that wait for an update
  std::uint64_t steps = 0;
  std::shared_ptr<const void> position = {};
};

class training {
 public:
  training(libtorch::setup given, std::unique_ptr<any_batches> batches, std::function<double()> score)
      : setup_{with_free_parameters(std::move(given))},
        batches_{std::move(batches)},
        score_{std::move(score)},
        device_{device_of(setup_.modules)},
        hardware_{probe(device_)},
        moments_{setup_},
        program_{on_device_of(setup_.modules, with_states(setup_.program))},
        scaler_{setup_.scaling} {
    require_usable(setup_);
    if (!setup_.agree) {
      require_one_rank(
          by_language("a trainer, which compares plans by their times,",
                      "a search, which compares plans by their times,"),
          fmt::format("{}, or search in one process and give each rank the plan file, {}",
                      by_language("give setup::agree and search on all ranks with comp::ranks::search",
                                  "call torch.distributed.init_process_group before comp.search"),
                      by_language("planned_region{models, \"plan.json\"}", "comp.plan(\"plan.json\", model)")));
    }
    for (const named_module& m : setup_.modules) {
      program_.name_parameters(*m.module, m.name);
      scaler_.name_parameters(*m.module, m.name);
    }
    signature_ = signature_of(setup_, batches_->signature());
  }
  training(const training&) = delete;
  training& operator=(const training&) = delete;

  const op_graph& graph() {
    record();
    return program_.graph();
  }
  program& executor() { return program_; }

  void set_precision(const plan& p) {
    require_fits(p, graph());
    for (std::size_t i = 0; i < p.size(); ++i) {
      require<plan_error>(computes_in(p[i], hardware_, emulates(program_.settings())),
                          "plan gives operator {} {} (LibTorch on this device has no such precision): choose another",
                          i, name(p[i]));
    }
    if (p.runs_autocast()) require_same(p, own_autocast(autocast_precision(p)), graph());
    tuning_.set_plan(p);
  }
  std::vector<std::string> set_precision(const loaded_plan& from) {
    const auto left_out = tuning_.learn(from, hardware_);
    set_precision(from.plan);
    return left_out;
  }

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
  comp::execution execution() const { return tuning_.execution(); }

  sample run_epoch(const stop_predicate& stop) {
    return translated([&] {
      prepare();
      batches_->begin_epoch();
      measured_run run = begin_run();
      while (run.goes_on(stop)) {
        if (!batches_->next()) break;
        run.add(train());
      }
      const sample all = result_of(run);
      require_batch(all.batches > 0);
      if (!compiled_) tuning_.trained_epoch(all);
      return all;
    });
  }
  sample run_batch() {
    return translated([&] {
      prepare();
      const sample one = train_one();
      if (!compiled_) tuning_.trained(one);
      return one;
    });
  }

  std::shared_ptr<const saved_training> save() {
    return translated([&] {
      used_gradients_.zero();
      return std::make_shared<const saved_training>(saved_training{save_training(setup_, device_), scaler_.state(),
                                                                   pending_factor_, steps_, batches_->position()});
    });
  }
  void restore(const saved_training& from) {
    translated([&] {
      used_gradients_.zero();
      restore_training(from.training, setup_, device_);
      scaler_.load(from.scaler);
      pending_factor_ = from.pending_factor;
      steps_ = from.steps;
      batches_->seek(from.position.get());
    });
  }

  std::int64_t count_extreme() {
    return translated([&] {
      used_gradients_.zero();
      std::vector<at::Tensor> all = tensors_held(setup_);
      if (setup_.extra.others) std::ranges::copy(setup_.extra.others(), std::back_inserter(all));
      return libtorch::count_extreme(all);
    });
  }

  std::vector<precision> supported_precisions() const {
    return libtorch::supported_precisions(hardware_, emulates(program_.settings()));
  }
  bool supports(const op_info& op, precision p) const {
    if (op.is_state) return detail::type_of_state(p).has_value();
    if (p == precision::fp16 && op.beyond_fp16) return false;
    if (is_scaled(p)) return program_.takes_scaled(op);
    if (p == precision::bf16_fp32) return program_.is_linear_layer(op);
    if (is_exchange(op)) return p != precision::tf32;
    return !is_low(p) || !detail::by_name::only_fp32(detail::traits_of::word(policy::without_overload(op.kind)));
  }
  comp::hardware hardware() const { return hardware_; }
  std::string signature() const { return signature_; }

  std::vector<op_time> profile() {
    prepare();
    return run_and_undo([&] { return operator_times(program_, setup_.profile_steps, [&] { train_next(); }); });
  }

  std::vector<op_error> sensitivity(precision low) {
    require<settings_error>(computes_in(low, hardware_, emulates(program_.settings())),
                            "sensitivity in {} (LibTorch on this device has no such precision): choose another",
                            name(low));
    record();
    return run_and_undo([&] { return lowering_errors(program_, low, [&] { train_next(); }); });
  }

  plan own_autocast(precision low) {
    if (const auto known = autocast_.find(low); known != autocast_.end()) return known->second;
    record();
    return autocast_[low] = run_and_undo([&] { return autocast_plan(program_, low, [&] { train_next(); }); });
  }

  bool run_compiled(bool on) {
    record();
    bool compiles = setup_.run_compiled && setup_.run_compiled(on);
    if (setup_.agree) compiles = setup_.agree({compiles ? 1.0 : 0.0})[0] > 0;
    compiled_ = compiles && on;
    return compiles;
  }

  void perturb(std::uint64_t seed) {
    translated([&] { libtorch::perturb(tensors_of(setup_.modules, false), seed); });
  }

  std::uint64_t batches_per_epoch() {
    std::optional<std::uint64_t> batches = translated([&] { return batches_->per_epoch(); });
    if (!batches) {
      const auto count = [&] {
        std::uint64_t all = 0;
        for (batches_->begin_epoch(); batches_->next(); ++all) continue;
        return all;
      };
      if (!counted_) counted_ = run_and_undo(count);
      batches = counted_;
    }
    const double shortest =
        setup_.agree ? -setup_.agree({-static_cast<double>(*batches)})[0] : static_cast<double>(*batches);
    tuning_.expect_epochs_of(static_cast<std::int64_t>(shortest));
    return *batches;
  }

  tuned_choice tune() {
    record();
    return tune_by([&] { return tuning_.measure([&] { return train_one().seconds; }); });
  }

  double validate() {
    return translated([&] {
      std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> before;  // each module, and whether it trains
      for (const named_module& m : setup_.modules) {
        for (const auto& part : m.module->modules()) before.emplace_back(part, part->is_training());
      }
      const auto set = [](torch::nn::Module& part, bool training) {
        if (part.is_training() != training) part.train(training);
      };
      const auto put_back = c10::make_scope_exit([&] {
        for (const auto& [part, training] : before) set(*part, training);
      });
      for (const auto& [part, training] : before) set(*part, false);
      const at::NoGradGuard no_grad;
      const bool as_written = !program_.lowers() && !program_.may_read_low() && program_.settings().protect_blocks;
      const region on = as_written ? program_.enter_unplanned() : program_.evaluate();
      return score_();
    });
  }
  stored_state store_state() {
    return translated([&] {
      require_storable(setup_);
      used_gradients_.zero();
      stored_state result;
      state_writer to{result};
      store_training(setup_, device_, to);
      const scaling::state& s = scaler_.state();
      to.add("loss scale", s.scale);
      to.add("loss scale, finite steps", s.finite_steps);
      to.add("loss scale, overflows", s.overflows);
      to.add("loss scale, skipped", s.skipped);
      to.add("loss scale, steps", s.steps);
      to.add("factor of pending gradients", pending_factor_);
      to.add("steps", steps_);
      const auto [epoch, batch] = batches_->place();
      to.add("epoch", epoch);
      to.add("batch", batch);
      return result;
    });
  }
  void load_state(const stored_state& stored) {
    translated([&] {
      require_storable(setup_);
      const state_reader from{stored};
      scaling::state s = scaler_.state();
      from.get("loss scale", s.scale);
      from.get("loss scale, finite steps", s.finite_steps);
      from.get("loss scale, overflows", s.overflows);
      from.get("loss scale, skipped", s.skipped);
      from.get("loss scale, steps", s.steps);
      const stored_place place{from.number("epoch"), from.number("batch")};
      used_gradients_.zero();
      load_training(setup_, device_, from);
      from.get("factor of pending gradients", pending_factor_);
      from.get("steps", steps_);
      scaler_.load(s);
      batches_->go_to(place);
    });
  }
  any_batches& batches() { return *batches_; }

 private:
  /// Trains on the batch that was taken.
  step_result train() {
    scaler_.give_up();
    const bool scaled = scales(setup_, program_.current_plan());
    rescale_pending(scaled ? scaler_.state().scale : 1);
    trained_step s{program_,
                   scaled ? &scaler_ : nullptr,
                   used_gradients_,
                   steps_,
                   setup_.update,
                   setup_.agree ? &setup_.agree : nullptr,
                   setup_.moments ? &moments_ : nullptr};
    if (!setup_.extra.save) rate_watch_.begin(rates_(setup_.optimizers));
    batches_->step(s);
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
    if (!batches_->next()) require_batch(batches_->next());
    return train();
  }
  sample train_one() {
    measured_run run = begin_run();
    run.add(train_next());
    return result_of(run);
  }

  sample result_of(const measured_run& run) const {
    sample all = run.result(program_.problems(), scaler_.state().scale);
    std::vector<at::Tensor> tensors = tensors_of(setup_.modules, true), parameters = tensors_of(setup_.modules, false);
    tensors.insert(tensors.end(), parameters.begin(), parameters.end());
    held_bytes& held = all.held.emplace();
    held.weights = bytes_held(tensors);
    for (auto* optimizer : setup_.optimizers) append_tensors(*optimizer, tensors);
    if (setup_.extra.tensors) std::ranges::copy(setup_.extra.tensors(), std::back_inserter(tensors));
    held.moments = bytes_held(tensors) - held.weights;
    held.copies = program_.kept_bytes();
    std::erase_if(parameters, [](const at::Tensor& p) { return !p.requires_grad(); });
    held.gradients = bytes_held(parameters);
    return all;
  }
  measured_run begin_run() {
    program_.clear_problems();
    return {device_, device_.is_cpu() ? bytes_held(tensors_held(setup_)) + program_.kept_bytes() : 0};
  }

  /// Runs `work`, and then puts the state and the plan back, even if it throws. Returns: what `work` returns.
  template <class Work>
  std::invoke_result_t<Work&> run_and_undo(Work work) {
    return translated([&] {
      const auto before = save();
      const plan chosen = program_.current_plan();
      return and_always(work, [&] {
        if (chosen.size() > 0 && chosen != program_.current_plan()) program_.set_plan(chosen);
        restore(*before);
      });
    });
  }

  program_settings with_states(program_settings chosen) const {
    if (setup_.moments) chosen.states = moments_.operators();
    return chosen;
  }
  /// Gives moments the formats of the plan, so that what that takes is not timed.
  void keep_moments() {
    for (auto* optimizer : setup_.optimizers) {
      if (moments_.timed(*optimizer, graph()) == 0) continue;
      libtorch::keep_moments(*optimizer, moments_.formats(*optimizer, program_.current_plan(), graph(), steps_));
    }
  }

  /// Trains a step to see its operators, and undoes it; does nothing if that is done.
  void record() {
    if (program_.is_recorded()) return;
    run_and_undo([&] {
      record_step(program_, [&] { train_next(); });
      return true;
    });
  }

  /// Prepares a run: measures how the plan is best run, if that is worth its time. Compiled steps are run by their
  /// compiler's choices.
  void prepare() {
    record();
    keep_moments();
    if (setup_.extra.prepare) setup_.extra.prepare();
    if (compiled_ || !tuning_.needs_measuring()) return;
    tune_by([&] { return tuning_.measure_unless_hopeless([&] { return train_one().seconds; }); });
  }

  /// Measures how the plan is best run. Training code may fail by comp's kernels or by channels-last images alone: it
  /// writes what a kernel has saved, or takes a view of an image. So these are left out if a step throws, and what
  /// still throws fails the plan. Ranks would have to leave them out together, so there the step fails the plan.
  template <class Measure>
  std::invoke_result_t<Measure&> tune_by(Measure measure) {
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

  libtorch::setup setup_;
  std::unique_ptr<any_batches> batches_;
  std::function<double()> score_;
  c10::Device device_;
  comp::hardware hardware_;
  kept_moments moments_;
  program program_;
  grad_scaler scaler_;
  used_gradients used_gradients_;
  learning_rates rates_;
  rate_watch rate_watch_{"give setup::extra its save and restore, or set rates by step::number()"};
  double pending_factor_ = 1;
  std::uint64_t steps_ = 0;
  std::string signature_;
  plan_tuner tuning_{program_, choices_on(setup_.choices, setup_.agree, hardware_), {}, setup_.agree};
  std::map<precision, plan> autocast_;  // by its low precision
  std::optional<std::uint64_t> counted_;
  bool compiled_ = false;  // steps run compiled
};

}  // namespace detail

COMP_INLINE std::int64_t any_training::state::bytes() const { return kept == nullptr ? 0 : kept->training.bytes(); }

COMP_INLINE any_training::any_training(setup given, std::unique_ptr<detail::any_batches> batches,
                                       std::function<double()> score)
    : training_{std::make_unique<detail::training>(std::move(given), std::move(batches), std::move(score))} {}
COMP_INLINE any_training::~any_training() = default;
COMP_INLINE const op_graph& any_training::graph() { return training_->graph(); }
COMP_INLINE program& any_training::executor() { return training_->executor(); }
COMP_INLINE void any_training::set_precision(const plan& p) { training_->set_precision(p); }
COMP_INLINE std::vector<std::string> any_training::set_precision(const loaded_plan& from) {
  return training_->set_precision(from);
}
COMP_INLINE plan any_training::tuned_fp32() { return training_->tuned_fp32(); }
COMP_INLINE comp::execution any_training::execution() const { return training_->execution(); }
COMP_INLINE sample any_training::run_epoch(const stop_predicate& stop) { return training_->run_epoch(stop); }
COMP_INLINE sample any_training::run_batch() { return training_->run_batch(); }
COMP_INLINE std::int64_t any_training::count_extreme() { return training_->count_extreme(); }
COMP_INLINE std::vector<precision> any_training::supported_precisions() const {
  return training_->supported_precisions();
}
COMP_INLINE bool any_training::supports(const op_info& op, precision p) const { return training_->supports(op, p); }
COMP_INLINE comp::hardware any_training::hardware() const { return training_->hardware(); }
COMP_INLINE std::string any_training::signature() const { return training_->signature(); }
COMP_INLINE std::vector<op_time> any_training::profile() { return training_->profile(); }
COMP_INLINE std::vector<op_error> any_training::sensitivity(precision low) { return training_->sensitivity(low); }
COMP_INLINE plan any_training::own_autocast(precision low) { return training_->own_autocast(low); }
COMP_INLINE bool any_training::run_compiled(bool on) { return training_->run_compiled(on); }
COMP_INLINE void any_training::perturb(std::uint64_t seed) { training_->perturb(std::move(seed)); }
COMP_INLINE std::uint64_t any_training::batches_per_epoch() { return training_->batches_per_epoch(); }
COMP_INLINE tuned_choice any_training::tune() { return training_->tune(); }
COMP_INLINE any_training::state any_training::save() { return {training_->save()}; }
COMP_INLINE void any_training::restore(const state& from) {
  training_->restore(from.kept == nullptr ? detail::saved_training{} : *from.kept);
}
COMP_INLINE detail::any_batches& any_training::any_source() { return training_->batches(); }
COMP_INLINE double any_training::score() { return training_->validate(); }
COMP_INLINE stored_state any_training::stored() { return training_->store_state(); }
COMP_INLINE void any_training::load(const stored_state& from) { training_->load_state(from); }

}  // namespace comp::libtorch
