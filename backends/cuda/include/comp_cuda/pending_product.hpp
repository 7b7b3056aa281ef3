// SPDX-License-Identifier: Apache-2.0
// Linear layers that run when somebody asks for their result. Where that is a ReLU of it, and nobody holds what lies
// between, the product makes the ReLU in its epilogue (epilogue.hpp).
// Inert without settings::fuse_relu, and for a context that no device shares: the product is then given at once.
// Not here: GELU (docs/decisions.md).
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "epilogue.hpp"

namespace comp::cuda::detail {

class pending_product final : public work_with_epilogue {
 public:
  /// Gives the stream a product that is written to `to`. relu: after ReLU.
  using work = std::function<void(context& c, void* to, bool relu)>;
  pending_product(std::shared_ptr<context> c, work multiply) : c_{std::move(c)}, multiply_{std::move(multiply)} {}

  bool makes(const pending_step& s) const override { return s.kind == step_kind::relu; }
  void write(memory& into, const pending_step* then) const override {
    c_->be_current();
    c_->give_product([&] { multiply_(*c_, into.take_place(), then != nullptr); });
  }

 private:
  std::shared_ptr<context> c_;  // a handle may outlive the device
  work multiply_;
};

/// What `multiply` writes.
inline tensor product(context& c, shape extents, precision p, pending_product::work multiply) {
  std::shared_ptr<context> shared = c.weak_from_this().lock();
  if (!shared || !c.chosen().fuse || !c.chosen().fuse_relu) {
    const tensor y = c.make(std::move(extents), p);
    multiply(c, y.materialize(), false);
    return y;
  }
  const std::int64_t bytes = elements(extents) * bytes_of(storage_of(p));
  auto later = std::make_unique<pending_product>(std::move(shared), std::move(multiply));
  return {std::move(extents), p, order::row_major, c.promise(bytes, std::move(later))};
}

}  // namespace comp::cuda::detail
