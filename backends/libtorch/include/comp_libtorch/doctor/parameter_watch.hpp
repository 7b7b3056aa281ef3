// SPDX-License-Identifier: Apache-2.0
// Watches what the updates of a step do to the parameters: a copy of each weight says which values changed, and a hook
// on each gradient whether a backward adds to what an optimizer has already used.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <comp/doctor/history.hpp>
#include <comp_libtorch/doctor/tensor_counts.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

class parameter_watch {
 public:
  parameter_watch() = default;
  parameter_watch(const parameter_watch&) = delete;
  parameter_watch& operator=(const parameter_watch&) = delete;
  ~parameter_watch() {
    for (auto& each : all_) {
      if (each->hook) each->parameter.remove_hook(*each->hook);
    }
  }

  void add_all(const torch::nn::Module& module, const std::string& prefix) {
    for (const auto& item : module.named_parameters()) {
      if (!item.value().defined() || !is_plannable(item.value().scalar_type())) continue;
      auto& each = all_.emplace_back(std::make_shared<watched>());
      each->parameter = item.value();
      each->step.name = prefix.empty() ? item.key() : prefix + "." + item.key();
      places_.emplace(item.value().unsafeGetTensorImpl(), all_.size() - 1);
    }
  }

  void begin_step() {
    const at::NoGradGuard no_gradients;
    for (auto& each : all_) {
      const at::Tensor& p = each->parameter;
      each->before.defined() ? each->before.copy_(p.detach()) : each->before = p.detach().clone();
      each->arrived = false;
      each->step = {.name = each->step.name, .format = describe(p).dtype};
    }
  }
  void begin_forward() {
    for (auto& each : all_) {
      each->step.frozen = !each->parameter.requires_grad();
      if (!each->hook && !each->step.frozen) each->hook = each->parameter.register_hook(arrival{each});
    }
  }

  /// An optimizer is about to update `parameters`, each at its learning rate.
  void before_update(const std::vector<at::Tensor>& parameters, const std::vector<double>& rates) {
    optimizer_ran_ = true;
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const auto at = places_.find(parameters[i].unsafeGetTensorImpl());
      if (at == places_.end()) continue;
      watched& each = *all_[at->second];
      each.step.optimized = true;
      each.step.rate = rates[i];
      each.updating = each.parameter.grad().defined();
      if (each.updating) each.read_gradient();
    }
  }
  void after_update() {
    for (auto& each : all_) {
      if (std::exchange(each->updating, false)) each->compare();
    }
  }

  /// Returns: the step's parameters. If an optimizer ran, a parameter that none had is in none.
  std::vector<parameter_step> end_step() {
    std::vector<parameter_step> steps;
    for (auto& each : all_) {
      if (each->step.updates == 0) {
        const bool changed = !at::equal(each->parameter.detach(), each->before);
        if (each->parameter.grad().defined() && (each->arrived || changed)) each->read_gradient();
        if (changed) each->compare();
      }
      each->step.arrived = each->arrived;
      each->step.frozen = each->step.frozen && !each->parameter.requires_grad();
      if (optimizer_ran_ && !each->step.optimized) each->step.optimized = false;
      steps.push_back(each->step);
    }
    return steps;
  }
  bool optimizer_ran() { return std::exchange(optimizer_ran_, false); }

 private:
  struct watched {
    at::Tensor parameter, before, gradient;
    std::optional<unsigned> hook;
    bool arrived = false, used = false, old = false, updating = false;
    parameter_step step;

    void read_gradient() {
      const at::NoGradGuard no_gradients;
      at::Tensor g = parameter.grad().detach();
      gradient = g.is_sparse() ? g.to_dense() : g;
      if (const auto values = countable(gradient)) step.gradient = values_of(*values).counts;
    }
    void compare() {
      const at::NoGradGuard no_gradients;
      const at::Tensor now = parameter.detach(), changed = now.ne(before);
      if (gradient.defined()) {
        const at::Tensor has_gradient = gradient.ne(0);
        step.moved += static_cast<std::uint64_t>(changed.logical_and(has_gradient).sum().item<std::int64_t>());
        step.stayed +=
            static_cast<std::uint64_t>(changed.logical_not().logical_and(has_gradient).sum().item<std::int64_t>());
      } else {
        step.moved += static_cast<std::uint64_t>(changed.sum().item<std::int64_t>());
      }
      ++step.updates;
      step.old_gradients += old;
      used = true;
      gradient.reset();
      before.copy_(now);
    }
  };
  /// Runs before a gradient is added to those that are there.
  struct arrival {
    std::weak_ptr<watched> of;
    void operator()(const at::Tensor& /*gradient*/) const {
      const auto each = of.lock();
      if (!each) return;
      each->arrived = true;
      const at::NoGradGuard no_gradients;
      const at::Tensor there = each->parameter.grad();
      const bool empty = !there.defined() || !(there.is_sparse() ? there.to_dense() : there).ne(0).any().item<bool>();
      if (each->used || empty) each->old = each->used && !empty;
      each->used = false;
    }
  };

  std::vector<std::shared_ptr<watched>> all_;
  std::unordered_map<const c10::TensorImpl*, std::size_t> places_;
  bool optimizer_ran_ = false;
};

}  // namespace comp::libtorch::detail
