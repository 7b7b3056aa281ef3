// SPDX-License-Identifier: Apache-2.0
// The part of the trainer that does not depend on where batches come from: steps and runs of steps under a plan, their
// losses, times and memory, and the state. Users meet it as comp::libtorch::trainer.
#pragma once

#include <c10/core/impl/VirtualGuardImpl.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <comp/core/plan.hpp>
#include <comp/core/sample.hpp>
#include <comp_libtorch/plan/program.hpp>
#include <comp_libtorch/support/memory.hpp>
#include <comp_libtorch/support/perturbation.hpp>
#include <comp_libtorch/train/grad_scaler.hpp>
#include <comp_libtorch/train/rate_watch.hpp>
#include <comp_libtorch/train/setup.hpp>
#include <comp_libtorch/train/step.hpp>
#include <comp_libtorch/train/training_state.hpp>
#include <cstdint>
#include <iterator>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp::libtorch {

/// What came of one step.
struct step_result {
  std::vector<loss_value> losses = {};
  std::string not_finite = {};  // what, and why; empty: nothing
  bool skipped = false;         // an FP16 gradient overflowed: no update, a smaller scale
};

class training_loop {
 public:
  /// Throws: `settings_error`.
  explicit training_loop(setup s)
      : setup_{checked(std::move(s))}, device_{device_of(setup_)}, program_{on_device()}, scaler_{setup_.scaling} {
    for (const named_module& m : setup_.modules) {
      program_.name_parameters(*m.module, m.name);
      scaler_.name_parameters(*m.module, m.name);
    }
  }

  const setup& given() const { return setup_; }
  c10::Device device() const { return device_; }
  program& executor() { return program_; }
  const program& executor() const { return program_; }
  const plan& current() const { return plan_; }
  std::uint64_t steps() const { return steps_; }

  void set_plan(const plan& p) {
    if (p == plan_) return;
    program_.set_plan(p);
    plan_ = p;
  }

  /// One step of the user's: `work` is called with a `step`.
  template <class F>
  step_result train(F&& work) {
    scaler_.give_up();
    step s{program_, scales() ? &scaler_ : nullptr, served_, steps_, setup_.update};
    if (!setup_.extra.save) rates_.begin(setup_.optimizers);
    work(s);
    s.finish();
    require_whole();
    if (!setup_.extra.save) rates_.end(setup_.optimizers, steps_);
    step_result result{.losses = s.losses(), .not_finite = s.diagnosis_, .skipped = s.skipped_};
    require<error>(!result.losses.empty(),
                   "step {} without a loss (plans are judged by it): call backward() of the step", steps_);
    for (const loss_value& loss : result.losses) {
      if (std::isfinite(loss.value) || !result.not_finite.empty()) continue;
      result.not_finite =
          fmt::format("loss {} in step {} (it left the range of its precision): use more FP32", loss.value, steps_);
    }
    ++steps_;
    return result;
  }

  /// Up to `limit` steps; 0: as many as `next` gives. `next` trains a step, or says that the epoch is over.
  template <class Next>
  sample run(std::int64_t limit, const stop_predicate& stop, Next next) {
    sample so_far;
    tally sums;
    program_.clear_problems();
    const memory_meter meter{device_, device_.is_cpu() ? bytes_held(held()) + program_.kept_bytes() : 0};
    const auto start = clock::now();
    while (limit == 0 || so_far.batches < limit) {
      const auto batch_start = clock::now();
      const std::optional<step_result> result = next();
      if (!result) break;
      synchronize();
      so_far.batch_seconds.push_back(since(batch_start));
      so_far.seconds = since(start);
      so_far.peak_bytes = meter.peak();
      sums.add(*result, so_far);
      if (so_far.status != status::ok) return so_far;
      if (stop(so_far)) {
        so_far.status = status::stopped_early;
        break;
      }
    }
    if (so_far.message.empty()) so_far.message = remarks(sums.skipped);
    return so_far;
  }

  training_state save() {
    served_.zero();
    training_state saved = save_training(setup_, device_);
    saved.scaler = scaler_.state();
    saved.steps = steps_;
    return saved;
  }
  void restore(const training_state& from) {
    served_.zero();
    restore_training(from, setup_, device_);
    scaler_.load(from.scaler);
    steps_ = from.steps;
  }

