// SPDX-License-Identifier: Apache-2.0
// Makes the spaces of plans that the two stages search, by the policy, the graph, and what the backend runs: stage 1's
// for the operators on the policy's lists (figure 4 of the paper), stage 2's for those that stage 1 left undecided
// (algorithm 2). Source: CoMP paper, sections 3.2 and 3.3.
#pragma once

#include <algorithm>
#include <bitset>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/search_space.hpp>
#include <comp/policy/tensor_core.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <cstddef>
#include <cstdint>
#include <iterator>
#include <numeric>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace comp {

enum class op_role : std::uint8_t {
  pinned,     // the policy fixes its precision, or it runs in one only
  lowered,    // on the allow list, and its sizes suit the tensor cores: fixed low
  searched,   // searched by stage 1, which judges losses
  undecided,  // no list names it: left to stage 2, which times batches
  view        // moves no data of its own, so that it has no precision to choose
};

/// Returns: true for the operators of the paper's Stage1_OP_list.
constexpr bool decided_by_losses(op_role role) { return role == op_role::lowered || role == op_role::searched; }

struct candidate_space {
  search_space space = {};
  std::vector<decision> decisions = {};  // per operator
  std::vector<op_role> roles = {};       // per operator
};

/// Returns: the name that all operators share that change precision together.
inline std::string_view tie_name(const op_info& op, tie tied_by) {
  if (tied_by == tie::kind) return op.kind;
  if (tied_by == tie::scope && !op.scopes.empty()) return op.scopes.front();
  return op.name;
}

/// Collects operators into groups that change precision together: those with the same name and the same precisions to
/// choose from. Groups with most work come first, because strategies try the first groups first; with equal or unknown
/// work they stand in the graph's order.
class group_builder {
 public:
  group_builder(const op_graph& graph, tie tied_by) : graph_{graph}, tied_by_{tied_by} {}

  void add(std::size_t op, std::span<const precision> levels) {
    const std::string_view name = tie_name(graph_[op], tied_by_);
    std::string key{name};
    key += '\0';
    for (const precision level : levels) key += letter(level);
    const auto [at, is_new] = group_index_.try_emplace(std::move(key), groups_.size());
    if (is_new) groups_.push_back({{std::string{name}, {}, {levels.begin(), levels.end()}}, 0});
    weighed_group& target = groups_[at->second];
    target.group.operators.push_back(static_cast<std::uint32_t>(op));
    target.work += work_of(graph_[op]);
  }

  std::vector<op_group> take_groups() {
    std::sort(groups_.begin(), groups_.end(),
              [](const weighed_group& a, const weighed_group& b) {  // std's stable_sort is deprecated under clang
                return a.work != b.work ? a.work > b.work : a.group.operators.front() < b.group.operators.front();
              });
    std::vector<op_group> all;
    all.reserve(groups_.size());
    for (weighed_group& w : groups_) all.push_back(std::move(w.group));
    return all;
  }

 private:
  struct weighed_group {
    op_group group = {};
    double work = 0;
  };
  const op_graph& graph_;
  tie tied_by_;
  std::unordered_map<std::string, std::size_t> group_index_;
  std::vector<weighed_group> groups_;
};

/// Appends the widest precision of operator `op`, which is FP32 if the backend runs it in that, and those of `lows`
/// that it runs in.
inline void add_levels(std::vector<precision>& levels, std::size_t op, std::span<const precision> lows,
                       const op_support& support) {
  const precision widest = support.widest(op);
  levels.push_back(widest);
  std::copy_if(lows.begin(), lows.end(), std::back_inserter(levels),
               [&](precision low) { return low != widest && support.supports(op, low); });
}

// Stage 1's space. An allowed operator whose sizes suit the tensor cores is fixed in low precision
// (Operator-3 and Operator-5 in the paper's figure 4). Allowed operators that do not suit them, and denied ones, are
// searched (Operator-0, -4 and -7). All others stay in FP32 until stage 2. If several low precisions suit an operator,
// the choice among them is searched, too.
// Source: CoMP paper, section 3.2 and figure 4.

/// Returns: stage 1's space. `lows`: the low precisions to search, in order of preference; each operator gets those
/// that the backend runs it in. `tied_by`: which operators change together. Throws: what the policy throws.
inline candidate_space make_candidate_space(const any_policy& policy, const op_graph& graph, const hardware& machine,
                                            std::span<const precision> lows, tie tied_by,
                                            const op_support& support = {}) {
  candidate_space candidates;
  candidates.decisions.reserve(graph.size());
  candidates.roles.reserve(graph.size());
  plan base = support.widest(graph);
  group_builder groups{graph, tied_by};
  std::vector<precision> levels;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const op_info& op = graph[i];
    const decision by_policy = candidates.decisions.emplace_back(policy.classify(op));
    levels.clear();
    op_role role = op_role::undecided;
    if (!op.choosable) {
      role = op_role::view;
    } else if (by_policy.fixed) {
      role = op_role::pinned;
      base[i] = by_policy.compute;
    } else if (by_policy.category == category::allow || by_policy.category == category::deny) {
      role = op_role::searched;
      if (by_policy.category == category::allow) {
        for (const precision low : lows) {
          if (support.supports(i, low) && policy::suits_tensor_cores(op, low, machine)) levels.push_back(low);
        }
      }
      if (levels.empty()) {
        add_levels(levels, i, lows, support);
      } else if (levels.size() == 1) {
        role = op_role::lowered;
        base[i] = levels.front();
      }
      if (levels.size() > 1) groups.add(i, levels);
    }
    candidates.roles.push_back(role);
    if (role == op_role::searched && levels.size() == 1)
      candidates.roles.back() = op_role::pinned;  // no low precision is there to try
  }
  candidates.space = search_space{std::move(base), groups.take_groups()};
  return candidates;
}

