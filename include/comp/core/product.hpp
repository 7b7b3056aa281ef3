// SPDX-License-Identifier: Apache-2.0
// The three matrix products of a linear layer in a training step. Formats below 16 bits harm them differently, so a
// plan may give each its own precision. The layer is then three operators of the graph, one for each product.
// Source: Micikevicius et al. 2022 (arXiv 2209.05433), section 3; Transformer Engine's recipes
#pragma once

#include <cstdint>
#include <string_view>

namespace comp {

enum class product : std::uint8_t {
  all,             // an operator that does all three, and every operator that is no linear layer
  forward,         // y = x W'
  input_gradient,  // dx = dy W
  weight_gradient  // dW = dy' x
};

/// Returns what the name of the layer's operator is followed by: nothing for `all` and `forward`.
constexpr std::string_view suffix(product p) {
  return p == product::input_gradient ? ".input_gradient" : p == product::weight_gradient ? ".weight_gradient" : "";
}

}  // namespace comp
