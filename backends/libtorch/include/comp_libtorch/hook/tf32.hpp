// SPDX-License-Identifier: Apache-2.0
// Runs one operator in TensorFloat-32: inputs stay FP32, and products and convolutions round them to 10 fraction bits.
// LibTorch's switch is process-wide, so it is put back at once. In the backward, hooks on the nodes that the operator
// made switch it on again. A node that throws there leaves it on. FP32 operators run as the process has the switch:
// LibTorch's default lets convolutions use TF32, but not matrix products.
#pragma once

#include <ATen/Context.h>
#include <ATen/core/dispatch/Dispatcher.h>

#include <comp_libtorch/hook/node_hooks.hpp>
#include <memory>
#include <optional>

namespace comp::libtorch::detail {

/// TF32 for products and convolutions of the whole process, while it lives.
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

/// FP32 products of the whole process multiply in BF16 while it lives, if the CPU's oneDNN can: exact for values that
/// are BF16's.
class bf16_products_guard {
 public:
  bf16_products_guard() : before_{at::globalContext().float32Precision(mkldnn, matmul)} {
    at::globalContext().setFloat32Precision(mkldnn, matmul, at::Float32Precision::BF16);
  }
  ~bf16_products_guard() { at::globalContext().setFloat32Precision(mkldnn, matmul, before_); }
  bf16_products_guard(const bf16_products_guard&) = delete;
  bf16_products_guard& operator=(const bf16_products_guard&) = delete;

 private:
  static constexpr auto mkldnn = at::Float32Backend::MKLDNN;
  static constexpr auto matmul = at::Float32Op::MATMUL;
  at::Float32Precision before_;
};

/// Runs `op`, in TensorFloat-32 if `tf32` is true.
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
    node.add_post_hook(std::make_unique<after_node>([on](auto&&...) { on->reset(); }));
  });
}

}  // namespace comp::libtorch::detail
