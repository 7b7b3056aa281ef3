// SPDX-License-Identifier: Apache-2.0
// With settings::fuse_relu the product of a linear layer is pending, and so is a convolution that is a graph of cuDNN:
// it is launched when its result is read. If the only reader is a ReLU, the product computes it in its epilogue
// (epilogue.hpp). Without that setting the product is launched at once; so it is if no shared_ptr owns the context,
// since pending work could not keep it alive. Not here: GELU (matmul.hpp).
#pragma once

#include <functional>
#include <memory>
#include <utility>

#include "epilogue.hpp"

namespace comp::cuda::detail {

class pending_product final : public work_with_epilogue {
 public:
  /// Launches the product that is written to `to`. relu: ReLU is applied before it is written.
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

/// Returns: the tensor that `multiply` writes, now or when it is asked for.
inline tensor product(context& c, shape extents, precision p, pending_product::work multiply,
                      order places = order::row_major) {
  std::shared_ptr<context> shared = c.weak_from_this().lock();
  if (!shared || !c.chosen().fuse || !c.chosen().fuse_relu) {
    const tensor y = c.make(std::move(extents), p, places);
    multiply(c, y.materialize(), false);
    return y;
  }
  const std::int64_t bytes = elements(extents) * bytes_of(storage_of(p));
  auto later = std::make_unique<pending_product>(std::move(shared), std::move(multiply));
  return {std::move(extents), p, places, c.promise(bytes, std::move(later))};
}

}  // namespace comp::cuda::detail
