// SPDX-License-Identifier: Apache-2.0
// The gradients of optimizers, as loss scaling takes them (grad_scaler.hpp).
#pragma once

#include <ATen/ATen.h>
#include <torch/serialize/archive.h>

#include <cmath>
#include <comp/core/error.hpp>
#include <comp/scaling/grad_scaler.hpp>
#include <comp_libtorch/hook/op_names.hpp>
#include <comp_libtorch/train/fused_optimizer.hpp>
#include <comp_libtorch/train/grad_scaler.hpp>
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

struct unscaled_optimizers
    : std::unordered_map<torch::optim::Optimizer*, scaling::grad_scaler::unscaled<optimizer_gradients>> {
  /// Returns: the gradients of `optimizer`, unscaled by `scaler` unless that is done.
  mapped_type& of(grad_scaler& scaler, torch::optim::Optimizer& optimizer) {
    if (!contains(&optimizer)) scaler.unscale_(optimizer);
    return at(&optimizer);
  }
};

}  // namespace detail

COMP_INLINE grad_scaler::grad_scaler(scaling::settings chosen)
    : scaler_{chosen},
      names_{std::make_shared<const detail::parameter_names>()},
      unscaled_{std::make_unique<detail::unscaled_optimizers>()} {}
COMP_INLINE grad_scaler::~grad_scaler() = default;
COMP_INLINE void grad_scaler::name_parameters(const torch::nn::Module& model, const std::string& prefix) {
  auto names = *names_;
  names.add_all(model, prefix);
  names_ = std::make_shared<const detail::parameter_names>(std::move(names));
}
COMP_INLINE at::Tensor grad_scaler::scale(const at::Tensor& loss) {
  const bool low = loss.scalar_type() == at::kHalf || loss.scalar_type() == at::kBFloat16;
  if (constants().micro_batches == 1 && state().micro_batches == 0) (void)scaler_.count_micro_batch();
  return scaler_.loss_factor() == 1 ? loss : (low ? loss.to(at::kFloat) : loss) * scaler_.loss_factor();
}
COMP_INLINE std::vector<at::Tensor> grad_scaler::scale(at::TensorList losses) {
  std::vector<at::Tensor> scaled;
  for (const at::Tensor& loss : losses) scaled.push_back(scale(loss));
  return scaled;
}
COMP_INLINE void grad_scaler::unscale_(torch::optim::Optimizer& optimizer) {
  unscaled_->emplace(&optimizer, scaler_.unscale(detail::optimizer_gradients{optimizer, names_},
                                                 fmt::format("optimizer {}", static_cast<const void*>(&optimizer))));
}
COMP_INLINE double grad_scaler::clip_grad_norm(torch::optim::Optimizer& optimizer, double largest) {
  return unscaled_->of(*this, optimizer).clip_norm(largest);
}
COMP_INLINE scaling::step_report grad_scaler::step(torch::optim::Optimizer& optimizer, optimizer_pass pass) {
  return step(optimizer, [&] { step_by(pass, optimizer); });
}
COMP_INLINE scaling::step_report grad_scaler::step(torch::optim::Optimizer& optimizer,
                                                   const std::function<void()>& update) {
  auto mine = std::move(unscaled_->of(*this, optimizer));
  unscaled_->erase(&optimizer);
  return std::move(mine).step(update);
}
COMP_INLINE void grad_scaler::update() { scaler_.update(); }
COMP_INLINE void grad_scaler::update(double scale) {
  scaling::state now = state();
  now.scale = scale;
  load(now);
}
COMP_INLINE void grad_scaler::give_up() {
  scaler_.give_up();
  unscaled_->clear();
}
COMP_INLINE void grad_scaler::load(const scaling::state& from) {
  scaler_.load(from);
  unscaled_->clear();
}
COMP_INLINE void grad_scaler::save(torch::serialize::OutputArchive& to) const {
  to.write("grad_scaler", c10::IValue{nlohmann::json(state()).dump()});
}
COMP_INLINE void grad_scaler::load(torch::serialize::InputArchive& from) {
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

}  // namespace comp::libtorch
