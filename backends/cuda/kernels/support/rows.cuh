// SPDX-License-Identifier: Apache-2.0
// One launch over rows. The width decides how many threads work on a row: a warp on up to 1024 elements (512 if packs
// do not fit), a block on more. A row that fits stays in registers between passes over it; a longer one is read again.
// Packs are used if the width and the addresses allow it.
// A functor has `template <int N, int Held, class Lanes> __device__ void row(index r, const Lanes&) const`. A functor
// with `static constexpr bool one_pass = true` neither keeps nor combines anything: it gets Held = 0, and a warp works
// on four rows at once if they have up to 8 packs.
#pragma once

#include <algorithm>

#include "lanes.cuh"
#include "packs.cuh"

namespace comp::cuda {

/// The type of a position in a row: 32 bits if the row is held, which has 8192 elements at most.
template <int Held>
using place = std::conditional_t<(Held > 0), int, index>;

/// A row that is read once and held in registers (Held packs in each thread), or read at each pass (Held = 0).
/// Partly: packs that begin at `visible` or behind it are not read, and are zeros.
template <int N, int Held, class T, class Lanes, bool Partly = false>
class row_of {
 public:
  __device__ row_of(pointer<const T> from, index width, index visible, const Lanes& lanes)
      : from_{from},
        width_{static_cast<place<Held>>(width)},
        visible_{static_cast<place<Held>>(visible)},
        first_{static_cast<place<Held>>(lanes.rank()) * N} {
    if constexpr (Held > 0) {
#pragma unroll
      for (int p = 0; p < Held; ++p) {
        if (first_ + p * step < width_) read(first_ + p * step, held_[p]);
      }
    }
  }
  __device__ row_of(pointer<const T> from, index width, const Lanes& lanes) : row_of{from, width, width, lanes} {}
  /// Calls f(position, values) for each pack of this thread. If Held > 0, the next pass sees what f writes to values.
  template <class F>
  __device__ void each(F f) {
    if constexpr (Held > 0) {
#pragma unroll
      for (int p = 0; p < Held; ++p) {
        if (first_ + p * step < width_) f(first_ + p * step, held_[p]);
      }
    } else {
      for (place<Held> at = first_; at < width_; at += step) {
        float values[N];
        read(at, values);
        f(at, values);
      }
    }
  }

 private:
  static constexpr place<Held> step = Lanes::count * N;
  __device__ void read(place<Held> at, float (&to)[N]) const {
    if constexpr (Partly) {
#pragma unroll
      for (int j = 0; j < N; ++j) to[j] = 0;
      if (at >= visible_) return;
    }
    load_all<N, T>(from_ + at, to);
  }
  pointer<const T> from_;
  place<Held> width_, visible_, first_;
  float held_[Held > 0 ? Held : 1][N];
};

template <int N, int Held, class Lanes, class F>
__global__ void __launch_bounds__(block_size) over_rows(F f, index rows) {
  __shared__ shared_array<float, 32> slots;
  const Lanes lanes{slots};
  const index r = lanes.row();
  if (r < rows) f.template row<N, Held>(r, lanes);
}

namespace detail {

template <int N, int Held, class Lanes, class F>
void rows_by(stream on, index rows, const F& f) {
  constexpr index most = std::min(index{Lanes::rows_per_block} << 30, index{1} << 32);
  require<error>(rows < most, "{} rows in one launch (it has less than {}): split them", rows, most);
  const dim3 blocks{static_cast<unsigned>((rows + Lanes::rows_per_block - 1) / Lanes::rows_per_block)};
  launch(on, {blocks, block_size}, over_rows<N, Held, Lanes, F>, f, rows);
}

template <int N, class F>
void rows_kept(stream on, index rows, index width, bool packed, const F& f) {
  if (!packed || width % N != 0) {
    if (width <= 512) return rows_by<1, 16, warp_lanes>(on, rows, f);
    if (width <= 4 * block_size) return rows_by<1, 4, block_lanes>(on, rows, f);
    return rows_by<1, 0, block_lanes>(on, rows, f);
  }
  if (width <= 32 * N) return rows_by<N, 1, warp_lanes>(on, rows, f);
  if (width <= 1024) return rows_by<N, 32 / N, warp_lanes>(on, rows, f);
  if (width <= block_size * 32) return rows_by<N, 32 / N, block_lanes>(on, rows, f);
  rows_by<N, 0, block_lanes>(on, rows, f);
}

}  // namespace detail

/// Launches f over all rows. packed: every row of every tensor that f uses begins at a multiple of 16 bytes, or of 8
/// for FP32 beside 16 bits.
template <int N, class F>
void for_rows(stream on, index rows, index width, bool packed, const F& f) {
  if (rows == 0 || width == 0) return;
  if constexpr (requires { F::one_pass; }) {
    const bool by_packs = packed && width % N == 0;
    if constexpr (N > 1) {
      if (by_packs && width <= quarter_lanes::count * N) return detail::rows_by<N, 0, quarter_lanes>(on, rows, f);
    }
    if (width <= 1024)
      return by_packs ? detail::rows_by<N, 0, warp_lanes>(on, rows, f) : detail::rows_by<1, 0, warp_lanes>(on, rows, f);
    return by_packs ? detail::rows_by<N, 0, block_lanes>(on, rows, f) : detail::rows_by<1, 0, block_lanes>(on, rows, f);
  } else {
    detail::rows_kept<N>(on, rows, width, packed, f);
  }
}

}  // namespace comp::cuda
