// SPDX-License-Identifier: Apache-2.0
// Knows which operators a backend runs in which precision, if the backend can say: FP8 may exist for matrix products
// only, and FP32 may be missing. A precision that an operator lacks is not searched. Plans that would need it, such as
// a rule's, get the first searched precision that the operator has. Inert for a backend without `supports`.
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

class op_support {
 public:
  op_support() = default;  // the backend runs every operator in every precision
  /// `lows`: the searched low precisions, in order of preference.
  op_support(const any_trainer& trainer, const op_graph& graph, std::span<const precision> lows) {
    if (!trainer.has.supports) return;
    lows_.assign(lows.begin(), lows.end());
    for (const op_info& op : graph) {
      auto& unsupported = unsupported_.emplace_back();
      for (const precision p : all_precisions) unsupported.set(static_cast<std::size_t>(p), !trainer.supports(op, p));
    }
  }
  bool supports(std::size_t op, precision p) const {
    return unsupported_.empty() || !unsupported_[op].test(static_cast<std::size_t>(p));
  }
  /// Returns: the widest precision that the backend runs operator `op` in, among FP32 and the searched ones; FP32 if it
  /// has none of them.
  precision widest(std::size_t op) const {
    if (supports(op, precision::fp32)) return precision::fp32;
    for (const precision p : all_precisions) {
      const bool searched = std::find(lows_.begin(), lows_.end(), p) != lows_.end();
      if (searched && supports(op, p)) return p;
    }
    return precision::fp32;
  }
  /// Returns: the plan that "FP32" stands for: each operator in its widest precision.
  plan widest(const op_graph& graph) const {
    plan all{graph.size()};
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (graph[i].choosable) all[i] = widest(i);
    }
    return all;
  }
  /// Returns: `p`, or the precision that operator `op` gets if the backend does not run it in `p`.
  precision substitute(std::size_t op, precision p) const {
    if (supports(op, p)) return p;
    for (const precision low : lows_) {
      if (supports(op, low)) return low;
    }
    return widest(op);
  }
  plan with_substitutes(plan p) const {
    for (std::size_t i = 0; i < p.size(); ++i) p[i] = substitute(i, p[i]);
    return p;
  }

 private:
  std::vector<std::bitset<all_precisions.size()>> unsupported_ = {};  // per operator; empty: nothing is lacking
  std::vector<precision> lows_ = {};
};

}  // namespace comp
