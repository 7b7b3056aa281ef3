// SPDX-License-Identifier: Apache-2.0
// What a user's training step is written with: forward inside the plan's region, backward outside it, and updates with
// the loss scale if the plan needs one.
//   auto loss = s.forward([&] { return cross_entropy(net->forward(batch.data), batch.target); });
//   s.backward(loss);
//   s.update(optimizer);
// Forwards of different names are different segments of the graph, as a GAN's two. Several forwards of one name are the
// same operators again, as in gradient accumulation.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/util/ScopeExit.h>
#include <torch/optim/optimizer.h>

#include <comp/core/linkage.hpp>
#include <comp/scaling/gradients.hpp>
#include <comp_libtorch/plan/program.hpp>
#include <comp_libtorch/plan/settings.hpp>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::libtorch {

class grad_scaler;
class kept_moments;

struct backward_options {
  std::string loss = "loss";  // its name if there are several: each is judged on its own
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
  COMP_INLINE void add(torch::optim::Optimizer& optimizer);
  COMP_INLINE void zero();

 private:
  std::vector<torch::optim::Optimizer*> optimizers_;
};

class step {
 public:
  /// `scaler`: null if losses are not scaled. `used`: lives on from step to step. `agree`: see setup::agree.
  step(program& plan, grad_scaler* scaler, used_gradients& used, std::uint64_t number,
       optimizer_pass pass = optimizer_pass::stock, const agreement* agree = nullptr,
       const kept_moments* moments = nullptr)
      : program_{plan},
        scaler_{scaler},
        used_gradients_{used},
        number_{number},
        pass_{pass},
        agree_{agree},
        moments_{moments} {}
  step(const step&) = delete;
  step& operator=(const step&) = delete;

  /// Returns: the number of steps before this one, which is the same again after a restored state. For schedules:
  /// `optimizer.param_groups()[0].options().set_lr(...)`, which is restored, too.
  std::uint64_t number() const { return number_; }
  bool scaled() const { return scaler_ != nullptr; }

  /// Runs `work` with its operators in the precisions of the plan. Returns: what `work` returns.
  template <class F>
  decltype(auto) forward(std::string_view segment, F&& work) {
    const auto leave = c10::make_scope_exit([this, before = std::exchange(inside_, true)] { inside_ = before; });
    const auto on = program_.enter(segment);
    return std::forward<F>(work)();
  }
  template <class F>
  decltype(auto) forward(F&& work) {
    return forward("forward", std::forward<F>(work));
  }

  /// Adds the gradients of a loss of one element. Of each name the sum over its calls in the step is reported, as
  /// gradients are summed: pass loss / k when accumulating over k parts. Throws: `error` inside a forward.
  COMP_INLINE void backward(const at::Tensor& loss, const backward_options& how = {});

  /// Reports a loss whose gradients were added elsewhere (by another language's backward). It is judged as one of
  /// backward() is.
  COMP_INLINE void report(const std::string& name, const at::Tensor& loss);

  /// Has `work(format)` average the gradients among ranks, after the last backward and before the update. `format`:
  /// that in which the plan has them travel; FP32 without program_settings::exchange. Requires: `work` returns when it
  /// is done.
  COMP_INLINE void exchange(const std::function<void(at::ScalarType)>& work);

  /// From now on each update limits the norm of all gradients of its optimizer together to this.
  void clip(double largest_norm) { clip_ = largest_norm; }

  /// Unscales, clips and steps. The next backward() begins with this optimizer's gradients at zero; what an earlier
  /// loss left in another optimizer's stays, unless its zero_grad() is called. A step whose scaled gradients
  /// overflowed is skipped.
  COMP_INLINE void update(torch::optim::Optimizer& optimizer);

  /// For optimizers that evaluate the loss several times (LBFGS). `closure` zeroes the gradients, calls forward and
  /// backward, and returns the loss. The loss of the first evaluation is reported.
  /// Throws: `error` if losses are scaled: an overflow could not be skipped.
  COMP_INLINE void update(torch::optim::Optimizer& optimizer, const std::function<at::Tensor()>& closure);

 protected:
  /// Ends the step. A later backward may have left gradients in a model that was updated before it (a GAN's
  /// discriminator): they belong to no step, and are dropped. Throws: `error` if a forward ended before its last
  /// operator.
  COMP_INLINE void finish();

  /// Waits for the device. Throws: `error` for a step without a loss.
  COMP_INLINE step_result result() const;

 private:
  struct named_loss {
    std::string name;
    std::vector<at::Tensor> parts;
  };

  /// Steps the optimizer, which keeps its moments as the plan says.
  COMP_INLINE void move_weights(torch::optim::Optimizer& optimizer);

  COMP_INLINE void note_update(torch::optim::Optimizer& optimizer);

  COMP_INLINE void drop_gradients(torch::optim::Optimizer& optimizer);

  /// Throws: `error` if a forward left the recorded sequence, or ended before its last operator, without an exception.
  COMP_INLINE void require_whole();

  program& program_;
  grad_scaler* scaler_;
  used_gradients& used_gradients_;
  std::uint64_t number_;
  optimizer_pass pass_;
  const agreement* agree_;       // to be met by before the first backward; null: that was done, or it trains alone
  const kept_moments* moments_;  // null: no moment is an operator
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

#if COMP_HEADER_ONLY
#include <comp_libtorch/train/step_parts.hpp>
#endif
