// SPDX-License-Identifier: Apache-2.0
// Says for a person what a plan file says: its operators with their precisions, or what differs between two of them.
#pragma once

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp/core/precision.hpp>
#include <comp/files/plan_file.hpp>
#include <cstddef>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp {

namespace detail {

/// Returns operator `i` of the plan; of a file that names none, "operator 3" without a kind.
inline plan_listing::entry entry_of(const plan_listing& from, std::size_t i) {
  if (from.operators) return (*from.operators)[i];
  return {.name = fmt::format("operator {}", i), .kind = "", .chosen = (*from.letters)[i]};
}

/// Returns the precision of an operator that a plan lowers nowhere: FP64 in a model that has it.
inline precision highest_of(const plan_listing& from) {
  for (std::size_t i = 0; i < from.size(); ++i) {
    if (from.chosen(i) == precision::fp64) return precision::fp64;
  }
  return precision::fp32;
}

inline std::size_t widest_name(const plan_listing& from) {
  std::size_t width = 0;
  for (std::size_t i = 0; i < from.size(); ++i) width = std::max(width, entry_of(from, i).name.size());
  return width;
}

/// Returns how the operators are run: by "plain" casts, "tuned", or "run by autocast".
inline std::string_view way_of(const plan_listing& from) {
  return from.runs_autocast() ? "run by autocast" : from.letters && from.letters->is_tuned() ? "tuned" : "plain";
}

}  // namespace detail

/// Returns how many operators have which precision, where the plan was found, and a line for each operator.
inline std::string listing_text(const plan_listing& from) {
  std::vector<std::pair<std::size_t, precision>> counts;
  for (const precision p : all_precisions) {
    std::size_t count = 0;
    for (std::size_t i = 0; i < from.size(); ++i) count += from.chosen(i) == p;
    if (count > 0) counts.emplace_back(count, p);
  }
  std::ranges::sort(counts, [](const auto& a, const auto& b) {  // std's stable_sort is deprecated under clang
    return a.first != b.first ? a.first > b.first : a.second < b.second;
  });
  std::string text = fmt::format("{} operators:", from.size());
  for (const auto& [count, p] : counts) text += fmt::format(" {} {},", count, name(p));
  text.back() = '\n';
  if (detail::way_of(from) != "plain") text.insert(text.size() - 1, fmt::format(", {}", detail::way_of(from)));
  if (from.made_for && !from.made_for->name.empty()) {
    const char* reference = detail::highest_of(from) == precision::fp64 ? "FP64" : "FP32";
    const std::string faster = from.speedup ? fmt::format(", {:.2f}x as fast as {}", *from.speedup, reference) : "";
    text += fmt::format("found on {}{}\n", from.made_for->name, faster);
  }
  const std::size_t width = detail::widest_name(from);
  for (std::size_t i = 0; i < from.size(); ++i) {
    const plan_listing::entry op = detail::entry_of(from, i);
    const std::string why = op.author == author_choice::none ? "" : fmt::format("  ({})", reason(op.author));
    text += fmt::format("  {:<{}}  {:<8}  {}{}\n", op.name, width, name(op.chosen), op.kind, why);
  }
  for (const later_plan& next : from.later) {
    const auto high = std::ranges::count(next.plan, detail::highest_of(from));
    text += fmt::format("from batch {} on {} operators are low{}{}\n", next.batch,
                        from.size() - static_cast<std::size_t>(high), next.reason.empty() ? "" : ": ", next.reason);
  }
  return text;
}

/// Returns the operators whose precisions differ, by modules, after a line if the plans are run in different ways;
/// nothing if nothing differs.
/// Throws: `settings_error` for plans of different models.
inline std::string compare_text(const plan_listing& a, const plan_listing& b) {
  bool same = a.size() == b.size();
  for (std::size_t i = 0; same && i < a.size(); ++i) {
    const plan_listing::entry p = detail::entry_of(a, i), q = detail::entry_of(b, i);
    same = p.name == q.name && p.kind == q.kind;
  }
  require<settings_error>(same,
                          "plans of {} and {} operators that are not the same (they are for different models): compare "
                          "plans of one model",
                          a.size(), b.size());
  const std::string_view first = detail::way_of(a), second = detail::way_of(b);
  std::string text = first == second ? "" : fmt::format("the first is {}, the second {}\n", first, second);
  const std::size_t width = detail::widest_name(a);
  std::string module = ".";  // no module is called so
  for (std::size_t i = 0; i < a.size(); ++i) {
    if (a.chosen(i) == b.chosen(i)) continue;
    const plan_listing::entry op = detail::entry_of(a, i);
    const std::string of = op.name.substr(0, op.name.find('.') == std::string::npos ? 0 : op.name.rfind('.'));
    if (std::exchange(module, of) != of) text += fmt::format("{}:\n", of.empty() ? "(no module)" : of);
    text += fmt::format("  {:<{}}  {:<5} {:<5} {}\n", op.name, width, name(a.chosen(i)), name(b.chosen(i)), op.kind);
  }
  return text;
}

}  // namespace comp
