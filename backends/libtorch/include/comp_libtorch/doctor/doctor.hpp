// SPDX-License-Identifier: Apache-2.0
// Examines one training step: the values of every operator and of its gradients, what is not finite and where that
// began, what each format would lose, and what low precision changes.
//   comp::doctor doctor{{{"net", net}}};
//   { auto on = doctor.examine(); loss = cross_entropy(net->forward(x), y); }
//   loss.backward();                                            // outside, as with a plan
//   const comp::examination exam = doctor.finish();
//   fmt::print("{}", comp::table(exam));                        // <comp/doctor/examination_text.hpp>
// or many steps, for what only shows over time (findings: <comp/doctor/history_text.hpp>):
//   comp::doctor doctor{{{"net", net}}, {.share = 0, .many_steps = true}};
//   for each step: { auto on = doctor.examine(); ... } ... optimizer.step(); doctor.end_step({.loss = loss, ...});
//   fmt::print("{}", comp::table(doctor.history()));
// The step runs in FP32 and gives the bits of a step without a doctor. Operators have the names that a plan gives them.
// Not seen: the backward of what torch::utils::checkpoint runs again.
#pragma once

#include <comp/core/linkage.hpp>
#include <comp/core/precision.hpp>
#include <comp/doctor/examination.hpp>
#include <comp/doctor/history.hpp>
#include <comp_libtorch/hook/region.hpp>
#include <comp_libtorch/train/setup.hpp>
#include <cstddef>
#include <memory>
#include <string>
#include <vector>

namespace comp::libtorch {

struct doctor_settings {
  precision low = precision::bf16;  // in which operators are run once more
  double share = 0.25;              // of the operators' time that these runs may take; 0: there are none
  bool many_steps = false;          // a copy of each weight is kept, and end_step() is called
};

/// What a step tells when it ends; each part may be left out.
struct step_end {
  at::Tensor loss = {};
  std::vector<torch::optim::Optimizer*> optimizers = {};  // those that ran
  std::vector<at::Tensor> batch = {};                     // what the step read, to see whether it changes
  std::size_t batch_number = 0;                           // of its epoch
  std::vector<std::string> apart = {};                    // parameters that should be equal on all ranks, and are not
};

namespace detail {
class examining;
}

class doctor {
 public:
  /// `models`: under the names that plans know them by.
  /// Throws: `settings_error` for a low precision that LibTorch does not run here, or a share below 0.
  COMP_INLINE explicit doctor(const std::vector<named_module>& models, const doctor_settings& settings = {});
  COMP_INLINE ~doctor();
  doctor(const doctor&) = delete;
  doctor& operator=(const doctor&) = delete;

  /// Examines the operators of this thread until the region ends. A step may have several regions.
  /// Throws: `error` while LibTorch's autocast is on.
  COMP_INLINE region examine(std::string segment = "forward");
  /// Returns: what was seen so far. Call it when the backward has run.
  COMP_INLINE examination finish() const;

  /// Ends one of many steps: what was seen enters the history. Call it after the optimizer, before its zero_grad().
  /// Throws: `settings_error` if the doctor is for one step, or the step had no region.
  COMP_INLINE void end_step(const step_end& now = {});
  /// Returns: what was seen in all steps that have ended.
  COMP_INLINE const comp::history& history() const;
  /// For an optimizer with hooks, as Python's, in place of step_end::optimizers: `parameters` are about to be updated,
  /// each at its learning rate, and have been updated.
  COMP_INLINE void before_update(const std::vector<at::Tensor>& parameters, const std::vector<double>& rates);
  COMP_INLINE void after_update();
  /// A model is in evaluation mode in a forward with gradients. examine() sees that of the modules it was given.
  COMP_INLINE void note_evaluation(const std::string& model);

 private:
  std::unique_ptr<detail::examining> examining_;
};

}  // namespace comp::libtorch

namespace comp {
using libtorch::doctor;
using libtorch::doctor_settings;
using libtorch::step_end;
}  // namespace comp

#if COMP_HEADER_ONLY
#include <comp_libtorch/doctor/examining.hpp>
#endif
