// SPDX-License-Identifier: Apache-2.0
// Steps LibTorch's own Adam, AdamW or SGD in one pass over memory, by ATen's fused kernels. PyTorch runs them for
// `fused=True`; LibTorch's C++ classes do not know them. State and options are the optimizer's own, so it can be saved,
// restored and stepped the usual way before and after. The arithmetic is the same, operation by operation, in FP32. But
// compilers contract other multiplications and additions, so weights differ in their last bits.
// On CPUs only. These are stepped the usual way: other optimizers and classes derived from those; gradients that are
// sparse or not FP32; gradients, weights and moments that do not lie alike in memory.
#pragma once

#include <ATen/core/grad_mode.h>
#include <ATen/ops/_fused_adam.h>
#include <ATen/ops/_fused_adamw.h>
#include <ATen/ops/_fused_sgd.h>
#include <ATen/ops/empty_like.h>
#include <ATen/ops/scalar_tensor.h>
#include <ATen/ops/zeros_like.h>
#include <torch/optim.h>

#include <comp_libtorch/plan/settings.hpp>
#include <comp_libtorch/train/optimizer_state.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <tuple>
#include <type_traits>
#include <typeinfo>
#include <vector>

namespace comp::libtorch {

namespace detail {

/// Returns: whether two tensors lie alike in memory, `a` in FP32 and `b` in FP32 or in `low`. The kernels take that for
/// granted: they go through memory, not through indices.
inline bool lie_alike(const at::Tensor& a, const at::Tensor& b, at::ScalarType low = at::kFloat) {
  const auto plain = [](const at::Tensor& t, at::ScalarType low) {
    return t.defined() && t.is_cpu() && t.layout() == at::kStrided &&
           (t.scalar_type() == at::kFloat || t.scalar_type() == low) && t.is_non_overlapping_and_dense();
  };
  return plain(a, at::kFloat) && plain(b, low) && a.sizes() == b.sizes() && a.strides() == b.strides();
}

/// The parameters of a group that have gradients, and what the kernels need of each.
struct fused_lists {
  std::vector<at::Tensor> parameters = {}, gradients = {}, first = {}, second = {}, largest = {}, steps = {};
};

template <class State>
State& state_of(torch::optim::Optimizer& optimizer, const at::Tensor& parameter, bool& is_new) {
  auto& entry = optimizer.state()[parameter.unsafeGetTensorImpl()];
  is_new = entry == nullptr;
  if (is_new) entry = std::make_unique<State>();
  return static_cast<State&>(*entry);
}

/// Steps all groups by `kernel`, that of Adam or of AdamW.
template <class State, class Options, class Kernel>
void fused_adam_step(torch::optim::Optimizer& optimizer, Kernel kernel) {
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const Options&>(group.options());
    fused_lists all;
    std::int64_t counted = -1;
    at::Tensor count;
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      bool is_new = false;
      State& state = state_of<State>(optimizer, parameter, is_new);
      if (is_new) {
        state.step(0);
        state.exp_avg(at::zeros_like(parameter));
        state.exp_avg_sq(at::zeros_like(parameter));
        if (options.amsgrad()) state.max_exp_avg_sq(at::zeros_like(parameter));
      }
      state.step(state.step() + 1);
      if (state.step() != counted) {
        counted = state.step();
        count = at::scalar_tensor(static_cast<double>(counted), at::kFloat);
      }
      all.parameters.push_back(parameter);
      all.gradients.push_back(parameter.grad().variable_data());  // the kernel would count it as written
      all.first.push_back(state.exp_avg());
      all.second.push_back(state.exp_avg_sq());
      if (options.amsgrad()) all.largest.push_back(state.max_exp_avg_sq());
      all.steps.push_back(count);
    }
    if (all.parameters.empty()) continue;
    const auto [beta1, beta2] = options.betas();
    kernel(all.parameters, all.gradients, all.first, all.second, all.largest, all.steps, options.lr(), beta1, beta2,
           options.weight_decay(), options.eps(), options.amsgrad(), /*maximize=*/false, std::nullopt, std::nullopt);
  }
}

