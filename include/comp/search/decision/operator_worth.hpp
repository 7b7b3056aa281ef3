// SPDX-License-Identifier: Apache-2.0
// Computes what each operator's precision saves in a plan, from the costs of operators and casts, for reports
// (reasons.hpp). Use it after a guided search, which knows the costs. Not here: whether the losses allow the precision
// (accepted_operators.hpp).
#pragma once

#include <array>
#include <comp/search/outcome.hpp>
#include <comp/strategy/plan_costs.hpp>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace comp {

namespace detail {

/// Computes how the casts of a plan change when one operator changes. Readers are counted per tensor once, so that each
/// operator takes time proportional to its edges only.
class cast_changes {
 public:
  cast_changes(const plan_costs& costs, const plan& p) : costs_{costs}, counts_(costs.tensors.size()), of_(p.size()) {
    for (std::uint32_t t = 0; t < costs.tensors.size(); ++t) {
      of_[costs.tensors[t].producer].push_back({t, 0});
      for (const auto reader : costs.tensors[t].readers) {
        ++counts_[t][index_of(p[reader])];
        if (of_[reader].empty() || of_[reader].back().tensor != t) of_[reader].push_back({t, 0});
        ++of_[reader].back().reads;
      }
    }
    plan_ = &p;
  }

  /// Returns: the seconds that the casts around `op` cost more when it is in `to` than when it is in `from`. All other
  /// operators are as in the plan.
  double seconds(std::size_t op, precision from, precision to) const { return around(op, to) - around(op, from); }

 private:
  struct use {
    std::uint32_t tensor = 0;
    std::uint32_t reads = 0;  // how often the operator reads the tensor; 0: it produces it
  };

  double around(std::size_t op, precision as) const {
    double sum = 0;
    for (const use& u : of_[op]) {
      const shared_tensor& t = costs_.tensors[u.tensor];
      auto wanted = counts_[u.tensor];
      wanted[index_of((*plan_)[op])] -= u.reads;
      wanted[index_of(as)] += u.reads;
      const precision from = t.producer == op ? as : (*plan_)[t.producer];
      wanted[index_of(from)] = 0;
      for (const precision to : all_precisions) sum += wanted[index_of(to)] > 0 ? costs_.cast(t, from, to) : 0;
    }
    return sum;
  }

  const plan_costs& costs_;
  const plan* plan_ = nullptr;
  std::vector<std::array<std::uint32_t, precision_count>> counts_;  // per tensor and precision: readers
  std::vector<std::vector<use>> of_;                                // per operator
};

}  // namespace detail

/// Returns: `evidence` with `saves` and `casts` set: the seconds that an operator saves in its `low` precision compared
/// with the one in `base`, and the seconds of casts that this adds, with all other operators as in `chosen`. Takes time
/// linear in operators and edges. Requires: all arguments describe the same operators.
inline std::vector<op_evidence> weighed(std::vector<op_evidence> evidence, const plan_costs& costs, const plan& chosen,
                                        const plan& base) {
  const detail::cast_changes casts{costs, chosen};
  for (std::size_t i = 0; i < evidence.size(); ++i) {
    op_evidence& f = evidence[i];
    if (f.low == base[i]) continue;
    f.saves = costs.seconds[i][index_of(base[i])] - costs.seconds[i][index_of(f.low)];
    f.casts = casts.seconds(i, base[i], f.low);
  }
  return evidence;
}

}  // namespace comp
