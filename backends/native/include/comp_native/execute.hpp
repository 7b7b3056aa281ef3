// SPDX-License-Identifier: Apache-2.0
// One operator on a Device, forward and backward: which Device call it is, what it keeps for its backward.
// Not here: precisions and casts, the order of operators, what is released when (network.hpp).
#pragma once

#include <array>
#include <comp_native/device.hpp>
#include <comp_native/operation.hpp>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace comp::native {

/// The data of a step in a Device's memory; what a model does not read is empty.
template <class D>
struct device_batch {
  std::int64_t size = 0;               // examples
  typename D::tensor values = {};      // FP32
  typename D::indices tokens = {};     // (B,T)
  typename D::indices positions = {};  // (B,T), 0 .. T-1 in each row
  typename D::indices labels = {};     // all targets of the batch, in one axis
  typename D::tensor targets = {};     // FP32
};

/// What the forward of one operator leaves for its backward.
template <class D>
struct memory {
  std::vector<typename D::tensor> kept = {};
  shape input_shape = {};
  dropout_key key = {};
};

template <class D>
typename D::tensor targets_in(D& device, const device_batch<D>& batch, precision p) {
  return p == batch.targets.precision() ? batch.targets : device.cast(batch.targets, p);
}

/// One operator's call; visit it with the operator.
template <class D>
struct forward_call {
  using tensor = typename D::tensor;
  D& device;
  const device_batch<D>& batch;
  std::span<const tensor> x;  // in the operator's precision
  std::span<typename D::parameter* const> parameters;
  comp::precision precision;
  bool training;
  memory<D>& left;
  double& loss;

  typename D::parameter* bias() const { return parameters.size() > 1 ? parameters[1] : nullptr; }
  tensor keep(with_saved<tensor> made) const {
    left.kept = std::move(made.saved);
    return std::move(made.output);
  }
  tensor keep_with_input(with_saved<tensor> made) const {
    left.kept = std::move(made.saved);
    left.kept.push_back(x[0]);
    return std::move(made.output);
  }
  /// (...,V) as (N,V).
  tensor rows() const {
    const shape s = x[0].shape();
    return s.size() == 2 ? x[0] : device.reshape(x[0], {elements(s) / s.back(), s.back()});
  }

  tensor operator()(const op::linear&) const {
    left.kept = {x[0]};
    return device.linear(x[0], *parameters[0], bias());
  }
  tensor operator()(const op::conv2d& o) const {
    left.kept = {x[0]};
    return device.conv2d(x[0], *parameters[0], bias(), o.options);
  }
  tensor operator()(const op::batch_norm& o) const {
    return keep_with_input(device.batch_norm(x[0], *parameters[0], *parameters[1], *parameters[2], *parameters[3],
                                             {o.eps, o.momentum, training}));
  }
  tensor operator()(const op::layer_norm& o) const {
    return keep_with_input(device.layer_norm(x[0], *parameters[0], *parameters[1], o.eps));
  }
  tensor operator()(const op::activate& o) const {
    tensor y = device.activate(o.kind, x[0]);
    left.kept = {traits(o.kind).backward_reads_input ? x[0] : y};
    return y;
  }
  tensor operator()(const op::dropout& o) const {
    return training && o.p > 0 ? device.dropout(x[0], o.p, left.key) : x[0];
  }
  tensor operator()(const op::max_pool2d& o) const { return keep_with_input(device.max_pool2d(x[0], o.options)); }
  tensor operator()(const op::avg_pool2d& o) const { return device.avg_pool2d(x[0], o.options); }
  tensor operator()(const op::adaptive_avg_pool2d& o) const { return device.adaptive_avg_pool2d(x[0], o.size); }
  tensor operator()(const op::flatten&) const {
    const shape s = x[0].shape();
    return device.reshape(x[0], {s[0], elements(s) / s[0]});
  }
  tensor operator()(const op::add&) const { return device.add(x[0], x[1]); }
  tensor operator()(const op::mul&) const {
    left.kept = {x[0], x[1]};
    return device.mul(x[0], x[1]);
  }
  tensor operator()(const op::embedding& o) const {
    return device.embedding(o.of_positions ? batch.positions : batch.tokens, *parameters[0], precision);
  }
  tensor operator()(const op::bmm& o) const {
    left.kept = {o.heads_a ? device.split_heads(x[0], o.heads_a) : x[0],
                 o.heads_b ? device.split_heads(x[1], o.heads_b) : x[1]};
    tensor y = device.bmm(left.kept[0], left.kept[1], false, o.transpose_b, o.alpha);
    return o.merge ? device.merge_heads(y) : y;
  }
  tensor operator()(const op::softmax& o) const {
    left.kept = {device.softmax(x[0], o.causal)};
    return left.kept[0];
  }
  tensor operator()(const op::log_softmax&) const {
    left.kept = {device.log_softmax(x[0])};
    return left.kept[0];
  }
  tensor operator()(const op::cross_entropy_loss&) const {
    return keep(device.cross_entropy(rows(), batch.labels, &loss));
  }
  tensor operator()(const op::nll_loss&) const {
    left.kept = {rows()};
    device.nll_loss(left.kept[0], batch.labels, &loss);
    return {};
  }
  tensor operator()(const op::mse_loss&) const {
    left.kept = {x[0]};
    device.mse_loss(x[0], targets_in(device, batch, precision), &loss);
    return {};
  }
};

