// SPDX-License-Identifier: Apache-2.0
// Loss scaling for FP16 gradients, PyTorch's torch.amp.GradScaler for C++: same algorithm, order of calls and defaults.
//   scaler.scale(loss).backward();
//   scaler.clip_grad_norm(optimizer, 1.0);            // where wanted: unscales first, so the order cannot be wrong
//   scaler.step(optimizer);                           // unscales if that is not done; skips where a gradient
//   overflowed scaler.update();                                  // once per step, whatever the number of optimizers
// Any number of optimizers, parameters on any devices. Not here: which plans need it (those with FP16; trainer.hpp does
// it). Source: PyTorch 2.11, torch/amp/grad_scaler.py, as documented.
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/utils/clip_grad.h>
#include <torch/optim/optimizer.h>

#include <algorithm>
#include <cmath>
#include <comp/core/error.hpp>
#include <comp_libtorch/fused_optimizer.hpp>
#include <comp_libtorch/loss_scaling.hpp>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace comp::libtorch {

namespace detail {

inline std::vector<at::Tensor> parameters_of(const torch::optim::Optimizer& optimizer) {
  std::vector<at::Tensor> all;
  for (const auto& group : optimizer.param_groups()) {
    all.insert(all.end(), group.params().begin(), group.params().end());
  }
  return all;
}

}  // namespace detail

class grad_scaler {
 public:
  explicit grad_scaler(scaling_policy policy = {}) : policy_{policy}, carried_{.scale = policy.initial} {
    require_usable(policy_);
  }

  /// From now on the parameters whose gradients overflow are named in reports; they are looked for only then.
  void name_parameters(const torch::nn::Module& model, const std::string& prefix = "") {
    for (const auto& p : model.named_parameters()) {
      names_[p.value().unsafeGetTensorImpl()] = prefix.empty() ? p.key() : prefix + "." + p.key();
    }
  }

  bool enabled() const { return policy_.enabled; }
  const scaling_policy& policy() const { return policy_; }
  /// Reads the device where there was a step since the last reading.
  double scale_value() { return policy_.enabled ? state().scale : 1; }

  /// The loss times the scale, on the loss's device, in at least FP32 where the product would overflow FP16.
  at::Tensor scale(const at::Tensor& loss) {
    if (!policy_.enabled) return loss;
    return loss * on(loss.device());
  }
  std::vector<at::Tensor> scale(at::TensorList losses) {
    std::vector<at::Tensor> scaled;
    for (const at::Tensor& loss : losses) scaled.push_back(scale(loss));
    return scaled;
  }

  /// Divides the gradients of the optimizer's parameters by the scale, and remembers whether one is not finite.
  /// Throws: `error` for a second call since update(), a call after step(), FP16 gradients.
  void unscale_(torch::optim::Optimizer& optimizer) {
    if (!policy_.enabled) return;
    record& mine = records_[&optimizer];
    require<error>(
        mine.done == progress::ready,
        "unscale_() of an optimizer that {} (gradients are divided by the scale once per step): call it once, "
        "between backward and step, and update() after",
        mine.done == progress::unscaled ? "has unscaled gradients" : "has stepped since the last update()");
    unscale(optimizer, mine);
    mine.done = progress::unscaled;
  }

  /// Unscales unless that is done, then clips the norm of all gradients of the optimizer together.
  /// Returns: the norm before clipping; not finite where a gradient is not, and then step() will skip.
  double clip_grad_norm(torch::optim::Optimizer& optimizer, double largest, double norm_type = 2) {
    if (policy_.enabled && records_[&optimizer].done == progress::ready) unscale_(optimizer);
    return torch::nn::utils::clip_grad_norm_(detail::parameters_of(optimizer), largest, norm_type);
  }

  /// The optimizer's step, unless one of its gradients is not finite. Optimizers that call back (LBFGS) cannot be
  /// scaled. Throws: `error` for a second step since update(), or when no parameter has a gradient.
  scaled_step step(torch::optim::Optimizer& optimizer, optimizer_pass pass = optimizer_pass::stock) {
    if (!policy_.enabled) {
      step_by(pass, optimizer);
      return {};
    }
    record& mine = records_[&optimizer];
    require<error>(
        mine.done != progress::stepped,
        "step() twice of one optimizer since update() (the scale belongs to one step): call update() between");
    if (mine.done == progress::ready) unscale_(optimizer);
    require<error>(!mine.found.empty(),
                   "step() of an optimizer with no gradients (nothing to check for overflow): call "
                   "scale(loss).backward() first, with parameters that the optimizer holds");
    mine.done = progress::stepped;
    double found = 0;
    for (const auto& [device, flag] : mine.found) found += flag.item<double>();
    if (found == 0) step_by(pass, optimizer);
    scaled_step report{.skipped = found != 0, .scale = state().scale};
    if (report.skipped) explain(optimizer, report);
    return report;
  }

