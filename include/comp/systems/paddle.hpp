// SPDX-License-Identifier: Apache-2.0
// Paddle's mixed precision as a policy: its levels O0, OD, O1 and O2 with their lists, a user's own lists, and
// fp16_guard, the part of a model that O2 lowers.
//   paddle amp{.level = paddle_level::o1, .custom_white_list = {"elementwise_add"}};
// Use with systems/paddle_pass.hpp for the plan that Paddle would run: the pass knows the formats of tensors, by which
// an operator on no list is decided.
// Paddle adds the bias of a convolution by an operator of its own (and, in the version of its guide, that of a Linear).
// `decision::output` of such an operator is the format of that addition: FP32 in O1, unless elementwise_add is on the
// white list.
// Source: Paddle's guide to automatic mixed precision; GetAmpDestDtype and GetPromoteType of its eager mode.
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/decision.hpp>
#include <comp/core/error.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/precision.hpp>
#include <comp/policy/custom.hpp>
#include <comp/systems/kind_lists.hpp>
#include <comp/systems/paddle_lists.hpp>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace comp::policy {

/// o0: everything runs in FP32. od: the white list runs low, all else in FP32. o1: the white list runs low, the black
/// list in FP32, and all else low if all its inputs are low. o2: all but the black list runs low, on parameters that
/// are stored low.
enum class paddle_level : std::uint8_t { o0, od, o1, o2 };

/// v3: Paddle 3.3.1. guide: Paddle 2.4, for which Paddle's guide was written; there O2 lowers an unlisted operator
/// whatever its inputs are.
enum class paddle_version : std::uint8_t { v3, guide };

namespace paddle_lists {

inline kind_table make(paddle_version version, bool fp16, bool o2) {
  kind_table table;
  if (version == paddle_version::v3) {
    table.add_aliases(v3_aliases).add(category::allow, white).add(category::deny, black_grad);
    if (fp16) table.add(category::allow, white_fp16);
    if (!o2) table.add(category::deny, black);
  } else {
    table.add_aliases(guide_aliases);
    if (fp16) table.add(category::deny, guide_black_interp);
    if (fp16 && o2) table.add(category::deny, guide_black_o2);
    if (fp16 && !o2) table.add(category::allow, guide_white_fp16).add(category::deny, guide_black_fp16);
    if (!fp16 && !o2) table.add(category::allow, guide_white_bf16);
  }
  return table.add_aliases(aliases);
}
/// Returns the lists for a version, a precision and a level. OD has those of O1, without need of the black list,
/// because all that is not white is FP32.
inline const kind_table& table(paddle_version version, precision low, paddle_level level) {
  using enum paddle_version;
  static const std::array all{make(v3, false, false),   make(v3, false, true),     make(v3, true, false),
                              make(v3, true, true),     make(guide, false, false), make(guide, false, true),
                              make(guide, true, false), make(guide, true, true)};
  return all[4 * static_cast<std::size_t>(version) + 2 * (low == precision::fp16) + (level == paddle_level::o2)];
}

}  // namespace paddle_lists

struct paddle {  // models comp::OperatorPolicy
  paddle_level level = paddle_level::o1;
  precision low = precision::fp16;
  paddle_version version = paddle_version::v3;
  kind_names custom_white_list = {};                     // run low, even if they are on Paddle's black list
  kind_names custom_black_list = {};                     // run in FP32
  kind_names unsupported = {};                           // operators that this device cannot run in `low`
  bool use_promote = true;                               // O2 of v3: an unlisted operator that reads FP32 runs in FP32
  bool use_fp16_guard = false;                           // O2: only operators inside of `fp16_guard` run low
  std::vector<std::string> fp16_guard = {"fp16_guard"};  // the scopes inside of the guard

