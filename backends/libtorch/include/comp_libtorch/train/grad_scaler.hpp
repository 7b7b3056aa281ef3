// SPDX-License-Identifier: Apache-2.0
// Loss scaling for FP16 gradients in a LibTorch training loop: comp::scaling::grad_scaler with the calls of PyTorch's
// torch.amp.GradScaler.
//   scaler.scale(loss).backward();
//   scaler.clip_grad_norm(optimizer, 1.0);  // if you clip: it unscales first, so the order cannot be wrong
//   scaler.step(optimizer);                 // unscales if that is not done; skips if a gradient overflowed
//   scaler.update();                        // once per step, whatever the number of optimizers
// There may be any number of optimizers, and parameters on any devices. Plans with FP16 need loss scaling, which a
// trainer does by itself.
// Source: PyTorch 2.11, torch/amp/grad_scaler.py, as documented.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <comp/core/linkage.hpp>
#include <comp/scaling/grad_scaler.hpp>
#include <comp_libtorch/plan/settings.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace comp::libtorch {

namespace detail {
class parameter_names;
struct unscaled_optimizers;
}  // namespace detail

class grad_scaler {
 public:
  /// Throws: `settings_error` for constants that cannot work.
  COMP_INLINE explicit grad_scaler(scaling::settings chosen = {});
  COMP_INLINE ~grad_scaler();
  grad_scaler(const grad_scaler&) = delete;
  grad_scaler& operator=(const grad_scaler&) = delete;

  /// From now on reports name the parameters whose gradients overflow. These are looked for only after an overflow.
  COMP_INLINE void name_parameters(const torch::nn::Module& model, const std::string& prefix = "");

  /// Returns: the loss times the scale, over the number of micro-batches. A low loss is scaled in FP32, because the
  /// product would overflow FP16.
  COMP_INLINE at::Tensor scale(const at::Tensor& loss);
  COMP_INLINE std::vector<at::Tensor> scale(at::TensorList losses);
  /// Call it after the backward of each micro-batch. Returns: whether a step is due; always true if a step has but one.
  bool count_micro_batch() { return constants().micro_batches == 1 || scaler_.count_micro_batch(); }
  /// Makes a step of the micro-batches so far, when the data ended. Returns: whether there are any.
  bool end_accumulation() { return scaler_.end_accumulation(); }

  /// Divides the gradients of the optimizer's parameters by the scale, and remembers whether one is not finite. Throws:
  /// `error` for a second call since update(), for one before scale(), for FP16 gradients, and for none at all.
  COMP_INLINE void unscale_(torch::optim::Optimizer& optimizer);

  /// Unscales unless that is done, then limits the norm of all gradients of the optimizer together to `largest`.
  /// Returns: the norm before; not finite if a gradient is not, and then step() will skip.
  COMP_INLINE double clip_grad_norm(torch::optim::Optimizer& optimizer, double largest);

  /// Steps the optimizer, unless one of its gradients is not finite. Optimizers that call back (LBFGS) cannot be
  /// scaled. Throws: as unscale_(); `error` for a second step since update().
  COMP_INLINE scaling::step_report step(torch::optim::Optimizer& optimizer,
                                        optimizer_pass pass = optimizer_pass::stock);
  /// The same with the caller's own `update`.
  COMP_INLINE scaling::step_report step(torch::optim::Optimizer& optimizer, const std::function<void()>& update);

  /// Lowers the scale, raises it or counts good steps, by what the steps since the last update() found.
  /// Throws: `error` when there was no step since, or an optimizer is unscaled and has not stepped.
  COMP_INLINE void update();
  /// Sets the scale by hand. Throws: `settings_error` for one outside of floor and ceiling.
  COMP_INLINE void update(double scale);
  /// Forgets what was unscaled or stepped since the last update(), after an exception in the middle of a step.
  COMP_INLINE void give_up();

  const scaling::settings& constants() const { return scaler_.constants(); }
  const scaling::state& state() const { return scaler_.now(); }
  /// Half-done steps are forgotten. Throws: `settings_error` for a state that these constants cannot have.
  COMP_INLINE void load(const scaling::state& from);
  COMP_INLINE void save(torch::serialize::OutputArchive& to) const;
  /// Throws: `file_error` when the archive holds no state; `settings_error` for one that these constants cannot have.
  COMP_INLINE void load(torch::serialize::InputArchive& from);

 private:
  scaling::grad_scaler scaler_;
  std::shared_ptr<const detail::parameter_names> names_;
  std::unique_ptr<detail::unscaled_optimizers> unscaled_;  // those that have not stepped
};

}  // namespace comp::libtorch

#if COMP_HEADER_ONLY
#include <comp_libtorch/train/optimizer_gradients.hpp>
#endif
