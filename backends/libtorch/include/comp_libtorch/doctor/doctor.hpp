// SPDX-License-Identifier: Apache-2.0
// Examines one training step: the values of every operator and of its gradients, what is not finite and where that
// began, what each format would lose, and what low precision changes.
//   comp::doctor doctor{{{"net", net}}};
//   { auto on = doctor.examine(); loss = cross_entropy(net->forward(x), y); }
//   loss.backward();                                            // outside, as with a plan
//   const comp::examination seen = doctor.finish();
//   fmt::print("{}", comp::table(seen));                        // <comp/doctor/examination_text.hpp>
// The step runs in FP32 and gives the bits of a step without a doctor. Operators have the names that a plan gives them.
// Not seen: the backward of what torch::utils::checkpoint runs again.
#pragma once

#include <comp/core/linkage.hpp>
#include <comp/core/precision.hpp>
#include <comp/doctor/examination.hpp>
#include <comp_libtorch/hook/region.hpp>
#include <comp_libtorch/train/setup.hpp>
#include <memory>
#include <string>
#include <vector>

namespace comp::libtorch {

struct doctor_settings {
  precision low = precision::bf16;  // in which operators are run once more
  double share = 0.25;              // of the operators' time that these runs may take; 0: there are none
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

 private:
  std::unique_ptr<detail::examining> examining_;
};

}  // namespace comp::libtorch

namespace comp {
using libtorch::doctor;
using libtorch::doctor_settings;
}  // namespace comp

#if COMP_HEADER_ONLY
#include <comp_libtorch/doctor/examining.hpp>
#endif
