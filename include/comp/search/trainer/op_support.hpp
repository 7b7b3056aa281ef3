// SPDX-License-Identifier: Apache-2.0
// Which operators a backend runs in which precision, where it can say: FP8 may exist for matrix products only, and FP32
// may be missing. A precision that an operator lacks is not searched for it. A plan that would use it (a rule's, or a
// segment's that follows its neighbours) takes the first searched precision that the operator has. Without `supports` a
// backend has every operator in every precision.
#pragma once

#include <algorithm>
#include <bitset>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <cstddef>
#include <span>
#include <vector>

namespace comp {

/// "fp32, bf16": for messages.
inline std::string names_of(std::span<const precision> precisions) {
  return joined(precisions, ", ", [](precision p) { return name(p); });
}

class op_support {
 public:
  op_support() = default;  // every operator in every precision
  /// `lows`: the searched low precisions, in order of preference.
  op_support(const any_trainer& trainer, const op_graph& graph, std::span<const precision> lows) {
    if (!trainer.has.supports) return;
    lows_.assign(lows.begin(), lows.end());
    for (const op_info& op : graph) {
      auto& lacks = lacks_.emplace_back();
      for (const precision p : all_precisions) lacks.set(static_cast<std::size_t>(p), !trainer.supports(op, p));
    }
  }
  bool supports(std::size_t op, precision p) const {
    return lacks_.empty() || !lacks_[op].test(static_cast<std::size_t>(p));
  }
  /// The widest precision that operator `op` runs in of FP32 and those that are searched: FP32 where it has it, and
  /// where it has none of them.
  precision widest(std::size_t op) const {
    if (supports(op, precision::fp32)) return precision::fp32;
    for (const precision p : all_precisions) {
      const bool searched = std::find(lows_.begin(), lows_.end(), p) != lows_.end();
      if (searched && supports(op, p)) return p;
    }
    return precision::fp32;
  }
  /// All of `graph` as wide as it runs: what "FP32" stands for.
  plan widest(const op_graph& graph) const {
    plan all{graph.size()};
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (graph[i].choosable) all[i] = widest(i);
    }
    return all;
  }
  /// `p`, or what stands in for it.
  precision instead_of(std::size_t op, precision p) const {
    if (supports(op, p)) return p;
    for (const precision low : lows_) {
      if (supports(op, low)) return low;
    }
    return widest(op);
  }
  plan applied_to(plan p) const {
    for (std::size_t i = 0; i < p.size(); ++i) p[i] = instead_of(i, p[i]);
    return p;
  }

 private:
  std::vector<std::bitset<all_precisions.size()>> lacks_ = {};  // per operator; empty: nothing is lacking
  std::vector<precision> lows_ = {};
};

}  // namespace comp
