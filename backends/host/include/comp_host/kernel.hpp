// SPDX-License-Identifier: Apache-2.0
// Runs the loops for which oneDNN has no primitive, on all threads and with the widest vector unit of the CPU.
// A loop is a callable (from, to) marked COMP_HOST_KERNEL. It is inlined into three functions, compiled for AVX-512,
// for AVX2 and for the baseline, and the best one that the CPU can run is called. Other architectures and compilers
// have the baseline alone. So one binary is fast on every CPU.
// Ranges are split statically and sums go over pieces of fixed size, so that a result never depends on timing.
#pragma once

#include <algorithm>
#include <comp/core/cpu.hpp>
#include <cstddef>
#include <cstdint>
#include <vector>

#ifdef _OPENMP
#include <omp.h>
#endif

#if defined(__GNUC__) && (defined(__x86_64__) || defined(__i386__))
#define COMP_HOST_DISPATCH 1
#else
#define COMP_HOST_DISPATCH 0
#endif
#ifdef __clang__
#define COMP_HOST_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma"
#else
#define COMP_HOST_AVX512 "avx512f,avx512bw,avx512dq,avx512vl,avx2,fma,prefer-vector-width=512"
#endif
#define COMP_HOST_INLINE __attribute__((always_inline)) inline
#define COMP_HOST_KERNEL __attribute__((always_inline))

namespace comp::host {

enum class vector_unit : std::uint8_t { baseline, avx2, avx512 };

inline vector_unit widest_unit() {
#if COMP_HOST_DISPATCH
  static const vector_unit unit = [] {
    __builtin_cpu_init();
    if (__builtin_cpu_supports("avx512f") && __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512dq") &&
        __builtin_cpu_supports("avx512vl") && !without_avx512()) {
      return vector_unit::avx512;
    }
    const bool avx2 = __builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma");
    return avx2 ? vector_unit::avx2 : vector_unit::baseline;
  }();
  return unit;
#else
  return vector_unit::baseline;
#endif
}

/// Returns the number of threads that loops run on; 1 if the compiler has no OpenMP (oneDNN still has its own threads).
inline int threads_of_loops() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}
/// Returns the number of this thread among a loop's threads, from 0.
inline int this_thread() {
#ifdef _OPENMP
  return omp_get_thread_num();
#else
  return 0;
#endif
}
inline void set_threads([[maybe_unused]] int count) {
#ifdef _OPENMP
  omp_set_num_threads(count);
#endif
}

namespace detail {

#ifdef __clang__  // clang warns of each loop that it does not vectorise, which at -O1 are all
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpass-failed"
#endif
void run_baseline(const auto& kernel, std::size_t from, std::size_t to) { kernel(from, to); }
#if COMP_HOST_DISPATCH
template <class Kernel>
__attribute__((target("avx2,fma"))) void run_avx2(const Kernel& kernel, std::size_t from, std::size_t to) {
  kernel(from, to);
}
template <class Kernel>
__attribute__((target(COMP_HOST_AVX512))) void run_avx512(const Kernel& kernel, std::size_t from, std::size_t to) {
  kernel(from, to);
}
#endif
#ifdef __clang__
#pragma clang diagnostic pop
#endif

}  // namespace detail

/// Runs `kernel(from, to)` on this thread, in the widest version that this CPU can run.
void run_widest(const auto& kernel, std::size_t from, std::size_t to) {
#if COMP_HOST_DISPATCH
  if (widest_unit() == vector_unit::avx512) return detail::run_avx512(kernel, from, to);
  if (widest_unit() == vector_unit::avx2) return detail::run_avx2(kernel, from, to);
#endif
  detail::run_baseline(kernel, from, to);
}

/// Runs `kernel` over [0, n) on all threads. Below `grain` elements one thread does all, since waking the others would
/// take longer. Ranges begin at multiples of `unit`, so that no two threads write to one cache line.
void launch(std::size_t n, const auto& kernel, std::size_t grain = 8192, std::size_t unit = 64) {
  const auto threads = static_cast<std::size_t>(threads_of_loops());
  const std::size_t pieces = std::min(threads, n / std::max<std::size_t>(grain / 2, 1));
  if (pieces <= 1) return n ? run_widest(kernel, 0, n) : void();
  const std::size_t each = ((n + pieces - 1) / pieces + unit - 1) / unit * unit;
#pragma omp parallel for schedule(static) num_threads(static_cast <int>(pieces))
  for (std::size_t i = 0; i < pieces; ++i) {
    if (i * each < n) run_widest(kernel, i * each, std::min(n, (i + 1) * each));
  }
}

/// The same for a loop over rows of `width` elements each.
void launch_rows(std::size_t rows, std::size_t width, const auto& kernel) {
  launch(rows, kernel, std::max<std::size_t>(1, 8192 / std::max<std::size_t>(width, 1)), 1);
}

/// Returns the sum of `partial(from, to)` over pieces of fixed size. They are added in order, so that the result has
/// the same bits for any number of threads.
double launch_sum(std::size_t n, const auto& partial) {
  constexpr std::size_t piece = 16384;
  std::vector<double> sums((n + piece - 1) / piece);
  launch(
      sums.size(),
      [&](std::size_t from, std::size_t to) COMP_HOST_KERNEL {
        for (std::size_t i = from; i < to; ++i) sums[i] = partial(i * piece, std::min(n, (i + 1) * piece));
      },
      2, 1);
  double total = 0;
  for (const double sum : sums) total += sum;
  return total;
}

}  // namespace comp::host
