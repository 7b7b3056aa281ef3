// SPDX-License-Identifier: Apache-2.0
// What the network gives to an operator: the sizes for its cost, the tensors of its forward, and those of its backward.
// Each operator is defined in one file of this folder. An operator has
//   string_view kind() const                        returns ATen's name
//   shape output(span<const shape> x) const         returns the shape of its result; throws error for inputs that
//                                                   do not fit
//   void cost(const cost_call&) const               sets contraction sizes, bytes and flops of one forward, as if each
//                                                   input were read once and each output written once
//   auto forward(const forward_call<D>& c) const    returns a tensor; c.nothing() for a loss
//   auto backward(const backward_call<D>& c) const  returns c.gradients(of the first input, of the second, ...)
//   auto settings() const                           optional: returns a tuple of the settings that neither kind nor
//                                                   shapes show, for signatures
#pragma once

#include <array>
#include <comp/core/op_info.hpp>
#include <comp_native/arguments.hpp>
#include <comp_native/device.hpp>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

namespace comp::native {

/// The shapes of an operator's inputs, parameters and output, and the op_info that its cost is written to.
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

/// The data of a step in a Device's memory. Parts that a model does not read are empty.
template <class D>
struct device_batch {
  std::int64_t size = 0;               // examples
  typename D::tensor values = {};      // FP32
  typename D::indices tokens = {};     // (B,T)
  typename D::indices positions = {};  // (B,T), 0 .. T-1 in each row
  typename D::indices segments = {};   // (B,T), for a model that reads segments; then it has lengths, too
  typename D::indices lengths = {};    // (B), how many tokens of each row are no padding
  typename D::tensor hidden = {};      // (B,C,T), FP32: what masked_columns adds; 0, and a low number at padding
  typename D::indices labels = {};     // all labels of the batch, in one axis
  typename D::tensor targets = {};     // FP32
  std::int64_t judged = 0;             // how many labels count; without labels how many examples
  std::uint64_t number = 0;            // of the batch in its training, from 0
};

/// What the forward of an operator keeps for its backward.
template <class D>
struct memory {
  std::vector<typename D::tensor> kept = {};
  shape input_shape = {};
  dropout_key key = {};  // for an operator that draws random numbers
};

/// What an operator is given in both directions.
template <class D>
struct operator_call {
  using tensor = typename D::tensor;
  D& device;
  const device_batch<D>& batch;
  std::span<typename D::parameter* const> parameters;
  comp::precision precision;
  memory<D>& left;
  const typename D::sparse_matrix* matrix = nullptr;  // the operator's, on the Device; null if it has none

  typename D::parameter* bias() const { return parameters.size() > 1 ? parameters[1] : nullptr; }
  /// Returns a tensor of the batch in the operator's precision.
  tensor in_precision(const tensor& t) const { return precision == t.precision() ? t : device.cast(t, precision); }
};

template <class D>
struct forward_call : operator_call<D> {
  using tensor = typename D::tensor;
  std::span<const tensor> x;  // its inputs, in the operator's precision
  bool training;
  double& loss;

  tensor keep(tensor kept) const {
    this->left.kept = {kept};
    return kept;
  }
  tensor keep(with_saved<tensor> result) const {
    this->left.kept = std::move(result.saved);
    return std::move(result.output);
  }
  tensor keep_with_input(with_saved<tensor> result) const {
    tensor y = keep(std::move(result));
    this->left.kept.push_back(x[0]);
    return y;
  }
  tensor nothing() const { return {}; }
  /// Returns the input (...,V) as (N,V).
  tensor rows() const {
    const shape s = x[0].shape();
    return s.size() == 2 ? x[0] : this->device.reshape(x[0], {elements(s) / s.back(), s.back()});
  }
};

template <class D>
struct backward_call : operator_call<D> {
  using tensor = typename D::tensor;
  const tensor& dy;             // empty for a loss
  std::array<bool, 3> need;     // for each input, whether its gradient is needed
  double scale;                 // the factor of the loss
  bool need_parameters = true;  // whether gradients of parameters are needed; a linear layer alone looks at it

  /// Returns the gradients of the inputs. Those of parameters have been added to the parameters.
  std::array<tensor, 3> gradients(tensor first = {}, tensor second = {}, tensor third = {}) const {
    return {std::move(first), std::move(second), std::move(third)};
  }
  const tensor& kept(std::size_t i) const { return this->left.kept[i]; }
  /// Returns the input, which keep_with_input() kept behind the tensors that the Device saved.
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
