// SPDX-License-Identifier: Apache-2.0
// What a region does when it begins and ends (region.hpp).
#pragma once

#include <torch/csrc/jit/python/update_graph_executor_opt.h>

#include <comp_libtorch/hook/dispatch_key.hpp>
#include <comp_libtorch/hook/region.hpp>
#include <comp_libtorch/hook/session.hpp>
#include <exception>
#include <memory>
#include <utility>

namespace comp::libtorch {

COMP_INLINE region::region(std::unique_ptr<detail::session> listens)
    : random_{detail::registration::once().random_key()},
      session_{std::move(listens)},
      exceptions_{std::uncaught_exceptions()},
      script_optimized_{torch::jit::getGraphExecutorOptimize()} {
  if (!session_->begin()) return;
  torch::jit::setGraphExecutorOptimize(false);
  guard_.emplace(session_.get());
}
COMP_INLINE region::~region() {
  guard_.reset();
  torch::jit::setGraphExecutorOptimize(script_optimized_);
  session_->end(std::uncaught_exceptions() > exceptions_);
}
COMP_INLINE detail::resumption region::from_here() const { return session_->from_here(); }
COMP_INLINE detail::capturable* region::as_capturable() const { return session_->as_capturable(); }
COMP_INLINE void region::pass_on(const at::Tensor& was, const at::Tensor& now) { session_->pass_on(was, now); }

}  // namespace comp::libtorch
