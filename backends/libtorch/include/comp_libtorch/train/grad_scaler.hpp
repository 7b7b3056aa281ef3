// SPDX-License-Identifier: Apache-2.0
// Loss scaling for FP16 gradients in a LibTorch training loop: comp::scaling::grad_scaler with the calls of PyTorch's
// torch.amp.GradScaler.
//   scaler.scale(loss).backward();
//   scaler.clip_grad_norm(optimizer, 1.0);  // if you clip: it unscales first, so the order cannot be wrong
//   scaler.step(optimizer);                 // unscales if that is not done; skips where a gradient overflowed
//   scaler.update();                        // once per step, whatever the number of optimizers
// There may be any number of optimizers, and parameters on any devices. Not here: which plans need it (those with FP16;
// trainer.hpp scales for them), the algorithm and its constants (comp/scaling). Source: PyTorch 2.11,
// torch/amp/grad_scaler.py, as documented.
#pragma once

#include <torch/nn/module.h>
#include <torch/optim/optimizer.h>
#include <torch/serialize/archive.h>

#include <cmath>
#include <comp/core/error.hpp>
#include <comp/scaling/grad_scaler.hpp>
#include <comp_libtorch/hook/op_names.hpp>
#include <comp_libtorch/train/fused_optimizer.hpp>
#include <exception>
#include <map>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
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

inline std::string name_of(const at::Tensor& parameter, const parameter_names& names) {
  const std::string* name = names.find(parameter);
  return name ? *name : fmt::format("a parameter of {} elements", parameter.numel());
}

/// The gradients of one optimizer's parameters, as comp::scaling::Gradients.
class optimizer_gradients {
 public:
  /// Throws: `error` when there are none, or one is FP16.
  optimizer_gradients(const torch::optim::Optimizer& optimizer, std::shared_ptr<const parameter_names> names)
      : names_{std::move(names)} {
    for (const at::Tensor& parameter : parameters_of(optimizer)) {
      const at::Tensor& gradient = parameter.grad();
      if (!gradient.defined()) continue;
      require<error>(gradient.scalar_type() != at::kHalf,
                     "gradient of {} is fp16 (fp16 parameters cannot be unscaled without loss): keep the parameters in "
                     "FP32 and lower the operators by a plan",
                     name_of(parameter, *names_));
      parameters_.push_back(parameter);
      by_kind_[{gradient.device().str(), gradient.scalar_type()}].push_back(values_of(gradient));
    }
    require<error>(!parameters_.empty(),
                   "optimizer with no gradients (nothing to check for overflow): call "
                   "scale(loss).backward() first, with parameters that the optimizer holds");
  }

  bool unscale(double factor) {
    const torch::NoGradGuard no_grad;
    std::map<std::string, at::Tensor> overflow;  // by device: all are started before one is waited for
    for (auto& [kind, gradients] : by_kind_) {
      const auto options = at::device(gradients.front().device()).dtype(at::kFloat);
      const auto [flag, fresh] = overflow.try_emplace(kind.first);
      if (fresh) flag->second = at::zeros({}, options);
      at::_amp_foreach_non_finite_check_and_unscale_(gradients, flag->second, at::full({}, factor, options));
    }
    bool finite = true;
    for (const auto& [device, flag] : overflow) finite = flag.item<float>() == 0 && finite;
    return finite;
  }
  double norm() const {
    double squares = 0;
    for (const auto& [kind, gradients] : by_kind_) {
      const double part = at::stack(at::_foreach_norm(gradients)).to(at::kDouble).norm().item<double>();
      squares += part * part;
    }
    return std::sqrt(squares);
  }
  void multiply(double factor) {
    const torch::NoGradGuard no_grad;
    for (auto& [kind, gradients] : by_kind_) at::_foreach_mul_(gradients, factor);
  }
  /// Returns: the names of parameters whose gradients are not finite. Without names none is looked at, because each
  /// look waits for the device.
  std::vector<std::string> not_finite() const {
    std::vector<std::string> names;
    for (const at::Tensor& parameter : parameters_) {
      if (names_->empty() || at::isfinite(values_of(parameter.grad())).all().item<bool>()) continue;
      names.push_back(name_of(parameter, *names_));
    }
    return names;
  }

 private:
  static at::Tensor values_of(const at::Tensor& gradient) {
    return gradient.is_sparse() ? gradient._values() : gradient;
  }

  std::shared_ptr<const parameter_names> names_;
  std::vector<at::Tensor> parameters_;
  std::map<std::pair<std::string, at::ScalarType>, std::vector<at::Tensor>> by_kind_;  // device and dtype
};

}  // namespace detail

class grad_scaler {
 public:
  /// Throws: `settings_error` for constants that cannot work.
  explicit grad_scaler(scaling::settings chosen = {}) : scaler_{chosen} {}
  grad_scaler(const grad_scaler&) = delete;
  grad_scaler& operator=(const grad_scaler&) = delete;

