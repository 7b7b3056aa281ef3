// SPDX-License-Identifier: Apache-2.0
// TVM's mixed precision as a policy. A conversion function decides for each call of an operator whether it is ALLOW,
// FOLLOW or DENY, in which format it accumulates, and which format its result has. Functions are registered for
// operators by name, each with a priority level.
//   tvm amp{.low = precision::fp16};
//   amp.registry.add("nn.conv2d", [](const op_info& call, precision low) -> conversion {...}, 11);
// Use with systems/tvm_pass.hpp for the plan that TVM's ToMixedPrecision would run. Any two precisions can be low and
// full, FP8 too.
// relax() is the policy of Relax, TVM's later IR: it has lists of its own, sums in FP32 and denies operators that are
// not registered.
// Source: TVM RFC 0006; src/relay/transforms/to_mixed_precision.cc and src/node/attr_registry.h (levels) at 21095b98;
// src/relax/transform/to_mixed_precision.cc at 5d4dc872.
#pragma once

#include <algorithm>
#include <comp/core/decision.hpp>
#include <comp/core/error.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/precision.hpp>
#include <comp/systems/kind_lists.hpp>
#include <comp/systems/tvm_lists.hpp>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::policy {

/// What a conversion function returns: the RFC's tuple of conversion category, accumulation dtype and output dtype. The
/// two precisions only matter if the operator runs low.
struct conversion {
  comp::category category = comp::category::follow;
  precision accumulate = precision::fp32;
  precision output = precision::fp32;
};
using conversion_rule = std::function<conversion(const op_info& call, precision low)>;

namespace tvm_lists {
inline const kind_table& relay() {
  static const kind_table table = kind_table{.dotted_names = true}
                                      .add_aliases(aliases)
                                      .add_aliases(relay_aliases)
                                      .add(category::allow, relay_always)
                                      .add(category::follow, relay_follow)
                                      .add(category::deny, relay_never);
  return table;
}
inline const kind_table& relax() {
  static const kind_table table = kind_table{.dotted_names = true, .prefix = "relax."}
                                      .add_aliases(aliases)
                                      .add_aliases(relax_aliases)
                                      .add(category::allow, relax_always)
                                      .add(category::follow, relax_follow);
  return table;
}
}  // namespace tvm_lists

/// The conversion functions by operator, under TVM's names or ATen's. It starts with TVM's defaults (Relay's or Relax')
/// at the default level.
class tvm_registry {
 public:
  static constexpr int default_level = 10;

  static tvm_registry relax() {
    tvm_registry registry;
    registry.table_ = &tvm_lists::relax();
    return registry;
  }

  /// Adds a rule. The rule of the highest level is used, in whatever order they are added.
  /// Throws: `settings_error` if the operator has a rule of the same level, since nothing would decide between them.
  tvm_registry& add(std::string_view op, conversion_rule rule, int level = default_level) {
    require<settings_error>(rule != nullptr,
                            "the conversion rule of \"{}\" is empty (it cannot be called): give a function", op);
    const std::string name{theirs(op)};
    const auto at = rules_.find(name);
    std::optional<int> before;
    if (category_of(name) != nullptr) before = default_level;
    if (at != rules_.end()) before = at->second.level;
    require<settings_error>(before != level,
                            "\"{}\" has a conversion rule of level {} already (a higher level replaces, equal ones "
                            "contradict): register it with level {}",
                            op, level, level + 1);
    if (before < level) rules_[name] = {std::move(rule), level};
    return *this;
  }

  std::string_view theirs(std::string_view kind) const { return table_->theirs(kind); }
  /// Returns: the user's rule for an operator; null if there is none. The defaults may then still have a category.
  const conversion_rule* rule_of(std::string_view theirs) const {
    const auto at = rules_.find(theirs);
    return at == rules_.end() ? nullptr : &at->second.rule;
  }
  const comp::category* category_of(std::string_view theirs) const { return table_->category_of(theirs); }
  void offer_all(nearest_word& near) const {
    table_->offer_all(near);
    for (const auto& rule : rules_) near.offer(rule.first);
  }

 private:
  struct entry {
    conversion_rule rule = {};
    int level = default_level;
  };
  std::map<std::string, entry, std::less<>> rules_ = {};
  const kind_table* table_ = &tvm_lists::relay();
};

