// SPDX-License-Identifier: Apache-2.0
// A block of code whose operators belong to a program. Opened by program::enter and program::evaluate.
#pragma once

#include <torch/csrc/jit/python/update_graph_executor_opt.h>

#include <comp_libtorch/hook/session.hpp>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

namespace comp::libtorch {

/// While it lives the operators that this thread dispatches belong to the program; a nested region takes them over and
/// gives them back. Threads started in it are not in it. TorchScript runs operators as they stand in it: what its
/// executor fuses or differentiates by itself from the second forward on, no plan knows. When an exception ends it
/// nothing of it stays.
class [[nodiscard]] region {
 public:
  explicit region(std::unique_ptr<detail::session> listens)
      : session_{std::move(listens)}, exceptions_{std::uncaught_exceptions()} {
    if (!session_->begin()) return;
    torch::jit::setGraphExecutorOptimize(false);
    guard_.emplace(session_.get());
  }
  ~region() {
    guard_.reset();
    torch::jit::setGraphExecutorOptimize(script_optimized_);
    session_->end(std::uncaught_exceptions() > exceptions_);
  }
  /// The region ends by an exception that is none of C++'s.
  void abandon() { exceptions_ = -1; }
  /// How a part of the forward that begins here is run again, in the backward; nothing where that needs no region.
  detail::resumption from_here() const { return session_->from_here(); }
  region(const region&) = delete;
  region& operator=(const region&) = delete;

 private:
  std::unique_ptr<detail::session> session_;
  int exceptions_;
  bool script_optimized_ = torch::jit::getGraphExecutorOptimize();
  std::optional<detail::listening_guard> guard_;
};

}  // namespace comp::libtorch
