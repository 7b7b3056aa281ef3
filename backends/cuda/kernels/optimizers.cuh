// SPDX-License-Identifier: Apache-2.0
// SGD, Adam and AdamW over many parameters in one launch. One pass updates the FP32 master weights and slots, and
// writes the copy in low precision that the next forward reads. The formulas are the host's
// (comp_native/math/updates.hpp), so that both devices train alike.
#pragma once

#include <comp_native/math/updates.hpp>

#include "support/tensor_table.cuh"

namespace comp::cuda {

namespace detail {

template <class Low>
struct update_entry {
  pointer<float> value;
  pointer<const float> gradient;
  pointer<float> first, second;
  pointer<Low> copy;
  index n;
  bool packed;
};

/// The factors of a gradient: the inverse of the loss scale, and the factor of clipping. The product is rounded after
/// each, as two passes over the gradients would round it.
struct two_factors {
  float first, second;
  __device__ __forceinline__ float operator()(float g) const { return __fmul_rn(__fmul_rn(g, first), second); }
};

template <class Low>
struct plain_sgd {
  native::math::sgd_update rule;
  two_factors scaled;
  template <int N>
  __device__ __forceinline__ void at(const update_entry<Low>& e, index i) const {
    float w[N], g[N];
    load_all<N, float>(e.value + i, w);
    load_all<N, float>(e.gradient + i, g);
#pragma unroll
    for (int j = 0; j < N; ++j) w[j] = rule(w[j], scaled(g[j]));
    store_all<N, float>(e.value + i, w);
    if (e.copy) store_all<N, Low>(e.copy + i, w);
  }
};
template <class Low>
struct momentum_sgd {
  native::math::momentum_update rule;
  two_factors scaled;
  template <int N>
  __device__ __forceinline__ void at(const update_entry<Low>& e, index i) const {
    float w[N], g[N], v[N];
    load_all<N, float>(e.value + i, w);
    load_all<N, float>(e.gradient + i, g);
    load_all<N, float>(e.first + i, v);
#pragma unroll
    for (int j = 0; j < N; ++j) rule(w[j], scaled(g[j]), v[j]);
    store_all<N, float>(e.value + i, w);
    store_all<N, float>(e.first + i, v);
    if (e.copy) store_all<N, Low>(e.copy + i, w);
  }
};
template <class Low>
struct adam {
  native::math::adam_update rule;
  two_factors scaled;
  template <int N>
  __device__ __forceinline__ void at(const update_entry<Low>& e, index i) const {
    float w[N], g[N], m[N], v[N];
    load_all<N, float>(e.value + i, w);
    load_all<N, float>(e.gradient + i, g);
    load_all<N, float>(e.first + i, m);
    load_all<N, float>(e.second + i, v);
#pragma unroll
    for (int j = 0; j < N; ++j) rule(w[j], scaled(g[j]), m[j], v[j]);
    store_all<N, float>(e.value + i, w);
    store_all<N, float>(e.first + i, m);
    store_all<N, float>(e.second + i, v);
    if (e.copy) store_all<N, Low>(e.copy + i, w);
  }
};

template <class Low, class Rule>
__global__ void __launch_bounds__(block_size)
    update_tensors(const tensor_table<update_entry<Low>> table, const Rule rule,
                   pointer<const unsigned long long> not_finite, pointer<const float> clip) {
  if (not_finite && *not_finite != 0) return;
  Rule clipped = rule;
  if (clip) clipped.scaled.second = *clip;
  const table_place at = place_in(table);
  for_piece<4>(table.entry[at.tensor], at, clipped);
}
template <class Low, class Rule>
void update(stream on, std::span<const update_job<Low>> jobs, const Rule& rule, const step_control& control) {
  std::vector<update_entry<Low>> entries;
  for (const auto& j : jobs) {
    const bool packed =
        fits<4>(j.value) && fits<4>(j.gradient) && fits<4>(j.first) && fits<4>(j.second) && fits<4>(j.copy);
    entries.push_back({j.value, j.gradient, j.first, j.second, j.copy, j.n, packed});
  }
  for_tables<update_entry<Low>>(entries, [&](const auto& table, unsigned blocks, index) {
    launch(on, {dim3{blocks}, block_size}, update_tensors<Low, Rule>, table, rule, control.not_finite, control.clip);
  });
}

}  // namespace detail

template <class Low>
void sgd_step(stream on, std::span<const update_job<Low>> jobs, const native::sgd_options& o,
              const step_control& control) {
  if (o.momentum == 0) {
    detail::update(on, jobs, detail::plain_sgd<Low>{native::math::sgd_update{o}, {control.factor, 1}}, control);
  } else {
    detail::update(on, jobs, detail::momentum_sgd<Low>{native::math::momentum_update{o}, {control.factor, 1}}, control);
  }
}
template <class Low>
void adam_step(stream on, std::span<const update_job<Low>> jobs, const native::adam_options& o, std::int64_t step,
               const step_control& control) {
  detail::update(on, jobs, detail::adam<Low>{native::math::adam_update{o, step}, {control.factor, 1}}, control);
}

}  // namespace comp::cuda
