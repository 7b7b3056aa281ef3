// SPDX-License-Identifier: Apache-2.0
// The cost of a plan as a sum over operators and over the casts between them. The form is simple so that a minimum cut
// can find the cheapest plan. A tensor is cast once for all its readers in one precision. Views have no precision of
// their own, so the readers of a view are readers of its tensor.
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace comp {

inline constexpr std::size_t precision_count = all_precisions.size();
using per_precision = std::array<double, precision_count>;
using per_cast = std::array<per_precision, precision_count>;  // [from][to]
constexpr std::size_t index_of(precision p) { return static_cast<std::size_t>(p); }

inline constexpr per_cast same_for_all_casts(double factor) {
  per_cast all{};
  for (per_precision& from : all) from.fill(factor);
  return all;
}

/// A tensor that may have to be cast.
struct shared_tensor {
  std::uint32_t producer = 0;               // the operator that makes it
  std::vector<std::uint32_t> readers = {};  // the operators that read it
  double cast_seconds = 0;                  // seconds of a cast to another precision
  /// Further seconds if a reader has another precision than the producer: a backend cannot run both as one then.
  double apart_seconds = 0;
};

/// Calls `cast` with each tensor and each precision that it must be cast to under `p`.
void each_cast(const std::vector<shared_tensor>& tensors, const plan& p, auto cast) {
  for (const shared_tensor& t : tensors) {
    std::array<bool, precision_count> is_read{};
    for (const auto reader : t.readers) is_read[index_of(p[reader])] = true;
    is_read[index_of(p[t.producer])] = false;
    for (std::size_t to = 0; to < precision_count; ++to) {
      if (is_read[to]) cast(t, all_precisions[to]);
    }
  }
}

/// The terms of a plan's cost. Shapes: `seconds` is (N, precisions), infinity if an operator must not run in a
/// precision; an operator without a choice has one finite entry. Unit: [s].
struct plan_costs {
  std::vector<per_precision> seconds = {};
  std::vector<shared_tensor> tensors = {};
  per_cast cast_factor = same_for_all_casts(1);  // factors on `cast_seconds`, [from][to]

  std::size_t size() const { return seconds.size(); }

  /// Returns the seconds of casting `t`. They are never below 0: corrections by timed batches can make the sum
  /// negative, and a cut has no negative capacities.
  double cast(const shared_tensor& t, precision from, precision to) const {
    return std::max(t.cast_seconds * cast_factor[index_of(from)][index_of(to)] + t.apart_seconds, 0.0);
  }

  /// Returns the seconds of all casts of a plan.
  double casts(const plan& p) const {
    double sum = 0;
    each_cast(tensors, p, [&](const shared_tensor& t, precision to) { sum += cast(t, p[t.producer], to); });
    return sum;
  }
  /// Returns the seconds of a plan.
  double seconds_of(const plan& p) const {
    double sum = casts(p);
    for (std::size_t i = 0; i < size(); ++i) sum += seconds[i][index_of(p[i])];
    return sum;
  }
};

namespace detail {

inline double elements_of(const tensor_info& t) {
  double elements = t.shape.empty() ? 0 : 1;
  for (const auto extent : t.shape) elements *= static_cast<double>(std::max<std::int64_t>(extent, 0));
  return t.floating ? elements : 0;
}

/// Returns the tensors of a graph with their readers. A reader of a view is a reader of the tensor behind it.
inline std::vector<shared_tensor> shared_tensors(const op_graph& graph) {
  std::vector<std::vector<std::uint32_t>> roots(graph.size());  // the operators whose tensors operator i hands on
  std::vector<shared_tensor> tensors(graph.size());
  std::vector<std::uint32_t> read_roots;
  for (std::uint32_t i = 0; i < graph.size(); ++i) {
    tensors[i].producer = i;
    read_roots.clear();
    for (const auto producer : graph[i].producers)
      read_roots.insert(read_roots.end(), roots[producer].begin(), roots[producer].end());
    std::sort(read_roots.begin(), read_roots.end());
    read_roots.erase(std::unique(read_roots.begin(), read_roots.end()), read_roots.end());
    if (computes(graph[i])) {
      for (const auto root : read_roots) tensors[root].readers.push_back(i);
      roots[i] = {i};
    } else if (read_roots.size() <= 8) {
      roots[i] = read_roots;  // a view that joins more tensors is left out: each would count all of its readers
    }
  }
  return tensors;
}

/// Returns the tensors and, for a tensor with several readers, also each edge to a reader as a tensor of its own
/// without a cast. What neighbours save by running as one belongs to their edge and not to the tensor.
inline std::vector<shared_tensor> tensors_and_edges(const op_graph& graph) {
  std::vector<shared_tensor> all = shared_tensors(graph);
  for (std::size_t t = 0; t < graph.size(); ++t) {
    if (all[t].readers.size() < 2) continue;
    const std::vector<std::uint32_t> readers = all[t].readers;
    for (const auto reader : readers) all.push_back({.producer = static_cast<std::uint32_t>(t), .readers = {reader}});
  }
  return all;
}

}  // namespace detail
}  // namespace comp