  /// From now on reports name the parameters whose gradients overflow. These are looked for only after an overflow.
  void name_parameters(const torch::nn::Module& model, const std::string& prefix = "") {
    auto names = *names_;
    names.add_all(model, prefix);
    names_ = std::make_shared<const detail::parameter_names>(std::move(names));
  }

  /// Returns: the loss times the scale, over the number of micro-batches. A low loss is scaled in FP32, because the
  /// product would overflow FP16.
  at::Tensor scale(const at::Tensor& loss) {
    const bool low = loss.scalar_type() == at::kHalf || loss.scalar_type() == at::kBFloat16;
    if (constants().micro_batches == 1 && state().micro_batches == 0) (void)scaler_.count_micro_batch();
    return scaler_.loss_factor() == 1 ? loss : (low ? loss.to(at::kFloat) : loss) * scaler_.loss_factor();
  }
  std::vector<at::Tensor> scale(at::TensorList losses) {
    std::vector<at::Tensor> scaled;
    for (const at::Tensor& loss : losses) scaled.push_back(scale(loss));
    return scaled;
  }
  /// Call it after the backward of each micro-batch. Returns: whether a step is due; always true where a step has but
  /// one.
  bool count_micro_batch() { return constants().micro_batches == 1 || scaler_.count_micro_batch(); }
  /// Makes a step of the micro-batches so far, when the data ended. Returns: whether there are any.
  bool end_accumulation() { return scaler_.end_accumulation(); }

  /// Divides the gradients of the optimizer's parameters by the scale, and remembers whether one is not finite. Throws:
  /// `error` for a second call since update(), for one before scale(), for FP16 gradients, and for none at all.
  void unscale_(torch::optim::Optimizer& optimizer) {
    unscaled_.emplace(&optimizer, scaler_.unscale(detail::optimizer_gradients{optimizer, names_},
                                                  fmt::format("optimizer {}", static_cast<const void*>(&optimizer))));
  }

  /// Unscales unless that is done, then limits the norm of all gradients of the optimizer together to `largest`.
  /// Returns: the norm before; not finite where a gradient is not, and then step() will skip.
  double clip_grad_norm(torch::optim::Optimizer& optimizer, double largest) { return of(optimizer).clip_norm(largest); }

  /// Steps the optimizer, unless one of its gradients is not finite. Optimizers that call back (LBFGS) cannot be
  /// scaled. Throws: as unscale_(); `error` for a second step since update().
  scaling::step_report step(torch::optim::Optimizer& optimizer, optimizer_pass pass = optimizer_pass::stock) {
    auto mine = std::move(of(optimizer));
    unscaled_.erase(&optimizer);
    return std::move(mine).step([&] { step_by(pass, optimizer); });
  }

  /// Lowers the scale, raises it or counts good steps, by what the steps since the last update() found.
  /// Throws: `error` when there was no step since, or an optimizer is unscaled and has not stepped.
  void update() { scaler_.update(); }
  /// Sets the scale by hand. Throws: `settings_error` for one outside of floor and ceiling.
  void update(double scale) {
    scaling::state now = state();
    now.scale = scale;
    load(now);
  }
  /// Forgets what was unscaled or stepped since the last update(), after an exception in the middle of a step.
  void give_up() {
    scaler_.give_up();
    unscaled_.clear();
  }

  const scaling::settings& constants() const { return scaler_.constants(); }
  const scaling::state& state() const { return scaler_.now(); }
  /// Half-done steps are forgotten. Throws: `settings_error` for a state that these constants cannot have.
  void load(const scaling::state& from) {
    scaler_.load(from);
    unscaled_.clear();
  }
  void save(torch::serialize::OutputArchive& to) const {
    to.write("grad_scaler", c10::IValue{nlohmann::json(state()).dump()});
  }
  /// Throws: `file_error` when the archive holds no state; `settings_error` for one that these constants cannot have.
  void load(torch::serialize::InputArchive& from) {
    c10::IValue text;
    require<file_error>(from.try_read("grad_scaler", text) && text.isString(),
                        "archive without the state of a grad_scaler (save() writes it): save it again");
    scaling::state read;
    try {
      read = nlohmann::json::parse(text.toStringRef()).get<scaling::state>();
    } catch (const nlohmann::json::exception& fault) {
      throw file_error{fmt::format("state of a grad_scaler cannot be read ({}): save it again", fault.what())};
    }
    load(read);
  }

 private:
  using unscaled = scaling::grad_scaler::unscaled<detail::optimizer_gradients>;

  unscaled& of(torch::optim::Optimizer& optimizer) {
    if (!unscaled_.contains(&optimizer)) unscale_(optimizer);
    return unscaled_.at(&optimizer);
  }

  scaling::grad_scaler scaler_;
  std::shared_ptr<const detail::parameter_names> names_ = std::make_shared<const detail::parameter_names>();
  std::unordered_map<torch::optim::Optimizer*, unscaled> unscaled_;  // of optimizers that have not stepped
};

}  // namespace comp::libtorch
