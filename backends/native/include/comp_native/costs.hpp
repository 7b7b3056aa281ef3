// SPDX-License-Identifier: Apache-2.0
// What comp::op_info says of a native operator: contraction sizes, bytes and flops of one forward.
// The counts are of the definition (each input read once, each output written once), not of a library's algorithm.
#pragma once

#include <algorithm>
#include <comp/core/op_info.hpp>
#include <comp_native/operation.hpp>
#include <cstdint>
#include <span>
#include <vector>

namespace comp::native {

/// The sizes of an operator with these inputs, parameters and output; visit it with the operator.
struct cost_rule {
  std::span<const shape> inputs;
  std::span<const shape> parameters;
  const shape& output;
  op_info& info;

  void matrix(std::int64_t batches, std::int64_t m, std::int64_t n, std::int64_t k) const {
    info.m = m;
    info.n = n;
    info.k = k;
    info.flops = 2 * batches * m * n * k;
  }
  void per_element(std::int64_t flops) const { info.flops = flops * elements(output); }

  void operator()(const op::linear& o) const {
    matrix(1, elements(output) / o.units, o.units, inputs[0].back());
    if (o.bias) info.flops += elements(output);
  }
  /// As the implicit matrix product: m = B H W, n = channels out, k = channels in of a group times the kernel.
  void operator()(const op::conv2d& o) const {
    const std::int64_t k = parameters[0][1] * parameters[0][2] * parameters[0][3];
    matrix(o.options.groups, output[0] * output[2] * output[3], o.channels / o.options.groups, k);
    info.channels_in = inputs[0][1];
    info.channels_out = o.channels;
    if (o.bias) info.flops += elements(output);
  }
  void operator()(const op::bmm& o) const {
    const shape& b = inputs[1];
    const std::int64_t heads = std::max<std::int64_t>({o.heads_a, o.heads_b, 1});
    const std::int64_t m = inputs[0][inputs[0].size() - 2], k = inputs[0].back() / (o.heads_a ? heads : 1);
    const std::int64_t n = o.transpose_b ? b[b.size() - 2] : b.back() / (o.heads_b ? heads : 1);
    matrix(elements(output) / (m * n), m, n, k);
  }
  void operator()(const op::batch_norm&) const { per_element(8); }
  void operator()(const op::layer_norm&) const { per_element(8); }
  void operator()(const op::activate& o) const { per_element(traits(o.kind).flops); }
  void operator()(const op::dropout&) const { per_element(2); }
  void operator()(const op::max_pool2d& o) const { per_element(o.options.kernel[0] * o.options.kernel[1]); }
  void operator()(const op::avg_pool2d& o) const { per_element(o.options.kernel[0] * o.options.kernel[1]); }
  void operator()(const op::adaptive_avg_pool2d&) const { info.flops = elements(inputs[0]); }
  void operator()(const op::flatten&) const {
    info.choosable = false;
    info.bytes = 0;
  }
  void operator()(const op::add&) const { per_element(1); }
  void operator()(const op::mul&) const { per_element(1); }
  void operator()(const op::embedding&) const {
    info.inputs[0].floating = false;
    info.bytes = 4 * elements(inputs[0]) + 8 * elements(output);  // only the rows that are looked up
  }
  void operator()(const op::softmax&) const { per_element(5); }
  void operator()(const op::log_softmax&) const { per_element(5); }
  void operator()(const op::cross_entropy_loss&) const {
    labels();
    info.flops = 5 * elements(inputs[0]);
  }
  void operator()(const op::nll_loss&) const {
    labels();
    info.flops = elements(inputs[0]) / inputs[0].back();
  }
  void operator()(const op::mse_loss&) const {
    info.inputs.push_back({.shape = inputs[0]});
    info.bytes += 4 * elements(inputs[0]);
    info.flops = 3 * elements(inputs[0]);
  }

 private:
  void labels() const {
    info.inputs.push_back({.shape = {inputs[0].begin(), inputs[0].end() - 1}, .floating = false});
    info.bytes += 4 * elements(inputs[0]) / inputs[0].back();
  }
};

/// Fills in tensors, contraction sizes, bytes and flops; name, scopes and producers are the model's to say.
inline void describe(op_info& info, const operation& what, std::span<const shape> inputs,
                     std::span<const shape> parameters, const shape& output) {
  info.kind = kind_of(what);
  const auto add = [&info](std::vector<tensor_info>& to, const shape& extents) {
    to.push_back({.shape = extents});
    info.bytes += 4 * elements(extents);
  };
  for (const shape& extents : inputs) add(info.inputs, extents);
  for (const shape& extents : parameters) add(info.inputs, extents);
  add(info.outputs, output);
  std::visit(cost_rule{inputs, parameters, output, info}, what);
}

}  // namespace comp::native
