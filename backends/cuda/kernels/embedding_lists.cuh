// SPDX-License-Identifier: Apache-2.0
// Lists, for each row of an embedding's table, the places that read it, in order, and cuts the lists into chunks of 64.
// The gradient is summed by them. Blocks take memory for their lists in whatever order they run, but what is in a list
// and how it is cut does not depend on that, so that sums have the same bits in each run.
#pragma once

#include "support/lanes.cuh"

namespace comp::cuda {

namespace detail {

inline constexpr unsigned rows_of_block = 128;  // rows of the table that one block lists: a multiple of a warp
inline constexpr unsigned list_threads = 512;   // threads of a block; each of its warps looks at a part of the places
inline constexpr unsigned list_warps = list_threads / 32;
inline constexpr index places_of_chunk = 64;

/// The positions [begin, begin + count) of the lists, all of one row. partial: the number of the partial sum that it
/// makes; -1: it is added to the gradient.
struct embedding_chunk {
  index begin, count, row, partial;
};
/// A row whose list was cut: its `count` partial sums from `partial` on are added to the gradient.
struct embedding_joint {
  index partial, count, row;
};
enum embedding_part { listed_places, made_chunks, partial_sums, joined_rows, embedding_parts };

/// The lists in device memory.
struct embedding_lists {
  pointer<unsigned long long> used;  // how much of each part the blocks have taken so far
  pointer<index> place;
  pointer<embedding_chunk> chunk;
  pointer<embedding_joint> joint;
};
/// How much of each part n places can need, whatever they read.
struct embedding_room {
  index chunks, partials, joints;
  embedding_room(index n, index entries)
      : chunks{(n < entries ? n : entries) + n / places_of_chunk},
        partials{n / places_of_chunk + n / (places_of_chunk + 1)},
        joints{n / (places_of_chunk + 1)} {}
};

/// Returns: the lanes among `voters` that have this lane's key, found by a vote on each bit of the key.
/// Requires: all lanes of the warp call it.
__device__ __forceinline__ unsigned lanes_alike(unsigned voters, unsigned key) {
  unsigned alike = voters;
#pragma unroll
  for (unsigned bit = 1; bit < rows_of_block; bit *= 2) {
    const bool set = (key & bit) != 0;
    const unsigned votes = __ballot_sync(all_lanes, set);
    alike &= set ? votes : ~votes;
  }
  return alike;
}
/// Takes what the lanes of a warp want of one part, by one atomic addition. Returns: the start of this lane's share.
__device__ __forceinline__ index taken(pointer<unsigned long long> used, index wanted) {
  const unsigned lane = threadIdx.x % 32;
  index up_to = wanted;  // the sum of the wants of all lanes up to this one
#pragma unroll
  for (unsigned by = 1; by < 32; by *= 2) {
    const index before = __shfl_up_sync(all_lanes, up_to, by);
    if (lane >= by) up_to += before;
  }
  index start = 0;
  if (lane == 31 && up_to != 0) start = static_cast<index>(atomicAdd(used, static_cast<unsigned long long>(up_to)));
  return __shfl_sync(all_lanes, start, 31) + up_to - wanted;
}

using next_places = shared_array<index, list_warps * rows_of_block>;

/// Takes memory for the places, chunks and partial sums of a row, and writes its chunks. Each thread has one of the
/// block's rows; whole warps call it.
__device__ __forceinline__ void make_room(next_places& next, index row, const embedding_lists& to) {
  index places = 0;
#pragma unroll 1  // the kernel is short of registers
  for (unsigned w = 0; w < list_warps; ++w) places += next[w * rows_of_block + threadIdx.x];
  const index begin = taken(to.used + listed_places, places);
  index at = begin;
#pragma unroll 1
  for (unsigned w = 0; w < list_warps; ++w) {
    const index some = next[w * rows_of_block + threadIdx.x];
    next[w * rows_of_block + threadIdx.x] = at;
    at += some;
  }
  const index cut = (places + places_of_chunk - 1) / places_of_chunk, sums = cut > 1 ? cut : 0;
  const index chunk = taken(to.used + made_chunks, cut), partial = taken(to.used + partial_sums, sums);
  const index joint = taken(to.used + joined_rows, sums > 0);
#pragma unroll 1
  for (index c = 0; c < cut; ++c) {
    const index from = c * places_of_chunk, left = places - from;
    to.chunk[chunk + c] = embedding_chunk{begin + from, left < places_of_chunk ? left : places_of_chunk, row,
                                          sums > 0 ? partial + c : -1};
  }
  if (sums > 0) to.joint[joint] = embedding_joint{partial, sums, row};
}

/// Calls f(place, row of the block, lanes that read the same row) for this warp's places. If any lane's place reads one
/// of the block's rows, all lanes call f; those that read none with no lanes.
template <class F>
__device__ __forceinline__ void each_wanted(pointer<const std::int32_t> at, index n, index entries, F f) {
  const unsigned lane = threadIdx.x % 32, first = blockIdx.x * rows_of_block;
  const auto rows = static_cast<unsigned>(entries - first < rows_of_block ? entries - first : rows_of_block);
  const index own = (n + list_threads - 1) / list_threads * 32, begin = threadIdx.x / 32 * own;
  const index end = begin + own < n ? begin + own : n;
  const auto asked_at = [&](index i) { return i < end ? static_cast<std::int32_t>(at[i]) : -1; };
  index i = begin + lane;
  std::int32_t ahead[4] = {asked_at(i), asked_at(i + 32), asked_at(i + 64), asked_at(i + 96)};  // loaded ahead of use
#pragma unroll 1
  for (; i - lane < end; i += 32) {
    const unsigned row = static_cast<unsigned>(ahead[0]) - first;  // too large if it is not one of the block's
    for (int j = 0; j < 3; ++j) ahead[j] = ahead[j + 1];
    ahead[3] = asked_at(i + 128);
    const bool wanted = row < rows;
    const unsigned voters = __ballot_sync(all_lanes, wanted);
    if (voters == 0) continue;
    const unsigned alike = lanes_alike(voters, row);
    f(i, row, wanted ? alike : 0);
  }
}

/// Each warp first counts its places by row, then the rows take memory, then each warp lists its places.
__global__ void __launch_bounds__(list_threads, 2)
    embedding_list(pointer<const std::int32_t> at, index n, index entries, const embedding_lists to) {
  __shared__ next_places next;  // [warp][row]: how many places, and later the index for the next place
  const unsigned lane = threadIdx.x % 32, own = threadIdx.x / 32 * rows_of_block;
  for (unsigned row = lane; row < rows_of_block; row += 32) next[own + row] = 0;
  __syncwarp();
  bool some = false;
  each_wanted(at, n, entries, [&](index, unsigned row, unsigned alike) {
    if (alike != 0 && (alike & ((1U << lane) - 1)) == 0) next[own + row] += __popc(alike);
    some = true;
    __syncwarp();
  });
  __syncthreads();
  if (threadIdx.x < rows_of_block) make_room(next, static_cast<index>(blockIdx.x) * rows_of_block + threadIdx.x, to);
  __syncthreads();
  if (!some) return;
  each_wanted(at, n, entries, [&](index place, unsigned row, unsigned alike) {
    const unsigned before = alike & ((1U << lane) - 1);
    const index here = alike != 0 ? static_cast<index>(next[own + row]) : 0;
    __syncwarp();
    if (alike != 0) to.place[here + __popc(before)] = place;
    if (alike != 0 && before == 0) next[own + row] = here + __popc(alike);
    __syncwarp();
  });
}

}  // namespace detail

}  // namespace comp::cuda
