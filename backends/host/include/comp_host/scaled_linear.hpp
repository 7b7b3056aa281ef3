// SPDX-License-Identifier: Apache-2.0
// Linear layers in formats below 16 bits, which no CPU has: each product rounds its two operands to the format, scales
// included, as a GPU's would, and multiplies them in FP32 (core/scaled_formats.hpp says which operand is rounded how).
// So a training has the losses that the format gives, but not its speed. Results are BF16, gradients of weights FP32.
#pragma once

#include <comp/core/product.hpp>
#include <comp/core/scaled_formats.hpp>
#include <comp_native/op/linear.hpp>
#include <cstdint>
#include <utility>

#include "bmm.hpp"
#include "context.hpp"
#include "parameter.hpp"
#include "quantize.hpp"
#include "row_sums.hpp"
#include "transfer.hpp"

namespace comp::host::detail {

/// Returns what a product reads of a row-major FP32 matrix (rows,columns).
inline tensor rounded(context& c, const operand_format& to, const float* from, std::int64_t rows, std::int64_t columns,
                      contraction along, native::dropout_key key) {
  const tensor result = c.make_plain({rows, columns}, precision::fp32);
  quantize(c, to, from, rows, columns, along, key, result.as<float>());
  return result;
}
/// The same of a tensor of rows.
inline tensor rounded(context& c, const operand_format& to, const tensor& t, contraction along,
                      native::dropout_key key) {
  const tensor matrix = row_major(c, as_matrix(c, cast(c, t, precision::fp32)));
  return rounded(c, to, matrix.as<float>(), matrix.shape()[0], matrix.shape()[1], along, key);
}

/// Returns the key of the next product that may round at random.
inline native::dropout_key next_key(context& c) {
  const native::dropout_key now = c.roundings;
  ++c.roundings.draw;
  return now;
}

/// x is (...,K), w is (N,K), b is (N) or null. Returns: (...,N).
inline tensor scaled_linear(context& c, const tensor& x, parameter& w, parameter* b) {
  native::require_linear(x.shape(), w.extents, b ? &b->extents : nullptr);
  const auto format = [&](operand of) { return format_of(x.precision(), comp::product::forward, of); };
  const native::dropout_key key = next_key(c);
  const std::int64_t outputs = w.extents[0], inputs = w.extents[1];
  const tensor in = rounded(c, format(operand::input), x, contraction::over_columns, key);
  const tensor by =
      rounded(c, format(operand::weight), plain_values(c, w), outputs, inputs, contraction::over_columns, key);
  const tensor y = bmm(c, in, by, false, true);
  if (b) {
    const auto width = static_cast<std::size_t>(outputs);
    c.run_kernel([&, bias = plain_values(c, *b), to = y.as<float>()] {
      launch_rows(y.layout()->stored / width, width, [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
        for (std::size_t i = begin; i < end; ++i) {
#pragma omp simd
          for (std::size_t k = 0; k < width; ++k) to[i * width + k] += bias[k];
        }
      });
    });
  }
  shape out = x.shape();
  out.back() = outputs;
  return reshape(c, cast(c, y, x.precision()), out);
}

/// Adds a gradient that is row-major. The first one of a step is moved to its place.
inline void take_gradient(context& c, parameter& p, tensor gradient) {
  settle(c, p, gradient.layout());
  if (std::exchange(p.fresh, false)) {
    p.gradient = std::move(gradient);
  } else {
    add_gradient(c, p, gradient);
  }
}

/// Adds the gradients of w and b if `need_parameters`. Returns: the gradient of x in the precision of dy; empty unless
/// `need_dx`.
inline tensor scaled_linear_backward(context& c, const tensor& dy, const tensor& x, parameter& w, parameter* b,
                                     bool need_dx, bool need_parameters) {
  const precision p = dy.precision();
  if (need_parameters && b) add_bias_gradient(c, row_major(c, as_matrix(c, computable(c, dy))), *b);
  if (need_parameters && w.trainable) {
    const auto format = [&](operand of) { return format_of(p, comp::product::weight_gradient, of); };
    const native::dropout_key key = next_key(c);
    const tensor g = rounded(c, format(operand::gradient), dy, contraction::over_rows, key);
    const tensor in = rounded(c, format(operand::input), cast(c, x, p), contraction::over_rows, key);
    take_gradient(c, w, bmm(c, g, in, true, false));
  }
  if (!need_dx) return {};
  const auto format = [&](operand of) { return format_of(p, comp::product::input_gradient, of); };
  const native::dropout_key key = next_key(c);
  const tensor g = rounded(c, format(operand::gradient), dy, contraction::over_columns, key);
  const tensor by =
      rounded(c, format(operand::weight), plain_values(c, w), w.extents[0], w.extents[1], contraction::over_rows, key);
  return reshape(c, cast(c, bmm(c, g, by, false, false), p), x.shape());
}

}  // namespace comp::host::detail
