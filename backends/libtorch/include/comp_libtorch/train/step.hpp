// SPDX-License-Identifier: Apache-2.0
// What a user's training step is written with: forward inside the plan's region, backward outside it, and updates with
// the loss scale where the plan needs one.
//   auto loss = s.forward([&] { return cross_entropy(net->forward(batch.data), batch.target); });
//   s.backward(loss);
//   s.update(optimizer);
// Forwards of different names are different segments of the graph, as a GAN's two. Several forwards of one name are the
// same operators again, as in gradient accumulation. Not here: the loop over batches (trainer.hpp).
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <comp/core/error.hpp>
#include <comp_libtorch/plan/program.hpp>
#include <comp_libtorch/train/grad_scaler.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::libtorch {

struct backward_options {
  std::string loss = "loss";  // its name where there are several: each is judged on its own
  bool retain_graph = false;
};

/// A loss of a step, under its name.
struct loss_value {
  std::string name;
  double value;
};

/// What came of one step.
struct step_result {
  std::vector<loss_value> losses = {};  // in the order of their first backward
  std::string not_finite = {};          // what is not finite, and why; empty: nothing
  bool skipped = false;                 // an FP16 gradient overflowed: no update, a smaller scale
};

/// Optimizers whose gradients an update has used, and which are zeroed before the next backward. On a CPU this waits
/// until gradients are made again: memory that the C library gets back at the end of a step goes on to the system, and
/// comes back page by page in the next forward (VGG16: three times the page faults). A GPU's caching allocator has no
/// such cost, so there it is done at once.
class used_gradients {
 public:
  void add(torch::optim::Optimizer& optimizer) {
    if (std::ranges::find(optimizers_, &optimizer) == optimizers_.end()) optimizers_.push_back(&optimizer);
  }
  void zero() {
    for (auto* optimizer : optimizers_) optimizer->zero_grad();
    optimizers_.clear();
  }

 private:
  std::vector<torch::optim::Optimizer*> optimizers_;
};

class step {
 public:
  /// `scaler`: null where losses are not scaled. `used`: lives on from step to step. `agree`: see setup::agree.
  step(program& plan, grad_scaler* scaler, used_gradients& used, std::uint64_t number,
       optimizer_pass pass = optimizer_pass::stock, const agreement* agree = nullptr)
      : program_{plan}, scaler_{scaler}, used_gradients_{used}, number_{number}, pass_{pass}, agree_{agree} {}
  step(const step&) = delete;
  step& operator=(const step&) = delete;

  /// Returns: the number of steps before this one, which is the same again after a restored state. For schedules:
  /// `optimizer.param_groups()[0].options().set_lr(...)`, which is restored, too.
  std::uint64_t number() const { return number_; }
  bool scaled() const { return scaler_ != nullptr; }

  /// Runs `work` with its operators in the precisions of the plan. Returns: what `work` returns.
  template <class F>
  decltype(auto) forward(std::string_view segment, F&& work) {
    const inside guard{inside_};
    const auto on = program_.enter(segment);
    return std::forward<F>(work)();
  }
  template <class F>
  decltype(auto) forward(F&& work) {
    return forward("forward", std::forward<F>(work));
  }

  /// Adds the gradients of a loss of one element. Of each name the sum over its calls in the step is reported, as
  /// gradients are summed: pass loss / k when accumulating over k parts. Throws: `error` inside a forward.
  void backward(const at::Tensor& loss, const backward_options& how = {}) {
    require<error>(!inside_,
                   "backward() inside forward() (its operators would be taken for the model's): end the forward first");
    if (evaluations_ <= 1) record(how.loss, loss.detach());
    // In a backward ranks wait for each other. One that fails before does not get here, and the others leave the step.
    if (const agreement* const agree = std::exchange(agree_, nullptr)) (void)(*agree)({});
    used_gradients_.zero();
    (scaler_ ? scaler_->scale(loss) : loss).backward({}, how.retain_graph);
  }

  /// Reports a loss whose gradients were added elsewhere (by another language's backward). It is judged as one of
  /// backward() is.
  void report(const std::string& name, const at::Tensor& loss) { record(name, loss.detach()); }

  /// Has `work(format)` average the gradients among ranks, after the last backward and before the update. `format`:
  /// that in which the plan has them travel; FP32 without program_settings::exchange. Requires: `work` returns when it
  /// is done.
  void exchange(const std::function<void(at::ScalarType)>& work) {
    (void)program_.exchange([&](at::ScalarType format) { return work(format), true; }, [](bool) {});
  }

  /// From now on each update limits the norm of all gradients of its optimizer together to this.
  void clip(double largest_norm) { clip_ = largest_norm; }

