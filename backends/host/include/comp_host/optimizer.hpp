// SPDX-License-Identifier: Apache-2.0
// SGD, Adam and AdamW, each in one pass over a parameter's value, gradient and slots, and the sums over gradients that
// loss scaling and clipping need. A parameter that is not trainable, or has no gradient since the last zero_gradient,
// is left as it is.
// Moments in a lower format are widened, updated and rounded piece by piece, so that the pass reads and writes them in
// memory in that format alone.
// Source: torch.optim.SGD (no dampening), Adam and AdamW.
#pragma once

#include <cmath>
#include <comp/core/random_rounding.hpp>
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
inline void clear(const tensor& t) { std::memset(t.data(), 0, t.layout()->bytes); }

/// The random words of a piece of a parameter. Its two moments take half of each.
struct random_words {
  static constexpr std::size_t piece = 512;
  alignas(64) std::uint32_t word[piece];
  COMP_HOST_INLINE void draw(std::uint64_t key, std::size_t at, std::size_t n) {
#pragma omp simd
    for (std::size_t i = 0; i < n; ++i) word[i] = random_word(key, at + i);
  }
};

/// The numbers of a moment from element `at` on. In BF16 they are those of a piece, which end() rounds.
class moment {
 public:
  moment() = default;  // of an optimizer that has none: numbers without a meaning
  /// `second`: which half of the random words it takes.
  moment(const tensor& of, bool second)
      : full_{of.precision() == precision::fp32 ? of.as<float>() : nullptr},
        low_{of.precision() == precision::fp32 ? nullptr : of.as<bf16>()},
        shift_{second ? 16U : 0U} {}

  COMP_HOST_INLINE float* begin(std::size_t at, std::size_t n, float* wide) const {
    if (full_) return full_ + at;
    if (!low_) return wide;
    const bf16* from = low_ + at;
#pragma omp simd
    for (std::size_t i = 0; i < n; ++i) wide[i] = load(from[i]);
    return wide;
  }
  COMP_HOST_INLINE void end(std::size_t at, std::size_t n, const float* wide, const random_words& drawn) const {
    if (!low_) return;
    bf16* to = low_ + at;
    const unsigned shift = shift_;
#pragma omp simd
    for (std::size_t i = 0; i < n; ++i) to[i].bits = bf16_at_random(wide[i], drawn.word[i] >> shift);
  }

 private:
  float* full_ = nullptr;
  bf16* low_ = nullptr;
  unsigned shift_ = 0;
};

/// Gives a slot the format `as`, if there is one.
inline void keep(context& c, tensor& slot, precision as, std::uint64_t key, bool second) {
  if (!slot || slot.precision() == as) return;
  if (as == precision::fp32) return void(slot = cast(c, slot, as));
  const tensor low = c.make(slot.shape(), c.layouts.with(slot.layout(), as));
  const moment to{low, second};
  const auto* from = slot.as<float>();
  c.run_kernel([&] {
    launch(slot.layout()->stored, [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
      random_words drawn;
      for (std::size_t at = begin; at < end; at += random_words::piece) {
        const std::size_t n = end - at < random_words::piece ? end - at : random_words::piece;
        drawn.draw(key, at, n);
        to.end(at, n, from + at, drawn);
      }
    });
  });
  slot = low;
}
/// Returns the slot in the format `as`, which is made and cleared if there is none.
inline const tensor& kept(context& c, const parameter& p, tensor& slot, precision as, bool second) {
  keep(c, slot, as, p.kept.key, second);
  if (!slot) {
    slot = c.make(p.value.shape(), c.layouts.with(p.value.layout(), as));
    clear(slot);
  }
  return slot;
}
/// Updates the values, and moments of which one is not in FP32, by update(value, gradient, first, second).
void update_kept(context& c, parameter& p, const moment& first, const moment& second, const auto& update) {
  float* value = p.value.as<float>();
  const float* gradient = p.gradient.as<float>();
  const std::uint64_t key = p.kept.key;
  c.run_kernel([&] {
    update_values(c, p, [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
      constexpr std::size_t piece = random_words::piece;
      alignas(64) float wide_first[piece], wide_second[piece];
      random_words drawn;
      for (std::size_t at = begin; at < end; at += piece) {
        const std::size_t n = end - at < piece ? end - at : piece;
        float *m = first.begin(at, n, wide_first), *v = second.begin(at, n, wide_second);
#pragma omp simd
        for (std::size_t i = 0; i < n; ++i) update(value[at + i], gradient[at + i], m[i], v[i]);
        drawn.draw(key, at, n);
        first.end(at, n, m, drawn);
        second.end(at, n, v, drawn);
      }
    });
  });
}

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
  const native::math::momentum_update update{o};
  const tensor& slot = kept(c, p, p.first, p.kept.first, false);
  if (p.kept.first != precision::fp32) {
    return update_kept(c, p, {slot, false}, {},
                       [=](float& w, float g, float& m, float&) COMP_HOST_KERNEL { update(w, g, m); });
  }
  float *value = p.value.as<float>(), *velocity = slot.as<float>();
  const float* gradient = p.gradient.as<float>();
  c.run_kernel([&] {
    update_values(c, p, [=](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
#pragma omp simd
      for (std::size_t i = begin; i < end; ++i) update(value[i], gradient[i], velocity[i]);
    });
  });
}

inline void adam_one(context& c, parameter& p, const native::math::adam_update& update) {
  const tensor &m = kept(c, p, p.first, p.kept.first, false), &v = kept(c, p, p.second, p.kept.second, true);
  if (p.kept.first != precision::fp32 || p.kept.second != precision::fp32)
    return update_kept(c, p, {m, false}, {v, true}, update);
  float *value = p.value.as<float>(), *first = m.as<float>(), *second = v.as<float>();
  const float* gradient = p.gradient.as<float>();
  c.run_kernel([&] {
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

/// Converts the moments to `formats`, and has the steps from here on keep them so. Each parameter gets a key of its
/// own.
inline void keep_moments(context& c, std::span<parameter* const> all, const native::moment_formats& formats) {
  for (std::size_t i = 0; i < all.size(); ++i) {
    parameter& p = *all[i];
    p.kept = {formats.first, formats.second, mix_key(formats.key, i)};
    detail::keep(c, p.first, formats.first, p.kept.key, false);
    detail::keep(c, p.second, formats.second, p.kept.key, true);
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
