// SPDX-License-Identifier: Apache-2.0
// Operator lists of TensorFlow, Paddle and TVM, which call operators by names of their own: looking up ATen's kinds in
// such a list, and the lists that a user adds.
#pragma once

#include <algorithm>
#include <cassert>
#include <comp/core/decision.hpp>
#include <comp/core/error.hpp>
#include <comp/core/names.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/policy/kind_name.hpp>
#include <comp/policy/nearest.hpp>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <vector>

namespace comp::policy {

/// A system's operators with the categories that its lists give them, and the aliases of ATen's operators.
struct kind_table {
  bool dotted_names = false;     // the system's own names contain dots ("nn.conv2d"), which begin no overload of ATen's
  std::string_view prefix = {};  // what may stand before its names ("relax.")
  std::map<std::string_view, comp::category> listed = {};     // by the system's names
  std::map<std::string_view, std::string_view> aliases = {};  // the system's names by ATen's, without overload
  std::set<std::string_view> own = {};  // names that the system and ATen have for different operators

  kind_table& add(comp::category to, std::string_view kinds) {
    each_name(kinds, " \n", [&](std::string_view kind) {
      [[maybe_unused]] const bool fresh = listed.emplace(kind, to).second;
      assert(fresh);  // no operator is on two lists
    });
    return *this;
  }
  /// Adds names that the system gives operators of ATen: "MatMul=linear,mm". If the system builds an operator from
  /// several, it is the name of the one that decides its precision. A name without "=" is the system's if it stands
  /// bare; ATen's is then recognised as "aten::mul" or "mul.Tensor".
  kind_table& add_aliases(std::string_view names) {
    each_name(names, " \n", [&](std::string_view name) {
      const std::size_t equals = name.find('=');
      if (equals == name.npos) own.insert(name);
      if (equals == name.npos) return;
      each_name(name.substr(equals + 1), ",", [&](std::string_view kind) {
        [[maybe_unused]] const bool fresh = aliases.emplace(kind, name.substr(0, equals)).second;
        assert(fresh);  // no operator of ATen has two names
      });
    });
    return *this;
  }

  /// Returns the system's name of an operator: "Conv2D" for "aten::conv2d". A name that is no alias is taken to be the
  /// system's.
  std::string_view theirs(std::string_view kind) const {
    if (own.contains(kind)) return kind;
    if (!prefix.empty() && kind.starts_with(prefix)) return kind.substr(prefix.size());
    const auto alias = aliases.find(without_overload(kind));
    if (alias != aliases.end()) return alias->second;
    return dotted_names ? without_namespace(kind) : without_overload(kind);
  }
  /// Returns: the category of the system's operator `theirs`; null if it is on no list.
  const comp::category* category_of(std::string_view theirs) const {
    const auto at = listed.find(theirs);
    return at != listed.end() ? &at->second : nullptr;
  }
  /// Offers all of the system's names, and ATen's that have an alias, to the search for a typing error.
  void offer_all(nearest_word& near) const {
    for (const auto& entry : listed) near.offer(entry.first);
    for (const auto& alias : aliases) near.offer(alias.first);
  }
  /// True for a name that is on a list, or that is an alias's target.
  bool knows(std::string_view kind) const {
    const std::string_view name = theirs(kind);
    return listed.contains(name) ||
           std::any_of(aliases.begin(), aliases.end(), [name](const auto& alias) { return alias.second == name; });
  }
};

/// A user's list of operators, by the system's names or ATen's.
using kind_names = std::vector<std::string>;

/// True if a user's list names the system's operator `theirs`.
inline bool names_kind(const kind_table& table, const kind_names& listed, std::string_view theirs) {
  return std::any_of(listed.begin(), listed.end(),
                     [&](const std::string& kind) { return table.theirs(kind) == theirs; });
}

/// Returns: a sentence for each operator of a user's list that neither the system nor `graph` knows, with the most
/// similar name that is known. Such an operator is no error, because the list may be meant for other models.
inline std::vector<std::string> unknown_kinds(const kind_table& table, std::string_view list, const kind_names& kinds,
                                              const op_graph& graph = {}) {
  std::vector<std::string> sentences;
  for (const std::string& kind : kinds) {
    const auto same = [&](const op_info& op) { return table.theirs(op.kind) == table.theirs(kind); };
    if (table.knows(kind) || std::any_of(graph.begin(), graph.end(), same)) continue;
    nearest_word near{kind};
    table.offer_all(near);
    for (const op_info& op : graph) near.offer(without_overload(op.kind));
    sentences.push_back(fmt::format("{} names \"{}\" (no operator that is known has this name): {}", list, kind,
                                    near.remedy("drop it or correct it")));
  }
  return sentences;
}

}  // namespace comp::policy
