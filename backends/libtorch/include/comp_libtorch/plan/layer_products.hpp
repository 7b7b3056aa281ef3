// SPDX-License-Identifier: Apache-2.0
// Finds the linear layers of a recording: products with a weight, the only operators that run in formats below 16 bits.
// If a layer's three products are to have precisions of their own, the two of the backward become operators of the
// graph.
#pragma once

#include <algorithm>
#include <comp/core/concepts.hpp>
#include <comp/core/plan.hpp>
#include <comp_libtorch/kernels/scaled_linear.hpp>
#include <comp_libtorch/plan/recording.hpp>
#include <cstddef>
#include <functional>
#include <map>
#include <numeric>
#include <span>
#include <string>
#include <vector>

namespace comp::libtorch::detail {

class layer_products {
 public:
  /// Finds the layers among `ops`, whose descriptions are the first of `infos`. `separate`: adds to `infos` the
  /// operators of their products in the backward, those whose gradients are wanted.
  void find(std::vector<op_info>& infos, std::span<const recorded_op> ops, bool separate) {
    layers_.clear();
    gradients_.assign(ops.size(), {});
    for (std::size_t i = 0; i < ops.size(); ++i) {
      if (!reads_weight(infos, ops, i)) continue;
      const bool fits = fits_fp8_units(infos[i], ops[i]);
      layers_.emplace(infos[i].name, fits);
      if (separate) add_gradients(infos, ops[i], i, fits);
    }
  }

  /// Returns: true for a product with a weight. A product of two activations is none.
  bool is_linear_layer(const op_info& recorded) const { return layers_.contains(recorded.name); }
  /// Returns: true for a layer of whose sizes a GPU's units multiply FP8, forward and backward.
  bool fits_fp8_units(const op_info& recorded) const {
    const auto layer = layers_.find(recorded.name);
    return layer != layers_.end() && layer->second;
  }
  /// Returns: the operators of the products in the backward, of each operator that was recorded.
  const std::vector<gradient_operators>& gradients() const { return gradients_; }

  /// Returns: the precisions that `p` gives the products of operator `i`.
  product_precisions precisions(const plan& p, std::size_t i) const {
    const auto& [input, weight] = gradients_[i];
    return {p[i], p[input ? input : i], p[weight ? weight : i]};
  }

  /// Gives each product of a backward its share of the backward's time: they run as one.
  void share_times(std::vector<op_time>& all) const {
    for (std::size_t i = 0; i < gradients_.size(); ++i) {
      const auto& [input, weight] = gradients_[i];
      const double share = all[i].backward / (input && weight ? 2 : 1);
      if (input) all[input].backward = share;
      if (weight) all[weight].backward = share;
      if (input || weight) all[i].backward = 0;
    }
  }

 private:
  /// Returns: the place of a layer's input among the inputs, which the weight follows.
  static std::size_t place_of_input(const recorded_op& op) {
    return linear_arguments_of(traits(op.op))->bias == 0U ? 1 : 0;
  }

  static bool fits_fp8_units(const op_info& recorded, const recorded_op& op) {
    const std::size_t at = place_of_input(op);
    const auto &x = recorded.inputs[at].shape, &w = recorded.inputs[at + 1].shape;
    const std::int64_t rows = std::reduce(x.begin(), x.end() - 1, std::int64_t{1}, std::multiplies{});
    return has_fp8_product(w[0], w[1]) && has_fp8_product(w[0], rows);
  }

  void add_gradients(std::vector<op_info>& infos, const recorded_op& op, std::size_t i, bool fits) {
    const auto at = *linear_arguments_of(traits(op.op));
    const std::size_t place = place_of_input(op);
    const auto add = [&](product of, std::size_t argument) -> std::size_t {
      if (!op.differentiable[argument]) return 0;
      auto w = infos[i].inputs[place + 1].shape;
      if (at.transposed) std::ranges::reverse(w);
      infos[i].product = product::forward;
      infos.push_back(gradient_operator(infos[i], i, of, infos[i].inputs[place].shape, w));
      layers_.emplace(infos.back().name, fits);
      return infos.size() - 1;
    };
    gradients_[i].input = add(product::input_gradient, at.input);
    gradients_[i].weight = add(product::weight_gradient, at.weight);
  }

  /// Returns: whether operator `i` multiplies by a parameter, or by a view of one, such as weight.t().
  static bool reads_weight(const std::vector<op_info>& infos, std::span<const recorded_op> ops, std::size_t i) {
    const auto linear = linear_arguments_of(traits(ops[i].op));
    if (!linear || ops[i].role != op_role::choosable) return false;
    // The tensors before the weight among the arguments are those before it among the inputs.
    const auto& inputs = infos[i].inputs;
    if (linear->weight >= inputs.size() || (linear->bias == 0U && inputs[0].shape.size() != 1)) return false;
    const tensor_info* read = &inputs[linear->weight];
    while (!read->parameter && read->source >= 0) {
      const auto maker = static_cast<std::size_t>(read->source);
      if (!traits(ops[maker].op).is_view || infos[maker].inputs.size() != 1) return false;
      read = &infos[maker].inputs[0];
    }
    return read->parameter && read->shape.size() == 2;
  }

  std::map<std::string, bool> layers_;         // names of operators, with those of their gradients; fits_fp8_units()
  std::vector<gradient_operators> gradients_;  // of each recorded operator
};

}  // namespace comp::libtorch::detail
