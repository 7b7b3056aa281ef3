// SPDX-License-Identifier: Apache-2.0
// The state of a training within its process: parameters, their pending gradients, buffers, optimizers, random
// generators, and what the user adds. It is put back in place, so every reference stays valid.
// Memory: a state is one copy of the weights, the buffers and the optimizer's moments (Adam: 3 times the weights). A
// search holds three to four of them. setup::states_on = at::kCPU keeps them off a device.
#pragma once

#include <torch/nn/module.h>
#include <torch/utils.h>

#include <algorithm>
#include <any>
#include <comp/core/error.hpp>
#include <comp_libtorch/support/generators.hpp>
#include <comp_libtorch/support/memory.hpp>
#include <comp_libtorch/train/optimizer_state.hpp>
#include <comp_libtorch/train/setup.hpp>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <string>
#include <vector>

namespace comp::libtorch {

/// Copies of a model's tensors by name.
class module_state {
 public:
  static module_state save(const torch::nn::Module& model, std::optional<c10::Device> store = {}) {
    module_state saved;
    for (const auto& p : model.named_parameters()) {
      saved.parameters_.push_back({p.key(), detail::copied(p.value(), store), detail::copied(p.value().grad(), store),
                                   p.value().requires_grad()});
    }
    for (const auto& b : model.named_buffers()) {
      saved.buffers_.push_back({b.key(), detail::copied(b.value(), store), {}, false});
    }
    return saved;
  }

  /// Throws: `error`, naming the tensor, when the model has other parameters or buffers than when it was saved.
  void restore(torch::nn::Module& model) const {
    const torch::NoGradGuard no_grad;
    auto parameters = model.named_parameters();
    auto buffers = model.named_buffers();
    require_same(parameters.size(), parameters_.size(), "parameters");
    require_same(buffers.size(), buffers_.size(), "buffers");
    for (std::size_t i = 0; i < parameters_.size(); ++i) {
      at::Tensor& to = parameters[i].value();
      put_back(parameters[i].key(), to, parameters_[i]);
      detail::put(to.mutable_grad(), parameters_[i].gradient, to.device());
      if (to.requires_grad() != parameters_[i].requires_grad) to.set_requires_grad(parameters_[i].requires_grad);
    }
    for (std::size_t i = 0; i < buffers_.size(); ++i) put_back(buffers[i].key(), buffers[i].value(), buffers_[i]);
  }

  std::int64_t bytes() const {
    std::vector<at::Tensor> all;
    for (const auto* list : {&parameters_, &buffers_}) {
      for (const kept& k : *list) {
        all.push_back(k.value);
        all.push_back(k.gradient);
      }
    }
    return bytes_held(all);
  }

 private:
  struct kept {
    std::string name;
    at::Tensor value, gradient;
    bool requires_grad;
  };

  static void require_same(std::size_t has, std::size_t had, std::string_view what) {
    require<error>(has == had,
                   "state of {} {} for a model with {} (it is another model's): save and restore one trainer", had,
                   what, has);
  }
  // In place: the module, the optimizer and the user hold this very tensor.
  static void put_back(const std::string& name, at::Tensor& to, const kept& from) {
    require<error>(name == from.name && to.defined() == from.value.defined() &&
                       (!to.defined() || to.sizes() == from.value.sizes()),
                   "state of \"{}\" for \"{}\" of another shape (the model changed since it was saved): save again",
                   from.name, name);
    if (to.defined()) to.copy_(from.value);
  }

  std::vector<kept> parameters_, buffers_;
};

/// What every training has, whatever its data.
struct training_state {
  std::vector<module_state> modules = {};
  std::vector<optimizer_state> optimizers = {};
  generator_states generators = {};
  std::any extra = {};

  std::int64_t bytes() const {
    std::int64_t sum = 0;
    for (const auto& m : modules) sum += m.bytes();
    for (const auto& o : optimizers) sum += o.bytes();
    return sum;
  }
};

inline training_state save_training(const setup& from, c10::Device device) {
  training_state saved;
  for (const auto& m : from.modules) saved.modules.push_back(module_state::save(*m.module, from.states_on));
  for (auto* o : from.optimizers) saved.optimizers.push_back(optimizer_state::save(*o, from.states_on));
  saved.generators = generator_states::save(device, from.generators);
  if (from.extra.save) saved.extra = from.extra.save();
  return saved;
}

/// Throws: `error` when it is the state of another training.
inline void restore_training(const training_state& saved, setup& to, c10::Device device) {
  require<error>(
      saved.modules.size() == to.modules.size() && saved.optimizers.size() == to.optimizers.size(),
      "state of {} models and {} optimizers for a training of {} and {} (it is another training's): save and "
      "restore one trainer",
      saved.modules.size(), saved.optimizers.size(), to.modules.size(), to.optimizers.size());
  for (std::size_t i = 0; i < to.modules.size(); ++i) saved.modules[i].restore(*to.modules[i].module);
  for (std::size_t i = 0; i < to.optimizers.size(); ++i) saved.optimizers[i].restore(*to.optimizers[i]);
  saved.generators.restore(device, to.generators);
  if (to.extra.restore) to.extra.restore(saved.extra);
}

/// Returns: the tensors that live from step to step.
inline std::vector<at::Tensor> tensors_held(const setup& s) {
  std::vector<at::Tensor> all = tensors_of(s.modules, true);
  for (const at::Tensor& parameter : tensors_of(s.modules, false)) {
    all.push_back(parameter);
    all.push_back(parameter.grad());
  }
  for (auto* optimizer : s.optimizers) append_tensors(*optimizer, all);
  if (s.extra.tensors) std::ranges::copy(s.extra.tensors(), std::back_inserter(all));
  return all;
}

}  // namespace comp::libtorch
