// SPDX-License-Identifier: Apache-2.0
// Stage 1's search space: what the policy's lists and the tensor cores decide, and what epochs must decide.
// Allow-operators whose sizes suit the tensor cores are fixed low; allow-operators that do not suit, and
// deny-operators, are searched; all others stay in FP32 until stage 2. Source: CoMP paper, section 3.2; with several
// low precisions that suit, which of them is searched too.
#pragma once

#include <comp/core/concepts.hpp>
#include <comp/core/search_space.hpp>
#include <comp/policy/tensor_core.hpp>
#include <comp/search/settings.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace comp {

enum class op_role : std::uint8_t {
  pinned,     // the policy fixed its precision
  lowered,    // on the allow list and suits the tensor cores: low
  searched,   // decided by epochs
  undecided,  // no list names it: decided by batches
  view        // not choosable
};

/// True for the operators of the paper's Stage1_OP_list.
constexpr bool decided_by_epochs(op_role role) { return role == op_role::lowered || role == op_role::searched; }

struct candidate_space {
  search_space space = {};
  std::vector<decision> decisions = {};  // per operator
  std::vector<op_role> roles = {};       // per operator
  plan lowest = {};                      // every operator that may be low on its lowest level: what no list would dare
};

/// The name under which an operator is tied to others.
inline std::string_view tied_as(const op_info& op, tie how) {
  if (how == tie::kind) return op.kind;
  if (how == tie::scope && !op.scopes.empty()) return op.scopes.front();
  return op.name;
}

/// Collects operators into groups by name and levels, in order of first appearance.
class group_builder {
 public:
  void add(std::string_view name, std::span<const precision> levels, std::size_t op) {
    std::string key{name};
    for (const precision level : levels) key += letter(level);
    const auto [at, fresh] = index_.try_emplace(std::move(key), groups_.size());
    if (fresh) groups_.push_back({std::string{name}, {}, {levels.begin(), levels.end()}});
    groups_[at->second].operators.push_back(static_cast<std::uint32_t>(op));
  }
  std::vector<op_group> take() { return std::move(groups_); }

 private:
  std::unordered_map<std::string, std::size_t> index_;
  std::vector<op_group> groups_;
};

/// `lows`: the low precisions to search, in order of preference.
/// Throws: what the policy throws; `settings_error` when the policy pins an operator to a precision that `supported`
/// lacks.
template <OperatorPolicy P>
candidate_space make_candidate_space(const P& policy, const op_graph& graph, const hardware& machine,
                                     std::span<const precision> lows, tie how) {
  candidate_space made;
  made.decisions.reserve(graph.size());
  made.roles.reserve(graph.size());
  made.lowest = plan{graph.size()};
  plan base{graph.size()};
  group_builder groups;
  std::vector<precision> levels;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const op_info& op = graph[i];
    const decision said = made.decisions.emplace_back(policy.classify(op));
    levels.clear();
    op_role role = op_role::undecided;
    if (!op.choosable) {
      role = op_role::view;
    } else if (said.fixed) {
      role = op_role::pinned;
      base[i] = said.compute;
    } else if (said.category == category::allow || said.category == category::deny) {
      role = op_role::searched;
      if (said.category == category::allow) {
        for (const precision low : lows) {
          if (policy::suits_tensor_cores(op, low, machine)) levels.push_back(low);
        }
      }
      if (levels.empty()) {
        levels.push_back(precision::fp32);
        levels.insert(levels.end(), lows.begin(), lows.end());
      } else if (levels.size() == 1) {
        role = op_role::lowered;
        base[i] = levels.front();
      }
      if (levels.size() > 1) groups.add(tied_as(op, how), levels, i);
    }
    made.roles.push_back(role);
    if (role == op_role::searched && levels.size() == 1) made.roles.back() = op_role::pinned;  // nothing low to try
    made.lowest[i] = role == op_role::pinned || role == op_role::view ? base[i]
                     : lows.empty()                                   ? precision::fp32
                                                                      : lows.front();
  }
  made.space = search_space{std::move(base), groups.take()};
  return made;
}

}  // namespace comp
