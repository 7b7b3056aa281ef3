// SPDX-License-Identifier: Apache-2.0
// A user's own rules over another policy. A rule selects operators by kind, by name or by scope, and allows them,
// denies them, lets them follow their inputs, or fixes their precision. A later rule wins over an earlier one;
// operators that no rule selects get the answer of the policy `over`.
//   custom listed{.over = pytorch{}, .rules = {by_kind("softmax", allow(precision::bf16)),
//                                              by_name("block?.attention.*", deny()),
//                                              by_scope("head", fixed(precision::fp32))}};
// A rule that selects nothing is no error, because one list may serve several models.
#pragma once

#include <algorithm>
#include <comp/core/concepts.hpp>
#include <comp/core/decision.hpp>
#include <comp/core/error.hpp>
#include <comp/core/op_info.hpp>
#include <comp/policy/glob.hpp>
#include <comp/policy/kind_name.hpp>
#include <comp/policy/pytorch.hpp>
#include <cstdint>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::policy {

enum class selector : std::uint8_t { kind, name, scope };

constexpr std::string_view name(selector s) {
  return s == selector::kind ? "by_kind" : s == selector::name ? "by_name" : "by_scope";
}

/// A rule-based plan runs the operator in `low`; a search does so without a trial if its sizes suit the matrix units.
/// Throws: `settings_error` for FP64, which is below nothing.
inline decision allow(precision low) {
  require<settings_error>(low != precision::fp64,
                          "allow({}) lowers nothing (allow names a low precision): use deny() or fixed({})", name(low),
                          name(low));
  return {.category = category::allow, .compute = low, .output = low};
}
/// The operator runs as it is written in a rule-based plan; a search may still try it in a low precision.
constexpr decision deny() { return {.category = category::deny}; }
/// The operator runs in the precision of its inputs.
constexpr decision follow() { return {.category = category::follow}; }
/// The operator runs in `p`, and no search tries another precision.
constexpr decision fixed(precision p) {
  return {.category = is_low(p) ? category::allow : category::deny, .compute = p, .output = p, .fixed = true};
}

/// One line of a user's list: which operators it selects, and what it decides for them. Made by by_kind, by_name and
/// by_scope.
struct rule {
  selector by = selector::kind;
  std::string pattern = {};
  comp::decision decision = {};

  bool selects(const op_info& op) const {
    if (by == selector::kind) return same_operator(op.kind, pattern);
    if (by == selector::name) return matches_glob(op.name, pattern);
    const bool inside =
        op.name.size() > pattern.size() && op.name.starts_with(pattern) && op.name[pattern.size()] == '.';
    return inside || std::find(op.scopes.begin(), op.scopes.end(), pattern) != op.scopes.end();
  }
  /// Returns the selector as the user wrote it, by_kind("softmax"), for messages.
  std::string str() const { return fmt::format("{}(\"{}\")", name(by), pattern); }
};

namespace detail {
inline rule make_rule(selector by, std::string pattern, const decision& then) {
  require<settings_error>(!pattern.empty(), "{}(\"\") has an empty pattern (it selects nothing): write {}", name(by),
                          by == selector::kind   ? "an operator kind such as \"softmax\""
                          : by == selector::name ? "a name or a pattern such as \"block?.attention.*\""
                                                 : "a scope such as \"head\"");
  return {by, std::move(pattern), then};
}
inline std::string text(const decision& d) {
  if (d.fixed) return fmt::format("fixed({})", name(d.compute));
  if (d.category == category::allow) return fmt::format("allow({})", name(d.compute));
  return fmt::format("{}()", name(d.category));
}
}  // namespace detail

/// Selects operators by their ATen kind, with or without "aten::". A kind without an overload ("softmax") selects all
/// overloads; one with an overload ("softmax.int") selects that overload, and operators whose overload is not known.
/// Throws (like by_name and by_scope): `settings_error` for an empty pattern.
inline rule by_kind(std::string kind, const decision& then) {
  return detail::make_rule(selector::kind, std::move(kind), then);
}
/// Selects operators by their whole name. In `pattern`, '*' is any run of characters, dots included, and '?' any one.
inline rule by_name(std::string pattern, const decision& then) {
  return detail::make_rule(selector::name, std::move(pattern), then);
}
/// Selects operators that have the scope, or whose name begins with it and a dot: "head" selects "head.linear".
inline rule by_scope(std::string scope, const decision& then) {
  return detail::make_rule(selector::scope, std::move(scope), then);
}

/// Rules in their order. Two rules with the same selector and different decisions are refused, since one of them would
/// never have an effect.
class rule_list {
 public:
  rule_list() = default;
  rule_list(std::initializer_list<rule> rules) {
    for (const rule& r : rules) add(r);
  }

  /// Throws: `settings_error` when an earlier rule has the same selector and another decision.
  void add(rule added) {
    const auto same = std::find_if(rules_.begin(), rules_.end(), [&](const rule& r) {
      if (r.by != added.by) return false;
      return r.by == selector::kind ? without_namespace(r.pattern) == without_namespace(added.pattern)
                                    : r.pattern == added.pattern;
    });
    const bool agrees = same == rules_.end() || same->decision == added.decision;
    require<settings_error>(agrees, "{} is given both {} and {} (one selector, two decisions): drop one of the rules",
                            added.str(), agrees ? "" : detail::text(same->decision), detail::text(added.decision));
    if (same == rules_.end()) rules_.push_back(std::move(added));
  }
  const std::vector<rule>& all() const { return rules_; }

 private:
  std::vector<rule> rules_;
};

template <OperatorPolicy Over = pytorch>
struct custom {  // models comp::OperatorPolicy
  Over over = {};
  rule_list rules = {};

  decision classify(const op_info& op) const {
    const auto& all = rules.all();
    const auto last = std::find_if(all.rbegin(), all.rend(), [&](const rule& r) { return r.selects(op); });
    return last == all.rend() ? over.classify(op) : last->decision;
  }
  /// Returns the same rules over the policy that `over` is on `machine`.
  custom on(const hardware& machine) const { return {on_machine(over, machine), rules}; }
};

}  // namespace comp::policy
