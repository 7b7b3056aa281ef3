// SPDX-License-Identifier: Apache-2.0
// A model as data: its operators in execution order and its parameters. It depends neither on a Device nor on
// precisions. model_builder makes one.
#pragma once

#include <algorithm>
#include <comp/core/fnv1a.hpp>
#include <comp_native/operation.hpp>
#include <comp_native/random.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace comp::native {

/// How the values of a parameter start.
struct initial {
  enum class kind : std::uint8_t { constant, uniform, normal };
  kind how = kind::constant;
  double scale = 0;  // the constant; or half the width of a uniform interval around 0; or the deviation around 0
};

struct parameter_info {
  std::string name = {};  // "block0.attention.query.weight"
  native::shape shape = {};
  native::initial initial = {};
  bool trainable = true;  // false: running statistics
  bool decays = true;     // false: the optimizer's weight decay leaves it out
};

/// The number that stands for the model's input among an operator's inputs.
inline constexpr int model_input = -1;

struct node {
  std::string name = {};
  operation what = {};
  std::vector<int> inputs = {};              // numbers of the nodes that it reads, or model_input
  std::vector<std::size_t> parameters = {};  // numbers of its parameters
  shape output = {};
};

/// A part of a step that has losses and an optimizer of its own. The mean of the losses counts. Most models have one
/// phase; a GAN has two, since its discriminator and its generator are trained by different losses. A phase may only
/// read an earlier one's operators behind a detach.
struct phase {
  std::string name = {};
  std::size_t first = 0, last = 0;       // its nodes are [first, last)
  std::vector<bool> trains = {};         // for each parameter, whether the phase trains it
  std::vector<std::size_t> losses = {};  // numbers of its nodes that are losses
};

enum class input_kind : std::uint8_t { values, tokens };

/// The first or the second moment that a phase's optimizer keeps of each parameter (moments.hpp).
struct kept_moment {
  std::size_t phase = 0;
  bool second = false;
};

struct model {
  std::string name = {};
  input_kind input = input_kind::values;
  shape input_shape = {};  // batch first
  std::vector<node> nodes = {};
  std::vector<parameter_info> parameters = {};
  std::vector<phase> phases = {};  // in order; each node is in one
  /// True: the products of a linear layer's backward have precisions of their own, for formats below 16 bits.
  bool separate_products = false;
  std::vector<kept_moment> moments = {};  // those that are operators; the trainer sets them (training::moments)

  std::int64_t batch() const { return input_shape.front(); }
  const operation& loss() const { return nodes.back().what; }
  /// Returns the number of the node that the loss reads: logits or predictions.
  int output() const { return nodes.back().inputs.front(); }
  bool predicts_values() const { return std::holds_alternative<op::mse_loss>(loss()); }
  bool reads_labels() const { return native::reads_labels(loss()); }
  /// True if an example has one label, so that right answers can be counted.
  bool classifies() const { return reads_labels() && shape_of(output()).size() == 2 && input == input_kind::values; }
  /// True if an example is tokens with their segments, (2,T).
  bool reads_segments() const { return input == input_kind::tokens && input_shape.size() == 3; }
  bool masks_columns() const {
    return std::ranges::any_of(nodes, [](const node& n) { return std::holds_alternative<op::masked_columns>(n.what); });
  }
  const shape& shape_of(int value) const {
    return value == model_input ? input_shape : nodes[static_cast<std::size_t>(value)].output;
  }
  /// Returns the number of trainable elements, as papers count parameters.
  std::int64_t parameter_count() const {
    std::int64_t count = 0;
    for (const parameter_info& p : parameters) count += p.trainable ? elements(p.shape) : 0;
    return count;
  }
};

constexpr std::size_t slot(int value) { return static_cast<std::size_t>(value + 1); }

constexpr bool trains(const model& m, const phase& p, std::size_t parameter) {
  return m.parameters[parameter].trainable && p.trains[parameter];
}

/// Returns a hash (FNV-1a) of all that changes a training and that the graph's fingerprint leaves out: settings of
/// operators, the numbers of their matrices, how parameters start, and which of them each phase trains. It is part of
/// the trainer's signature.
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

/// Returns the first values of parameter `number`, row-major. One seed gives the same values on every machine.
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
