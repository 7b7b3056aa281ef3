// SPDX-License-Identifier: Apache-2.0
// Operators that wait and can make a step of the element-wise operator behind them on what they write: a product the
// ReLU, a norm's gradient the sum with another gradient. One launch, and one tensor that is neither written nor read.
// Parameters are read late, too: what changes them in place calls context::finish_reads() first.
// Not here: when one is made so (pending.hpp).
#pragma once

#include "context.hpp"

namespace comp::cuda {

/// One step of an element-wise operator; `other` lies as what it is applied to.
struct pending_step {
  step_kind kind;
  tensor other = {};
  native::math::dropout_mask mask = {};
  const std::uint64_t* draws = nullptr;  // added to the mask's draw, on the device
};

namespace detail {

class work_with_epilogue : public pending_work {
 public:
  virtual bool makes(const pending_step&) const = 0;
  /// Gives the stream what is written to `into`. then: a step that it makes(), after a rounding; null: none.
  virtual void write(memory& into, const pending_step* then) const = 0;

  bool reads_parameters() const final { return true; }
  void run(memory& into) final {
    write(into, nullptr);
    const auto done = into.release_pending();
  }
  /// The one that fills `m`, where there is one.
  static const work_with_epilogue* of(const memory* m) {
    return m ? dynamic_cast<work_with_epilogue*>(m->pending()) : nullptr;
  }
};

}  // namespace detail

}  // namespace comp::cuda
