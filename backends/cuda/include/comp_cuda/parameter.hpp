// SPDX-License-Identifier: Apache-2.0
// Parameters: the FP32 master weights, their gradient and the optimizer's slots, all in one order of elements, and one
// copy in low precision, which the optimizer writes in the same pass as the master.
#pragma once

#include <array>
#include <memory>
#include <utility>

#include "context.hpp"
#include "layout.hpp"

namespace comp::cuda {

struct fp8_weights;  // fp8.hpp

class parameter {
 public:
  parameter(shape s, tensor v, bool trains) : extents{std::move(s)}, trainable{trains}, value{std::move(v)} {}
  parameter(const parameter&) = delete;
  parameter& operator=(const parameter&) = delete;
  parameter(parameter&&) noexcept = default;
  parameter& operator=(parameter&&) noexcept = default;

  shape extents;
  bool trainable = true;
  bool fresh = true;                           // no gradient since zero_gradient: the next one overwrites
  tensor value, gradient, first, second;       // FP32; first and second: SGD's velocity, or Adam's two moments
  tensor low;                                  // the values in the low precision that was asked for last
  bool low_current = false, low_read = false;  // low has today's values; somebody has read it since the last update
  std::uint64_t version = 0;            // counts changes of the values, by which derived copies know that they are old
  std::shared_ptr<fp8_weights> in_fp8;  // the values in FP8; null: never asked for

  bool has_gradient() const { return trainable && !fresh; }
  /// Must be called whenever the values have changed. low_too: the copy in low precision was written with them.
  void changed(bool low_too = false) {
    low_current = low_too && low;
    ++version;
  }
};

/// A copy of a parameter on the device, from which it is restored with all its bits.
struct parameter_state {
  tensor value, first, second;
};

/// Brings the master, the slots and the gradient of a convolution's weights into the order that the kernels of its
/// precision read. One order for all of them lets the optimizer stay element by element.
inline void settle(context& c, parameter& p, order places) {
  if (p.value.order() == places || p.extents.size() != 4) return;
  const std::array all{&p.value, &p.first, &p.second, &p.gradient};
  std::array<tensor, all.size()> settled;  // first all copies, then all moves: memory may run out between two copies
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (*all[i]) settled[i] = in_order(c, *all[i], places);
  }
  for (std::size_t i = 0; i < all.size(); ++i) *all[i] = std::move(settled[i]);
  p.low = {};
  p.low_current = false;
}

/// Returns: the values in precision `as`, in the order of the master. The address is valid until the values change.
inline const void* weights(context& c, parameter& p, precision as) {
  if (storage_of(as) == storage::fp32) return p.value.materialize();
  if (!p.low || storage_of(p.low.precision()) != storage_of(as)) {
    p.low = c.make(p.extents, storage_of(as) == storage::fp16 ? precision::fp16 : precision::bf16, p.value.order());
    p.low_current = false;
  }
  if (!p.low_current) {
    c.finish_reads();
    convert(c, p.value, p.low);
  }
  p.low_current = p.low_read = true;
  return p.low.materialize();
}

/// Returns: the same values as a tensor, which keeps their memory alive.
inline tensor weight_tensor(context& c, parameter& p, precision as) {
  (void)weights(c, p, as);
  return (storage_of(as) == storage::fp32 ? p.value : p.low).viewed(as);
}

/// The address to which an operator writes a parameter's gradient, in FP32 and in the order of the master.
struct gradient_place {
  float* at;
  bool adds;  // False: the operator overwrites what is there
};
/// Returns: the place of the next gradient of p, which counts as written from here on.
inline gradient_place gradient_of(context& c, parameter& p) {
  if (!p.gradient) p.gradient = c.make(p.extents, precision::fp32, p.value.order());
  return {p.gradient.materialize_as<float>(), !std::exchange(p.fresh, false)};
}

}  // namespace comp::cuda
