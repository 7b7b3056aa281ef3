// SPDX-License-Identifier: Apache-2.0
// Cross entropy, negative log likelihood, squared error and binary cross entropy with their gradients, and the number
// of right answers. Targets below 0 count neither in a mean nor in a gradient. How many targets count stays on the
// device, so that nothing waits for it. A kernel cannot refuse a target beyond the classes: it makes the loss NaN, and
// the answer wrong.
#pragma once

#include "reductions.cuh"
#include "softmax.cuh"
#include "support/over_elements.cuh"

namespace comp::cuda {

namespace detail {

template <class T>
struct cross_entropy_rows {
  pointer<const T> logits;
  pointer<const std::int32_t> target;
  pointer<float> log_sum, term;
  index width;
  template <int N, int Held, class Lanes>
  __device__ __forceinline__ void row(index r, const Lanes& lanes) const {
    row_of<N, Held, T, Lanes> values{logits + r * width, width, lanes};
    const row_exponentials e = exponentials(values, width, false, lanes);
    if (lanes.rank() != 0) return;
    const float sum = e.largest + logf(e.total);
    const std::int32_t label = target[r];
    log_sum[r] = sum;
    const float at_label = label < 0 || label >= width ? 0.0F : widen<T>(logits[r * width + label]);
    term[r] = label < 0 ? 0.0F : label >= width ? nanf("") : sum - at_label;
  }
};
template <class T>
__global__ void __launch_bounds__(block_size)
    nll_terms(pointer<const T> logp, pointer<const std::int32_t> target, pointer<float> term, index rows, index width) {
  const index r = static_cast<index>(blockIdx.x) * block_size + threadIdx.x;
  if (r >= rows) return;
  const std::int32_t label = target[r];
  const float at_label = label < 0 || label >= width ? 0.0F : widen<T>(logp[r * width + label]);
  term[r] = label < 0 ? 0.0F : label >= width ? nanf("") : -at_label;
}
/// *loss = the mean of the terms whose target is not below 0; *count = how many these are. One block does it.
template <class Total>
__global__ void __launch_bounds__(block_size)
    mean_of_terms(pointer<const float> term, pointer<const std::int32_t> target, index rows, pointer<double> loss,
                  pointer<float> count) {
  __shared__ shared_array<Total, 32> slots;
  Total part = 0, counted = 0;
  for (index r = threadIdx.x; r < rows; r += block_size) {
    part += static_cast<Total>(term[r]);
    counted += target[r] >= 0;
  }
  part = combine_block(part, Total{0}, slots, sum_of{});
  counted = combine_block(counted, Total{0}, slots, sum_of{});
  if (threadIdx.x != 0) return;
  *loss = part / counted;
  *count = static_cast<float>(counted);
}

template <class T>
struct cross_entropy_gradient_rows {
  static constexpr bool one_pass = true;
  pointer<const T> logits;
  pointer<const std::int32_t> target;
  pointer<const float> log_sum, count;
  pointer<T> dx;
  index width;
  double scale;
  template <int N, int Held, class Lanes>
  __device__ __forceinline__ void row(index r, const Lanes& lanes) const {
    const std::int32_t label = target[r];
    const float sum = log_sum[r], share = label < 0 ? 0.0F : static_cast<float>(scale / static_cast<double>(*count));
    for (index at = lanes.rank() * N; at < width; at += Lanes::count * N) {
      float v[N];
      load_all<N, T>(logits + (r * width + at), v);
#pragma unroll
      for (int j = 0; j < N; ++j) {
        v[j] = at + j == label ? native::math::cross_entropy_gradient_at_target(v[j], sum, share)
                               : native::math::cross_entropy_gradient(v[j], sum, share);
      }
      store_all<N, T>(dx + (r * width + at), v);
    }
  }
};
template <class T>
struct nll_gradient_rows {
  static constexpr bool one_pass = true;
  pointer<const std::int32_t> target;
  pointer<const float> count;
  pointer<T> dx;
  index width;
  double scale;
  template <int N, int Held, class Lanes>
  __device__ __forceinline__ void row(index r, const Lanes& lanes) const {
    const std::int32_t label = target[r];
    const auto share = static_cast<float>(-scale / static_cast<double>(*count));
    for (index at = lanes.rank() * N; at < width; at += Lanes::count * N) {
      float v[N];
#pragma unroll
      for (int j = 0; j < N; ++j) v[j] = label >= 0 && at + j == label ? share : 0.0F;
      store_all<N, T>(dx + (r * width + at), v);
    }
  }
};

template <class T>
struct squared_errors {
  pointer<const T> x, target;
  template <int N>
  __device__ __forceinline__ void at(index i, float& part) const {
    float a[N], b[N];
    load_all<N, T>(x + i, a);
    load_all<N, T>(target + i, b);
#pragma unroll
    for (int j = 0; j < N; ++j) part += (a[j] - b[j]) * (a[j] - b[j]);
  }
};
template <class T>
struct squared_error_gradients {
  pointer<const T> x, target;
  pointer<T> dx;
  float factor;
  template <int N>
  __device__ __forceinline__ void at(index i) const {
    float a[N], b[N];
    load_all<N, T>(x + i, a);
    load_all<N, T>(target + i, b);
#pragma unroll
    for (int j = 0; j < N; ++j) a[j] = native::math::squared_error_gradient(a[j], b[j], factor);
    store_all<N, T>(dx + i, a);
  }
};

template <class T>
struct binary_cross_entropies {
  pointer<const T> x;
  float target;
  template <int N>
  __device__ __forceinline__ void at(index i, float& part) const {
    float v[N];
    load_all<N, T>(x + i, v);
#pragma unroll
    for (int j = 0; j < N; ++j) part += native::math::binary_cross_entropy(v[j], target);
  }
};
template <class T>
struct binary_cross_entropy_gradients {
  pointer<const T> x;
  pointer<T> dx;
  float target, factor;
  template <int N>
  __device__ __forceinline__ void at(index i) const {
    float v[N];
    load_all<N, T>(x + i, v);
#pragma unroll
    for (int j = 0; j < N; ++j) v[j] = native::math::binary_cross_entropy_gradient(v[j], target, factor);
    store_all<N, T>(dx + i, v);
  }
};

struct best_score {
  float score;
  index at;
};
/// Returns: the better score; of equal scores the first, as std::max_element.
__device__ __forceinline__ best_score better(const best_score& a, const best_score& b) {
  return b.score > a.score || (b.score == a.score && b.at < a.at) ? b : a;
}
template <class T>
__global__ void __launch_bounds__(block_size) count_right(pointer<const T> logits, pointer<const std::int32_t> target,
                                                          index rows, index width, pointer<int> count) {
  const index r = static_cast<index>(blockIdx.x) * (block_size / 32) + threadIdx.x / 32;
  if (r >= rows) return;
  best_score best{-infinity, width};
  for (index at = threadIdx.x % 32; at < width; at += 32) {
    best = better(best, {widen<T>(logits[r * width + at]), at});
  }
#pragma unroll
  for (int bits = 16; bits > 0; bits /= 2) {
    best = better(best, {__shfl_xor_sync(all_lanes, best.score, bits), __shfl_xor_sync(all_lanes, best.at, bits)});
  }
  if (threadIdx.x % 32 == 0 && best.at == target[r]) atomicAdd(count, 1);
}

}  // namespace detail

template <class T>
void cross_entropy(stream on, const T* logits, const std::int32_t* target, float* log_sum, float* term, double* loss,
                   float* count, index rows, index width) {
  constexpr int N = wide<T>;
  for_rows<N>(on, rows, width, fits<N>(logits), detail::cross_entropy_rows<T>{logits, target, log_sum, term, width});
  launch(on, {1, block_size}, detail::mean_of_terms<double>, term, target, rows, loss, count);
}
template <class T>
void cross_entropy_backward(stream on, const T* logits, const std::int32_t* target, const float* log_sum,
                            const float* count, T* dx, index rows, index width, double scale) {
  constexpr int N = wide<T>;
  for_rows<N>(on, rows, width, fits<N>(logits) && fits<N>(dx),
              detail::cross_entropy_gradient_rows<T>{logits, target, log_sum, count, dx, width, scale});
}
template <class T>
void nll_loss(stream on, const T* logp, const std::int32_t* target, float* term, double* loss, float* count, index rows,
              index width) {
  const dim3 blocks{static_cast<unsigned>((rows + block_size - 1) / block_size)};
  launch(on, {blocks, block_size}, detail::nll_terms<T>, logp, target, term, rows, width);
  launch(on, {1, block_size}, detail::mean_of_terms<double>, term, target, rows, loss, count);
}
template <class T>
void nll_loss_backward(stream on, const std::int32_t* target, const float* count, T* dx, index rows, index width,
                       double scale) {
  constexpr int N = wide<T>;
  for_rows<N>(on, rows, width, fits<N>(dx), detail::nll_gradient_rows<T>{target, count, dx, width, scale});
}
template <class T>
void mse_loss(stream on, const T* x, const T* target, index n, double* loss, float* scratch) {
  constexpr int N = wide<T>;
  total<N>(on, n, common_head<N>(x, target), detail::squared_errors<T>{x, target}, 1 / static_cast<double>(n), loss,
           scratch);
}
template <class T>
void mse_loss_backward(stream on, const T* x, const T* target, T* dx, index n, double scale) {
  constexpr int N = wide<T>;
  const auto factor = static_cast<float>(2 * scale / static_cast<double>(n));
  for_elements<N>(on, n, common_head<N>(x, target, static_cast<const T*>(dx)),
                  detail::squared_error_gradients<T>{x, target, dx, factor});
}
template <class T>
void binary_cross_entropy(stream on, const T* x, float target, index n, double* loss, float* scratch) {
  constexpr int N = wide<T>;
  total<N>(on, n, common_head<N>(x), detail::binary_cross_entropies<T>{x, target}, 1 / static_cast<double>(n), loss,
           scratch);
}
template <class T>
void binary_cross_entropy_backward(stream on, const T* x, float target, T* dx, index n, double scale) {
  constexpr int N = wide<T>;
  for_elements<N>(
      on, n, common_head<N>(x, static_cast<const T*>(dx)),
      detail::binary_cross_entropy_gradients<T>{x, dx, target, static_cast<float>(scale / static_cast<double>(n))});
}
template <class T>
void count_correct(stream on, const T* logits, const std::int32_t* target, int* count, index rows, index width) {
  constexpr index each = block_size / 32;
  const dim3 blocks{static_cast<unsigned>((rows + each - 1) / each)};
  launch(on, {blocks, block_size}, detail::count_right<T>, logits, target, rows, width, count);
}

}  // namespace comp::cuda
