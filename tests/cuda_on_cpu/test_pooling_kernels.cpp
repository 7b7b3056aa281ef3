// SPDX-License-Identifier: Apache-2.0
// Averages over uneven bins and their gradient against FP64: both orders, any size and address.
#include "kernel_test.hpp"

namespace comp::cuda::test {
namespace {

constexpr stream on{};

struct bins_case {
  index images, channels, from[2], to[2];
  std::size_t shift = 0;
};
const std::vector<bins_case> cases{
    {2, 3, {7, 5}, {3, 2}},       {1, 8, {8, 9}, {5, 4}},
    {2, 16, {5, 3}, {7, 7}},     // more bins than elements
    {1, 24, {6, 6}, {4, 4}, 1},  // not aligned
    {1, 5, {4, 40}, {3, 37}, 3},  {3, 1, {1, 1}, {1, 1}},
    {1, 1032, {3, 2}, {2, 1}},                                 // more channels than a warp does
    {1, 1100, {2, 3}, {1, 2}, 1}, {1, 2, {40, 41}, {33, 34}},  // more bins than a warp does
    {0, 3, {4, 4}, {3, 3}},
};

/// The index of (image, channel, row, column).
struct places {
  index channels, rows, columns;
  bool last;
  std::size_t operator()(index b, index c, index h, index v) const {
    return static_cast<std::size_t>(last ? ((b * rows + h) * columns + v) * channels + c
                                         : ((b * channels + c) * rows + h) * columns + v);
  }
};
/// f(index in the image, index in the bins, how many elements the bin has) for each element of each bin.
void for_each_share(const bins_case& k, bool last, auto f) {
  const places image{k.channels, k.from[0], k.from[1], last}, bins{k.channels, k.to[0], k.to[1], last};
  const auto first = [](index i, index n, index extent) { return i * extent / n; };
  const auto end = [](index i, index n, index extent) { return ((i + 1) * extent + n - 1) / n; };
  for (index b = 0; b < k.images; ++b)
    for (index c = 0; c < k.channels; ++c)
      for (index h = 0; h < k.to[0]; ++h)
        for (index v = 0; v < k.to[1]; ++v) {
          const index top = first(h, k.to[0], k.from[0]), bottom = end(h, k.to[0], k.from[0]);
          const index left = first(v, k.to[1], k.from[1]), right = end(v, k.to[1], k.from[1]);
          for (index r = top; r < bottom; ++r)
            for (index s = left; s < right; ++s)
              f(image(b, c, r, s), bins(b, c, h, v), static_cast<double>((bottom - top) * (right - left)));
        }
}

}  // namespace

TEST_CASE_TEMPLATE("averages over uneven bins and their gradient agree with FP64", T, float, bf16, fp16) {
  for (const bins_case& k : cases) {
    for (const bool last : {false, true}) {
      CAPTURE(k.channels);
      CAPTURE(k.from[0]);
      CAPTURE(last);
      const auto planes = k.images * k.channels;
      const auto elements = static_cast<std::size_t>(planes * k.from[0] * k.from[1]),
                 bins = static_cast<std::size_t>(planes * k.to[0] * k.to[1]);
      const bin_sizes sizes{planes, k.channels, {k.from[0], k.from[1]}, {k.to[0], k.to[1]}, last};
      const input<T> x{values<T>(elements, 1), k.shift}, dy{values<T>(bins, 2), k.shift};
      buffer<T> y{bins, k.shift}, dx{elements, k.shift};
      adaptive_pooling(on, x.data(), y.data(), sizes);
      adaptive_pooling_backward(on, dy.data(), dx.data(), sizes);
      std::vector<double> want(bins), gradient(elements);
      for_each_share(k, last, [&](std::size_t at, std::size_t bin, double count) {
        want[bin] += x.value[at] / count;
        gradient[at] += dy.value[bin] / count;
      });
      check_close(y.values(), want, 1.1, 1e-6);
      check_close(dx.values(), gradient, 1.1, 1e-6);
    }
  }
}

}  // namespace comp::cuda::test
