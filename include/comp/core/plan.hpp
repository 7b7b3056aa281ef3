// SPDX-License-Identifier: Apache-2.0
// A plan: the precision of each operator of a graph. A search finds one, and a backend trains under it.
// A plan is a value that can be copied, compared, ordered and hashed. It prints as one letter per operator
// (core/precision.hpp), followed by "@autocast" if the backend's own autocast runs it, or by "@tuned" for FP32 as the
// backend runs it fastest.
#pragma once

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp/core/fnv1a.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/precision.hpp>
#include <compare>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <initializer_list>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp {

inline constexpr std::string_view autocast_mark = "@autocast", tuned_mark = "@tuned";

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

  /// True if the backend's own autocast is to run the model (Backend::own_autocast). The precisions then describe what
  /// that autocast gives each operator. The same precisions without the mark are another plan: comp casts operator by
  /// operator, and may be faster.
  bool runs_autocast() const { return run_by_ == run_by::autocast; }
  plan as_autocast() const { return run_as(run_by::autocast); }
  /// True for FP32 as the backend runs it fastest (Backend::tuned_fp32): in another order in memory, or by other
  /// kernels, so that sums may differ in their last bits. FP32 without the mark has the bits of the plain loop.
  bool is_tuned() const { return run_by_ == run_by::tuned; }
  plan as_tuned() const { return run_as(run_by::tuned); }
  /// Returns the same precisions without a mark.
  plan operator_by_operator() const { return run_as(run_by::operators); }
  /// Returns the same precisions, run as `other` is.
  plan run_like(const plan& other) const { return run_as(other.run_by_); }

  /// Returns one letter per operator, as in the paper: "011" is FP16, FP32, FP32.
  std::string str() const {
    std::string text(choices_.size(), '1');
    for (std::size_t i = 0; i < text.size(); ++i) text[i] = letter(choices_[i]);
    return text.append(runs_autocast() ? autocast_mark : is_tuned() ? tuned_mark : "");
  }

  /// Returns the number of operators in a lower precision than FP32.
  std::size_t count_low() const {
    return static_cast<std::size_t>(std::count_if(choices_.begin(), choices_.end(), is_low));
  }
  /// Returns the number of operators in a lower precision than they have without a plan.
  /// Requires: `graph` has as many operators.
  std::size_t count_lowered(const op_graph& graph) const {
    std::size_t low = 0;
    for (std::size_t i = 0; i < choices_.size(); ++i) low += is_lowered(graph[i], choices_[i]);
    return low;
  }
  /// Returns true if an operator has a format below 16 bits.
  bool has_scaled() const { return std::any_of(choices_.begin(), choices_.end(), is_scaled); }

  friend bool operator==(const plan&, const plan&) = default;
  friend std::strong_ordering operator<=>(const plan& a, const plan& b) {
    const auto order = std::lexicographical_compare_three_way(a.begin(), a.end(), b.begin(), b.end());
    return order != 0 ? order : a.run_by_ <=> b.run_by_;
  }

 private:
  friend struct std::hash<plan>;
  enum class run_by : std::uint8_t { operators, autocast, tuned };
  plan run_as(run_by how) const {
    plan copy = *this;
    copy.run_by_ = how;
    return copy;
  }

  std::vector<precision> choices_;
  run_by run_by_ = run_by::operators;
};

/// Returns: the plan that changes nothing: each operator has the precision that it has without a plan.
inline plan as_written(const op_graph& graph) {
  plan all{graph.size()};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = graph[i].as_written;
  return all;
}

/// Returns: `p` with the precisions of `other` for the operators `i` for which `takes(i)` is true.
plan mix(plan p, const plan& other, auto takes) {
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (takes(i)) p[i] = other[i];
  }
  return p;
}

/// Returns: true if a state that the training keeps is in a lower precision than without a plan (op_info::is_state).
inline bool lowers_states(const plan& p, const op_graph& graph) {
  for (std::size_t i = 0; i < p.size(); ++i) {
    if (graph[i].is_state && is_lowered(graph[i], p[i])) return true;
  }
  return false;
}
/// Returns: true if the harm of `p` may grow with the training, because it has a format below 16 bits or lowers states.
inline bool may_grow(const plan& p, const op_graph& graph) { return p.has_scaled() || lowers_states(p, graph); }

/// Returns: the letters of a plan's text, without a mark behind them.
inline std::string_view letters_of(std::string_view text) {
  for (const std::string_view mark : {autocast_mark, tuned_mark}) {
    if (text.ends_with(mark)) return text.substr(0, text.size() - mark.size());
  }
  return text;
}

/// Returns: what to do about a file with a damaged plan.
inline std::string save_again() {
  return fmt::format("save the plan again with {}", by_language("comp::save", "found.save(path)"));
}

/// Reads a plan from precision letters, with or without a mark behind them.
/// Throws: `plan_error`, naming the operator, for a character that is no precision letter.
inline plan parse_plan(std::string_view text) {
  const std::string_view letters = letters_of(text), mark = text.substr(letters.size());
  plan result{letters.size()};
  for (std::size_t i = 0; i < letters.size(); ++i) {
    const auto known = precision_of(letters[i]);
    require<plan_error>(known.has_value(), "plan \"{}\" has '{}' for operator {} (a precision is one of {}): {}",
                        letters.substr(0, 64), letters[i], i, precision_letters, save_again());
    result[i] = *known;
  }
  return mark == tuned_mark ? result.as_tuned() : mark == autocast_mark ? result.as_autocast() : result;
}

/// Checks that `p` can be a plan for `graph`.
/// Throws: `plan_error` unless `p` has one precision for each operator, which is not wider than the operator is written
/// in, and is that for each operator that is not choosable.
inline void require_fits(const plan& p, const op_graph& graph) {
  require<plan_error>(p.size() == graph.size(),
                      "plan has {} operators, the model {} (they must agree): use a plan that was made for this model",
                      p.size(), graph.size());
  require<plan_error>(
      !p.is_tuned() || p.count_lowered(graph) == 0,
      "plan \"...{}\" lowers {} operators (only FP32 has that mark: other plans are tuned without it): delete "
      "the mark",
      tuned_mark, p.count_lowered(graph));
  for (std::size_t i = 0; i < p.size(); ++i) {
    const precision own = graph[i].as_written;
    require<plan_error>(graph[i].choosable || p[i] == own,
                        "plan gives operator {} (\"{}\") {} (its precision cannot be chosen): leave it at {}", i,
                        graph[i].name, name(p[i]), name(own));
    require<plan_error>(
        p[i] != precision::fp64 || own == precision::fp64,
        "plan gives operator {} (\"{}\") fp64 (it is written in {}, and plans only lower): leave it at {}", i,
        graph[i].name, name(own), name(own));
  }
}

}  // namespace comp

template <>
struct std::hash<comp::plan> {
  std::size_t operator()(const comp::plan& p) const noexcept {
    comp::detail::fnv1a mixed;
    mixed.hash += static_cast<std::uint64_t>(p.run_by_);
    for (const auto choice : p) mixed.add(static_cast<std::uint64_t>(choice));
    return mixed.hash;
  }
};