inline void fused_sgd_step(torch::optim::Optimizer& optimizer) {
  for (auto& group : optimizer.param_groups()) {
    const auto& options = static_cast<const torch::optim::SGDOptions&>(group.options());
    fused_lists later_steps, first_steps;  // a first step writes the momentum and does not read it
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      bool is_new = false;
      if (options.momentum() != 0) {
        auto& state = state_of<torch::optim::SGDParamState>(optimizer, parameter, is_new);
        if (is_new) state.momentum_buffer(at::empty_like(parameter.grad()));
        (is_new ? first_steps : later_steps).first.push_back(state.momentum_buffer());
      }
      fused_lists& of = is_new ? first_steps : later_steps;
      of.parameters.push_back(parameter.variable_data());  // as LibTorch's SGD writes: autograd does not count it
      of.gradients.push_back(parameter.grad().variable_data());
    }
    for (const fused_lists* of : {&first_steps, &later_steps}) {  // first the first steps: a weight may be in both
      if (of->parameters.empty()) continue;
      at::_fused_sgd_(of->parameters, of->gradients, of->first, options.weight_decay(), options.momentum(),
                      options.lr(), options.dampening(), options.nesterov(), /*maximize=*/false, of == &first_steps);
    }
  }
}

/// Returns: true if every parameter that would be stepped lies as its gradient does, and each of its moments
/// `fits(parameter, moment)`. `complete(state, options)`: whether a state has the moments that the options want.
template <class State>
bool fuses(torch::optim::Optimizer& optimizer, bool (*complete)(const State&, torch::optim::OptimizerOptions&),
           auto fits) {
  for (auto& group : optimizer.param_groups()) {
    for (const at::Tensor& parameter : group.params()) {
      if (!parameter.grad().defined()) continue;
      if (!lie_alike(parameter, parameter.grad())) return false;
      const auto entry = optimizer.state().find(parameter.unsafeGetTensorImpl());
      if (entry == optimizer.state().end()) continue;
      const auto* state = dynamic_cast<const State*>(entry->second.get());
      if (state == nullptr || !complete(*state, group.options())) return false;
      bool alike = true;
      for_state_tensors(*entry->second, [&](const at::Tensor& moment) {
        alike = alike && (!moment.defined() || fits(parameter, moment));
      });
      if (!alike) return false;
    }
  }
  return true;
}

/// Returns: whether the state has the moments that the options want, which may have changed since it was made.
template <class Options, class State>
bool has_moments(const State& state, torch::optim::OptimizerOptions& options) {
  return state.exp_avg().defined() && state.exp_avg_sq().defined() &&
         (state.max_exp_avg_sq().defined() || !static_cast<const Options&>(options).amsgrad());
}
inline bool has_momentum(const torch::optim::SGDParamState& state, torch::optim::OptimizerOptions& options) {
  return state.momentum_buffer().defined() || static_cast<const torch::optim::SGDOptions&>(options).momentum() == 0;
}

/// Calls `adam.operator()<State, Options>(kernel)` or `sgd()` if `optimizer` is LibTorch's own Adam, AdamW or SGD and
/// fuses(). Returns: whether that stepped it; `sgd()` says so itself.
bool step_fused(torch::optim::Optimizer& optimizer, auto fits, auto adam, auto sgd) {
  using namespace torch::optim;
  const auto step_adam = [&]<class State, class Options>(auto kernel) {
    if (!fuses<State>(optimizer, has_moments<Options, State>, fits)) return false;
    adam.template operator()<State, Options>(kernel);
    return true;
  };
  if (typeid(optimizer) == typeid(Adam))
    return step_adam.template operator()<AdamParamState, AdamOptions>(
        [](auto&&... all) { at::_ops::_fused_adam_::call(all...); });
  if (typeid(optimizer) == typeid(AdamW))
    return step_adam.template operator()<AdamWParamState, AdamWOptions>(
        [](auto&&... all) { at::_ops::_fused_adamw_::call(all...); });
  return typeid(optimizer) == typeid(SGD) && fuses<SGDParamState>(optimizer, has_momentum, fits) && sgd();
}

}  // namespace detail

/// Steps the optimizer, in one pass if possible.
/// Returns: whether it was one pass; false if the optimizer stepped by itself.
inline bool fused_step(torch::optim::Optimizer& optimizer) {
  const at::NoGradGuard no_gradients;
  const bool fused = detail::step_fused(
      optimizer, [](const at::Tensor& p, const at::Tensor& moment) { return detail::lie_alike(p, moment); },
      [&]<class State, class Options>(auto kernel) { detail::fused_adam_step<State, Options>(optimizer, kernel); },
      [&] {
        detail::fused_sgd_step(optimizer);
        return true;
      });
  if (!fused) optimizer.step();
  return fused;
}

inline void step_by(optimizer_pass how, torch::optim::Optimizer& optimizer) {
  if (how == optimizer_pass::fused) {
    (void)fused_step(optimizer);
  } else {
    optimizer.step();
  }
}

}  // namespace comp::libtorch
