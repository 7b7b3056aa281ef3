// SPDX-License-Identifier: Apache-2.0
// Has the operators of TorchScript's modules come one by one. TorchScript's executor watches a module's first forwards,
// and from then on runs fused operators and derivatives of its own, which no plan knows.
#pragma once

#include <torch/csrc/jit/api/function_impl.h>
#include <torch/csrc/jit/api/module.h>
#include <torch/csrc/jit/runtime/interpreter.h>

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp_libtorch/hook/region.hpp>
#include <comp_libtorch/hook/session.hpp>
#include <comp_libtorch/plan/scripted.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

/// Returns: whether the operator that runs now belongs to optimized code, whose derivative is TorchScript's own.
inline bool has_script_derivative() {
  return std::ranges::any_of(torch::jit::currentCallstack(),
                             [](const torch::jit::StackEntry& e) { return e.filename == "<forward op>"; });
}
[[noreturn]] inline void refuse_script_derivative() {
  throw error{
      "a plan is to lower operators of a TorchScript function that TorchScript has optimized (its derivative is "
      "TorchScript's own, for the formats that it has seen): name the module that has the function among the program's, "
      "or call the function under the plan alone"};
}
/// Throws: `error` when `op`, which was not recorded, shows that TorchScript has optimized the function since: what
/// goes into a derivative of its own is detached before.
inline void require_no_script_derivative(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  if (op.schema().name() != "aten::detach" || !stack.back().toTensor().requires_grad()) return;
  const auto calls = torch::jit::currentCallstack();
  if (calls.empty()) return;
  const torch::jit::SourceRange& at = calls.front().range;
  const bool is_authors = at.source() != nullptr && at.text().str().find("detach") != std::string::npos;
  if (!is_authors) refuse_script_derivative();
}

/// The optimized code that TorchScript made of modules while no region was open. While one is open, TorchScript makes
/// none (region.hpp).
class script_executors {
 public:
  void add(const torch::nn::Module& module) {
    if (const auto* as = dynamic_cast<const scripted*>(&module)) add(as->script());
  }
  void add(const torch::jit::Module& script) {
    for (const torch::jit::Module& part : script.modules()) {
      for (const auto& method : part.get_methods()) methods_.push_back(method);
    }
  }

  /// Opens a region of `listens` and forgets that code before. Throws: `error` while LibTorch's autocast is on.
  region open(std::unique_ptr<session> listens) {
    try {
      listens->require_no_autocast();
      forget_optimized();
    } catch (...) {
      listens->end(true);
      throw;
    }
    return region{std::move(listens)};
  }

  void forget_optimized() {
    const torch::jit::GraphOptimizerEnabledGuard inlines{true};  // what is called, for code that is made here
    for (const torch::jit::Method& method : methods_) {
      auto* function = torch::jit::tryToGraphFunction(method.function());
      if (function != nullptr && function->get_executor().isOptimized())
        function->get_executor().debugFlushCompilationCache();
    }
  }

 private:
  std::vector<torch::jit::Method> methods_;
};

}  // namespace comp::libtorch::detail
