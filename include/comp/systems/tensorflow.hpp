// SPDX-License-Identifier: Apache-2.0
// TensorFlow's mixed precision as a policy: its allow, infer, deny and clear lists, with the changes to them and the
// switches that TensorFlow reads from its environment. Use with systems/tensorflow_pass.hpp for the plan that
// TensorFlow's graph rewrite would run, or as the policy of a search.
//   tensorflow amp{.list = tensorflow_list::cuda_fp16, .edits = tensorflow_edits::from_environment()};
// An operator on no list is of category follow here. TensorFlow never converts such an operator, and its rewrite does
// not look past it.
// A model without an operator on the allow list stays in FP32.
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/decision.hpp>
#include <comp/core/error.hpp>
#include <comp/core/names.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/precision.hpp>
#include <comp/systems/kind_lists.hpp>
#include <comp/systems/tensorflow_lists.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

namespace comp::policy {

/// TensorFlow has different lists for CUDA, and for oneDNN with FP16 and with BF16.
enum class tensorflow_list : std::uint8_t { cuda_fp16, onednn_fp16, onednn_bf16 };

/// TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL. tensor_cores_only empties the infer, deny and clear lists (with FP16 on
/// CUDA only). treat_infer_as_deny moves the infer list to deny. unsafe_force_all allows everything except
/// SoftmaxCrossEntropyWithLogits, constants and operators with a state; it is refused with BF16.
enum class tensorflow_level : std::uint8_t { normal, tensor_cores_only, treat_infer_as_deny, unsafe_force_all };

/// A user's changes to one list. An operator that is added and removed is removed, as in TensorFlow.
struct list_edit {
  kind_names add = {};
  kind_names remove = {};
};

/// A user's changes to TensorFlow's lists.
struct tensorflow_edits {
  list_edit allow = {}, infer = {}, deny = {}, clear = {};
  tensorflow_level level = tensorflow_level::normal;

  /// Reads the variables that TensorFlow reads: TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_{ALLOWLIST,INFERLIST,DENYLIST,
  /// CLEARLIST}_{ADD,REMOVE}, lists separated by commas, also under their older names WHITELIST, GRAYLIST and
  /// BLACKLIST; and TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL.
  /// `variable` reads the environment, and returns null for a variable that is not set; tests give another one.
  /// Throws: `settings_error` for a level that TensorFlow does not know. TensorFlow ignores it, which hides typing
  /// errors.
  static tensorflow_edits from_environment(const std::function<const char*(const char*)>& variable = [](const char* n) {
    return std::getenv(n);  // NOLINT(concurrency-mt-unsafe)
  });
};

namespace tensorflow_lists {

inline kind_table make(tensorflow_list list) {
  const bool fp16 = list != tensorflow_list::onednn_bf16, cuda = list == tensorflow_list::cuda_fp16;
  kind_table lists;
  lists.add(category::allow, allow).add(category::infer, infer).add(category::deny, deny).add(category::clear, clear);
  lists.add(category::allow, fp16 ? fp16_allow : bf16_allow).add(category::clear, fp16 ? fp16_clear : bf16_clear);
  lists.add(fp16 ? category::deny : category::infer, reductions);
  lists.add(cuda ? category::allow : category::infer, cuda ? cuda_allow : onednn_infer);
  return lists.add_aliases(aliases);
}
inline const kind_table& table(tensorflow_list list) {
  static const std::array tables{make(tensorflow_list::cuda_fp16), make(tensorflow_list::onednn_fp16),
                                 make(tensorflow_list::onednn_bf16)};
  return tables[static_cast<std::size_t>(list)];
}

}  // namespace tensorflow_lists

struct tensorflow {  // models comp::OperatorPolicy
  tensorflow_list list = tensorflow_list::cuda_fp16;
  tensorflow_edits edits = {};
  precision low = list == tensorflow_list::onednn_bf16 ? precision::bf16 : precision::fp16;
  /// True: an operator on the infer list whose producer is lowered is lowered, too. TensorFlow 2.21 does so with all of
  /// its lists (it was run to see); before 2.10 it did only through oneDNN.
  bool infer_follows_allow = true;

  decision classify(const op_info& op) const {
    const category assigned = category_of(tensorflow_lists::table(list).theirs(op.kind));
    return assigned == category::allow ? decision{.category = assigned, .compute = low, .output = low}
                                       : decision{.category = assigned};
  }

