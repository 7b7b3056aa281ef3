// SPDX-License-Identifier: Apache-2.0
// What a plan file says, before it is held against a model (plan_file.hpp): for who knows a model's operators only as
// they come by.
#pragma once

#include <comp/core/execution.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/linkage.hpp>
#include <comp/core/op_info.hpp>
#include <comp/core/plan.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace comp {

/// At least one of letters and operators is there, and they agree.
struct plan_listing {
  struct entry {
    std::string name, kind;
    precision chosen = precision::fp32;
    bool hands_on_fp32 = false;
    author_choice author = author_choice::none;
  };
  std::string file;
  std::optional<comp::plan> letters = {};
  std::optional<std::vector<entry>> operators = {};
  std::optional<std::string> fingerprint = {};
  std::optional<comp::hardware> made_for = {};
  std::optional<double> speedup = {};  // over FP32, where it was found
  comp::execution execution = {};

  /// Throws: `plan_error`, saying what differs, unless operator `i` of a model may be called so.
  COMP_INLINE void require_operator(std::size_t i, const std::string& name, const std::string& kind) const;
  /// What it gives operator `i`. Requires: there is one.
  precision chosen(std::size_t i) const { return operators ? (*operators)[i].chosen : (*letters)[i]; }
  std::size_t size() const { return operators ? operators->size() : letters->size(); }
  bool runs_autocast() const { return letters && letters->runs_autocast(); }
};

/// What the text of a plan file says; `file` names it in errors.
/// Throws: `file_error` when it cannot be understood, `plan_error` when it contradicts itself.
COMP_INLINE plan_listing read_listing(std::string_view text, const std::string& file);

/// Throws: `file_error` when the file cannot be read or understood, `plan_error` when it contradicts itself.
COMP_INLINE plan_listing load_listing(const std::string& path);

}  // namespace comp

#if COMP_HEADER_ONLY
#include <comp/files/plan_file.hpp>
#endif
