// SPDX-License-Identifier: Apache-2.0
// SGD, Adam and AdamW, each in one pass over a parameter's value, gradient and slots, and the sums over gradients that
// loss scaling and clipping need. A parameter that is not trainable, or has no gradient since the last zero_gradient,
// is left as it is.
// Source: torch.optim.SGD (no dampening), Adam and AdamW.
#pragma once

#include <cmath>
#include <comp_native/device.hpp>
#include <comp_native/math/updates.hpp>
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
/// Makes an optimizer slot if there is none. Returns: whether it was made, so that it has to be cleared.
inline bool needs_slot(context& c, const parameter& p, tensor& slot) {
  if (slot) return false;
  slot = c.make(p.value.shape(), p.value.layout());
  return true;
}
inline void clear(const tensor& t) { std::memset(t.data(), 0, t.layout()->bytes); }

inline void sgd_plain(context& c, parameter& p, const sgd_options& o) {
  float* value = p.value.as<float>();
  const float* gradient = p.gradient.as<float>();
  const native::math::sgd_update update{o};
  c.run_kernel([&] {
    update_values(c, p, [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
#pragma omp simd
      for (std::size_t i = begin; i < end; ++i) value[i] = update(value[i], gradient[i]);
    });
  });
}
inline void sgd_momentum(context& c, parameter& p, const sgd_options& o) {
  const bool first = needs_slot(c, p, p.first);
  float *value = p.value.as<float>(), *velocity = p.first.as<float>();
  const float* gradient = p.gradient.as<float>();
  const native::math::momentum_update update{o};
  c.run_kernel([&] {
    if (first) clear(p.first);
    update_values(c, p, [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
#pragma omp simd
      for (std::size_t i = begin; i < end; ++i) update(value[i], gradient[i], velocity[i]);
    });
  });
}

inline void adam_one(context& c, parameter& p, const native::math::adam_update& update) {
  const bool first_time = needs_slot(c, p, p.first), second_time = needs_slot(c, p, p.second);
  float *value = p.value.as<float>(), *first = p.first.as<float>(), *second = p.second.as<float>();
  const float* gradient = p.gradient.as<float>();
  c.run_kernel([&] {
    if (first_time) clear(p.first);
    if (second_time) clear(p.second);
    update_values(c, p, [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
#pragma omp simd
      for (std::size_t i = begin; i < end; ++i) update(value[i], gradient[i], first[i], second[i]);
    });
  });
}

}  // namespace detail

inline void sgd_step(context& c, std::span<parameter* const> all, const sgd_options& o) {
  for (parameter* p : all) {
    if (!detail::has_gradient(*p)) continue;
    o.momentum == 0 ? detail::sgd_plain(c, *p, o) : detail::sgd_momentum(c, *p, o);
  }
}
inline void adam_step(context& c, std::span<parameter* const> all, const adam_options& o, std::int64_t step) {
  require<error>(step >= 1, "adam_step number {} (steps count from 1): start at 1", step);
  const native::math::adam_update update{o, step};
  for (parameter* p : all) {
    if (!detail::has_gradient(*p)) continue;
    detail::adam_one(c, *p, update);
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
        std::uint32_t bad = 0;  // an exponent of all ones is an infinity or NaN
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
