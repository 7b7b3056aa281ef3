// SPDX-License-Identifier: Apache-2.0
// Runs a chain of element-wise steps of one storage in one launch: activations and their gradients, sums, products and
// dropouts. The launch reads each element once, computes in FP32, and rounds at the end, at values that are kept, and
// after steps that ask for it. With such rounding a chain has the bits of one launch for each operator.
// Steps are data and not types, because only a running model knows which neighbours fuse. All threads take the same
// branch of a step, so the switch costs little.
#pragma once

#include <comp/core/error.hpp>
#include <comp_native/math/elementwise.hpp>
#include <span>

#include "dropout.cuh"
#include "support/over_elements.cuh"

namespace comp::cuda {

namespace detail {

/// chain_step as the device reads it.
template <class T>
struct device_step {
  step_kind kind;
  bool rounds;
  pointer<const T> other;
  pointer<T> kept;
  float number;
  native::math::dropout_mask mask;
  pointer<const std::uint64_t> draws;
};

template <int N, class F>
__device__ __forceinline__ void map(float (&v)[N], F f) {
#pragma unroll
  for (int j = 0; j < N; ++j) v[j] = f(v[j]);
}
template <int N, class T, class F>
__device__ __forceinline__ void combine(float (&v)[N], pointer<const T> other, index i, F f) {
  float o[N];
  load_all<N, T>(other + i, o);
#pragma unroll
  for (int j = 0; j < N; ++j) v[j] = f(v[j], o[j]);
}
template <class T>
struct chain {
  pointer<const T> from;
  pointer<T> to;
  int count;
  device_step<T> steps[most_steps];

  template <int N>
  __device__ __forceinline__ void step(const device_step<T>& s, float (&v)[N], index i) const {
    namespace m = native::math;
    switch (s.kind) {
      case step_kind::relu:
        return map(v, m::relu{});
      case step_kind::gelu:
        return map(v, m::gelu{});
      case step_kind::gelu_tanh:
        return map(v, m::gelu_tanh{});
      case step_kind::tanh:
        return map(v, m::hyperbolic_tangent{});
      case step_kind::sigmoid:
        return map(v, m::sigmoid{});
      case step_kind::elu:
        return map(v, m::elu{});
      case step_kind::leaky_relu:
        return map(v, m::leaky_relu{});
      case step_kind::relu_backward:
        return combine<N, T>(v, s.other, i, [](float d, float y) { return m::relu{}.backward(d, y, y); });
      case step_kind::gelu_backward:
        return combine<N, T>(v, s.other, i, [](float d, float x) { return m::gelu{}.backward(d, x, x); });
      case step_kind::gelu_tanh_backward:
        return combine<N, T>(v, s.other, i, [](float d, float x) { return m::gelu_tanh{}.backward(d, x, x); });
      case step_kind::tanh_backward:
        return combine<N, T>(v, s.other, i, [](float d, float y) { return m::hyperbolic_tangent{}.backward(d, y, y); });
      case step_kind::sigmoid_backward:
        return combine<N, T>(v, s.other, i, [](float d, float y) { return m::sigmoid{}.backward(d, y, y); });
      case step_kind::elu_backward:
        return combine<N, T>(v, s.other, i, [](float d, float y) { return m::elu{}.backward(d, y, y); });
      case step_kind::leaky_relu_backward:
        return combine<N, T>(v, s.other, i, [](float d, float y) { return m::leaky_relu{}.backward(d, y, y); });
      case step_kind::add:
        return combine<N, T>(v, s.other, i, m::plus{});
      case step_kind::mul:
        return combine<N, T>(v, s.other, i, m::times{});
      case step_kind::scale:
        return map(v, [&](float x) { return x * s.number; });
      case step_kind::dropout:
        return drop(v, mask_of(s.mask, s.draws), i);
      case step_kind::keep:
        return store_all<N, T>(s.kept + i, v);
    }
  }
  template <int N>
  __device__ __forceinline__ void at(index i) const {
    float v[N];
    load_all<N, T>(from + i, v);
    for (int s = 0; s < count; ++s) {
      step(steps[s], v, i);
      if (sizeof(T) < sizeof(float) && steps[s].rounds) map(v, [](float x) { return widen<T>(narrow<T>(x)); });
    }
    store_all<N, T>(to + i, v);
  }
};

}  // namespace detail

template <class T>
void run_chain(stream on, const T* from, T* to, index n, std::span<const chain_step<T>> steps) {
  require<error>(steps.size() <= most_steps, "a chain of {} element-wise steps (one launch takes {}): split it",
                 steps.size(), most_steps);
  constexpr int N = wide<T>;
  detail::chain<T> c{from, to, static_cast<int>(steps.size()), {}};
  index head = common_head<N>(from, to);
  for (std::size_t s = 0; s < steps.size(); ++s) {
    const chain_step<T>& given = steps[s];
    c.steps[s] = {given.kind, given.rounds, given.other, given.kept, given.number, given.mask, given.draws};
    if (common_head<N>(from, to, given.other, static_cast<const T*>(given.kept)) != head) head = -1;
  }
  for_elements<N>(on, n, head, c);
}

}  // namespace comp::cuda