  /// Unscales, clips and steps. The next backward() begins with gradients of zero. A step whose scaled gradients
  /// overflowed is skipped.
  void update(torch::optim::Optimizer& optimizer) {
    if (scaler_) {
      if (clip_) scaler_->clip_grad_norm(optimizer, *clip_);
      note(scaler_->step(optimizer, pass_));
    } else {
      if (clip_) torch::nn::utils::clip_grad_norm_(detail::parameters_of(optimizer), *clip_);
      step_by(pass_, optimizer);
    }
    note_update(optimizer);
  }

  /// For optimizers that evaluate the loss several times (LBFGS). `closure` zeroes the gradients, calls forward and
  /// backward, and returns the loss. The loss of the first evaluation is reported.
  /// Throws: `error` where losses are scaled: an overflow could not be skipped.
  void update(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& closure) {
    require<error>(
        !scaler_,
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

 protected:
  /// Ends the step. A later backward may have left gradients in a model that was updated before it (a GAN's
  /// discriminator): they belong to no step, and are dropped. Throws: `error` where a forward ended before its last
  /// operator.
  void finish() {
    for (auto* optimizer : updated_) drop_gradients(*optimizer);
    if (scaler_ && !updated_.empty()) scaler_->update();
    require_whole();
  }

  /// Waits for the device. Throws: `error` for a step without a loss.
  step_result result() const {
    require<error>(!losses_.empty(), "step {} without a loss (plans are judged by it): call backward() of the step",
                   number_);
    step_result all{.not_finite = diagnosis_, .skipped = skipped_};
    for (const named_loss& loss : losses_) {
      double sum = 0;
      for (const at::Tensor& part : loss.parts) sum += part.item<double>();
      all.losses.push_back({loss.name, sum});
      if (std::isfinite(sum) || !all.not_finite.empty()) continue;
      all.not_finite =
          program_.lowers()
              ? fmt::format("loss {} in step {} (it left the range of its precision): use more FP32", sum, number_)
              : fmt::format("loss {} in step {} (in FP32): look at the data of that batch and at the learning rate",
                            sum, number_);
    }
    return all;
  }

 private:
  struct inside {
    explicit inside(bool& flag) : flag_{flag}, before_{std::exchange(flag, true)} {}
    ~inside() { flag_ = before_; }
    inside(const inside&) = delete;
    inside& operator=(const inside&) = delete;
    bool& flag_;
    bool before_;
  };

  struct named_loss {
    std::string name;
    std::vector<at::Tensor> parts;
  };

  void record(const std::string& name, at::Tensor part) {
    const auto known = std::ranges::find(losses_, name, &named_loss::name);
    (known != losses_.end() ? *known : losses_.emplace_back(named_loss{name, {}})).parts.push_back(std::move(part));
  }

  void note(const scaling::step_report& report) {
    skipped_ = skipped_ || report.skipped;
    if (diagnosis_.empty()) diagnosis_ = report.diagnosis;
  }

  void note_update(torch::optim::Optimizer& optimizer) {
    updated_.push_back(&optimizer);
    program_.end_step();
    drop_gradients(optimizer);
  }

  void drop_gradients(torch::optim::Optimizer& optimizer) {
    used_gradients_.add(optimizer);
    if (!program_.settings().device.is_cpu()) used_gradients_.zero();
  }

  /// Throws: `error` where a forward left the recorded sequence, or ended before its last operator, without an
  /// exception.
  void require_whole() {
    const program_problems problems = program_.problems();
    if (program_.settings().otherwise == on_mismatch::fp32 || problems.ended_early + problems.mismatches == 0) return;
    program_.clear_problems();
    throw error{fmt::format(
        "step {}: {} (a plan goes by the recorded forward): train the model that was recorded, or set on_mismatch::fp32",
        number_, problems.first)};
  }

  program& program_;
  grad_scaler* scaler_;
  used_gradients& used_gradients_;
  std::uint64_t number_;
  optimizer_pass pass_;
  const agreement* agree_;  // to be met by before the first backward; null: that was done, or it trains alone
  bool inside_ = false;
  std::optional<double> clip_;
  std::vector<named_loss> losses_;
  std::vector<torch::optim::Optimizer*> updated_;
  int evaluations_ = 0;  // of the loss, by an optimizer's closure
  bool skipped_ = false;
  std::string diagnosis_;
};

namespace detail {
/// A step with the members that only the trainer calls.
class trained_step final : public step {
 public:
  using step::step, step::finish, step::result;
};
}  // namespace detail

}  // namespace comp::libtorch
