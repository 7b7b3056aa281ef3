// SPDX-License-Identifier: Apache-2.0
// What the parts of a training step do (step.hpp).
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/nn/utils/clip_grad.h>

#include <algorithm>
#include <cmath>
#include <comp/core/error.hpp>
#include <comp_libtorch/plan/program.hpp>
#include <comp_libtorch/train/fused_optimizer.hpp>
#include <comp_libtorch/train/grad_scaler.hpp>
#include <comp_libtorch/train/kept_moments.hpp>
#include <comp_libtorch/train/optimizer_gradients.hpp>
#include <comp_libtorch/train/step.hpp>
#include <functional>
#include <string>
#include <utility>

namespace comp::libtorch {

COMP_INLINE void used_gradients::add(torch::optim::Optimizer& optimizer) {
  if (std::ranges::find(optimizers_, &optimizer) == optimizers_.end()) optimizers_.push_back(&optimizer);
}
COMP_INLINE void used_gradients::zero() {
  for (auto* optimizer : optimizers_) optimizer->zero_grad();
  optimizers_.clear();
}
COMP_INLINE void step::backward(const at::Tensor& loss, const backward_options& how) {
  require<error>(!inside_,
                 "backward() inside forward() (its operators would be taken for the model's): end the forward first");
  if (evaluations_ <= 1) report(how.loss, loss);
  // In a backward ranks wait for each other. One that fails before does not get here, and the others leave the step.
  if (const agreement* const agree = std::exchange(agree_, nullptr)) (void)(*agree)({});
  used_gradients_.zero();
  (scaler_ ? scaler_->scale(loss) : loss).backward({}, how.retain_graph);
}
COMP_INLINE void step::report(const std::string& name, const at::Tensor& loss) {
  const auto known = std::ranges::find(losses_, name, &named_loss::name);
  (known != losses_.end() ? *known : losses_.emplace_back(named_loss{name, {}})).parts.push_back(loss.detach());
}
COMP_INLINE void step::exchange(const std::function<void(at::ScalarType)>& work) {
  (void)program_.exchange([&](at::ScalarType format) { return work(format), true; }, [](bool) {});
}
COMP_INLINE void step::update(torch::optim::Optimizer& optimizer) {
  if (scaler_) {
    if (clip_) scaler_->clip_grad_norm(optimizer, *clip_);
    const scaling::step_report done = scaler_->step(optimizer, [&] { move_weights(optimizer); });
    skipped_ = skipped_ || done.skipped;
    if (diagnosis_.empty()) diagnosis_ = done.diagnosis;
  } else {
    if (clip_) torch::nn::utils::clip_grad_norm_(detail::parameters_of(optimizer), *clip_);
    move_weights(optimizer);
  }
  note_update(optimizer);
}
COMP_INLINE void step::update(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& closure) {
  require<error>(!scaler_,
                 "a closure under loss scaling (it evaluates the loss again and again with one scale): leave FP16 out "
                 "of the search for this optimizer");
  optimizer.step([&] {
    const at::AutoGradMode on{true};
    ++evaluations_;
    return closure();
  });
  evaluations_ = 0;
  note_update(optimizer);
}
COMP_INLINE void step::move_weights(torch::optim::Optimizer& optimizer) {
  if (moments_ == nullptr) return step_by(pass_, optimizer);
  const op_graph& graph = program_.graph();
  const std::function<void()> end = program_.begin_update(moments_->timed(optimizer, graph));
  const moment_formats how = moments_->formats(optimizer, program_.current_plan(), graph, number_);
  if (how.low()) {
    (void)step_keeping(optimizer, how);
  } else {
    keep_moments(optimizer, how);
    step_by(pass_, optimizer);
  }
  end();
}
COMP_INLINE void step::finish() {
  for (auto* optimizer : updated_) drop_gradients(*optimizer);
  if (scaler_ && !updated_.empty()) scaler_->update();
  require_whole();
}
COMP_INLINE step_result step::result() const {
  require<error>(!losses_.empty(), "step {} without a loss (plans are judged by it): {}", number_,
                 by_language("call backward() of the step", "return the loss"));
  step_result all{.not_finite = diagnosis_, .skipped = skipped_};
  for (const named_loss& loss : losses_) {
    double sum = 0;
    for (const at::Tensor& part : loss.parts) sum += part.item<double>();
    all.losses.push_back({loss.name, sum});
    if (std::isfinite(sum) || !all.not_finite.empty()) continue;
    all.not_finite =
        program_.lowers()
            ? fmt::format("loss {} in step {} (it left the range of its precision): use more FP32", sum, number_)
            : fmt::format("loss {} in step {} (in FP32): look at the data of that batch and at the learning rate", sum,
                          number_);
  }
  return all;
}
COMP_INLINE void step::note_update(torch::optim::Optimizer& optimizer) {
  updated_.push_back(&optimizer);
  program_.end_step();
  drop_gradients(optimizer);
}
COMP_INLINE void step::drop_gradients(torch::optim::Optimizer& optimizer) {
  used_gradients_.add(optimizer);
  if (!program_.settings().device.is_cpu()) used_gradients_.zero();
}
COMP_INLINE void step::require_whole() {
  const program_problems problems = program_.problems();
  if (program_.settings().otherwise == on_mismatch::fp32 || problems.ended_early + problems.mismatches == 0) return;
  program_.clear_problems();
  throw error{fmt::format("step {}: {} (a plan goes by the recorded forward): train the model that was recorded, or {}",
                          number_, problems.first, detail::fp32_otherwise())};
}

}  // namespace comp::libtorch