/// How an operator without a rule is treated. `warn` and `silent`: it follows its inputs; tvm_pass warns once for each
/// kind, or not. `error`: it is an error. `deny`: it runs in full precision, as in Relax. The first three are TVM's
/// missing_op_mode 1, 2 and 0.
enum class missing_rule : std::uint8_t { warn, silent, error, deny };

struct tvm {  // models comp::OperatorPolicy
  tvm_registry registry = {};
  precision low = precision::fp16;
  precision full = precision::fp32;
  /// The format of the sums of operators that TVM's own lists allow; nothing: `low`, as in Relay.
  std::optional<precision> accumulate = {};
  missing_rule missing = missing_rule::warn;
  std::vector<precision> supported = {all_precisions.begin(), all_precisions.end()};  // what the device computes in

  /// Throws: `settings_error`, naming the operator, if a rule throws, or returns a category that TVM lacks or a
  /// precision that is not `supported`; also for an operator without a rule if `missing` is missing_rule::error.
  decision classify(const op_info& op) const {
    const std::string_view theirs = registry.theirs(op.kind);
    if (const conversion_rule* rule = registry.rule_of(theirs)) return checked(op, ask(*rule, op));
    const category* listed = registry.category_of(theirs);
    if (listed == nullptr && missing == missing_rule::error) throw settings_error{unregistered(op, 1)};
    const category unlisted = missing == missing_rule::deny ? category::deny : category::follow;
    const category assigned = listed == nullptr ? unlisted : *listed;
    return checked(op, {assigned, assigned == category::allow ? accumulate.value_or(low) : low, low});
  }

  /// Returns: a sentence for each kind of operator in `graph` that has no rule.
  std::vector<std::string> warnings(const op_graph& graph) const {
    std::vector<std::string> sentences;
    std::set<std::string_view> kinds;
    for (const op_info& op : graph) {
      const std::string_view theirs = registry.theirs(op.kind);
      const bool known = registry.rule_of(theirs) != nullptr || registry.category_of(theirs) != nullptr;
      if (known || !kinds.insert(theirs).second) continue;
      const auto same = [&](const op_info& other) { return registry.theirs(other.kind) == theirs; };
      sentences.push_back(unregistered(op, std::count_if(graph.begin(), graph.end(), same)));
    }
    return sentences;
  }

 private:
  conversion ask(const conversion_rule& rule, const op_info& op) const {
    try {
      return rule(op, low);
    } catch (const std::exception& thrown) {
      throw settings_error{
          fmt::format("the conversion rule of \"{}\" failed for operator \"{}\" ({}): correct the rule", op.kind,
                      op.name, thrown.what())};
    }
  }
  decision checked(const op_info& op, const conversion& choice) const {
    require<settings_error>(
        choice.category == category::allow || choice.category == category::follow || choice.category == category::deny,
        "the conversion rule of \"{}\" says {} for operator \"{}\" (TVM has allow, follow and deny): "
        "answer with one of them",
        op.kind, name(choice.category), op.name);
    if (choice.category == category::deny) return {.category = choice.category, .compute = full, .output = full};
    for (const precision p : {low, choice.accumulate, choice.output}) {
      require<settings_error>(
          std::find(supported.begin(), supported.end(), p) != supported.end(),
          "operator \"{}\" (\"{}\") is to use {} (this device lacks it): choose another low precision "
          "or correct the rule",
          op.name, op.kind, name(p));
    }
    return {.category = choice.category, .compute = low, .accumulate = choice.accumulate, .output = choice.output};
  }
  std::string unregistered(const op_info& op, std::ptrdiff_t count) const {
    nearest_word near{registry.theirs(op.kind)};
    registry.offer_all(near);
    return fmt::format("\"{}\" has no conversion rule, {} time{} in this model (it follows its inputs): register one{}",
                       op.kind, count, count == 1 ? "" : "s",
                       near.word().empty() ? "" : fmt::format(", or did you mean \"{}\"?", near.word()));
  }
};

/// The policy of relax.transform.ToMixedPrecision: FP16, with sums in `out_dtype` that a cast then rounds to FP16.
inline tvm relax(precision out_dtype = precision::fp32) {
  return {.registry = tvm_registry::relax(), .accumulate = out_dtype, .missing = missing_rule::deny};
}

}  // namespace comp::policy
