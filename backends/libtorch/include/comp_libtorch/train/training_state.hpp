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

namespace detail {

/// A parameter or a buffer as it was.
struct kept_tensor {
  std::string name;
  at::Tensor value, gradient = {};
  bool requires_grad = false;
};

/// Calls `f(name, tensor)` with each parameter and buffer, and then `g(name, parameter)` for a parameter's gradient.
void for_tensors(const std::vector<named_module>& models, auto f, auto g) {
  for (const named_module& m : models) {
    const std::string before = m.name.empty() ? "" : m.name + ".";
    for (auto& p : m.module->named_parameters()) {
      f(before + p.key(), p.value());
      g(before + p.key() + " gradient", p.value());
    }
    for (auto& b : m.module->named_buffers()) f(before + b.key(), b.value());
  }
}

}  // namespace detail

/// What every training has, whatever its data.
struct training_state {
  std::vector<detail::kept_tensor> tensors = {};
  std::vector<optimizer_state> optimizers = {};
  generator_states generators = {};
  std::any extra = {};

  std::int64_t bytes() const {
    std::vector<at::Tensor> all;
    for (const auto& t : tensors) all.insert(all.end(), {t.value, t.gradient});
    std::int64_t sum = bytes_held(all);
    for (const auto& o : optimizers) sum += o.bytes();
    return sum;
  }
};

inline training_state save_training(const setup& from, c10::Device device) {
  training_state saved;
  detail::for_tensors(
      from.modules,
      [&](const std::string& name, const at::Tensor& t) {
        saved.tensors.push_back({name, detail::copied(t, from.states_on)});
      },
      [&](const std::string& /*name*/, const at::Tensor& parameter) {
        saved.tensors.back().gradient = detail::copied(parameter.grad(), from.states_on);
        saved.tensors.back().requires_grad = parameter.requires_grad();
      });
  for (auto* o : from.optimizers) saved.optimizers.push_back(optimizer_state::save(*o, from.states_on));
  saved.generators = generator_states::save(device, from.generators);
  if (from.extra.save) saved.extra = from.extra.save();
  return saved;
}

namespace detail {

/// Puts parameters and buffers back in place: modules, optimizers and the user hold these very tensors.
inline void restore_tensors(const std::vector<kept_tensor>& saved, const std::vector<named_module>& models) {
  const torch::NoGradGuard no_grad;
  std::size_t next = 0;
  for_tensors(
      models,
      [&](const std::string& name, at::Tensor& to) {
        const kept_tensor& from = saved[next++];
        require<error>(name == from.name && to.defined() == from.value.defined() &&
                           (!to.defined() || to.sizes() == from.value.sizes()),
                       "state of \"{}\" for \"{}\" of another shape (the model changed since it was saved): save again",
                       from.name, name);
        if (to.defined()) to.copy_(from.value);
      },
      [&](const std::string& /*name*/, at::Tensor& parameter) {
        const kept_tensor& from = saved[next - 1];
        put(parameter.mutable_grad(), from.gradient, parameter.device());
        if (parameter.requires_grad() != from.requires_grad) parameter.set_requires_grad(from.requires_grad);
      });
}

}  // namespace detail

/// Throws: `error`, naming the first tensor that differs, when it is the state of another training.
inline void restore_training(const training_state& saved, setup& to, c10::Device device) {
  std::size_t tensors = 0;
  detail::for_tensors(
      to.modules, [&](auto&&...) { ++tensors; }, [](auto&&...) {});
  require<error>(
      saved.tensors.size() == tensors && saved.optimizers.size() == to.optimizers.size(),
      "state of {} parameters and buffers and {} optimizers for a training of {} and {} (it is another training's): save "
      "and restore one trainer",
      saved.tensors.size(), saved.optimizers.size(), tensors, to.optimizers.size());
  detail::restore_tensors(saved.tensors, to.modules);
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
