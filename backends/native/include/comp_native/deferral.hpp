// SPDX-License-Identifier: Apache-2.0
// Deferred steps: the host launches a whole step on the Device before it reads any of its numbers. An ordinary step
// waits for the loss before the backward, and for the gradients before the update, and a GPU is idle meanwhile.
// In a deferred step losses stay on the Device. Gradients are checked, scaled and clipped there. The update is
// launched, too, and the Device skips it if a loss or a gradient is not finite. The host waits once, at the end.
// Losses and weights are bit for bit those of a step that reads each number.
// A Device without deferral waits for each number.
#pragma once

#include <comp_native/device.hpp>
#include <concepts>
#include <span>

namespace comp::native {

/// What happens to gradients before an update.
struct update_guard {
  double unscale = 1;    // the factor for every gradient
  double clip_norm = 0;  // then the largest norm of all of them together; 0: no clipping
};
/// What the host learns at the end of a deferred step.
struct step_gradients {
  bool finite = false;  // whether every gradient of the guarded update was finite
  double norm = 0;      // norm of the gradients after `unscale`, before clipping; 0: no clipping was asked for
};

/// A Device that can defer. Beside its operators it has
///   void defer_losses(bool)   true: a loss operator returns at once, and end_step() writes the number that its
///                             `double* loss` points to, which has to stay valid. false: losses are waited for again,
///                             and those that were deferred are forgotten
///   void guard_update(span<P* const>, const update_guard&)
///                             the next sgd_step or adam_step, which is of these parameters, does nothing if one of
///                             their gradients or a deferred loss is not finite. Gradients are scaled and clipped while
///                             they are read; in memory they stay as they are
///   step_gradients end_step()  waits for the step, except for a guarded update, and writes the losses
template <class D>
concept Defers = Device<D> && requires(D& d, std::span<typename D::parameter* const> all, const update_guard& guard) {
  d.defer_losses(true);
  d.guard_update(all, guard);
  { d.end_step() } -> std::same_as<step_gradients>;
};

/// Losses are deferred while an object of this class lives.
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
