// SPDX-License-Identifier: Apache-2.0
// What comp knows about one operator of a forward pass. A backend fills it in; policies and strategies only read it.
// It is kept small, because a graph of 10^5 operators must fit in 200 MB.
#pragma once

#include <algorithm>
#include <comp/core/precision.hpp>
#include <comp/core/product.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace comp {

/// A tensor that an operator reads or writes.
struct tensor_info {
  std::vector<std::int64_t> shape = {};  // elements per axis
  precision dtype = precision::fp32;     // its format in the model as written
  bool floating = true;                  // false: integers (indices, labels) and `number`, which no plan touches
  bool number = false;                   // true: a number of the program's text (0.1 * x), which decides no format
  bool parameter = false;                // true: a weight of the model
  std::int32_t source = -1;              // of an input: the operator that made it; -1: none, or unknown
  std::int32_t leaf = -1;  // of an input that no operator made: the number of this parameter or datum, one
                           // of tied weights; -1: unknown
};

/// What a model's author has decided about an operator in the model's own code, which no plan changes.
enum class author_choice : std::uint8_t {
  none,
  autocast_off,  // the block around it switches autocast off: FP32
  autocast_on    // the block around it is an autocast of its own, which runs it
};

/// "none", "autocast off", "autocast on".
constexpr std::string_view name(author_choice c) {
  constexpr std::string_view names[] = {"none", "autocast off", "autocast on"};
  return names[static_cast<std::size_t>(c)];
}
/// Why such an operator has its precision, in words.
constexpr std::string_view reason(author_choice c) {
  constexpr std::string_view reasons[] = {"", "the model's author switched autocast off there",
                                          "the model's author runs an autocast there, which decides"};
  return reasons[static_cast<std::size_t>(c)];
}

/// An operator of a forward pass.
struct op_info {
  std::string name = {};                    // unique in its graph: "features.0", "block1.attention.query"
  std::string kind = {};                    // ATen's name, with or without "aten::": "conv2d", "aten::addmm"
  std::vector<std::string> scopes = {};     // modules around it, outermost first: "block1", "attention"
  std::vector<tensor_info> inputs = {};     // activations and parameters that it reads
  std::vector<tensor_info> outputs = {};    // tensors that it makes
  std::vector<std::size_t> producers = {};  // the operators whose outputs this one reads, each before it

  // Sizes that decide whether matrix units can be used; 0 if the operator has no such size or it is unknown.
  std::int64_t m = 0, n = 0, k = 0;                // of the matrix product C(m,n) = A(m,k) B(k,n)
  std::int64_t channels_in = 0, channels_out = 0;  // of a convolution

  std::int64_t bytes = 0;  // bytes that one forward reads and writes in FP32
  std::int64_t flops = 0;  // operations of one forward; a multiply-add counts as 2

  /// True: its readers get FP32 whatever it computes in, because code that the backend does not see reads
  /// its result.
  bool hands_on_fp32 = false;
  /// True: a training keeps it from step to step, as an optimizer's moment, so its roundings build up and
  /// their harm grows with the training.
  bool is_state = false;
  precision as_written = precision::fp32;  // its format without a plan: FP32 or FP64
  bool choosable = true;     // false: it has no precision of its own (a view, an in-place write, an integer operator)
  bool beyond_fp16 = false;  // true: an argument is, as a mask's -1e9, so it is never FP16
  bool asks_format = false;  // true: an argument names the format of its result, as in softmax(x, dtype=float)
  comp::product product = comp::product::all;  // which of a linear layer's products it is
  author_choice author = author_choice::none;  // other than none: why `choosable` is false
};

/// Returns: the operator of gradient product `of` of linear layer `layer`, which is operator `at` and multiplies `x` by
/// the weight `w`, both as shapes. The gradient that it reads has the shape of the layer's output, so it counts as
/// reading that.
inline op_info gradient_operator(const op_info& layer, std::size_t at, product of, const std::vector<std::int64_t>& x,
                                 const std::vector<std::int64_t>& w) {
  op_info product{.name = layer.name + std::string{suffix(of)},
                  .kind = layer.kind,
                  .scopes = layer.scopes,
                  .inputs = {layer.outputs[0]},
                  .producers = {at},
                  .flops = 2 * layer.m * layer.n * layer.k,
                  .product = of};
  product.inputs[0].source = static_cast<std::int32_t>(at);
  const bool of_input = of == product::input_gradient;
  product.inputs.push_back({.shape = of_input ? w : x, .parameter = of_input});
  product.outputs.push_back({.shape = of_input ? x : w});
  product.m = of_input ? layer.m : layer.n;
  product.n = layer.k;
  product.k = of_input ? layer.n : layer.m;
  for (const auto* tensors : {&product.inputs, &product.outputs}) {
    for (const tensor_info& each : *tensors) {
      std::int64_t elements = 1;
      for (const std::int64_t extent : each.shape) elements *= extent;
      product.bytes += 4 * elements;
    }
  }
  return product;
}

/// Returns: true if the operator computes in a precision of its own, instead of handing on the format that it reads.
inline bool computes(const op_info& op) { return op.choosable || op.author != author_choice::none; }

/// Returns: true if `p` is a lower precision than the operator has without a plan. It is then called low, or lowered.
inline bool is_lowered(const op_info& op, precision p) { return p != op.as_written; }

/// Estimates how long an operator takes if nothing was measured, in operations: max(operations, 16 * bytes), since
/// machines do about 16 operations in the time in which they move a byte.
inline double work_of(const op_info& op) {
  return std::max(static_cast<double>(op.flops), 16 * static_cast<double>(op.bytes));
}

}  // namespace comp