  /// Throws: `settings_error`, as TensorFlow does, for an operator that an edit puts on two lists, and for
  /// unsafe_force_all with BF16.
  void check() const {
    require<settings_error>(edits.level != tensorflow_level::unsafe_force_all || list != tensorflow_list::onednn_bf16,
                            "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_LEVEL is UNSAFE_FORCE_ALL (many operators have no "
                            "BF16 kernel on a CPU): use it with FP16, or add to the allow list");
    for (const auto& [name, edit, of] : named()) {
      for (const std::string& kind : edit->add) {
        const std::string_view theirs = tensorflow_lists::table(list).theirs(kind);
        for (const auto& [other_name, other_edit, other] : named()) {
          require<settings_error>(other == of || !(holds(of, theirs) && holds(other, theirs)),
                                  "\"{}\" is on the {} and on the {} (one operator, two decisions): take it off one "
                                  "of them, with ..._REMOVE or .remove",
                                  kind, name, other_name);
        }
      }
    }
  }

  /// Returns: a sentence for each operator of an edit that is not known, with the most similar one that is.
  std::vector<std::string> warnings(const op_graph& graph = {}) const {
    std::vector<std::string> all;
    for (const auto& [name, edit, of] : named()) {
      for (const kind_names* kinds : {&edit->add, &edit->remove}) {
        for (auto& sentence : unknown_kinds(tensorflow_lists::table(list), name, *kinds, graph))
          all.push_back(sentence);
      }
    }
    return all;
  }

 private:
  struct named_edit {
    std::string_view name;
    const list_edit* edit;
    category of;
  };
  std::array<named_edit, 4> named() const {
    return {{{"allow list", &edits.allow, category::allow},
             {"deny list", &edits.deny, category::deny},
             {"infer list", &edits.infer, category::infer},
             {"clear list", &edits.clear, category::clear}}};
  }

  /// True if the list of category `of`, with the user's changes, has the operator.
  bool holds(category of, std::string_view theirs) const {
    if (of != category::allow && emptied()) return false;
    const kind_table& table = tensorflow_lists::table(list);
    for (const auto& [name, edit, edited] : named()) {
      if (edited != of) continue;
      if (names_kind(table, edit->remove, theirs)) return false;
      if (names_kind(table, edit->add, theirs)) return true;
    }
    const category* listed = table.category_of(theirs);
    return listed != nullptr && *listed == of;
  }
  /// True if only the allow list is in force.
  bool emptied() const {
    return edits.level == tensorflow_level::tensor_cores_only && list == tensorflow_list::cuda_fp16;
  }
  category category_of(std::string_view theirs) const {
    constexpr std::array<std::string_view, 5> never_forced{"CheckNumerics", "Const", "SaveV2",
                                                           "SoftmaxCrossEntropyWithLogits", "While"};
    if (edits.level == tensorflow_level::unsafe_force_all &&
        std::find(never_forced.begin(), never_forced.end(), theirs) == never_forced.end())
      return category::allow;
    for (const auto& [name, edit, of] : named()) {
      if (!holds(of, theirs)) continue;
      return of == category::infer && edits.level == tensorflow_level::treat_infer_as_deny ? category::deny : of;
    }
    return category::follow;
  }
};

inline tensorflow_edits tensorflow_edits::from_environment(const std::function<const char*(const char*)>& variable) {
  const std::string prefix = "TF_AUTO_MIXED_PRECISION_GRAPH_REWRITE_";
  tensorflow_edits read;
  const auto value = [&](const std::string& name) {
    const char* set = variable((prefix + name).c_str());
    return std::string{set == nullptr ? "" : set};
  };
  const auto take = [&](list_edit& edit, const std::string& name) {
    each_name(value(name + "_ADD"), ",", [&](std::string_view kind) { edit.add.emplace_back(kind); });
    each_name(value(name + "_REMOVE"), ",", [&](std::string_view kind) { edit.remove.emplace_back(kind); });
  };
  take(read.allow, "ALLOWLIST"), take(read.allow, "WHITELIST");
  take(read.infer, "INFERLIST"), take(read.infer, "GRAYLIST");
  take(read.deny, "DENYLIST"), take(read.deny, "BLACKLIST");
  take(read.clear, "CLEARLIST");
  std::string level = value("LEVEL");
  for (char& c : level) c = static_cast<char>(c >= 'a' && c <= 'z' ? c - 'a' + 'A' : c);
  constexpr std::array<std::string_view, 4> levels{"", "TENSOR_CORES_ONLY", "TREAT_INFER_AS_DENY", "UNSAFE_FORCE_ALL"};
  const auto at = std::find(levels.begin(), levels.end(), level);
  require<settings_error>(at != levels.end(),
                          "{}LEVEL is \"{}\" (TensorFlow knows {}, {} and {}): correct it or unset it", prefix, level,
                          levels[1], levels[2], levels[3]);
  read.level = static_cast<tensorflow_level>(at - levels.begin());
  return read;
}

}  // namespace comp::policy
