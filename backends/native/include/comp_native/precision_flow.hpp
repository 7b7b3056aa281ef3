// SPDX-License-Identifier: Apache-2.0
// What a plan means for a model: the precision in which each operator really runs, and after which operator each tensor
// can be released.
#pragma once

#include <comp/core/plan.hpp>
#include <comp_native/model.hpp>
#include <cstddef>
#include <map>
#include <utility>
#include <vector>

namespace comp::native {

/// A copy of a value, in one precision, that can be released. Value 0 is the model's input, value i + 1 the output of
/// node i.
struct last_read {
  std::size_t value = 0;
  comp::precision precision = comp::precision::fp32;
};

struct precision_flow {
  std::vector<comp::precision> precisions = {};       // by node; a view has its producer's
  std::vector<std::vector<last_read>> releases = {};  // by node: the copies that can be released after it
};

inline precision_flow flow_of(const model& m, const plan& p) {
  precision_flow flow;
  std::vector<precision> of_value{precision::fp32};
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    flow.precisions.push_back(is_view(m.nodes[i].what) ? of_value[slot(m.nodes[i].inputs[0])] : p[i]);
    const precision of_node = flow.precisions.back();
    of_value.push_back(of_node == precision::bf16_fp32 ? precision::fp32 : of_node);
  }
  std::map<std::pair<std::size_t, precision>, std::size_t> last;
  for (std::size_t i = 0; i < m.nodes.size(); ++i) {
    for (const int input : m.nodes[i].inputs) {
      const std::size_t value = slot(input);
      const bool cast_here =
          last.insert_or_assign({value, flow.precisions[i]}, i).second && flow.precisions[i] != of_value[value];
      if (cast_here) last.insert_or_assign({value, of_value[value]}, i);
    }
  }
  flow.releases.resize(m.nodes.size());
  for (const auto& [copy, node] : last) flow.releases[node].push_back({copy.first, copy.second});
  return flow;
}

}  // namespace comp::native
