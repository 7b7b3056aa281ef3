// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <comp_native/op/call.hpp>

namespace comp::native::op {

struct embedding {  // weight (V,C); reads the batch's tokens (B,T), or their positions 0..T-1 -> (B,T,C)
  std::int64_t rows = 0;
  std::int64_t width = 0;
  bool of_positions = false;

  constexpr std::string_view kind() const { return "embedding"; }
  shape output(std::span<const shape> x) const {
    require<error>(x[0].size() == 2, "embedding of {} (it takes tokens (B,T)): change the input", text(x[0]));
    require<error>(rows > 0 && width > 0, "embedding of {} rows of {} (both must be positive): change them", rows,
                   width);
    require<error>(!of_positions || x[0][1] <= rows,
                   "embedding of {} positions for {} tokens (one for each): make the context longer", rows, x[0][1]);
    return {x[0][0], x[0][1], width};
  }
  /// Only the rows that are looked up.
  void cost(const cost_call& c) const {
    c.info.inputs[0].floating = false;
    c.info.bytes = 4 * elements(c.inputs[0]) + 8 * elements(c.output);
  }
  auto forward(const auto& c) const {
    return c.device.embedding(of_positions ? c.batch.positions : c.batch.tokens, *c.parameters[0], c.precision);
  }
  auto backward(const auto& c) const {
    c.device.embedding_backward(c.dy, of_positions ? c.batch.positions : c.batch.tokens, *c.parameters[0]);
    return c.gradients();
  }
};

}  // namespace comp::native::op
