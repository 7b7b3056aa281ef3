// SPDX-License-Identifier: Apache-2.0
// Operator lists of TensorFlow, Paddle and TVM, which call operators by names of their own: looking up ATen's kinds in
// such a list, and the lists that a user adds.
#pragma once

#include <algorithm>
#include <comp/core/decision.hpp>
#include <comp/core/error.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/policy/kind_name.hpp>
#include <comp/policy/nearest.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::policy {

/// The name that a system gives an operator of ATen. If the system builds that operator from several, it is the name of
/// the one that decides its precision: ATen's linear is TensorFlow's MatMul.
struct kind_alias {
  std::string_view kind;    // ATen's, without namespace and overload
  std::string_view theirs;  // the system's
};

/// A system's operators with the categories that its lists give them, and the aliases of ATen's operators.
class kind_table {
 public:
  struct entry {
    std::string_view kind;
    comp::category category;
  };

  /// `dotted_names`: the system's own names contain dots (TVM's "nn.conv2d"), which must not be read as ATen's
  /// overloads. `prefix`: what may stand before its names ("relax.").
  explicit kind_table(bool dotted_names = false, std::string_view prefix = {})
      : dotted_names_{dotted_names}, prefix_{prefix} {}

  kind_table& add(std::span<const kind_alias> aliases) {
    aliases_.insert(aliases_.end(), aliases.begin(), aliases.end());
    return *this;
  }
  kind_table& add(comp::category to, std::span<const std::string_view> kinds) {
    for (const std::string_view kind : kinds) entries_.push_back({kind, to});
    return *this;
  }
  /// Adds names that both the system and ATen have for different operators. A bare "mul" is then the system's; ATen's
  /// is recognised as "aten::mul" or "mul.Tensor".
  kind_table& add_own(std::span<const std::string_view> kinds) {
    own_.insert(own_.end(), kinds.begin(), kinds.end());
    return *this;
  }
  kind_table take_sorted() {
    sort_by_kind(aliases_);
    sort_by_kind(entries_);
    return std::move(*this);
  }

  /// Returns the system's name of an operator: "Conv2D" for "aten::conv2d". A name that is no alias is taken to be the
  /// system's.
  std::string_view theirs(std::string_view kind) const {
    if (std::find(own_.begin(), own_.end(), kind) != own_.end()) return kind;
    if (!prefix_.empty() && kind.starts_with(prefix_)) return kind.substr(prefix_.size());
    const auto* alias = find(aliases_, without_overload(kind));
    if (alias != nullptr) return alias->theirs;
    return dotted_names_ ? without_namespace(kind) : without_overload(kind);
  }
  /// Returns: the category of the system's operator `theirs`; null if it is on no list.
  const comp::category* category_of(std::string_view theirs) const {
    const auto* listed = find(entries_, theirs);
    return listed != nullptr ? &listed->category : nullptr;
  }
  /// Offers all of the system's names, and ATen's that have an alias, to the search for a typing error.
  void offer_all(nearest_word& near) const {
    for (const entry& e : entries_) near.offer(e.kind);
    for (const kind_alias& a : aliases_) near.offer(a.kind);
  }
  /// True for a name that is on a list, or that is an alias's target.
  bool knows(std::string_view kind) const {
    const std::string_view name = theirs(kind);
    const auto called_so = [name](const kind_alias& a) { return a.theirs == name; };
    return category_of(name) != nullptr || std::any_of(aliases_.begin(), aliases_.end(), called_so);
  }

  std::span<const entry> entries() const { return entries_; }
  std::span<const kind_alias> aliases() const { return aliases_; }

 private:
  template <class T>
  static void sort_by_kind(std::vector<T>& list) {
    std::sort(list.begin(), list.end(), [](const T& a, const T& b) { return a.kind < b.kind; });
  }
  template <class T>
  static const T* find(const std::vector<T>& sorted, std::string_view wanted) {
    const auto at = std::lower_bound(sorted.begin(), sorted.end(), wanted,
                                     [](const T& e, std::string_view kind) { return e.kind < kind; });
    return at != sorted.end() && at->kind == wanted ? &*at : nullptr;
  }

  std::vector<kind_alias> aliases_;
  std::vector<entry> entries_;
  std::vector<std::string_view> own_;
  bool dotted_names_;
  std::string_view prefix_;
};

/// A user's list of operators, by the system's names or ATen's.
using kind_names = std::vector<std::string>;

/// True if a user's list names the system's operator `theirs`.
inline bool names_kind(const kind_table& table, const kind_names& listed, std::string_view theirs) {
  return std::any_of(listed.begin(), listed.end(),
                     [&](const std::string& kind) { return table.theirs(kind) == theirs; });
}

/// Throws: `settings_error`, naming the operator, if two of a user's lists name the same one.
inline void require_disjoint(const kind_table& table, std::string_view a_name, const kind_names& a,
                             std::string_view b_name, const kind_names& b) {
  for (const std::string& kind : a) {
    require<settings_error>(!names_kind(table, b, table.theirs(kind)),
                            "\"{}\" is on {} and on {} (one operator, two decisions): take it off one of them", kind,
                            a_name, b_name);
  }
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
