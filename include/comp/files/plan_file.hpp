// SPDX-License-Identifier: Apache-2.0
// Plan files: a plan as JSON that a person can read and edit, with each operator's precision, the model that it belongs
// to and the machine that it was found on. Loading refuses a plan of another model and says what differs.
//   { "comp_plan": 1, "comp_version": "0.3.0",
//     "plan": "011",                                  one letter per operator (core/precision.hpp); "011@autocast":
//                                                     run by the backend's own autocast; "111@tuned": FP32 as it is
//                                                     fastest
//     "operators": [ {"kind": "conv2d", "name": "stem", "precision": "fp16"}, ... ],
//     "model": {"fingerprint": "0123456789abcdef", "operators": 3},
//     "hardware": {...}, "precisions": ["fp32", "fp16"], "speedup": 1.25, "speedup_bounds": [1.2, 1.3],
//     "execution": {"images": {"value": "channels_last", "speedup": 1.1, "speedup_bounds": [1.05, 1.15]}},
//     "later": [ {"batch": 9000, "plan": "111", "reason": "..."} ] }
// `execution` holds the backend's choices (core/execution.hpp) and may be missing. "hands_on_fp32": true marks an
// operator whose results are cast back to FP32, "author": "autocast off" one that the model's own code fixes
// (core/op_info.hpp).
// `later` holds the plans that a training changes to, each with its first batch; the training's first batch is 0.
// `plan` and `operators` say the same twice and must agree; either may be left out. To change precisions by hand, edit
// one of them and delete the other. A plan that was saved without its model has neither `operators` nor `model`, and
// only its number of operators can be checked.
#pragma once

#include <comp/core/concepts.hpp>
#include <comp/core/execution.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/linkage.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/files/plan_listing.hpp>
#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

namespace comp {

/// A plan that was read from a file for a model.
struct loaded_plan {
  comp::plan plan = {};                    // the plan to give to set_precision()
  comp::hardware made_for = {};            // the machine that it was found on; unknown if the file does not say
  comp::execution execution = {};          // how the backend ran the plan there, beyond its precisions
  std::vector<later_plan> later = {};      // the plans that a training is to change to
  std::vector<std::string> warnings = {};  // what a person should know: another machine, or a file that names no model
};

namespace detail {

inline constexpr std::string_view comp_version = "0.3.0";
inline constexpr std::size_t plan_file_limit = std::size_t{64} << 20;

}  // namespace detail

/// Writes a plan without its model, so that nothing in the file says which model it belongs to.
COMP_INLINE void save(const plan& p, const std::string& path);

/// Writes a plan with the model and the machine that it is for. A crash leaves the old file whole.
/// Throws: `plan_error` if `p` does not fit `graph`; `file_error` if the file cannot be written.
COMP_INLINE void save(const plan& p, const op_graph& graph, const hardware& machine, const std::string& path);

/// Copies the plan file `from` to `to`, with other later plans: those of a training_result, so that the next training
/// changes its plan in the same places. Throws: as load_listing() and save().
COMP_INLINE void save_later(const std::string& from, const std::vector<later_plan>& later, const std::string& to);

namespace detail {
/// Puts the operators of `to` that the model's author has fixed back to FP32, and adds a warning that names the first.
COMP_INLINE void keep_authors_choices(loaded_plan& to, const op_graph& graph, const std::string& file);
/// Adds a warning to `to` for each thing in which the machine differs from the one that the plan was found on. That is
/// no error, since the plan computes the same here and only its speed may differ.
COMP_INLINE void warn_of_hardware(const hardware& made_for, const hardware& here, loaded_plan& to);
}  // namespace detail

/// Turns the contents of a plan file into a plan for `graph`. Another machine than `here` is a warning and no error,
/// since the plan still trains there, if not as fast.
/// Throws: `plan_error`, saying what differs, if the file is for another model.
COMP_INLINE loaded_plan fitted(const plan_listing& from, const op_graph& graph, const hardware* here = nullptr);

/// As load_plan, from a text; `file` is its name in errors.
COMP_INLINE loaded_plan read_plan(std::string_view text, const op_graph& graph, const hardware* here,
                                  const std::string& file);

/// Reads the plan of a file for a model. Another machine than `here` is a warning and no error.
/// Throws: `file_error` if the file cannot be read or understood; `plan_error`, saying what differs, if the plan is for
/// another model or the file contradicts itself.
COMP_INLINE loaded_plan load_plan(const std::string& path, const op_graph& graph, const hardware* here = nullptr);

/// Reads a plan for the model and the machine of `trainer`. Throws: as above.
template <Backend B>
loaded_plan load_plan(const std::string& path, B& trainer) {
  if constexpr (detail::knows_hardware<B>) {
    const hardware here = trainer.hardware();
    return load_plan(path, trainer.graph(), &here);
  } else {
    return load_plan(path, trainer.graph());
  }
}

}  // namespace comp

#if COMP_HEADER_ONLY
#include <comp/files/plan_text.hpp>
#endif