/// The gradients of one operator's inputs; those of its parameters are added to them.
template <class D>
struct backward_call {
  using tensor = typename D::tensor;
  using gradients = std::array<tensor, 2>;
  D& device;
  const device_batch<D>& batch;
  const tensor& dy;  // empty for a loss
  std::span<typename D::parameter* const> parameters;
  comp::precision precision;
  std::array<bool, 2> need;  // which inputs' gradients are wanted
  memory<D>& left;
  double scale;  // of the loss

  typename D::parameter* bias() const { return parameters.size() > 1 ? parameters[1] : nullptr; }
  const tensor& kept(std::size_t i) const { return left.kept[i]; }
  /// The input, where it was kept behind what the Device saved.
  tensor take_input() const {
    tensor x = std::move(left.kept.back());
    left.kept.pop_back();
    return x;
  }
  tensor as_input(tensor rows) const {
    return left.input_shape.size() == 2 ? rows : device.reshape(rows, left.input_shape);
  }

  gradients operator()(const op::linear&) const {
    return {device.linear_backward(dy, kept(0), *parameters[0], bias(), need[0])};
  }
  gradients operator()(const op::conv2d& o) const {
    return {device.conv2d_backward(dy, kept(0), *parameters[0], bias(), o.options, need[0])};
  }
  gradients operator()(const op::batch_norm& o) const {
    const tensor x = take_input();
    return {device.batch_norm_backward(dy, x, left.kept, *parameters[0], *parameters[1], {o.eps, o.momentum, true})};
  }
  gradients operator()(const op::layer_norm& o) const {
    const tensor x = take_input();
    return {device.layer_norm_backward(dy, x, left.kept, *parameters[0], *parameters[1], o.eps)};
  }
  gradients operator()(const op::activate& o) const { return {device.activate_backward(o.kind, dy, kept(0), kept(0))}; }
  gradients operator()(const op::dropout& o) const {
    return {o.p > 0 ? device.dropout_backward(dy, o.p, left.key) : dy};
  }
  gradients operator()(const op::max_pool2d& o) const {
    const tensor x = take_input();
    return {device.max_pool2d_backward(dy, x, left.kept, o.options)};
  }
  gradients operator()(const op::avg_pool2d& o) const {
    return {device.avg_pool2d_backward(dy, left.input_shape, o.options)};
  }
  gradients operator()(const op::adaptive_avg_pool2d&) const {
    return {device.adaptive_avg_pool2d_backward(dy, left.input_shape)};
  }
  gradients operator()(const op::flatten&) const { return {device.reshape(dy, left.input_shape)}; }
  gradients operator()(const op::add&) const { return {dy, dy}; }
  gradients operator()(const op::mul&) const {
    return {need[0] ? device.mul(dy, kept(1)) : tensor{}, need[1] ? device.mul(dy, kept(0)) : tensor{}};
  }
  gradients operator()(const op::embedding& o) const {
    device.embedding_backward(dy, o.of_positions ? batch.positions : batch.tokens, *parameters[0]);
    return {};
  }
  gradients operator()(const op::bmm& o) const {
    const tensor& a = kept(0);
    const tensor& b = kept(1);
    const tensor g = o.merge ? device.split_heads(dy, o.heads_a ? o.heads_a : o.heads_b) : dy;
    gradients d;
    if (need[0]) d[0] = device.bmm(g, b, false, !o.transpose_b, o.alpha);
    if (need[1]) d[1] = o.transpose_b ? device.bmm(g, a, true, false, o.alpha) : device.bmm(a, g, true, false, o.alpha);
    if (need[0] && o.heads_a) d[0] = device.merge_heads(d[0]);
    if (need[1] && o.heads_b) d[1] = device.merge_heads(d[1]);
    return d;
  }
  gradients operator()(const op::softmax&) const { return {device.softmax_backward(dy, kept(0))}; }
  gradients operator()(const op::log_softmax&) const { return {device.log_softmax_backward(dy, kept(0))}; }
  gradients operator()(const op::cross_entropy_loss&) const {
    return {as_input(device.cross_entropy_backward(left.kept, batch.labels, scale))};
  }
  gradients operator()(const op::nll_loss&) const {
    return {as_input(device.nll_loss_backward(kept(0), batch.labels, scale))};
  }
  gradients operator()(const op::mse_loss&) const {
    return {device.mse_loss_backward(kept(0), targets_in(device, batch, precision), scale)};
  }
};

}  // namespace comp::native
