// SPDX-License-Identifier: Apache-2.0
// LibTorch's bernoulli_(p) on a CPU, the same numbers in less time. Dropout draws a number for each element, which
// ATen does one by one: that takes longer than the product before it. Here the generator's words are computed and
// compared in vectors. Numbers, the generator's state afterwards and so losses have the same bits: under
// other masks losses would differ by more than a precision makes them.
// If this build of LibTorch draws otherwise (by MKL), its own function runs.
// Source: ATen/core/MT19937RNGEngine.h, ATen/native/cpu/DistributionTemplates.h (bernoulli_kernel); PyTorch 2.11.0.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/equal.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <comp/core/cpu.hpp>
#include <comp_libtorch/hook/listener.hpp>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <mutex>
#include <optional>

#if defined(__GNUC__) && defined(__x86_64__)
#define COMP_LIBTORCH_X86 1
#else
#define COMP_LIBTORCH_X86 0
#endif
#define COMP_LIBTORCH_INLINE __attribute__((always_inline)) inline

namespace comp::libtorch::detail {

using word_vector [[gnu::vector_size(64)]] = std::uint32_t;
using long_vector [[gnu::vector_size(64)]] = std::int64_t;

/// The words of a Mersenne twister, several at a time.
class mt19937_words {
 public:
  /// Goes on from `state`, and changes it as so many single calls would.
  explicit mt19937_words(at::mt19937_data_pod& state) : state_{state} {}

  COMP_LIBTORCH_INLINE void fill(std::uint32_t* to, std::size_t count) {
    while (count > 0) {
      if (state_.left_ == 1) renew();
      const std::size_t here = std::min(count, static_cast<std::size_t>(state_.left_ - 1));
      temper(state_.state_.data() + state_.next_, to, here);
      state_.left_ -= static_cast<int>(here);
      state_.next_ += static_cast<std::uint32_t>(here);
      to += here;
      count -= here;
    }
  }

 private:
  static constexpr std::size_t size = at::MERSENNE_STATE_N, shift = at::MERSENNE_STATE_M, lanes = 16;

  template <class Words>
  static COMP_LIBTORCH_INLINE void twist(std::uint32_t* to, const std::uint32_t* next, const std::uint32_t* far) {
    Words u, v, w;
    std::memcpy(&u, to, sizeof u);
    std::memcpy(&v, next, sizeof v);
    std::memcpy(&w, far, sizeof w);
    w ^= ((u & at::UMASK) | (v & at::LMASK)) >> 1U ^ ((v & 1U) * static_cast<std::uint32_t>(at::MATRIX_A));
    std::memcpy(to, &w, sizeof w);
  }

  /// The next `size` words. `left_` is then one more than there are, as before a call that takes one.
  COMP_LIBTORCH_INLINE void renew() {
    std::uint32_t* s = state_.state_.data();
    std::size_t j = 0;
    for (; j + lanes <= size - shift; j += lanes) twist<word_vector>(s + j, s + j + 1, s + j + shift);
    for (; j < size - shift; ++j) twist<std::uint32_t>(s + j, s + j + 1, s + j + shift);
    for (; j + lanes <= size - 1; j += lanes) twist<word_vector>(s + j, s + j + 1, s + j + shift - size);
    for (; j < size - 1; ++j) twist<std::uint32_t>(s + j, s + j + 1, s + j + shift - size);
    twist<std::uint32_t>(s + j, s, s + shift - 1);
    state_.left_ = static_cast<int>(size) + 1;
    state_.next_ = 0;
  }

  template <class Words>
  static COMP_LIBTORCH_INLINE void temper_one(const std::uint32_t* from, std::uint32_t* to) {
    Words y;
    std::memcpy(&y, from, sizeof y);
    y ^= y >> 11U;
    y ^= (y << 7U) & 0x9d2c5680U;
    y ^= (y << 15U) & 0xefc60000U;
    y ^= y >> 18U;
    std::memcpy(to, &y, sizeof y);
  }
  static COMP_LIBTORCH_INLINE void temper(const std::uint32_t* from, std::uint32_t* to, std::size_t count) {
    std::size_t i = 0;
    for (; i + lanes <= count; i += lanes) temper_one<word_vector>(from + i, to + i);
    for (; i < count; ++i) temper_one<std::uint32_t>(from + i, to + i);
  }

