// SPDX-License-Identifier: Apache-2.0
// A network as data: operators in execution order, their parameters, and the op_graph that a search reads.
// Independent of Device and precision; made by model_builder. Not here: the weights (network.hpp).
#pragma once

#include <algorithm>
#include <comp/core/fnv1a.hpp>
#include <comp/core/op_graph.hpp>
#include <comp_native/operation.hpp>
#include <comp_native/random.hpp>
#include <cstdint>
#include <ranges>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::native {

/// How a parameter starts.
struct initial {
  enum class kind : std::uint8_t { constant, uniform, normal };
  kind how = kind::constant;
  double scale = 0;  // the constant; half the width of the uniform interval around 0; the deviation around 0
};

struct parameter_info {
  std::string name = {};  // "block0.attention.query.weight"
  native::shape shape = {};
  native::initial initial = {};
  bool trainable = true;  // false: running statistics
  bool decays = true;     // false: the optimizer's weight decay leaves it out
};

/// What an operator reads: another operator's output, or the model's input.
inline constexpr int model_input = -1;

struct node {
  std::string name = {};
  operation what = {};
  std::vector<int> inputs = {};              // node numbers, or model_input
  std::vector<std::size_t> parameters = {};  // numbers of parameters
  shape output = {};
};

/// A part of a step with losses, of which the mean counts, and an optimizer of its own for what they train. A GAN has
/// two, most models one. What it reads of an earlier one is detached.
struct phase {
  std::string name = {};
  std::size_t first = 0, last = 0;       // its nodes are [first, last)
  std::vector<bool> trains = {};         // of each parameter
  std::vector<std::size_t> losses = {};  // numbers of nodes
};

enum class input_kind : std::uint8_t { values, tokens };

struct model {
  std::string name = {};
  input_kind input = input_kind::values;
  shape input_shape = {};  // batch first
  std::vector<node> nodes = {};
  std::vector<parameter_info> parameters = {};
  std::vector<phase> phases = {};  // that all nodes are in, in order

  std::int64_t batch() const { return input_shape.front(); }
  const operation& loss() const { return nodes.back().what; }
  /// The number of the node that the loss reads: logits or predictions.
  int output() const { return nodes.back().inputs.front(); }
  bool predicts_values() const { return std::holds_alternative<op::mse_loss>(loss()); }
  bool reads_labels() const { return native::reads_labels(loss()); }
  /// True for one label for an example: what it got right can be counted.
  bool classifies() const { return reads_labels() && shape_of(output()).size() == 2 && input == input_kind::values; }
  /// Whether an example is tokens and their segments, (2,T).
  bool reads_segments() const { return input == input_kind::tokens && input_shape.size() == 3; }
  bool masks_columns() const {
    return std::ranges::any_of(nodes, [](const node& n) { return std::holds_alternative<op::masked_columns>(n.what); });
  }
  const shape& shape_of(int value) const {
    return value == model_input ? input_shape : nodes[static_cast<std::size_t>(value)].output;
  }
  /// Trainable elements, as papers count them.
  std::int64_t parameter_count() const {
    std::int64_t count = 0;
    for (const parameter_info& p : parameters) count += p.trainable ? elements(p.shape) : 0;
    return count;
  }
};

/// "block0.attention.query" has the scopes "block0" and "attention".
inline std::vector<std::string> scopes_of(std::string_view name) {
  std::vector<std::string> scopes;
  for (std::size_t dot = name.find('.'); dot != std::string_view::npos; dot = name.find('.')) {
    scopes.emplace_back(name.substr(0, dot));
    name.remove_prefix(dot + 1);
  }
  return scopes;
}

/// The operators of `m` as a search sees them: node i is operator i, the loss is the last. Parameter p is leaf p, the
/// model's input the leaf after them.
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
  return op_graph{std::move(operators)};
}

/// A hash (FNV-1a) of what a training follows and the graph's fingerprint leaves out: settings of operators, numbers of
/// their matrices, how parameters start, and which of them each phase moves.
inline std::uint64_t hash_of_options(const model& m) {
  comp::detail::fnv1a all;
  const auto mix = [&](const auto& chosen) { all.add_bytes(&chosen, sizeof chosen); };
  const auto mix_each = [&](const auto& of) {
    for (const auto each : of) mix(each);
  };
  for (const node& n : m.nodes) {
    for_each_setting(n.what, mix);
    mix_each(n.inputs);
    mix_each(n.parameters);
    if (const auto matrix = matrix_of(n.what)) {
      mix_each(matrix->begin);
      mix_each(matrix->column);
      mix_each(matrix->value);
    }
  }
  for (const parameter_info& p : m.parameters) {
    mix(p.initial.how);
    mix(p.initial.scale);
    mix(p.trainable);
    mix(p.decays);
  }
  for (const phase& p : m.phases) {
    mix(p.last);
    for (const bool moved : p.trains) mix(moved);
  }
  return all.hash;
}

/// The first values of parameter `number`, row-major: the same for a seed on every machine.
inline std::vector<float> initial_values(const parameter_info& p, std::uint64_t seed, std::size_t number) {
  random_stream draws{seed, number};
  std::vector<float> values(static_cast<std::size_t>(elements(p.shape)));
  for (float& value : values) {
    const double scale = p.initial.scale;
    switch (p.initial.how) {
      case initial::kind::constant:
        value = static_cast<float>(scale);
        break;
      case initial::kind::uniform:
        value = static_cast<float>(draws.uniform(-scale, scale));
        break;
      case initial::kind::normal:
        value = static_cast<float>(scale * draws.normal());
        break;
    }
  }
  return values;
}

}  // namespace comp::native
