// SPDX-License-Identifier: Apache-2.0
// The autograd node of a checkpoint, which runs its part of the forward again (checkpoint.hpp).
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/grad_mode.h>
#include <c10/util/ScopeExit.h>
#include <torch/csrc/autograd/autograd.h>
#include <torch/csrc/autograd/functions/utils.h>

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp_libtorch/hook/autocast_guard.hpp>
#include <comp_libtorch/hook/cast.hpp>
#include <comp_libtorch/hook/listener.hpp>
#include <comp_libtorch/hook/region.hpp>
#include <comp_libtorch/hook/session.hpp>
#include <comp_libtorch/plan/checkpoint.hpp>
#include <comp_libtorch/support/generators.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

/// The conditions that must be the same when a part of a forward is run again.
class run_conditions {
 public:
  explicit run_conditions(c10::Device device)
      : device_{device},
        resume_{listening == nullptr ? resumption{} : listening->from_here()},
        random_{generator_states::save(device)} {
    if (at::autocast::is_autocast_enabled(device.type())) autocast_ = at::autocast::get_autocast_dtype(device.type());
  }

  /// Runs `work` again, under the conditions and with the random numbers of the first time. Later code goes on with the
  /// present random numbers.
  at::Tensor run_again(const checkpointed_work& work, const std::vector<at::Tensor>& inputs) const {
    const generator_guard present_numbers_go_on{device_};
    random_.restore(device_);
    std::optional<autocast_guard> autocast;
    if (autocast_) autocast.emplace(device_.type(), *autocast_);
    std::optional<region> on;
    if (resume_) on.emplace(resume_());
    return work(inputs);
  }

 private:
  c10::Device device_;
  resumption resume_;
  generator_states random_;
  std::optional<at::ScalarType> autocast_;
};

struct checkpoint_node final : torch::autograd::Node {
  checkpointed_work work;
  std::vector<at::Tensor> inputs;
  std::vector<std::uint32_t> versions;
  std::optional<run_conditions> conditions;

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    require<error>(work != nullptr,
                   "a second backward through a checkpoint (what it needs was freed by the first): keep it with "
                   "retain_graph");
    if (!gradients.front().defined()) return torch::autograd::variable_list(inputs.size());
    const at::AutoGradMode with_gradients{true};
    std::vector<at::Tensor> given;
    for (std::size_t i = 0; i < inputs.size(); ++i) {
      require<error>(version(*inputs[i].unsafeGetTensorImpl()) == versions[i],
                     "input {} of a checkpoint was written in place since (it would be run again on other values): "
                     "write to a copy",
                     i);
      given.push_back(inputs[i].detach().requires_grad_(inputs[i].requires_grad()));
    }
    const at::Tensor result = conditions->run_again(work, given);
    if (result.requires_grad()) torch::autograd::backward({result}, {gradients.front()});
    torch::autograd::variable_list of_inputs;
    for (const at::Tensor& input : given) of_inputs.push_back(input.grad());
    return of_inputs;
  }
  void release_variables() override {
    work = nullptr;
    inputs.clear();
    conditions.reset();
  }
  std::string name() const override { return "comp::checkpoint"; }
};

/// Returns: `result` as a tensor of its own, which can have a node.
inline at::Tensor as_own_tensor(at::Tensor result, const std::vector<at::Tensor>& inputs) {
  const bool passed = std::ranges::any_of(inputs, [&](const at::Tensor& input) { return input.is_same(result); });
  return passed || result.requires_grad() || result.is_view() ? result.detach() : result;
}

COMP_INLINE at::Tensor checkpointed(checkpointed_work work, std::vector<at::Tensor> inputs) {
  if (!at::GradMode::is_enabled()) return work(inputs);
  const c10::Device device = inputs.empty() ? c10::Device{at::kCPU} : inputs.front().device();
  auto node = make_node<checkpoint_node>();
  node->conditions.emplace(device);
  at::Tensor result;
  {
    const at::NoGradGuard no_gradients;
    const auto outer = std::exchange(in_checkpoint, true);
    const auto leave = c10::make_scope_exit([&] { in_checkpoint = outer; });
    result = as_own_tensor(work(inputs), inputs);
  }
  for (const at::Tensor& input : inputs) {
    node->add_next_edge(input.requires_grad() ? torch::autograd::impl::gradient_edge(input) : torch::autograd::Edge{});
    node->versions.push_back(version(*input.unsafeGetTensorImpl()));
  }
  node->work = std::move(work);
  node->inputs = std::move(inputs);
  torch::autograd::set_history(result, node);
  return result;
}

}  // namespace comp::libtorch::detail
