// SPDX-License-Identifier: Apache-2.0
// The three matrix products of a linear layer in a training step. Formats below 16 bits harm them differently, so a
// plan may give each its own precision. The layer is then three operators of the graph, one for each product.
// Source: Micikevicius et al. 2022 (arXiv 2209.05433), section 3; Transformer Engine's recipes
#pragma once

#include <comp/core/precision.hpp>
#include <cstdint>
#include <string_view>

namespace comp {

enum class product : std::uint8_t {
  all,             // an operator that does all three, and every operator that is no linear layer
  forward,         // y = x W'
  input_gradient,  // dx = dy W
  weight_gradient  // dW = dy' x
};

/// Returns what follows the layer's name in the name of the product's operator: nothing for `all` and `forward`.
constexpr std::string_view suffix(product p) {
  return p == product::input_gradient ? ".input_gradient" : p == product::weight_gradient ? ".weight_gradient" : "";
}
/// Returns whether a product is done in the backward.
constexpr bool in_backward(product p) { return p == product::input_gradient || p == product::weight_gradient; }
/// Returns the product of the backward that `name` ends with; `all` for other operators.
constexpr product gradient_named(std::string_view name) {
  for (const product p : {product::input_gradient, product::weight_gradient}) {
    if (name.ends_with(suffix(p))) return p;
  }
  return product::all;
}

/// The precisions of a layer's products, and the one that it has without a plan.
struct product_precisions {
  precision forward = precision::fp32, input_gradient = precision::fp32, weight_gradient = precision::fp32;
  precision as_written = precision::fp32;
  constexpr product_precisions() = default;
  constexpr product_precisions(precision all)  // NOLINT: an operator that is whole has one
      : forward{all}, input_gradient{all}, weight_gradient{all} {}
  constexpr product_precisions(precision all, precision own) : product_precisions{all} { as_written = own; }
  constexpr product_precisions(precision y, precision dx, precision dw)
      : forward{y}, input_gradient{dx}, weight_gradient{dw} {}
  constexpr precision& of(product p) {
    return p == product::input_gradient ? input_gradient : p == product::weight_gradient ? weight_gradient : forward;
  }
  /// Returns whether a plain operator cannot do them, because they differ, round to a format below 16 bits, or give
  /// another format than they read.
  constexpr bool need_rounding() const {
    return is_scaled(forward) || forward == precision::bf16_fp32 || input_gradient != forward ||
           weight_gradient != forward;
  }
  /// Returns whether one of them is another than without a plan.
  constexpr bool lowers() const { return forward != as_written || need_rounding(); }
  bool operator==(const product_precisions&) const = default;
};

}  // namespace comp
