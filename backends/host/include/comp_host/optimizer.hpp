// SPDX-License-Identifier: Apache-2.0
// SGD, Adam and AdamW as one pass over value, gradient and slots, and what a loss scaler asks of the gradients.
// A parameter without a gradient since the last zero_gradient, or not trainable, is left as it is.
// Source: torch.optim.SGD (no dampening), Adam and AdamW.
#pragma once

#include <cmath>
#include <comp_native/device.hpp>
#include <cstdint>
#include <cstring>
#include <span>

#include "context.hpp"
#include "parameter.hpp"

namespace comp::host {

using native::adam_options;
using native::sgd_options;

namespace detail {

inline bool has_gradient(const parameter& p) { return p.trainable && !p.fresh; }
inline bool needs_slot(context& c, const parameter& p, tensor& slot) {
  if (slot) return false;
  slot = c.make(p.value.shape(), p.value.layout());
  return true;
}
inline void clear(const tensor& t) { std::memset(t.data(), 0, t.layout()->bytes); }

inline void sgd_plain(context& c, parameter& p, const sgd_options& o) {
  float* value = p.value.as<float>();
  const float* gradient = p.gradient.as<float>();
  const auto rate = static_cast<float>(o.learning_rate), decay = static_cast<float>(o.weight_decay);
  c.run_kernel([&] {
    launch(p.stored(), [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
#pragma omp simd
      for (std::size_t i = begin; i < end; ++i) value[i] -= rate * (gradient[i] + decay * value[i]);
    });
  });
}
inline void sgd_momentum(context& c, parameter& p, const sgd_options& o) {
  const bool first = needs_slot(c, p, p.first);
  float *value = p.value.as<float>(), *velocity = p.first.as<float>();
  const float* gradient = p.gradient.as<float>();
  const auto rate = static_cast<float>(o.learning_rate), decay = static_cast<float>(o.weight_decay),
             momentum = static_cast<float>(o.momentum);
  const bool nesterov = o.nesterov;
  c.run_kernel([&] {
    if (first) clear(p.first);
    launch(p.stored(), [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
#pragma omp simd
      for (std::size_t i = begin; i < end; ++i) {
        const float g = gradient[i] + decay * value[i];
        const float v = momentum * velocity[i] + g;
        velocity[i] = v;
        value[i] -= rate * (nesterov ? g + momentum * v : v);
      }
    });
  });
}

/// The factors of a step of Adam, in FP32.
struct adam_factors {
  float beta1, beta2, rest1, rest2, rate, root2, eps, decay, shrink;
  adam_factors(const adam_options& o, std::int64_t step)
      : beta1{static_cast<float>(o.beta1)},
        beta2{static_cast<float>(o.beta2)},
        rest1{static_cast<float>(1 - o.beta1)},
        rest2{static_cast<float>(1 - o.beta2)},
        rate{static_cast<float>(o.learning_rate / (1 - std::pow(o.beta1, static_cast<double>(step))))},
        root2{static_cast<float>(1 / std::sqrt(1 - std::pow(o.beta2, static_cast<double>(step))))},
        eps{static_cast<float>(o.eps)},
        decay{static_cast<float>(o.decoupled ? 0 : o.weight_decay)},
        shrink{static_cast<float>(o.decoupled ? 1 - o.learning_rate * o.weight_decay : 1)} {}
};
/// The square root of v >= 0 to an ulp or two: a sqrt that may set errno stops the vectoriser.
/// Source: the reciprocal root's first guess from the bits, and three steps of Newton's method.
COMP_HOST_INLINE float root_of(float v) {
  float r = __builtin_bit_cast(float, 0x5f3759dfU - (__builtin_bit_cast(std::uint32_t, v) >> 1));
  for (int i = 0; i < 3; ++i) r = r * (1.5F - (0.5F * v * r) * r);
  return v * r;
}
inline void adam_one(context& c, parameter& p, const adam_factors& f) {
  const bool first_time = needs_slot(c, p, p.first), second_time = needs_slot(c, p, p.second);
  float *value = p.value.as<float>(), *first = p.first.as<float>(), *second = p.second.as<float>();
  const float* gradient = p.gradient.as<float>();
  c.run_kernel([&] {
    if (first_time) clear(p.first);
    if (second_time) clear(p.second);
    launch(p.stored(), [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
#pragma omp simd
      for (std::size_t i = begin; i < end; ++i) {
        const float w = value[i] * f.shrink, g = gradient[i] + f.decay * w;
        const float m = f.beta1 * first[i] + f.rest1 * g, v = f.beta2 * second[i] + f.rest2 * g * g;
        first[i] = m;
        second[i] = v;
        value[i] = w - f.rate * m / (root_of(v) * f.root2 + f.eps);
      }
    });
  });
}

}  // namespace detail

inline void sgd_step(context& c, std::span<parameter* const> all, const sgd_options& o) {
  for (parameter* p : all) {
    if (!detail::has_gradient(*p)) continue;
    o.momentum == 0 ? detail::sgd_plain(c, *p, o) : detail::sgd_momentum(c, *p, o);
    p->changed();
  }
}
inline void adam_step(context& c, std::span<parameter* const> all, const adam_options& o, std::int64_t step) {
  require<error>(step >= 1, "adam_step number {} (steps count from 1): start at 1", step);
  const detail::adam_factors factors{o, step};
  for (parameter* p : all) {
    if (!detail::has_gradient(*p)) continue;
    detail::adam_one(c, *p, factors);
    p->changed();
  }
}

inline std::int64_t count_not_finite(context& c, std::span<parameter* const> all) {
  double count = 0;
  c.run_kernel([&] {
    for (const parameter* p : all) {
      if (!detail::has_gradient(*p)) continue;
      const auto* bits = p->gradient.as<std::uint32_t>();
      count += launch_sum(p->stored(), [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
        const std::uint32_t* word = bits;
        std::uint32_t bad = 0;
#pragma omp simd reduction(+ : bad)
        for (std::size_t i = begin; i < end; ++i) bad += (word[i] & 0x7f800000U) == 0x7f800000U;
        return static_cast<double>(bad);
      });
    }
  });
  return static_cast<std::int64_t>(count);
}
inline double gradient_norm(context& c, std::span<parameter* const> all) {
  double squares = 0;
  c.run_kernel([&] {
    for (const parameter* p : all) {
      if (!detail::has_gradient(*p)) continue;
      const float* g = p->gradient.as<float>();
      squares += launch_sum(p->stored(), [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
        const float* from = g;
        double total = 0;
#pragma omp simd reduction(+ : total)
        for (std::size_t i = begin; i < end; ++i) total += static_cast<double>(from[i]) * static_cast<double>(from[i]);
        return total;
      });
    }
  });
  return std::sqrt(squares);
}
inline void scale_gradients(context& c, std::span<parameter* const> all, double factor) {
  const auto by = static_cast<float>(factor);
  c.run_kernel([&] {
    for (parameter* p : all) {
      if (!detail::has_gradient(*p)) continue;
      float* g = p->gradient.as<float>();
      launch(p->stored(), [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
#pragma omp simd
        for (std::size_t i = begin; i < end; ++i) g[i] *= by;
      });
    }
  });
}

}  // namespace comp::host
