// SPDX-License-Identifier: Apache-2.0
// Compares two examinations of one model, made in other processes, on other machines or with other versions, and finds
// the operator at which the two runs part. Entries of the same name are compared; several calls of one operator have
// different names.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/error.hpp>
#include <comp/doctor/examination.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace comp {

/// How far one entry differs between two runs. Differences are relative to the mean magnitude of the tensor.
struct entry_difference {
  std::string name = {}, kind = {};
  double values = 0;         // the largest difference of sampled values and of the mean; infinite: not comparable
  double gradients = 0;      // the same of the gradients that its backward made
  std::size_t backward = 0;  // its place in the first run's backward, from 1; 0: it had none
  std::string why = {};      // why it is not comparable: "shape 3 x 4 against 3 x 5"
};

/// The differences between two runs.
struct run_difference {
  double tolerance = 0;
  std::vector<entry_difference> entries = {};                  // entries of both runs, in the first one's order
  std::vector<std::string> only_first = {}, only_second = {};  // names of entries that only one run has

  /// Returns: the entry at which the runs part; null if they agree. An operator of the forward comes before all
  /// gradients, because a difference in the forward makes the gradients differ, too.
  const entry_difference* first() const {
    const entry_difference* parting = nullptr;
    for (const entry_difference& d : entries) {
      if (d.values > tolerance) return &d;
      if (d.gradients > tolerance && (parting == nullptr || d.backward < parting->backward)) parting = &d;
    }
    return parting;
  }
};

namespace detail {

/// Returns how far two tensors are apart, from their counts and their samples. Infinite if one has more NaN or
/// infinities than the other: no tolerance may excuse that.
inline double apart(const value_counts& a, const value_counts& b, const std::vector<float>& from,
                    const std::vector<float>& to) {
  constexpr double infinity = std::numeric_limits<double>::infinity();
  if (a == b && from == to) return 0;
  if (a.values != b.values || a.nans != b.nans || a.infinities != b.infinities) return infinity;
  const double scale = std::max(a.mean(), b.mean());
  double most = std::abs(a.mean() - b.mean());
  for (std::size_t i = 0; i < std::min(from.size(), to.size()); ++i) {
    const double x = static_cast<double>(from[i]), y = static_cast<double>(to[i]);
    if (std::isnan(x) && std::isnan(y)) continue;
    const double off = x == y ? 0 : std::abs(x - y);
    if (!std::isfinite(off)) return infinity;
    most = std::max(most, off);
  }
  return scale > 0 ? most / scale : 0;
}

inline std::string shape_words(const std::vector<std::int64_t>& shape) {
  return shape.empty() ? "a number" : joined(shape, " x ");
}

}  // namespace detail

/// Compares two examinations. `tolerance` is relative to the mean magnitude of a tensor; FP32 on another machine stays
/// far below 1e-3.
inline run_difference compared(const examination& a, const examination& b, double tolerance = 1e-3) {
  require<settings_error>(tolerance >= 0, "tolerance {} (a share of the mean magnitude): give 0 or more", tolerance);
  std::unordered_map<std::string_view, const examined*> others;
  for (const examined& each : b.entries) others.emplace(each.name, &each);
  run_difference result{.tolerance = tolerance};
  for (const examined& each : a.entries) {
    const auto at = others.find(each.name);
    if (at == others.end()) {
      result.only_first.push_back(each.name);
      continue;
    }
    const examined& other = *at->second;
    others.erase(at);
    entry_difference d{.name = each.name, .kind = each.kind, .backward = each.backward};
    if (each.kind != other.kind || each.shape != other.shape) {
      d.why = each.kind != other.kind ? fmt::format("{} against {}", each.kind, other.kind)
                                      : fmt::format("shape {} against {}", detail::shape_words(each.shape),
                                                    detail::shape_words(other.shape));
      d.values = std::numeric_limits<double>::infinity();
    } else {
      d.values = detail::apart(each.values, other.values, each.sample, other.sample);
      d.gradients = detail::apart(each.gradients, other.gradients, each.gradient_sample, other.gradient_sample);
    }
    result.entries.push_back(std::move(d));
  }
  for (const examined& each : b.entries) {
    if (others.contains(each.name)) result.only_second.push_back(each.name);
  }
  return result;
}

/// Returns a text that names the entry at which the runs part, with a line for each entry that differs by more than the
/// tolerance.
inline std::string table(const run_difference& d, std::size_t most = 40) {
  const entry_difference* first = d.first();
  const bool same_names = d.only_first.empty() && d.only_second.empty();
  std::string text = first != nullptr ? fmt::format("the runs part at \"{}\" ({}){}\n", first->name, first->kind,
                                                    first->values > d.tolerance ? "" : ", in its backward")
                     : d.entries.empty()
                         ? "the runs have nothing in common\n"
                         : fmt::format("{} the same within {:g}\n",
                                       same_names ? "the runs are" : "what both runs have is", d.tolerance);
  for (const auto& [names, run] : {std::pair{&d.only_first, "first"}, std::pair{&d.only_second, "second"}}) {
    if (names->empty()) continue;
    text += fmt::format("only in the {} run: {} entries, \"{}\" is the first\n", run, names->size(), names->front());
  }
  std::size_t width = 8, shown = 0;
  for (const entry_difference& each : d.entries) width = std::max(width, each.name.size());
  for (const entry_difference& each : d.entries) {
    if (!(each.values > d.tolerance || each.gradients > d.tolerance)) continue;
    if (shown++ == 0) text += fmt::format("\n{:<{}}  {:>10}  {:>10}\n", "operator", width, "values", "gradients");
    if (shown > most) continue;
    text += fmt::format("{:<{}}  {:>10.2g}  {:>10.2g}  {}\n", each.name, width, each.values, each.gradients, each.why);
  }
  if (shown > most) text += fmt::format("and {} more\n", shown - most);
  return text;
}

}  // namespace comp