/// Returns: the space of the paper's ablation without stage 1 (section 4.6): operators that stage 1 would decide are
/// searched by time alone, like those on no list.
inline search_space space_without_losses(const candidate_space& candidates, const op_graph& graph,
                                         std::span<const precision> lows, tie tied_by, const op_support& support = {}) {
  group_builder groups{graph, tied_by};
  std::vector<precision> levels;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const op_role role = candidates.roles[i];
    if (role != op_role::searched && role != op_role::undecided) continue;
    levels.clear();
    add_levels(levels, i, lows, support);
    if (levels.size() > 1) groups.add(i, levels);
  }
  return search_space{candidates.space.base(), groups.take_groups()};
}

/// Throws: `settings_error`, naming the operator, if the policy fixes one to a precision that is not among `supported`,
/// or that the backend does not run it in.
inline void require_supported(const candidate_space& candidates, const op_graph& graph,
                              std::span<const precision> supported, const op_support& support = {}) {
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (candidates.roles[i] != op_role::pinned) continue;
    const precision pinned = candidates.space.base()[i];
    require<settings_error>(std::find(supported.begin(), supported.end(), pinned) != supported.end(),
                            "policy fixes operator {} (\"{}\") at {} (the backend supports {}): change the rule", i,
                            graph[i].name, name(pinned), names_of(supported));
    require<settings_error>(support.supports(i, pinned),
                            "policy fixes operator {} (\"{}\") at {} (the backend does not run {} in it): change the "
                            "rule",
                            i, graph[i].name, name(pinned), graph[i].kind);
  }
}

// Makes stage 2's search space: the paper's algorithm 2, extended from chains to DAGs.
// The graph is cut at the operators that stage 1 decided. Operators that stay connected between the cuts form a
// segment. If all decided operators around a segment have the same precision, the segment follows them; if they differ,
// its operators are enumerated over the precisions that meet there.
// On a chain, a segment is a run of operators, and its neighbours are the two decided operators at its ends. A run at
// an end of the graph has one neighbour and follows it. A segment without neighbours stays in FP32. Views belong to the
// segment that they pass through, but have no precision to choose.
// Source: CoMP paper, section 3.3 and algorithm 2, which are for chains.

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
inline std::vector<precision_set> neighbours_of_segments(const op_graph& graph, const std::vector<bool>& is_decided,
                                                         const plan& chosen, disjoint_sets& segment_sets) {
  for (std::uint32_t i = 0; i < graph.size(); ++i) {
    for (const auto producer : graph[i].producers) {
      if (!is_decided[i] && !is_decided[producer]) segment_sets.join(i, static_cast<std::uint32_t>(producer));
    }
  }
  std::vector<precision_set> neighbours(graph.size());
  for (std::uint32_t i = 0; i < graph.size(); ++i) {
    for (const auto at : graph[i].producers) {
      const auto producer = static_cast<std::uint32_t>(at);
      if (is_decided[i] == is_decided[producer]) continue;
      const auto [inside, outside] = is_decided[i] ? std::pair{producer, i} : std::pair{i, producer};
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
  std::vector<bool> is_decided(graph.size());
  for (std::size_t i = 0; i < graph.size(); ++i) {
    is_decided[i] = roles[i] != op_role::undecided && roles[i] != op_role::view;
  }
  detail::disjoint_sets segment_sets{graph.size()};
  const auto neighbours = detail::neighbours_of_segments(graph, is_decided, chosen, segment_sets);

  segment_space segments;
  segments.kinds.assign(graph.size(), segment_kind::decided);
  plan base = chosen;
  group_builder groups{graph, tied_by};
  std::vector<precision> levels;
  for (std::uint32_t i = 0; i < graph.size(); ++i) {
    if (is_decided[i]) continue;
    const auto nearby = detail::runnable_precisions(neighbours[segment_sets.root(i)], i, support);
    segments.kinds[i] = nearby.none()         ? segment_kind::alone
                        : nearby.count() == 1 ? segment_kind::follows
                                              : segment_kind::enumerated;
    if (roles[i] == op_role::view) continue;
    levels.clear();
    for (const precision p : all_precisions) {
      if (nearby.test(static_cast<std::size_t>(p))) levels.push_back(p);
    }
    if (!levels.empty() && levels.back() == precision::fp64)  // the widest first
      std::rotate(levels.begin(), levels.end() - 1, levels.end());
    base[i] = levels.empty() ? support.widest(i) : levels.front();
    if (levels.size() > 1) groups.add(i, levels);
  }
  segments.space = search_space{std::move(base), groups.take_groups()};
  return segments;
}

}  // namespace comp
