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
// (core/op_info.hpp), "gives": "bf16" one that gives this format without a plan, as x.bfloat16() does.
// `later` holds the plans that a training changes to, each with its first batch; the training's first batch is 0.
// `plan` and `operators` say the same twice and must agree; either may be left out. To change precisions by hand, edit
// one of them and delete the other. A plan that was saved without its model has neither `operators` nor `model`, and
// only its number of operators can be checked.
#pragma once

#include <algorithm>
#include <comp/core/concepts.hpp>
#include <comp/core/execution.hpp>
#include <comp/core/fields.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/later_plan.hpp>
#include <comp/core/linkage.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/statistics.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace comp {

namespace detail {

inline constexpr std::string_view comp_version = "0.3.0";
inline constexpr std::size_t plan_file_limit = std::size_t{64} << 20;

}  // namespace detail

/// The contents of a plan file before they are compared with a model. Use it if the model's operators are not known
/// beforehand: the LibTorch backend can start a forward under a plan file and compare each operator when it is called.
/// `letters` or `operators` is always there; if both are, they agree.
struct plan_listing {
  /// One operator of the model that the plan was found for.
  struct entry {
    std::string name, kind;
    precision chosen = precision::fp32, as_written = precision::fp32;
    bool hands_on_fp32 = false;
    precision gives = precision::fp32;  // without a plan, if that is low
    author_choice author = author_choice::none;

    friend void fields(auto& io, entry& e) {
      io("name", e.name);
      io("kind", e.kind);
      io("precision", e.chosen);
      io("as_written", e.as_written, if_any);
      io("hands_on_fp32", e.hands_on_fp32, if_any);
      io("gives", e.gives, if_any);
      io("author", e.author, if_any, author_choice::autocast_on);
    }
  };
  /// The model that the plan was found for.
  struct model_info {
    std::string fingerprint = {};  // hexadecimal, because many readers of JSON would round a 64-bit number
    std::size_t operators = 0;     // how many; 0: the file does not say

    friend void fields(auto& io, model_info& m) {
      io("fingerprint", m.fingerprint);
      io("operators", m.operators, if_any);
    }
  };
  std::string file = {};
  std::optional<comp::plan> letters = {};
  std::optional<std::vector<entry>> operators = {};
  std::optional<model_info> model = {};
  std::optional<comp::hardware> made_for = {};
  std::optional<std::vector<precision>> searched = {};
  std::optional<double> speedup = {};  // over FP32, on the machine that the plan was found on
  std::optional<interval> speedup_bounds = {};
  comp::execution execution = {};
  std::vector<later_plan> later = {};  // the plans that a training is to change to, each as long as this one
  std::string written_by{detail::comp_version};
  int version = 1;

  friend void fields(auto& io, plan_listing& l) {
    io("comp_plan", l.version, 1, 1);
    io("comp_version", l.written_by, if_any);
    io("plan", l.letters, if_any);
    io("operators", l.operators, if_any);
    io("model", l.model, if_any);
    io("hardware", l.made_for, if_any);
    io("precisions", l.searched, if_any);
    io("speedup", l.speedup, if_any, 0);
    io("speedup_bounds", l.speedup_bounds, if_any);
    io("execution", l.execution, if_any);
    io("later", l.later, if_any);
  }

  /// Throws: `plan_error`, saying what differs, if operator `i` of the file has another name or kind.
  COMP_INLINE void require_operator(std::size_t i, const std::string& name, const std::string& kind) const;
  /// Returns the precision of operator `i`. Requires: i < size().
  precision chosen(std::size_t i) const { return operators ? (*operators)[i].chosen : (*letters)[i]; }
  /// Returns true if an operator has another precision than without a plan. Letters alone tell that FP32 is lower
  /// than an operator is written in if another one has FP64.
  bool lowers() const {
    if (operators) return std::ranges::any_of(*operators, [](const entry& op) { return op.chosen != op.as_written; });
    const bool wide = std::ranges::find(*letters, precision::fp64) != letters->end();
    return std::ranges::any_of(*letters, [&](precision p) { return is_low(p) || (wide && p == precision::fp32); });
  }
  std::size_t size() const { return operators ? operators->size() : letters->size(); }
  bool runs_autocast() const { return letters && letters->runs_autocast(); }
  /// Returns `p`, run by autocast or tuned if the file's plan is.
  plan run_as_listed(const plan& p) const { return letters ? p.run_like(*letters) : p; }
  /// Returns the file as it would be if the plan that trains batch `batch` were its only one.
  COMP_INLINE plan_listing at(std::size_t batch) const;
};

/// Reads the text of a plan file; `file` is its name in errors.
/// Throws: `file_error` if it cannot be understood, `plan_error` if it contradicts itself.
COMP_INLINE plan_listing read_listing(std::string_view text, const std::string& file);

/// Reads a plan file.
/// Throws: `file_error` if the file cannot be read or understood, `plan_error` if it contradicts itself.
COMP_INLINE plan_listing load_listing(const std::string& path);

/// A plan that was read from a file for a model.
struct loaded_plan {
  comp::plan plan = {};                    // the plan to give to set_precision()
  comp::hardware made_for = {};            // the machine that it was found on; unknown if the file does not say
  comp::execution execution = {};          // how the backend ran the plan there, beyond its precisions
  std::vector<later_plan> later = {};      // the plans that a training is to change to
  std::vector<std::string> warnings = {};  // what a person should know: another machine, or a file that names no model
};

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
