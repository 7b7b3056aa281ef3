// SPDX-License-Identifier: Apache-2.0
// The operators of a model as a search sees them: an op_graph. If the model separates the products of a linear layer's
// backward, they are operators of their own.
#pragma once

#include <algorithm>
#include <comp/core/op_graph.hpp>
#include <comp/core/product.hpp>
#include <comp_native/model.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::native {

/// Returns the scopes of a name: "block0" and "attention" for "block0.attention.query".
inline std::vector<std::string> scopes_of(std::string_view name) {
  std::vector<std::string> scopes;
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.')) {
    scopes.emplace_back(name.substr(0, dot));
    name.remove_prefix(dot + 1);
  }
  return scopes;
}

/// Returns for each value whether its gradient is needed. Value 0 is the model's input, value i + 1 the output of node
/// i.
inline std::vector<bool> needed_gradients(const model& m) {
  std::vector<bool> needed{false};
  for (const phase& p : m.phases) {
    for (std::size_t i = p.first; i < p.last; ++i) {
      const node& n = m.nodes[i];
      const bool gradient =
          std::ranges::any_of(n.parameters, [&](std::size_t each) { return trains(m, p, each); }) ||
          std::ranges::any_of(n.inputs, [&](int input) { return static_cast<bool>(needed[slot(input)]); });
      needed.push_back(gradient && !std::holds_alternative<op::detach>(n.what));
    }
  }
  return needed;
}

/// A product of the backward of a linear layer that is an operator of its own.
struct gradient_product {
  std::size_t node = 0;
  comp::product product = comp::product::all;
};

/// Returns these products in the order of their operators, which stand behind those of the nodes; none unless the model
/// separates them.
inline std::vector<gradient_product> gradient_products(const model& m) {
  std::vector<gradient_product> all;
  if (!m.separate_products) return all;
  const std::vector<bool> needed = needed_gradients(m);
  for (const phase& p : m.phases) {
    for (std::size_t i = p.first; i < p.last; ++i) {
      const node& n = m.nodes[i];
      if (!std::holds_alternative<op::linear>(n.what)) continue;
      if (needed[slot(n.inputs[0])]) all.push_back({i, product::input_gradient});
      if (trains(m, p, n.parameters[0])) all.push_back({i, product::weight_gradient});
    }
  }
  return all;
}

/// Returns the operator that stands for a moment: the optimizer reads and writes it once a step, in FP32 with the
/// weights and gradients beside it.
inline op_info moment_operator(const model& m, const kept_moment& moment) {
  const phase& of = m.phases[moment.phase];
  std::int64_t kept = 0;
  for (std::size_t p = 0; p < m.parameters.size(); ++p) {
    if (trains(m, of, p)) kept += elements(m.parameters[p].shape);
  }
  const std::string kind = moment.second ? "moment2" : "moment1";
  return {.name = "optimizer." + kind + (m.phases.size() > 1 ? "." + of.name : ""),
          .kind = kind,
          .scopes = {"optimizer"},
          .outputs = {{.shape = {kept}}},
          .bytes = 8 * kept,
          .hands_on_fp32 = true,
          .is_state = true};
}

/// Returns the operators of `m` as a search sees them. Node i is operator i, and the loss is the last one of them;
/// behind it stand the products of gradient_products(), and behind these the moments. Parameter p is leaf p
/// (tensor_info::leaf), and the model's input is the leaf behind all parameters.
inline op_graph graph_of(const model& m) {
  std::vector<op_info> operators;
  operators.reserve(m.nodes.size());
  for (const node& n : m.nodes) {
    op_info info{.name = n.name, .scopes = scopes_of(n.name)};
    std::vector<shape> inputs, parameters;
    for (const int input : n.inputs) {
      inputs.push_back(m.shape_of(input));
      const auto producer = static_cast<std::size_t>(input);
      if (input != model_input && std::ranges::find(info.producers, producer) == info.producers.end()) {
        info.producers.push_back(producer);
      }
    }
    for (const std::size_t p : n.parameters) parameters.push_back(m.parameters[p].shape);
    describe(info, n.what, inputs, parameters, n.output);
    for (std::size_t k = 0; k < inputs.size(); ++k) {
      info.inputs[k].source = n.inputs[k];
      if (n.inputs[k] == model_input) info.inputs[k].leaf = static_cast<std::int32_t>(m.parameters.size());
    }
    for (std::size_t k = 0; k < parameters.size(); ++k) {
      info.inputs[inputs.size() + k].parameter = true;
      info.inputs[inputs.size() + k].leaf = static_cast<std::int32_t>(n.parameters[k]);
    }
    operators.push_back(std::move(info));
  }
  for (const auto& [node, product] : gradient_products(m)) {
    operators[node].product = product::forward;
    const std::vector<tensor_info>& reads = operators[node].inputs;
    operators.push_back(gradient_operator(operators[node], node, product, reads[0].shape, reads[1].shape));
  }
  for (const kept_moment& moment : m.moments) operators.push_back(moment_operator(m, moment));
  return op_graph{std::move(operators)};
}

}  // namespace comp::native
