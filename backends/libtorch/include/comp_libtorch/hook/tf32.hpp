// SPDX-License-Identifier: Apache-2.0
// TensorFloat-32 for one operator: inputs stay FP32, products and convolutions round them to 10 fraction bits. The
// switch is process-wide in LibTorch, so it is put back at once. The nodes that the operator made switch it on for
// themselves in the backward; a node that throws there leaves it on. FP32 operators run as the process has it set:
// LibTorch's own default lets convolutions use TF32, not matrix products.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <comp_libtorch/hook/node_hooks.hpp>
#include <memory>
#include <optional>

namespace comp::libtorch::detail {

class tf32_guard {
 public:
  tf32_guard() : products_{at::globalContext().allowTF32CuBLAS()}, convolutions_{at::globalContext().allowTF32CuDNN()} {
    set(true, true);
  }
  ~tf32_guard() { set(products_, convolutions_); }
  tf32_guard(const tf32_guard&) = delete;
  tf32_guard& operator=(const tf32_guard&) = delete;

 private:
  static void set(bool products, bool convolutions) {
    at::globalContext().setAllowTF32CuBLAS(products);
    at::globalContext().setAllowTF32CuDNN(convolutions);
  }
  bool products_;
  bool convolutions_;
};

/// Runs `op`; `tf32`: in TensorFloat-32.
inline void run_in(const c10::OperatorHandle& op, torch::jit::Stack& stack, bool tf32) {
  if (!tf32) return op.callBoxed(stack);
  node_span nodes;
  {
    const tf32_guard on;
    op.callBoxed(stack);
  }
  nodes.close();
  nodes.for_each(stack, op.schema().returns().size(), [](torch::autograd::Node& node) {
    auto on = std::make_shared<std::optional<tf32_guard>>();
    node.add_pre_hook(std::make_unique<before_node>([on] { on->emplace(); }));
    node.add_post_hook(std::make_unique<after_node>([on] { on->reset(); }));
  });
}

}  // namespace comp::libtorch::detail
