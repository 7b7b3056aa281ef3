// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <comp_native/op/call.hpp>

namespace comp::native::op {

/// Which numbers of a batch of tokens (B,T) an embedding looks up.
enum class looked_up : std::uint8_t {
  tokens,
  positions,  // 0 .. T-1 in each row
  segments    // only of a model that reads them, (B,2,T); padding counts as segment 0
};

struct embedding {  // weight (V,C); reads the batch's tokens (B,T), their positions or segments -> (B,T,C)
  std::int64_t rows = 0;
  std::int64_t width = 0;
  looked_up of = looked_up::tokens;

  constexpr std::string_view kind() const { return "embedding"; }
  constexpr auto settings() const { return std::tuple{of}; }
  shape output(std::span<const shape> x) const {
    const bool segments = x[0].size() == 3 && x[0][1] == 2;
    require<error>(x[0].size() == 2 || segments,
                   "embedding of {} (it takes tokens (B,T), or with segments (B,2,T)): change the input", text(x[0]));
    require<error>(segments || of != looked_up::segments,
                   "embedding of the segments of {} (it takes (B,2,T), tokens and segments): change the input",
                   text(x[0]));
    require<error>(rows > 0 && width > 0, "embedding of {} rows of {} (both must be positive): change them", rows,
                   width);
    require<error>(of != looked_up::positions || x[0].back() <= rows,
                   "embedding of {} positions for {} tokens (one for each): make the context longer", rows,
                   x[0].back());
    return {x[0][0], x[0].back(), width};
  }
  /// Counts only the rows that are looked up, since the rest of the table is not read.
  void cost(const cost_call& c) const {
    c.info.inputs[0].floating = false;
    c.info.bytes = 4 * elements(c.output) / width + 8 * elements(c.output);
  }
  auto forward(const auto& c) const { return c.device.embedding(read(c.batch), *c.parameters[0], c.precision); }
  auto backward(const auto& c) const {
    c.device.embedding_backward(c.dy, read(c.batch), *c.parameters[0]);
    return c.gradients();
  }

 private:
  const auto& read(const auto& batch) const {
    return of == looked_up::tokens ? batch.tokens : of == looked_up::positions ? batch.positions : batch.segments;
  }
};

}  // namespace comp::native::op
