// SPDX-License-Identifier: Apache-2.0
// A network's gradients as comp::scaling::Gradients, on which loss scaling works (comp/scaling/grad_scaler.hpp).
#pragma once

#include <cmath>
#include <comp/scaling/grad_scaler.hpp>
#include <comp_native/network.hpp>
#include <cstddef>
#include <optional>
#include <span>
#include <string>
#include <vector>

namespace comp::native {

/// A handle of the gradients of those parameters that a phase trains. They live in the network.
template <Device D>
class gradients {
 public:
  /// `clipped`: the norm will be asked for. Then one pass finds the norm and whether all gradients are finite, since a
  /// norm of finite gradients is finite.
  gradients(D& device, native::network<D>& network, std::size_t phase, bool clipped)
      : device_{&device}, network_{&network}, phase_{phase}, clipped_{clipped} {}

  bool unscale(double factor) {
    const bool known_finite = clipped_ && std::isfinite(norm());
    if (!known_finite && device_->count_not_finite(all()) > 0) return false;
    multiply(factor);
    return true;
  }
  double norm() {
    if (!norm_) norm_ = device_->gradient_norm(all());
    return *norm_;
  }
  void multiply(double factor) {
    if (factor == 1) return;
    device_->scale_gradients(all(), factor);
    if (norm_) *norm_ *= factor;
  }
  std::vector<std::string> not_finite() {
    const auto known = network_->names_trained_by(phase_);
    std::vector<std::string> names;
    for (std::size_t i = 0; i < all().size(); ++i) {
      if (device_->count_not_finite(all().subspan(i, 1)) > 0) names.push_back(known[i]);
    }
    return names;
  }

 private:
  std::span<typename D::parameter* const> all() const { return network_->trained_by(phase_); }

  D* device_;
  native::network<D>* network_;
  std::size_t phase_;
  bool clipped_;
  std::optional<double> norm_ = {};
};

}  // namespace comp::native
