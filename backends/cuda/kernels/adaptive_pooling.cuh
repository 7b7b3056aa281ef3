// SPDX-License-Identifier: Apache-2.0
// Averages over bins that do not divide their image evenly, and their gradient, in both orders. One thread computes
// each element from what it depends on, in a fixed order. Bin i of n over an extent e is [floor(i e / n), ceil((i + 1)
// e / n)), so that neighbouring bins may share elements.
// Source: PyTorch's adaptive pooling
#pragma once

#include "support/rows.cuh"

namespace comp::cuda {

namespace detail {

struct bin {
  std::uint32_t first, last;
};
inline constexpr index longest_side = 65535;  // the largest extent for which bin_of does not overflow
/// Returns: the elements of bin i. It computes in 32 bits, with the whole part of extent / bins taken out, since a
/// division of 64 bits is a function call. bin_of(i, extent, bins) are, by the same rule, the bins that element i is
/// in.
COMP_HD bin bin_of(index i, index bins, index extent) {
  const auto n = static_cast<std::uint32_t>(bins), e = static_cast<std::uint32_t>(extent);
  const auto at = static_cast<std::uint32_t>(i), each = e / n, rest = e % n;
  return {at * each + at * rest / n, (at + 1) * each + ((at + 1) * rest + n - 1) / n};
}

/// Returns: 1 / count, within a unit in the last place. A plain division would contain a call for very large and very
/// small numbers, which a count is not.
__device__ __forceinline__ float inverse(float count) {
#ifdef __CUDA_ARCH__
  const float near = __fdividef(1.0F, count);
  return fmaf(near, fmaf(-count, near, 1.0F), near);
#else
  return 1 / count;
#endif
}
__device__ __forceinline__ index quotient(index a, index b) {
  if ((a | b) >> 32 == 0) return static_cast<std::uint32_t>(a) / static_cast<std::uint32_t>(b);
  return a / b;
}

/// The sum of N neighbouring bins or shares, to which elements are added.
template <int N, class T>
struct bin_sum {
  float v[N] = {};
  __device__ __forceinline__ void add(pointer<const T> from, float share) {
    float x[N];
    load_all<N, T>(from, x);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] += x[j] * share;
  }
};

/// The forward: sum(from, h, v, stride, to) computes the mean of bin (h, v) of an image whose neighbours in a row are
/// `stride` elements apart.
struct mean_of_bin {
  bin_sizes sizes;
  template <int N, class T>
  __device__ __forceinline__ void sum(pointer<const T> from, index h, index v, index stride, bin_sum<N, T>& to) const {
    const bin rows = bin_of(h, sizes.to[0], sizes.from[0]), columns = bin_of(v, sizes.to[1], sizes.from[1]);
    for (std::uint32_t r = rows.first; r < rows.last; ++r) {
      for (std::uint32_t c = columns.first; c < columns.last; ++c) to.add(from + (r * sizes.from[1] + c) * stride, 1);
    }
    const float count = static_cast<float>((rows.last - rows.first) * (columns.last - columns.first));
#pragma unroll
    for (int j = 0; j < N; ++j) to.v[j] /= count;
  }
  __device__ __forceinline__ index from_pixels() const { return sizes.from[0] * sizes.from[1]; }
  __device__ __forceinline__ index to_columns() const { return sizes.to[1]; }
  __device__ __forceinline__ index to_pixels() const { return sizes.to[0] * sizes.to[1]; }
};
/// The backward: sum(from, h, v, stride, to) adds up the shares that element (h, v) has in the gradients of its bins.
struct shares_of_bins {
  bin_sizes sizes;
  template <int N, class T>
  __device__ __forceinline__ void sum(pointer<const T> from, index h, index v, index stride, bin_sum<N, T>& to) const {
    const bin rows = bin_of(h, sizes.from[0], sizes.to[0]), columns = bin_of(v, sizes.from[1], sizes.to[1]);
    for (std::uint32_t r = rows.first; r < rows.last; ++r) {
      const bin high = bin_of(r, sizes.to[0], sizes.from[0]);
      for (std::uint32_t c = columns.first; c < columns.last; ++c) {
        const bin wide = bin_of(c, sizes.to[1], sizes.from[1]);
        const float share = inverse(static_cast<float>((high.last - high.first) * (wide.last - wide.first)));
        to.add(from + (r * sizes.to[1] + c) * stride, share);
      }
    }
  }
  __device__ __forceinline__ index from_pixels() const { return sizes.to[0] * sizes.to[1]; }
  __device__ __forceinline__ index to_columns() const { return sizes.from[1]; }
  __device__ __forceinline__ index to_pixels() const { return sizes.from[0] * sizes.from[1]; }
};

/// For NCHW: a row is a plane of one channel, and neighbouring lanes have neighbouring pixels.
template <class T, class Gather>
struct bins_by_plane {
  static constexpr bool one_pass = true;
  pointer<const T> from;
  pointer<T> to;
  Gather gather;
  template <int N, int Held, class Lanes>
  __device__ __forceinline__ void row(index r, const Lanes& lanes) const {
    static_assert(N == 1);
    const index columns = gather.to_columns(), pixels = gather.to_pixels();
    for (index at = lanes.rank(); at < pixels; at += Lanes::count) {
      bin_sum<1, T> sum;
      const auto pixel = static_cast<std::uint32_t>(at), across = static_cast<std::uint32_t>(columns);
      gather.template sum<1, T>(from + r * gather.from_pixels(), pixel / across, pixel % across, 1, sum);
      store_all<1, T>(to + (r * pixels + at), sum.v);
    }
  }
};
/// For NHWC: a row is a pixel, and neighbouring lanes have neighbouring channels.
template <class T, class Gather>
struct bins_by_pixel {
  static constexpr bool one_pass = true;
  pointer<const T> from;
  pointer<T> to;
  index channels;
  Gather gather;
  template <int N, int Held, class Lanes>
  __device__ __forceinline__ void row(index r, const Lanes& lanes) const {
    const index image = quotient(r, gather.to_pixels());
    const auto columns = static_cast<std::uint32_t>(gather.to_columns());
    const auto at = static_cast<std::uint32_t>(r - image * gather.to_pixels());
    const pointer<const T> pixels = from + image * gather.from_pixels() * channels;
    for (index c = lanes.rank() * N; c < channels; c += Lanes::count * N) {
      bin_sum<N, T> sum;
      gather.template sum<N, T>(pixels + c, at / columns, at % columns, channels, sum);
      store_all<N, T>(to + (r * channels + c), sum.v);
    }
  }
};

template <class T, class Gather>
void gather_bins(stream on, const T* from, T* to, const Gather& gather, index pixels) {
  constexpr int N = wide<T>;
  const bin_sizes& s = gather.sizes;
  for (const index side : {s.from[0], s.from[1], s.to[0], s.to[1]}) {
    require<error>(side <= longest_side, "adaptive pooling with a side of {} (at most {}): pool in two steps", side,
                   longest_side);
  }
  if (!s.channels_last) return for_rows<1>(on, s.planes, pixels, true, bins_by_plane<T, Gather>{from, to, gather});
  if (s.channels == 0) return;
  for_rows<N>(on, s.planes / s.channels * pixels, s.channels, fits<N>(from) && fits<N>(to),
              bins_by_pixel<T, Gather>{from, to, s.channels, gather});
}

}  // namespace detail

template <class T>
void adaptive_pooling(stream on, const T* x, T* y, const bin_sizes& sizes) {
  detail::gather_bins(on, x, y, detail::mean_of_bin{sizes}, sizes.to[0] * sizes.to[1]);
}
template <class T>
void adaptive_pooling_backward(stream on, const T* dy, T* dx, const bin_sizes& sizes) {
  detail::gather_bins(on, dy, dx, detail::shares_of_bins{sizes}, sizes.from[0] * sizes.from[1]);
}

}  // namespace comp::cuda
