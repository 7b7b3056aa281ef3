// SPDX-License-Identifier: Apache-2.0
// Says what of a typed plan a backend does not run. A backend takes `types.plan` alone: an operator writes and hands on
// the precision that it computes in, whatever TVM's output dtype or Paddle's bias in FP32 say, and parameters are
// stored in FP32. Kernels sum in FP32, or as their library does, and round once. So if a plan sums in FP32 and hands
// on what it computes in, only readers in FP32 get another value: the rounded sum.
// Use it before another system's plan is run, or if a plan gives other losses than that system.
#pragma once

#include <fmt/core.h>

#include <array>
#include <comp/autocast/typed_plan.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/precision.hpp>
#include <comp/policy/plan_name.hpp>
#include <cstddef>
#include <map>
#include <string>
#include <vector>

namespace comp::autocast {

/// Returns: a sentence for each combination of formats that is not run, with its operators by name or number; empty
/// if all is run.
/// Throws: `plan_error` when `types.plan` does not fit `graph`.
inline std::vector<std::string> not_run(const op_graph& graph, const typed_plan& types) {
  const typed_plan run = typed(graph, types.plan);
  std::map<std::array<precision, 3>, std::vector<std::size_t>> results;
  std::map<precision, std::vector<std::size_t>> stored;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const bool as_planned = types.written[i] == run.written[i] && types.handed_on[i] == run.handed_on[i];
    if (!as_planned && !is_carrier(graph, i))
      results[{types.written[i], types.handed_on[i], run.handed_on[i]}].push_back(i);
    if (types.parameters[i] != precision::fp32) stored[types.parameters[i]].push_back(i);
  }
  std::vector<std::string> sentences;
  const auto add = [&](const std::vector<std::size_t>& ops, const std::string& what) {
    sentences.push_back(comp::detail::operators_in_words(ops, graph, comp::detail::name_detail::names) + what);
  };
  for (const auto& [formats, ops] : results) {
    const auto& [written, handed_on, computed] = formats;
    add(ops, fmt::format(": written in {} and handed on in {}; a backend does both in {}", name(written),
                         name(handed_on), name(computed)));
  }
  for (const auto& [format, ops] : stored)
    add(ops, fmt::format(": parameters stored in {}; a backend stores them in fp32, and casts them in each step",
                         name(format)));
  return sentences;
}

}  // namespace comp::autocast
