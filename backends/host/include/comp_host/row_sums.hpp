// SPDX-License-Identifier: Apache-2.0
// Gradients of parameters that are sums over the rows of a matrix, as those of biases are.
#pragma once

#include <cstddef>
#include <cstring>
#include <type_traits>
#include <vector>

#include "context.hpp"
#include "parameter.hpp"

namespace comp::host::detail {

/// Adds sums over rows to the gradient of `p`, which has `width` elements; `add(row, sums)` adds one row. Rows are
/// summed in pieces of fixed size and the pieces in order, so that the result has the same bits for any number of
/// threads.
void add_row_sums(context& c, std::size_t rows, std::size_t width, parameter& p, const auto& add) {
  if (!p.trainable) return;
  constexpr std::size_t piece = 256;
  std::vector<float> sums((rows + piece - 1) / piece * width);
  const tensor to = gradient_target(c, p, c.layouts.plain(p.extents, precision::fp32));
  c.run_kernel([&] {
    launch_rows(sums.size() / width, piece * width, [&](std::size_t from, std::size_t end) COMP_HOST_KERNEL {
      for (std::size_t i = from; i < end; ++i) {
        for (std::size_t r = i * piece; r < rows && r < (i + 1) * piece; ++r) add(r, sums.data() + i * width);
      }
    });
    auto* total = to.as<float>();
    std::memset(total, 0, width * sizeof(float));
    for (std::size_t i = 0; i < sums.size(); ++i) total[i % width] += sums[i];
  });
  add_gradient(c, p, to);
}
inline void add_bias_gradient(context& c, const tensor& dy, parameter& b) {
  const auto rows = static_cast<std::size_t>(dy.shape()[0]), width = static_cast<std::size_t>(dy.shape()[1]);
  with_operand(dy.precision(), [&](auto* s) {
    const auto* from = static_cast<const std::remove_pointer_t<decltype(s)>*>(dy.data());
    add_row_sums(c, rows, width, b, [=](std::size_t r, float* sums) COMP_HOST_KERNEL {
#pragma omp simd
      for (std::size_t k = 0; k < width; ++k) sums[k] += load(from[r * width + k]);
    });
  });
}

}  // namespace comp::host::detail
