// SPDX-License-Identifier: Apache-2.0
// Plans as JSON files that a person can read and edit: the plan, each operator with its precision, and what the plan
// was found for (model, machine). Loading refuses a plan that does not fit the model and says what differs.
//   { "comp_plan": 1, "comp_version": "0.2.0",
//     "plan": "011",                                  one letter per operator (core/precision.hpp); "011@autocast":
//                                                     run by the backend's own autocast
//     "operators": [ {"kind": "conv2d", "name": "stem", "precision": "fp16"}, ... ],
//     "model": {"fingerprint": "0123456789abcdef", "operators": 3},
//     "hardware": {...}, "precisions": ["fp32", "fp16"], "speedup": 1.25, "speedup_bounds": [1.2, 1.3],
//     "execution": {"images": {"value": "channels_last", "speedup": 1.1, "speedup_bounds": [1.05, 1.15]}} }
// `execution` is the backend's (core/execution.hpp), and may be missing; an operator with "hands_on_fp32": true gives
// its results back to FP32, one with "author": "autocast off" is fixed by the model's own code (core/op_info.hpp).
// `plan` and `operators` must agree; either may be left out, so one who edits precisions edits one of them and deletes
// the other. A file without `operators` and `model` (a plan saved alone) is checked by the number of operators only.
// Not here: the plan of an outcome, with its speed-up (observe/save_outcome.hpp).
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

/// What load_plan() read.
struct loaded_plan {
  comp::plan plan = {};          // to give to set_precision()
  comp::hardware made_for = {};  // the machine that the plan was found on; of unknown kind where the file does not say
  comp::execution execution = {};          // how the backend ran the plan there, beyond its precisions
  std::vector<std::string> warnings = {};  // to show to a person: the file is of another machine, or names no model
};

namespace detail {

inline constexpr std::string_view comp_version = "0.2.0";
inline constexpr std::size_t plan_file_limit = std::size_t{64} << 20;

}  // namespace detail

/// Writes a plan alone: nothing in the file says for which model.
COMP_INLINE void save(const plan& p, const std::string& path);

/// Writes a plan with the model and the machine that it is for. The file is the old or the new one, never half.
/// Throws: `plan_error` when `p` does not fit `graph`; `file_error` when the file cannot be written.
COMP_INLINE void save(const plan& p, const op_graph& graph, const hardware& machine, const std::string& path);

namespace detail {
/// Puts the operators of `to` that the model's author has fixed back to FP32, and adds a warning that names the first.
COMP_INLINE void keep_authors_choices(loaded_plan& to, const op_graph& graph, const std::string& file);
/// Adds a warning to `to` for each thing in which the machine differs from the one that the plan was found on.
COMP_INLINE void warn_of_hardware(const hardware& made_for, const hardware& here, loaded_plan& to);
}  // namespace detail

/// The listing as a plan for `graph`. Hardware other than `here` is a warning, no error.
/// Throws: `plan_error`, saying what differs, when it is for another model.
COMP_INLINE loaded_plan fitted(const plan_listing& from, const op_graph& graph, const hardware* here = nullptr);

/// The plan of a plan file's text; `file` names it in errors. See `load_plan`.
COMP_INLINE loaded_plan read_plan(std::string_view text, const op_graph& graph, const hardware* here,
                                  const std::string& file);

/// Reads a plan for a model. Hardware other than `here` is a warning, no error.
/// Throws: `file_error` when the file cannot be read or understood; `plan_error`, saying what differs, when the plan is
/// for another model or contradicts itself.
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