  /// Backs off, grows or counts, by what the steps since the last update() found.
  /// Throws: `error` when there was no step or unscale_ since.
  void update() {
    if (!policy_.enabled) return;
    at::Tensor found;
    for (auto& [optimizer, mine] : records_) {
      for (auto& [device, flag] : mine.found) {
        const at::Tensor here = flag.to(scale_.device());
        found = found.defined() ? found + here : here;
      }
    }
    require<error>(
        found.defined(),
        "update() with no step since the last one (there is nothing to judge the scale by): call step() first");
    at::_amp_update_scale_(scale_, good_steps_, found, policy_.growth, policy_.backoff, policy_.interval);
    scale_.clamp_min_(policy_.floor);
    skipped_.add_(found.gt(0));
    known_ = false;
    replicas_.clear();
    records_.clear();
  }
  /// Sets the scale by hand.
  void update(double scale) {
    require<settings_error>(std::isfinite(scale) && scale >= policy_.floor,
                            "loss scale {} (finite and not below its floor, {}): change it", scale, policy_.floor);
    scaler_state now = state();
    now.scale = scale;
    load(now);
  }

  /// Forgets what was unscaled or stepped since the last update(): after an exception in the middle of a step.
  void abandon_step() { records_.clear(); }

  /// Waits for the device.
  scaler_state state() {
    if (!known_) {
      carried_ = {.scale = scale_.item<double>(),
                  .good_steps = good_steps_.item<std::int64_t>(),
                  .skipped = skipped_.item<std::int64_t>()};
      known_ = true;
    }
    return carried_;
  }
  /// Half-done steps are forgotten.
  void load(const scaler_state& from) {
    carried_ = from;
    known_ = true;
    records_.clear();
    replicas_.clear();
    if (scale_.defined()) put(scale_.device());
  }
  void save(torch::serialize::OutputArchive& to) { write(state(), to); }
  /// Throws: `file_error` when the archive holds no state in range.
  void load(torch::serialize::InputArchive& from) { load(read_scaler_state(from, policy_.floor)); }

 private:
  enum class progress { ready, unscaled, stepped };
  struct record {
    progress done = progress::ready;
    std::map<c10::Device, at::Tensor, bool (*)(c10::Device, c10::Device)> found{&before};  // 1: a gradient not finite
  };

  static bool before(c10::Device a, c10::Device b) {
    return std::pair{a.type(), a.index()} < std::pair{b.type(), b.index()};
  }

  void put(c10::Device device) {
    scale_ = at::full({}, carried_.scale, at::device(device).dtype(at::kFloat));
    good_steps_ = at::full({}, carried_.good_steps, at::device(device).dtype(at::kInt));
    skipped_ = at::full({}, carried_.skipped, at::device(device).dtype(at::kLong));
  }
  /// The scale on a device; it lives on the first one that was asked for.
  at::Tensor on(c10::Device device) {
    if (!scale_.defined()) put(device);
    if (device == scale_.device()) return scale_;
    const auto known = std::find_if(replicas_.begin(), replicas_.end(), [&](auto& r) { return r.device() == device; });
    return known != replicas_.end() ? *known : replicas_.emplace_back(scale_.to(device));
  }

  void unscale(torch::optim::Optimizer& optimizer, record& mine) {
    require<error>(scale_.defined(),
                   "unscale_() before scale() (no loss was scaled): call scale(loss).backward() first");
    torch::NoGradGuard no_grad;
    std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> groups;  // by device and dtype
    for (const at::Tensor& parameter : detail::parameters_of(optimizer)) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      require<error>(gradient.scalar_type() != at::kHalf,
                     "gradient of {} is fp16 (fp16 parameters cannot be unscaled without loss): keep the parameters in "
                     "FP32 and lower the operators by a plan",
                     name_of(parameter));
      groups[{gradient.device().str(), gradient.scalar_type()}].push_back(gradient.is_sparse() ? gradient._values()
                                                                                               : gradient);
    }
    for (auto& [key, gradients] : groups) {
      const c10::Device device = gradients.front().device();
      auto [found, fresh] = mine.found.try_emplace(device);
      if (fresh) found->second = at::zeros({}, at::device(device).dtype(at::kFloat));
      const at::Tensor inverse = on(device).to(at::kDouble).reciprocal().to(at::kFloat);
      at::_amp_foreach_non_finite_check_and_unscale_(gradients, found->second, inverse);
    }
  }

  std::string name_of(const at::Tensor& parameter) const {
    const auto known = names_.find(parameter.unsafeGetTensorImpl());
    return known == names_.end() ? fmt::format("a parameter of {} elements", parameter.numel()) : known->second;
  }

  void explain(torch::optim::Optimizer& optimizer, scaled_step& report) {
    for (const at::Tensor& p : detail::parameters_of(optimizer)) {
      if (names_.empty() || !p.grad().defined()) continue;
      const at::Tensor values = p.grad().is_sparse() ? p.grad()._values() : p.grad();
      if (!at::isfinite(values).all().item<bool>()) report.not_finite.push_back(name_of(p));
    }
    if (report.scale > policy_.floor) return;
    report.diagnosis = fmt::format(
        "gradients{}{} are not finite although the loss scale is at its floor, {} (so it is not the scale that overflows, "
        "but the model): use more FP32 or a smaller learning rate",
        report.not_finite.empty() ? "" : " of ", report.not_finite.empty() ? "" : report.not_finite.front(),
        policy_.floor);
  }

  scaling_policy policy_;
  scaler_state carried_;  // where known_: what the tensors hold
  bool known_ = true;
  at::Tensor scale_, good_steps_, skipped_;                       // on the first loss's device
  std::vector<at::Tensor> replicas_;                              // of scale_, on other devices
  std::unordered_map<torch::optim::Optimizer*, record> records_;  // since the last update()
  std::unordered_map<const c10::TensorImpl*, std::string> names_;
};

}  // namespace comp::libtorch
