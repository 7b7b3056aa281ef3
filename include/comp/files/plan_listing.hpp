// SPDX-License-Identifier: Apache-2.0
// The contents of a plan file before they are compared with a model. Use it if the model's operators are not known
// beforehand: the LibTorch backend can start a forward under a plan file and compare each operator when it is called.
// Otherwise use load_plan of plan_file.hpp.
#pragma once

#include <algorithm>
#include <comp/core/execution.hpp>
#include <comp/core/fields.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/later_plan.hpp>
#include <comp/core/linkage.hpp>
#include <comp/core/op_info.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/precision.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace comp {

/// `letters` or `operators` is always there; if both are, they agree.
struct plan_listing {
  /// One operator of the model that the plan was found for.
  struct entry {
    std::string name, kind;
    precision chosen = precision::fp32, as_written = precision::fp32;
    bool hands_on_fp32 = false;
    author_choice author = author_choice::none;

    friend void fields(auto& io, entry& e) {
      io("name", e.name);
      io("kind", e.kind);
      io("precision", e.chosen);
      io("as_written", e.as_written, if_any);
      io("hands_on_fp32", e.hands_on_fp32, if_any);
      io("author", e.author, if_any, author_choice::autocast_on);
    }
  };
  std::string file;
  std::optional<comp::plan> letters = {};
  std::optional<std::vector<entry>> operators = {};
  std::optional<std::string> fingerprint = {};
  std::optional<comp::hardware> made_for = {};
  std::optional<double> speedup = {};  // over FP32, on the machine that the plan was found on
  comp::execution execution = {};
  std::vector<later_plan> later = {};  // the plans that a training is to change to, each as long as this one

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

}  // namespace comp

#if COMP_HEADER_ONLY
#include <comp/files/plan_file.hpp>
#endif
