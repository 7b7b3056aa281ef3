// SPDX-License-Identifier: Apache-2.0
// Many tensors in one launch: their addresses travel as kernel parameters, and each block finds its piece of one
// tensor. As many launches as it takes: 48 tensors each, to stay within the 4 KiB of parameters.
#pragma once

#include <span>
#include <vector>

#include "packs.cuh"

namespace comp::cuda {

inline constexpr int tensors_per_launch = 48;
inline constexpr index piece = 8192;  // elements of one block: a multiple of every pack

/// Entry: addresses and `n`, its number of elements; n > 0.
template <class Entry>
struct tensor_table {
  Entry entry[tensors_per_launch];
  unsigned first_block[tensors_per_launch + 1];
  int count;
};
/// Where a block works: elements [begin, end) of entry[tensor].
struct table_place {
  int tensor;
  index begin, end;
};
template <class Entry>
__device__ __forceinline__ table_place place_in(const tensor_table<Entry>& table) {
  int low = 0, high = table.count;  // the last entry whose first block is not beyond this one
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.first_block[middle] <= blockIdx.x ? low : high) = middle;
  }
  const index begin = static_cast<index>(blockIdx.x - table.first_block[low]) * piece, n = table.entry[low].n;
  return {low, begin, begin + piece < n ? begin + piece : n};
}

/// f.at<N>(entry, i) for every element of the block's piece; packs where entry.packed says so.
template <int N, class Entry, class F>
__device__ __forceinline__ void for_piece(const Entry& e, const table_place& at, const F& f) {
  index done = at.begin;
  if (e.packed) {
    done = at.begin + (at.end - at.begin) / N * N;
    for (index i = at.begin + static_cast<index>(threadIdx.x) * N; i < done; i += static_cast<index>(blockDim.x) * N) {
      f.template at<N>(e, i);
    }
  }
  for (index i = done + threadIdx.x; i < at.end; i += blockDim.x) f.template at<1>(e, i);
}

/// Calls run(table, blocks, blocks before) as often as needed; entries of no elements are left out.
/// Returns: the number of blocks in all.
template <class Entry, class F>
index for_tables(std::span<const Entry> all, F run) {
  tensor_table<Entry> table;
  table.count = 0;
  index before = 0;
  unsigned blocks = 0;
  const auto flush = [&] {
    if (table.count == 0) return;
    table.first_block[table.count] = blocks;
    run(table, blocks, before);
    before += blocks;
    table.count = 0;
    blocks = 0;
  };
  for (const Entry& e : all) {
    if (e.n == 0) continue;
    if (table.count == tensors_per_launch) flush();
    table.first_block[table.count] = blocks;
    table.entry[table.count++] = e;
    blocks += static_cast<unsigned>((e.n + piece - 1) / piece);
  }
  flush();
  return before;
}

}  // namespace comp::cuda
