// SPDX-License-Identifier: Apache-2.0
// Adaptive average pooling, which takes the number of bins instead of their size. oneDNN's average pooling does it if
// all bins have one size; it has nothing for uneven bins, so those are loops of this backend.
#pragma once

#include <array>
#include <comp_native/op/pool.hpp>
#include <cstdint>
#include <cstring>

#include "context.hpp"
#include "kernel.hpp"
#include "pooling.hpp"
#include "transfer.hpp"

namespace comp::host {

namespace detail {

/// A bin: the elements [first, last) along an axis. Neighbouring bins may share elements.
/// Source: PyTorch's adaptive pooling.
struct bin {
  std::int64_t first, last;
};
inline bin bin_of(std::int64_t i, std::int64_t bins, std::int64_t extent) {
  return {i * extent / bins, ((i + 1) * extent + bins - 1) / bins};
}
/// Calls f(plane, index of the bin in its plane, rows, columns) for each bin of each plane.
void for_each_bin(std::int64_t planes, const shape& s, const std::array<std::int64_t, 2>& size, auto f) {
  launch_rows(static_cast<std::size_t>(planes), static_cast<std::size_t>(s[2] * s[3]),
              [&](std::size_t begin, std::size_t end) {
                for (std::size_t plane = begin; plane < end; ++plane) {
                  for (std::int64_t at = 0; at < size[0] * size[1]; ++at) {
                    f(static_cast<std::int64_t>(plane), at, bin_of(at / size[1], size[0], s[2]),
                      bin_of(at % size[1], size[1], s[3]));
                  }
                }
              });
}

}  // namespace detail

/// Returns the averages of size[0] x size[1] bins, whose borders follow PyTorch's rule.
inline tensor adaptive_avg_pool2d(context& c, const tensor& x, const std::array<std::int64_t, 2>& size) {
  native::require_bins(x.shape(), size);
  const shape& s = x.shape();
  if (native::even_bins(s, size)) return avg_pool2d(c, x, native::bin_windows(s, size));
  const tensor in = row_major(c, cast(c, x, precision::fp32)), y = c.make_plain({s[0], s[1], size[0], size[1]});
  const float* from = in.as<float>();
  float* to = y.as<float>();
  c.run_kernel([&] {
    detail::for_each_bin(s[0] * s[1], s, size,
                         [&](std::int64_t plane, std::int64_t at, detail::bin rows, detail::bin columns) {
                           float total = 0;
                           for (auto r = rows.first; r < rows.last; ++r)
                             for (auto v = columns.first; v < columns.last; ++v)
                               total += from[(plane * s[2] + r) * s[3] + v];
                           to[plane * size[0] * size[1] + at] =
                               total / static_cast<float>((rows.last - rows.first) * (columns.last - columns.first));
                         });
  });
  return cast(c, y, x.precision());
}
inline tensor adaptive_avg_pool2d_backward(context& c, const tensor& dy, const shape& s) {
  const std::array<std::int64_t, 2> size{dy.shape()[2], dy.shape()[3]};
  native::require_bins(s, size);
  if (native::even_bins(s, size)) return avg_pool2d_backward(c, dy, s, native::bin_windows(s, size));
  const tensor g = row_major(c, cast(c, dy, precision::fp32)), dx = c.make_plain(s);
  const float* from = g.as<float>();
  float* to = dx.as<float>();
  c.run_kernel([&] {
    std::memset(to, 0, dx.layout()->bytes);
    detail::for_each_bin(
        s[0] * s[1], s, size, [&](std::int64_t plane, std::int64_t at, detail::bin rows, detail::bin columns) {
          const float share = from[plane * size[0] * size[1] + at] /
                              static_cast<float>((rows.last - rows.first) * (columns.last - columns.first));
          for (auto r = rows.first; r < rows.last; ++r)
            for (auto v = columns.first; v < columns.last; ++v) to[(plane * s[2] + r) * s[3] + v] += share;
        });
  });
  return cast(c, dx, dy.precision());
}

}  // namespace comp::host
