// SPDX-License-Identifier: Apache-2.0
// What loss scaling and clipping need of all gradients, many tensors in one launch: how many elements are not finite,
// the 2-norm of all, and scaling. Also the judgement of a deferred step, whose losses the host has not seen.
#pragma once

#include "reductions.cuh"
#include "support/tensor_table.cuh"

namespace comp::cuda {

namespace detail {

struct gradient_entry {
  pointer<float> gradient;
  index n;
  bool packed;
};
inline std::vector<gradient_entry> gradient_entries(std::span<const gradient_job> jobs) {
  std::vector<gradient_entry> entries;
  for (const auto& j : jobs) entries.push_back({j.gradient, j.n, fits<4>(j.gradient)});
  return entries;
}

struct squares_of_piece {
  float& part;
  template <int N>
  __device__ __forceinline__ void at(const gradient_entry& e, index i) const {
    float v[N];
    load_all<N, float>(e.gradient + i, v);
#pragma unroll
    for (int j = 0; j < N; ++j) part += v[j] * v[j];
  }
};
struct not_finite_of_piece {
  unsigned& part;
  template <int N>
  __device__ __forceinline__ void at(const gradient_entry& e, index i) const {
    float v[N];
    load_all<N, float>(e.gradient + i, v);
#pragma unroll
    for (int j = 0; j < N; ++j) part += (native::math::bits_as<std::uint32_t>(v[j]) & 0x7f800000U) == 0x7f800000U;
  }
};
struct scaled_piece {
  float factor;
  template <int N>
  __device__ __forceinline__ void at(const gradient_entry& e, index i) const {
    float v[N];
    load_all<N, float>(e.gradient + i, v);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] *= factor;
    store_all<N, float>(e.gradient + i, v);
  }
};

__device__ __forceinline__ bool finite(double x) { return x - x == 0; }

template <int N>
__global__ void __launch_bounds__(block_size)
    gradient_squares(const tensor_table<gradient_entry> table, pointer<float> partial) {
  __shared__ shared_array<float, 32> slots;
  const table_place at = place_in(table);
  float part = 0;
  for_piece<N>(table.entry[at.tensor], at, squares_of_piece{part});
  const float whole = combine_block(part, 0.0F, slots, sum_of{});
  if (threadIdx.x == 0) partial[blockIdx.x] = whole;
}
template <int N>
__global__ void __launch_bounds__(block_size)
    gradients_not_finite(const tensor_table<gradient_entry> table, pointer<unsigned long long> count,
                         pointer<const double> norm) {
  if (norm && finite(*norm)) return;
  __shared__ shared_array<unsigned, 32> slots;
  const table_place at = place_in(table);
  unsigned part = 0;
  for_piece<N>(table.entry[at.tensor], at, not_finite_of_piece{part});
  const unsigned whole = combine_block(part, 0U, slots, sum_of{});
  if (threadIdx.x == 0 && whole != 0) atomicAdd(count, static_cast<unsigned long long>(whole));
}
template <int N>
__global__ void __launch_bounds__(block_size) gradients_scaled(const tensor_table<gradient_entry> table, float factor) {
  const table_place at = place_in(table);
  for_piece<N>(table.entry[at.tensor], at, scaled_piece{factor});
}

struct judgement {
  pointer<const double> losses;
  index count;
  pointer<unsigned long long> not_finite, bad_losses;
  pointer<double> norm;
  double unscale, largest;
  pointer<float> clip;
};
/// One thread does it: there are only as many losses as micro-batches.
__global__ void judge(const judgement of) {
  unsigned long long bad = 0;
  for (index i = 0; i < of.count; ++i) {
    bad += !finite(of.losses[i]);
  }
  *of.bad_losses = bad;
  if (bad != 0) *of.not_finite += bad;
  if (!of.norm) return;
  const double norm = *of.norm * of.unscale;
  *of.norm = norm;
  *of.clip = norm > of.largest ? static_cast<float>(of.largest / norm) : 1.0F;
}

}  // namespace detail

}  // namespace comp::cuda
