// SPDX-License-Identifier: Apache-2.0
// A step without a wait in its middle, on a Device that has what it takes: losses stay on the Device, gradients are
// judged, scaled and clipped there, the update is given before anybody has looked, and is left out by the Device where
// a loss or a gradient is not finite. The host looks once, when the step is given.
// Losses and weights are those of a step that looks at each number, bit for bit.
// Not here: what the host makes of it (training_step.hpp). A Device without it is waited for, as device.hpp says.
#pragma once

#include <comp_native/device.hpp>
#include <concepts>
#include <span>

namespace comp::native {

/// How gradients become those of an update.
struct update_guard {
  double unscale = 1;    // multiplies every gradient
  double clip_norm = 0;  // then the largest norm of all of them together; 0: no clipping
};
struct step_seen {
  bool finite = false;  // every gradient of the guarded update
  double norm = 0;      // of the gradients after `unscale`, before clipping; 0 where nobody asked to clip
};

/// What a Device offers beside its operators:
///   void defer_losses(bool)   true: a loss operator returns at once; what its `double* loss` points to, which has to
///                             stay, is written by end_step(). false: back to waiting; what was deferred is forgotten
///   void guard_update(span<P* const>, const update_guard&)  the next sgd_step or adam_step, of these parameters, does
///                             nothing where one of their gradients or a deferred loss is not finite. Gradients are
///                             scaled and clipped on their way; in memory they stay
///   step_seen end_step()      waits; writes the losses
template <class D>
concept Defers = Device<D> && requires(D& d, std::span<typename D::parameter* const> all, const update_guard& guard) {
  d.defer_losses(true);
  d.guard_update(all, guard);
  { d.end_step() } -> std::same_as<step_seen>;
};

/// Losses are deferred while it lives.
template <Defers D>
class deferring {
 public:
  explicit deferring(D& device) : device_{device} { device_.defer_losses(true); }
  deferring(const deferring&) = delete;
  deferring& operator=(const deferring&) = delete;
  ~deferring() { device_.defer_losses(false); }

 private:
  D& device_;
};

}  // namespace comp::native