  // Arguments of paddle.amp.decorate, which does nothing below O2.
  bool decorate = true;                           // false: auto_cast alone, with parameters in FP32
  std::vector<std::string> excluded_layers = {};  // scopes whose parameters stay in FP32
  kind_names excluded_types = {};                 // operators whose parameters do: {"conv2d"} for nn.Conv2D
  bool master_weight = true;                      // the optimizer keeps FP32 copies of low parameters
  bool master_grad = false;                       // gradients of parameters are made FP32
  std::optional<precision> save_dtype = {};       // format of parameters in files; nothing: as they are stored

  decision classify(const op_info& op) const {
    const category assigned = category_of(theirs(op), op);
    if (assigned == category::deny) return {.category = assigned};
    if (assigned != category::allow) return {.category = assigned, .compute = low, .output = low};
    return {
        .category = assigned, .compute = low, .output = adds_bias_apart(op) && !adds_low(op) ? precision::fp32 : low};
  }

  /// Throws: `settings_error` for an operator on both custom lists (Paddle refuses it, too), and for a `low` that
  /// Paddle lacks.
  void check() const {
    for (const std::string& kind : custom_white_list) {
      require<settings_error>(!names_kind(table(), custom_black_list, table().theirs(kind)),
                              "\"{}\" is on custom_white_list and on custom_black_list (one operator, two decisions): "
                              "take it off one of them",
                              kind);
    }
    require<settings_error>(low == precision::fp16 || low == precision::bf16,
                            "dtype is {} (Paddle's AMP has float16 and bfloat16): choose one of them", name(low));
  }

  /// Returns: a sentence for each of the user's operators that is not known, with the most similar one that is.
  std::vector<std::string> warnings(const op_graph& graph = {}) const {
    auto all = unknown_kinds(table(), "custom_white_list", custom_white_list, graph);
    for (auto& sentence : unknown_kinds(table(), "custom_black_list", custom_black_list, graph))
      all.push_back(sentence);
    return all;
  }

  /// True if fp16_guard lets the operator run low.
  bool guarded(const op_info& op) const {
    return !use_fp16_guard || level != paddle_level::o2 || in_scopes(op, fp16_guard);
  }
  std::string_view theirs(const op_info& op) const { return table().theirs(op.kind); }
  /// True if the user's settings let O2 store the operator's parameters low. Norms keep FP32 all the same
  /// (paddle_pass.hpp).
  bool stores_low(const op_info& op) const {
    return level == paddle_level::o2 && decorate && guarded(op) && !in_scopes(op, excluded_layers) &&
           !names_kind(table(), excluded_types, theirs(op));
  }
  static bool in_scopes(const op_info& op, const std::vector<std::string>& scopes) {
    return std::any_of(scopes.begin(), scopes.end(),
                       [&](const std::string& s) { return op.name == s || by_scope(s, deny()).selects(op); });
  }

 private:
  const kind_table& table() const { return paddle_lists::table(version, low, level); }
  bool promotes() const { return version == paddle_version::v3 && use_promote; }

  category category_of(std::string_view theirs, const op_info& op) const {
    if (level == paddle_level::o0 || !guarded(op) || names_kind(table(), unsupported, theirs)) return category::deny;
    const category* listed = table().category_of(theirs);
    const bool white = names_kind(table(), custom_white_list, theirs);
    const bool black = names_kind(table(), custom_black_list, theirs);
    if (black || (!white && listed != nullptr && *listed == category::deny)) return category::deny;
    if (white || listed != nullptr) return category::allow;
    if (level == paddle_level::o2 && !promotes()) return category::allow;
    return level == paddle_level::od ? category::deny : category::follow;
  }
  /// True for an operator with a bias that Paddle adds by another operator. Without recorded inputs a bias is not seen.
  bool adds_bias_apart(const op_info& op) const {
    const std::string_view kind = without_overload(op.kind);
    return op.inputs.size() > 2 && (kind.starts_with("conv") || (kind == "linear" && version == paddle_version::guide));
  }
  bool adds_low(const op_info& op) const {
    const category add = category_of("elementwise_add", op);
    return add == category::allow || (add == category::follow && stores_low(op));
  }
};

}  // namespace comp::policy
