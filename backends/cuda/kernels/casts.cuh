// SPDX-License-Identifier: Apache-2.0
// Casts many tensors in one launch, to the nearest, ties to even.
#pragma once

#include "support/tensor_table.cuh"

namespace comp::cuda {

namespace detail {

template <class From, class To>
struct cast_entry {
  pointer<const From> from;
  pointer<To> to;
  index n;
  bool packed;
};
struct cast_piece {
  template <int N, class From, class To>
  __device__ __forceinline__ void at(const cast_entry<From, To>& e, index i) const {
    float v[N];
    load_all<N, From>(e.from + i, v);
    store_all<N, To>(e.to + i, v);
  }
};
template <class From, class To>
__global__ void __launch_bounds__(block_size) cast_tensors(const tensor_table<cast_entry<From, To>> table) {
  constexpr int N = wide < From >> wide<To> ? wide<From> : wide<To>;
  const table_place at = place_in(table);
  for_piece<N>(table.entry[at.tensor], at, cast_piece{});
}

}  // namespace detail

template <class From, class To>
void cast(stream on, std::span<const cast_job<From, To>> jobs) {
  using entry = detail::cast_entry<From, To>;
  constexpr int N = wide < From >> wide<To> ? wide<From> : wide<To>;
  std::vector<entry> entries;
  for (const auto& j : jobs) entries.push_back({j.from, j.to, j.n, fits<N>(j.from) && fits<N>(j.to)});
  for_tables<entry>(entries, [&](const auto& table, unsigned blocks, index) {
    launch(on, {dim3{blocks}, block_size}, detail::cast_tensors<From, To>, table);
  });
}

}  // namespace comp::cuda
