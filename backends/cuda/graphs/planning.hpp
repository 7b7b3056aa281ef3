// SPDX-License-Identifier: Apache-2.0
// What the graphs of cuDNN's C++ front end share: how cuDNN is asked for plans, with or without a GPU.
#pragma once

#include <cudnn_frontend.h>

#include <cstdint>
#include <functional>
#include <string>

namespace comp::cuda::graphs {

namespace fe = cudnn_frontend;

/// Returns: the first line of cuDNN's message, which may have many, cut to 200 characters.
inline std::string first_line(const std::string& all) {
  const std::string line = all.substr(0, all.find('\n'));
  return "cuDNN: " + (line.size() > 200 ? line.substr(0, 200) + " ..." : line);
}

/// Validates the graph and asks cuDNN for plans, but does not compile any. most: [bytes] of workspace. `begin` builds
/// the graph's operations, with a handle or for the GPU that the graph was told.
/// Returns: cuDNN's reason if it has no plan; else nothing. Plans whose sums have no fixed order count only in
/// `any_order`.
std::string planned(fe::graph::Graph& g, std::int64_t most, auto begin, bool any_order = false) {
  g.deselect_workspace_greater_than(most);
  for (const auto& step : {std::function<fe::error_object()>{[&] { return g.validate(); }},
                           {begin},
                           {[&] { return g.create_execution_plans({fe::HeurMode_t::A}); }},
                           {[&] {
                             if (!any_order) g.deselect_numeric_notes({fe::NumericalNote_t::NONDETERMINISTIC});
                             return g.check_support();
                           }}}) {
    if (fe::error_object e = step(); e.is_bad()) return e.get_message();
  }
  return {};
}

}  // namespace comp::cuda::graphs
