// SPDX-License-Identifier: Apache-2.0
// One launch for many tensors. Their addresses are kernel parameters, and each block looks up its piece of one tensor.
// A launch takes 48 tensors, since parameters have at most 4 KiB; more tensors take more launches.
#pragma once

#include <span>

#include "packs.cuh"

namespace comp::cuda {

inline constexpr int tensors_per_launch = 48;
inline constexpr index piece = 8192;  // elements that one block works on: a multiple of every pack

/// The tensors of a launch. An Entry has the addresses of a tensor and n > 0, its number of elements.
template <class Entry>
struct tensor_table {
  Entry entry[tensors_per_launch];
  unsigned first_block[tensors_per_launch + 1];
  int count;
};
/// A block's piece: the elements [begin, end) of entry[tensor].
struct table_place {
  int tensor;
  index begin, end;
};
template <class Entry>
__device__ __forceinline__ table_place place_in(const tensor_table<Entry>& table) {
  int low = 0, high = table.count;  // bisects for the last entry whose first block is not beyond this one
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (table.first_block[middle] <= blockIdx.x ? low : high) = middle;
  }
  const index begin = static_cast<index>(blockIdx.x - table.first_block[low]) * piece, n = table.entry[low].n;
  return {low, begin, begin + piece < n ? begin + piece : n};
}

/// Calls f.at<N>(entry, i) for each pack of the block's piece, and f.at<1> for the elements that are left. If
/// entry.packed is false, all elements go one by one.
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

/// Calls run(table, blocks, blocks of the tables before) for each table that is needed. Entries without elements are
/// left out. Returns: the number of blocks of all tables.
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
