// SPDX-License-Identifier: Apache-2.0
// Makes stage 2's search space: the paper's algorithm 2, extended from chains to DAGs.
// The graph is cut at the operators that stage 1 decided. Operators that stay connected between the cuts form a
// segment. If all decided operators around a segment have the same precision, the segment follows them; if they differ,
// its operators are enumerated over the precisions that meet there.
// On a chain, a segment is a run of operators, and its neighbours are the two decided operators at its ends. A run at
// an end of the graph has one neighbour and follows it. A segment without neighbours stays in FP32. Views belong to the
// segment that they pass through, but have no precision to choose.
// Source: CoMP paper, section 3.3 and algorithm 2, which are for chains.
#pragma once

#include <algorithm>
#include <bitset>
#include <comp/core/op_graph.hpp>
#include <comp/core/search_space.hpp>
#include <comp/search/space/candidate_space.hpp>
#include <cstddef>
#include <cstdint>
#include <numeric>
#include <span>
#include <utility>
#include <vector>

namespace comp {

enum class segment_kind : std::uint8_t {
  decided,     // stage 1 decided it; it is in no segment
  follows,     // the decided operators around its segment agree
  enumerated,  // the decided operators around its segment differ
  alone        // no decided operator is around its segment
};

struct segment_space {
  search_space space = {};
  std::vector<segment_kind> kinds = {};  // per operator
};

namespace detail {

// Disjoint sets with path halving; the root is the smallest index, so the result does not depend on the order of joins.
class disjoint_sets {
 public:
  explicit disjoint_sets(std::size_t n) : parent_(n) { std::iota(parent_.begin(), parent_.end(), 0U); }
  std::uint32_t root(std::uint32_t i) {
    while (parent_[i] != i) i = parent_[i] = parent_[parent_[i]];
    return i;
  }
  void join(std::uint32_t a, std::uint32_t b) {
    a = root(a), b = root(b);
    parent_[std::max(a, b)] = std::min(a, b);
  }

 private:
  std::vector<std::uint32_t> parent_;
};

using precision_set = std::bitset<all_precisions.size()>;

// Returns: per root of a segment, the precisions of the decided operators that it reads or that read it.
inline std::vector<precision_set> neighbours_of_segments(const op_graph& graph, const std::vector<bool>& decided,
                                                         const plan& chosen, disjoint_sets& segment_sets) {
  for (std::uint32_t i = 0; i < graph.size(); ++i) {
    for (const auto producer : graph[i].producers) {
      if (!decided[i] && !decided[producer]) segment_sets.join(i, static_cast<std::uint32_t>(producer));
    }
  }
  std::vector<precision_set> neighbours(graph.size());
  for (std::uint32_t i = 0; i < graph.size(); ++i) {
    for (const auto at : graph[i].producers) {
      const auto producer = static_cast<std::uint32_t>(at);
      if (decided[i] == decided[producer]) continue;
      const auto [inside, outside] = decided[i] ? std::pair{producer, i} : std::pair{i, producer};
      neighbours[segment_sets.root(inside)].set(static_cast<std::size_t>(chosen[outside]));
    }
  }
  return neighbours;
}

// Returns: the precisions of `nearby`; one that the backend does not run `op` in is replaced by its substitute.
inline precision_set runnable_precisions(const precision_set& nearby, std::size_t op, const op_support& support) {
  precision_set runnable;
  for (const precision p : all_precisions) {
    if (nearby.test(static_cast<std::size_t>(p))) runnable.set(static_cast<std::size_t>(support.substitute(op, p)));
  }
  return runnable;
}

}  // namespace detail

/// Returns: stage 2's space (strings of the paper's algorithm 2). `chosen`: stage 1's plan, the paper's P_s1, of which
/// only decided operators count. `tied_by`: which operators change together, also across segments that have the same
/// precisions around them. An operator that the backend does not run in one of these precisions gets another one for
/// it.
inline segment_space make_segment_space(const op_graph& graph, std::span<const op_role> roles, const plan& chosen,
                                        tie tied_by, const op_support& support = {}) {
  std::vector<bool> decided(graph.size());
  for (std::size_t i = 0; i < graph.size(); ++i) {
    decided[i] = roles[i] != op_role::undecided && roles[i] != op_role::view;
  }
  detail::disjoint_sets segment_sets{graph.size()};
  const auto neighbours = detail::neighbours_of_segments(graph, decided, chosen, segment_sets);

  segment_space segments;
  segments.kinds.assign(graph.size(), segment_kind::decided);
  plan base = chosen;
  group_builder groups{graph, tied_by};
  std::vector<precision> levels;
  for (std::uint32_t i = 0; i < graph.size(); ++i) {
    if (decided[i]) continue;
    const auto nearby = detail::runnable_precisions(neighbours[segment_sets.root(i)], i, support);
    segments.kinds[i] = nearby.none()         ? segment_kind::alone
                        : nearby.count() == 1 ? segment_kind::follows
                                              : segment_kind::enumerated;
    if (roles[i] == op_role::view) continue;
    levels.clear();
    for (const precision p : all_precisions) {  // FP32 first
      if (nearby.test(static_cast<std::size_t>(p))) levels.push_back(p);
    }
    base[i] = levels.empty() ? support.widest(i) : levels.front();
    if (levels.size() > 1) groups.add(i, levels);
  }
  segments.space = search_space{std::move(base), groups.take_groups()};
  return segments;
}

}  // namespace comp
