// SPDX-License-Identifier: Apache-2.0
// Pending work with an epilogue: before it writes its result it can apply the element-wise step behind it, as a product
// does with a ReLU, or a norm's gradient with the addition of another gradient. That saves a launch, and a tensor that
// would be written and read again.
// Such work reads parameters when it runs, which is later than when it was asked for: who changes parameters in place
// calls context::finish_reads() first.
#pragma once

#include "context.hpp"

namespace comp::cuda {

/// One step of an element-wise operator.
struct pending_step {
  step_kind kind;
  tensor other = {};                     // the second operand, of the first one's order; empty if there is none
  native::math::dropout_mask mask = {};  // for a dropout
  const std::uint64_t* draws = nullptr;  // on the device, added to the mask's draw (draw_counter.hpp); null: nothing
};

namespace detail {

class work_with_epilogue : public pending_work {
 public:
  /// True for a step that the work can apply to its result.
  virtual bool makes(const pending_step&) const = 0;
  /// Launches the work that writes `into`. then: a step that it makes(), applied to the rounded result; null: none.
  virtual void write(memory& into, const pending_step* then) const = 0;

  bool reads_parameters() const final { return true; }
  void run(memory& into) final {
    write(into, nullptr);
    const auto done = into.release_pending();
  }
  /// Returns: the work with an epilogue that is to fill `m`; null if there is none.
  static const work_with_epilogue* of(const memory* m) {
    return m ? dynamic_cast<work_with_epilogue*>(m->pending()) : nullptr;
  }
};

}  // namespace detail

}  // namespace comp::cuda
