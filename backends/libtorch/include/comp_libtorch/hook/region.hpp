// SPDX-License-Identifier: Apache-2.0
// A block of code whose operators belong to a program. program::enter and program::evaluate open one.
#pragma once

#include <torch/csrc/jit/python/update_graph_executor_opt.h>

#include <comp_libtorch/hook/session.hpp>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

namespace comp::libtorch {

/// While it lives, the operators that this thread dispatches belong to the program. A nested region takes them over and
/// gives them back. Threads that are started in it are not in it. TorchScript's optimizer is off in it: from the second
/// forward on it would fuse operators and differentiate them itself, and no plan knows these. A region that an
/// exception ends leaves nothing behind. Dropout draws its numbers faster in a region (bernoulli.hpp).
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
  /// Ends the region as one that an exception has left. For an exception that C++ does not see, as those of Python.
  void abandon() { exceptions_ = -1; }
  /// Returns: how the part of the forward that begins here is run again in the backward; nothing where that needs no
  /// region.
  detail::resumption from_here() const { return session_->from_here(); }
  /// Returns: whether operators come to the session. They do not under LibTorch's own autocast, nor where a plan lowers
  /// nothing: code in it may be compiled as if comp were not there.
  bool listens() const { return guard_.has_value(); }
  /// Returns: what torch.compile captures parts of the region by; null where that is not possible.
  detail::capturable* as_capturable() const { return session_->as_capturable(); }
  /// Tells that a torch::autograd::Function whose operators do not come here gave `now` for `was`, and changed no
  /// value.
  void pass_on(const at::Tensor& was, const at::Tensor& now) { session_->pass_on(was, now); }
  region(const region&) = delete;
  region& operator=(const region&) = delete;

 private:
  detail::key_guard random_{detail::random_registration::once().key()};
  std::unique_ptr<detail::session> session_;
  int exceptions_;
  bool script_optimized_ = torch::jit::getGraphExecutorOptimize();
  std::optional<detail::listening_guard> guard_;
};

}  // namespace comp::libtorch
