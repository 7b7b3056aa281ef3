// SPDX-License-Identifier: Apache-2.0
// Finds the autograd nodes that one operator made, and runs code before and after each of them in the backward.
// Gradients pass through unchanged.
#pragma once

#include <ATen/SequenceNumber.h>
#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <unordered_set>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

class before_node final : public torch::autograd::FunctionPreHook {
 public:
  explicit before_node(std::function<void()> run) : run_{std::move(run)} {}
  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients) override {
    run_();
    return gradients;
  }

 private:
  std::function<void()> run_;
};

/// Its function gets the gradients that the node gives, and those that it got.
class after_node final : public torch::autograd::FunctionPostHook {
 public:
  using variables = torch::autograd::variable_list;
  explicit after_node(std::function<void(const variables& gives, const variables& got)> run) : run_{std::move(run)} {}
  variables operator()(const variables& gives, const variables& got) override {
    run_(gives, got);
    return gives;
  }

 private:
  std::function<void(const variables&, const variables&)> run_;
};

/// The nodes that a call made. Each node has a number that its thread counts up, so those of the call lie between two
/// readings of the counter. This leaves out the nodes of its inputs, of casts that were made before it, and of
/// parameters.
class node_span {
 public:
  node_span() : first_{at::sequence_number::peek()} {}

  /// The call is over: later nodes are not its own.
  void close() { end_ = at::sequence_number::peek(); }
  bool has(const torch::autograd::Node& node) const {
    return node.sequence_nr() >= first_ && node.sequence_nr() < end_;
  }

  /// Calls f(node) for each node of the call that the last `results` values of the stack lead to.
  void for_each(const torch::jit::Stack& stack, std::size_t results, auto&& f) const {
    if (end_ == first_) return;
    std::vector<torch::autograd::Node*> open;
    for_each_tensor(stack, results, [&](const at::Tensor& tensor, std::size_t, int) {
      if (tensor.requires_grad()) open.push_back(tensor.grad_fn().get());
    });
    std::unordered_set<torch::autograd::Node*> visited;
    while (!open.empty()) {
      torch::autograd::Node* node = open.back();
      open.pop_back();
      if (node == nullptr || !has(*node)) continue;
      if (!visited.insert(node).second) continue;
      for (const auto& edge : node->next_edges()) open.push_back(edge.function.get());
      f(*node);
    }
  }

 private:
  std::uint64_t first_;
  std::uint64_t end_ = first_;
};

}  // namespace comp::libtorch::detail