  /// Moves each weight by about half a unit in its last place; restore() undoes it.
  void perturb(std::uint64_t seed) { libtorch::perturb(tensors_of(setup_, false), seed); }

  /// Waits for the device.
  void synchronize() const {
    if (!device_.is_cpu()) c10::impl::VirtualGuardImpl{device_.type()}.synchronizeDevice(device_.index());
  }

 private:
  using clock = std::chrono::steady_clock;
  static double since(clock::time_point start) { return std::chrono::duration<double>(clock::now() - start).count(); }
  static setup checked(setup s) {
    require_usable(s);
    return s;
  }
  program_settings on_device() const {
    program_settings chosen = setup_.program;
    chosen.device = device_;
    return chosen;
  }

  bool scales() const {
    if (setup_.scale_loss != loss_scaling::by_plan) return setup_.scale_loss == loss_scaling::always;
    return std::ranges::find(plan_, precision::fp16) != plan_.end();
  }

  /// A forward that ended before its last operator did not throw: only now it is known.
  void require_whole() {
    if (setup_.program.otherwise == on_mismatch::fp32) return;
    const program_problems seen = program_.problems();
    if (seen.ended_early == 0) return;
    program_.clear_problems();
    throw error{fmt::format(
        "step {}: {} (a plan goes by the recorded sequence): keep the forward the same from step to step, or set "
        "on_mismatch::fp32",
        steps_, seen.first)};
  }

  std::string remarks(std::int64_t skipped) {
    std::string text;
    if (skipped > 0) {
      text =
          fmt::format("{} steps skipped: FP16 gradients overflowed, loss scale now {}", skipped, scaler_.state().scale);
    }
    const program_problems seen = program_.problems();
    if (const auto left = seen.mismatches + seen.ended_early; left > 0) {
      text += fmt::format("{}{} forwards left the recorded sequence and went on in FP32, first: {}",
                          text.empty() ? "" : "; ", left, seen.first);
    }
    return text;
  }

  /// Means over the batches so far.
  struct tally {
    std::vector<loss_value> sums;
    std::int64_t skipped = 0;

    void add(const step_result& result, sample& to) {
      if (sums.empty()) {
        sums = result.losses;
        for (loss_value& sum : sums) sum.value = 0;
      }
      require<error>(
          std::ranges::equal(sums, result.losses, {}, &loss_value::name, &loss_value::name),
          "a step with the losses{} after one with{} (each is judged over the epoch): call backward() for the "
          "same losses in each step",
          names(result.losses), names(sums));
      ++to.batches;
      double now = 0, all = 0;
      to.losses.clear();
      for (std::size_t i = 0; i < sums.size(); ++i) {
        now += result.losses[i].value;
        all += (sums[i].value += result.losses[i].value);
        if (sums.size() > 1) to.losses.push_back(sums[i].value / static_cast<double>(to.batches));
      }
      to.curve.push_back(now);
      to.loss = all / static_cast<double>(to.batches);
      skipped += result.skipped;
      if (result.not_finite.empty()) return;
      to.status = status::not_finite;
      to.message = result.not_finite;
    }
    static std::string names(const std::vector<loss_value>& losses) {
      std::string text;
      for (const loss_value& loss : losses) text += " \"" + loss.name + "\"";
      return text;
    }
  };

  /// What lives from step to step.
  std::vector<at::Tensor> held() const {
    std::vector<at::Tensor> all = tensors_of(setup_, true);
    for (const at::Tensor& parameter : tensors_of(setup_, false)) {
      all.push_back(parameter);
      all.push_back(parameter.grad());
    }
    for (auto* optimizer : setup_.optimizers) append_tensors(*optimizer, all);
    if (setup_.extra.tensors) std::ranges::copy(setup_.extra.tensors(), std::back_inserter(all));
    return all;
  }

  setup setup_;
  c10::Device device_;
  program program_;
  grad_scaler scaler_;
  served_gradients served_;
  detail::rate_watch rates_;
  plan plan_ = {};
  std::uint64_t steps_ = 0;
};

}  // namespace comp::libtorch
