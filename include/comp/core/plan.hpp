// SPDX-License-Identifier: Apache-2.0
// A plan: the precision of each operator of a graph. A search finds one, and a backend trains under it.
// A plan is a value that can be copied, compared, ordered and hashed. It prints as one letter per operator
// (core/precision.hpp), followed by "@autocast" where the backend's own autocast runs it.
// Not here: plan files (files/plan_file.hpp), which also say which model a plan belongs to.
#pragma once

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp/core/fnv1a.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/precision.hpp>
#include <compare>
#include <cstddef>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp {

inline constexpr std::string_view autocast_mark = "@autocast";

class plan {
 public:
  plan() = default;
  explicit plan(std::size_t operators, precision everywhere = precision::fp32) : choices_(operators, everywhere) {}
  plan(std::initializer_list<precision> choices) : choices_{choices} {}
  explicit plan(std::vector<precision> choices) : choices_{std::move(choices)} {}

  std::size_t size() const { return choices_.size(); }
  bool empty() const { return choices_.empty(); }
  precision operator[](std::size_t i) const { return choices_[i]; }
  precision& operator[](std::size_t i) { return choices_[i]; }
  auto begin() const { return choices_.begin(); }
  auto end() const { return choices_.end(); }

  /// True where the backend's own autocast is to run the model (Backend::own_autocast). The precisions then describe
  /// what that autocast gives each operator. The same precisions without the mark are another plan: comp casts operator
  /// by operator, and may be faster.
  bool runs_autocast() const { return autocast_; }
  /// Returns the same precisions, run by the backend's own autocast or operator by operator.
  plan as_autocast(bool by_autocast = true) const {
    plan copy = *this;
    copy.autocast_ = by_autocast;
    return copy;
  }

  /// Returns one letter per operator, as in the paper: "011" is FP16, FP32, FP32.
  std::string str() const {
    std::string text(choices_.size(), '1');
    for (std::size_t i = 0; i < text.size(); ++i) text[i] = letter(choices_[i]);
    return autocast_ ? text.append(autocast_mark) : text;
  }

  /// Returns the number of operators in a lower precision than FP32.
  std::size_t count_low() const {
    std::size_t low = 0;
    for (const precision p : choices_) low += is_low(p);
    return low;
  }
  /// Returns true where an operator has a format below 16 bits.
  bool has_scaled() const { return std::any_of(choices_.begin(), choices_.end(), is_scaled); }

  friend bool operator==(const plan&, const plan&) = default;
  friend std::strong_ordering operator<=>(const plan& a, const plan& b) {
    const auto order = std::lexicographical_compare_three_way(a.begin(), a.end(), b.begin(), b.end());
    return order != 0 ? order : a.autocast_ <=> b.autocast_;
  }

 private:
  std::vector<precision> choices_;
  bool autocast_ = false;
};

/// Reads a plan from precision letters, with or without "@autocast" behind them.
/// Throws: `plan_error`, naming the operator, for a character that is no precision letter.
inline plan parse_plan(std::string_view text) {
  const bool marked = text.ends_with(autocast_mark);
  if (marked) text.remove_suffix(autocast_mark.size());
  plan result{text.size()};
  for (std::size_t i = 0; i < text.size(); ++i) {
    const auto known = precision_of(text[i]);
    require<plan_error>(known.has_value(),
                        "plan \"{}\" has '{}' for operator {} (a precision is one of {}): "
                        "save the plan again with comp::save",
                        text.substr(0, 64), text[i], i, precision_letters);
    result[i] = *known;
  }
  return result.as_autocast(marked);
}

/// Checks that `p` can be a plan for `graph`.
/// Throws: `plan_error` unless `p` has one precision for each operator, and FP32 for each that is not choosable.
inline void require_fits(const plan& p, const op_graph& graph) {
  require<plan_error>(p.size() == graph.size(),
                      "plan has {} operators, the model {} (they must agree): use a plan that was made for this model",
                      p.size(), graph.size());
  for (std::size_t i = 0; i < p.size(); ++i) {
    require<plan_error>(graph[i].choosable || p[i] == precision::fp32,
                        "plan gives operator {} (\"{}\") {} (its precision cannot be chosen): leave it at fp32", i,
                        graph[i].name, name(p[i]));
  }
}

}  // namespace comp

template <>
struct std::hash<comp::plan> {
  std::size_t operator()(const comp::plan& p) const noexcept {
    comp::detail::fnv1a mixed;
    mixed.hash += p.runs_autocast();
    for (const auto choice : p) mixed.add(static_cast<std::uint64_t>(choice));
    return mixed.hash;
  }
};