  at::mt19937_data_pod& state_;
};

/// Writes `one` with probability `p`, else 0. A number takes two words, of which ATen makes a double below 1 from the
/// lower 53 bits; it is compared here as the integer that it is before.
template <class Element>
COMP_LIBTORCH_INLINE void draw_bernoulli(at::mt19937_data_pod& state, double p, Element one, Element* to,
                                         std::size_t count) {
  constexpr std::size_t block = 1024, lanes = 8;
  constexpr std::int64_t bits = (std::int64_t{1} << 53) - 1;
  using elements [[gnu::vector_size(lanes * sizeof(Element))]] = Element;
  const auto limit = static_cast<std::int64_t>(std::ceil(std::ldexp(p, 53)));
  mt19937_words source{state};
  std::array<std::uint32_t, 2 * block> drawn;
  for (std::size_t done = 0; done < count; done += block) {
    const std::size_t here = std::min(block, count - done);
    source.fill(drawn.data(), 2 * here);
    std::fill(drawn.begin() + static_cast<std::ptrdiff_t>(2 * here), drawn.end(), 0U);
    for (std::size_t i = 0; i < here; i += lanes) {
      long_vector pairs;
      std::memcpy(&pairs, drawn.data() + 2 * i, sizeof pairs);
      const long_vector numbers =
          ((pairs << 32) | ((pairs >> 32) & 0xffffffff)) & bits;  // the first word is the upper one
      const elements result = __builtin_convertvector(numbers < limit, elements) & one;
      std::memcpy(to + done + i, &result, std::min(lanes, here - i) * sizeof(Element));
    }
  }
}

#if COMP_LIBTORCH_X86
/// Returns: whether this CPU has what is compiled for AVX-512, and comp may use it.
inline bool has_avx512() {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
         __builtin_cpu_supports("avx512vl") && !without_avx512();
}
template <class Element>
__attribute__((target("avx2"))) void draw_bernoulli_avx2(at::mt19937_data_pod& state, double p, Element one,
                                                         Element* to, std::size_t count) {
  draw_bernoulli(state, p, one, to, count);
}
template <class Element>
__attribute__((target("avx512f,avx512bw,avx512dq,avx512vl"))) void draw_bernoulli_avx512(at::mt19937_data_pod& state,
                                                                                         double p, Element one,
                                                                                         Element* to,
                                                                                         std::size_t count) {
  draw_bernoulli(state, p, one, to, count);
}
#endif

/// Draws for all elements of `to`, by the widest vectors that this CPU has.
template <class Element>
void draw_bernoulli_widest(at::mt19937_data_pod& state, double p, Element one, at::Tensor& to) {
  auto* elements = static_cast<Element*>(to.mutable_data_ptr());
  const auto count = static_cast<std::size_t>(to.numel());
#if COMP_LIBTORCH_X86
  if (has_avx512()) return draw_bernoulli_avx512(state, p, one, elements, count);
  if (__builtin_cpu_supports("avx2")) return draw_bernoulli_avx2(state, p, one, elements, count);
#endif
  draw_bernoulli(state, p, one, elements, count);
}

/// Returns: false for a format that it has no numbers of.
inline bool draw_bernoulli(at::Tensor& to, double p, at::CPUGeneratorImpl& generator) {
  const std::lock_guard one_at_a_time{generator.mutex_};
  at::mt19937 engine = generator.engine();
  at::mt19937_data_pod state = engine.data();
  switch (to.scalar_type()) {
    case at::kFloat:
      draw_bernoulli_widest<std::int32_t>(state, p, 0x3f800000, to);
      break;
    case at::kBFloat16:
      draw_bernoulli_widest<std::int16_t>(state, p, 0x3f80, to);
      break;
    case at::kHalf:
      draw_bernoulli_widest<std::int16_t>(state, p, 0x3c00, to);
      break;
    case at::kDouble:
      draw_bernoulli_widest<std::int64_t>(state, p, 0x3ff0000000000000, to);
      break;
    case at::kBool:
      draw_bernoulli_widest<std::int8_t>(state, p, 1, to);
      break;
    default:
      return false;
  }
  engine.set_data(state);
  generator.set_engine(engine);
  return true;
}

/// Whether ATen draws as above, which is tried once.
inline bool draws_as_aten() {
  static const bool same = [] {
    const c10::impl::ExcludeDispatchKeyGuard atens_own{c10::autocast_dispatch_keyset};
    const at::Generator theirs = at::make_generator<at::CPUGeneratorImpl>(5489), ours = theirs.clone();
    at::Tensor expected = at::empty({1001}, at::kFloat), drawn = at::empty({1001}, at::kFloat);
    expected.bernoulli_(0.3, theirs);
    draw_bernoulli(drawn, 0.3, *at::check_generator<at::CPUGeneratorImpl>(ours));
    return at::equal(expected, drawn) && at::equal(theirs.get_state(), ours.get_state());
  }();
  return same;
}

/// LibTorch's bernoulli_(p), drawn here if that is the same: `to` a dense tensor that only autograd sees, and large
/// enough to gain.
/// Returns: false if nothing was drawn.
inline bool draw_as_aten(at::Tensor& to, double p, const std::optional<at::Generator>& generator) {
  constexpr std::int64_t worth_it = 256;
  const bool fits = only_autograd_sees(*to.unsafeGetTensorImpl()) && to.numel() >= worth_it && p >= 0 && p <= 1 &&
                    !to.requires_grad() && !to.is_inference() && to.is_non_overlapping_and_dense();
  if (!fits || !draws_as_aten()) return false;
  auto* of = at::get_generator_or_default<at::CPUGeneratorImpl>(generator, at::detail::getDefaultCPUGenerator());
  if (!draw_bernoulli(to, p, *of)) return false;
  to.unsafeGetTensorImpl()->bump_version();
  return true;
}

}  // namespace comp::libtorch::detail
