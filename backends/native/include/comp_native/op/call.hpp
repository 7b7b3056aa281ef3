// SPDX-License-Identifier: Apache-2.0
// What each operator is given (one file of this folder says all that it is): its costs' sizes, its forward's tensors,
// and what its backward gets of that. An operator has
//   string_view kind() const                      ATen's name
//   shape output(span<const shape> x) const       Throws: error, for inputs that do not fit
//   void cost(const cost_call&) const             contraction sizes, bytes and flops of one forward; counts are of the
//                                                 definition (each input read once, each output written once)
//   auto forward(const forward_call<D>& c) const  Returns: a tensor; c.nothing() for a loss
//   auto backward(const backward_call<D>& c) const  Returns: c.gradients(of the first input, of the second, ...)
//   auto settings() const                         a tuple of what was chosen that neither kind nor shapes tell, for
//                                                 signatures; only where there is any
// Not here: precisions and casts, the order of operators, what is released when (network.hpp).
#pragma once

#include <array>
#include <comp/core/op_info.hpp>
#include <comp_native/arguments.hpp>
#include <comp_native/device.hpp>
#include <cstdint>
#include <span>
#include <string_view>
#include <tuple>
#include <utility>
#include <vector>

namespace comp::native {

/// The sizes of an operator with these inputs, parameters and output, and where to say what follows from them.
struct cost_call {
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
};

/// The data of a step in a Device's memory; what a model does not read is empty.
template <class D>
struct device_batch {
  std::int64_t size = 0;               // examples
  typename D::tensor values = {};      // FP32
  typename D::indices tokens = {};     // (B,T)
  typename D::indices positions = {};  // (B,T), 0 .. T-1 in each row
  typename D::indices segments = {};   // (B,T); with them comes
  typename D::indices lengths = {};    // (B), how many tokens of each row are no padding
  typename D::tensor hidden = {};      // (B,C,T) as the model's masked_columns: FP32, 0, and what hides padding
  typename D::indices labels = {};     // all targets of the batch, in one axis
  typename D::tensor targets = {};     // FP32
  std::int64_t judged = 0;             // labels that count; without labels the examples
};

/// What the forward of one operator leaves for its backward.
template <class D>
struct memory {
  std::vector<typename D::tensor> kept = {};
  shape input_shape = {};
  dropout_key key = {};  // of one that draws random numbers
};

/// What both directions are given.
template <class D>
struct operator_call {
  using tensor = typename D::tensor;
  D& device;
  const device_batch<D>& batch;
  std::span<typename D::parameter* const> parameters;
  comp::precision precision;
  memory<D>& left;
  const typename D::sparse_matrix* matrix = nullptr;  // the operator's, on the Device; null where it has none

  typename D::parameter* bias() const { return parameters.size() > 1 ? parameters[1] : nullptr; }
  /// A tensor of the batch in the operator's precision.
  tensor in_precision(const tensor& t) const { return precision == t.precision() ? t : device.cast(t, precision); }
};

template <class D>
struct forward_call : operator_call<D> {
  using tensor = typename D::tensor;
  std::span<const tensor> x;  // in the operator's precision
  bool training;
  double& loss;

  tensor keep(tensor kept) const {
    this->left.kept = {kept};
    return kept;
  }
  tensor keep(with_saved<tensor> made) const {
    this->left.kept = std::move(made.saved);
    return std::move(made.output);
  }
  tensor keep_with_input(with_saved<tensor> made) const {
    tensor y = keep(std::move(made));
    this->left.kept.push_back(x[0]);
    return y;
  }
  tensor nothing() const { return {}; }
  /// (...,V) as (N,V).
  tensor rows() const {
    const shape s = x[0].shape();
    return s.size() == 2 ? x[0] : this->device.reshape(x[0], {elements(s) / s.back(), s.back()});
  }
};

template <class D>
struct backward_call : operator_call<D> {
  using tensor = typename D::tensor;
  const tensor& dy;          // empty for a loss
  std::array<bool, 3> need;  // which inputs' gradients are wanted
  double scale;              // of the loss

  /// Those of its parameters are added to them.
  std::array<tensor, 3> gradients(tensor first = {}, tensor second = {}, tensor third = {}) const {
    return {std::move(first), std::move(second), std::move(third)};
  }
  const tensor& kept(std::size_t i) const { return this->left.kept[i]; }
  /// The input, where it was kept behind what the Device saved.
  tensor take_input() const {
    tensor x = std::move(this->left.kept.back());
    this->left.kept.pop_back();
    return x;
  }
  tensor as_input(tensor rows) const {
    return this->left.input_shape.size() == 2 ? rows : this->device.reshape(rows, this->left.input_shape);
  }
};

}  // namespace comp::native
