// SPDX-License-Identifier: Apache-2.0
// Dropout, and normal random numbers. A random number depends on the key and the element's position alone (Philox
// 4x32-10), and not on threads, layout or device, so that two plans or two devices drop the same elements. A mask is
// not stored between forward and backward; it is made again.
#pragma once

#include <comp_native/device.hpp>
#include <comp_native/math/normal.hpp>
#include <comp_native/math/philox.hpp>
#include <comp_native/random.hpp>
#include <cstdint>
#include <span>
#include <vector>

#include "context.hpp"
#include "convert.hpp"
#include "transfer.hpp"

namespace comp::host {

using native::dropout_key;

namespace detail {

using native::math::bits_as;
using native::math::dropout_mask;
/// How many groups of four random numbers are made side by side. With fewer, each of Philox's rounds would wait for the
/// one before it.
inline constexpr std::size_t mask_lanes = 64, mask_span = 4 * mask_lanes;

/// Sets y to x times its factor for kept elements, and to 0 for the others, even if x is NaN or infinite.
template <class T>
void masked(context& c, const T* from, T* to, std::size_t n, const dropout_mask& m) {
  c.run_kernel([&] {
    launch((n + mask_span - 1) / mask_span,
           [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
             for (std::size_t at = begin; at < end; ++at) {
               float factor[mask_span];
               m.factors<mask_lanes>(std::uint64_t{at} * mask_lanes, factor);
               const std::size_t first = at * mask_span, some = n - first < mask_span ? n - first : mask_span;
               const T* x = from + first;
               T* y = to + first;
#pragma omp simd
               for (std::size_t i = 0; i < some; ++i) {
                 // A mask of bits instead of a branch lets the compiler vectorise the loop.
                 const std::uint32_t kept = 0U - static_cast<std::uint32_t>(factor[i] != 0);
                 store(y[i], bits_as<float>(bits_as<std::uint32_t>(load(x[i]) * factor[i]) & kept));
               }
             }
           },
           16, 1);
  });
}

}  // namespace detail

/// Zeroes each element with probability p and scales the rest by 1/(1-p).
inline tensor dropout(context& c, const tensor& x, double p, const dropout_key& key) {
  require_some("dropout", x.shape());
  require<error>(p >= 0 && p <= 1, "dropout with p = {} (it is a probability): use 0 to 1", p);
  if (p == 0) return x;
  const tensor in = row_major(c, computable(c, x)), y = c.make(x.shape(), in.layout());
  with_operand(in.precision(), [&](auto* s) {
    using T = std::remove_pointer_t<decltype(s)>;
    detail::masked(c, in.as<T>(), y.as<T>(), static_cast<std::size_t>(elements(x.shape())),
                   detail::dropout_mask{p, key});
  });
  return cast(c, y, x.precision());
}
inline tensor dropout_backward(context& c, const tensor& dy, double p, const dropout_key& key) {
  return dropout(c, dy, p, key);
}

/// Returns the numbers of native::random_stream{key.seed, key.draw}, row by row and bit for bit.
inline tensor normal(context& c, const dropout_key& key, const shape& extents, precision p) {
  constexpr std::size_t pairs = 64;
  const auto count = static_cast<std::size_t>(elements(extents)), pieces = (count + 2 * pairs - 1) / (2 * pairs);
  std::vector<double> u(pieces * pairs), v(u.size());
  std::vector<float> numbers(2 * u.size());
  c.run_kernel([&] {
    native::random_stream{key.seed, key.draw}.normal_parts(u, v);
    const double *us = u.data(), *vs = v.data();
    float* to = numbers.data();
    launch(
        pieces,
        [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
          for (std::size_t i = begin; i < end; ++i) {
            native::math::normal_pairs<pairs>(us + i * pairs, vs + i * pairs, to + 2 * i * pairs);
          }
        },
        16, 1);
  });
  return upload(c, std::span{numbers}.first(count), extents, p);
}

}  // namespace comp::host
