// SPDX-License-Identifier: Apache-2.0
// Launches the loops that oneDNN has no primitive for: on all threads, compiled for the vector unit that is there.
// A loop is a callable (from, to) marked COMP_HOST_KERNEL; it is inlined into a function compiled for AVX-512, AVX2 or
// the baseline, and the best that the CPU has is called. On other architectures and compilers: the baseline.
// Ranges are split statically and sums go over fixed pieces, so a result never depends on timing.
#pragma once

#include <algorithm>
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
        __builtin_cpu_supports("avx512vl")) {
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

/// The threads that loops run on; one where the compiler has no OpenMP (oneDNN keeps its own threads then).
inline int threads_of_loops() {
#ifdef _OPENMP
  return omp_get_max_threads();
#else
  return 1;
#endif
}
/// Which of a loop's threads this is, from 0 on.
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

#ifdef __clang__  // says so for each loop that it leaves scalar, as at -O1 all are
#pragma clang diagnostic push
#pragma clang diagnostic ignored "-Wpass-failed"
#endif
template <class Kernel>
void run_baseline(const Kernel& kernel, std::size_t from, std::size_t to) {
  kernel(from, to);
}
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

/// Runs `kernel(from, to)` on this thread, in the widest version that this CPU has.
template <class Kernel>
void run_widest(const Kernel& kernel, std::size_t from, std::size_t to) {
#if COMP_HOST_DISPATCH
  if (widest_unit() == vector_unit::avx512) return detail::run_avx512(kernel, from, to);
  if (widest_unit() == vector_unit::avx2) return detail::run_avx2(kernel, from, to);
#endif
  detail::run_baseline(kernel, from, to);
}

/// Runs `kernel` over [0, n) on all threads. `grain`: below it one thread does all; splits fall on multiples of `unit`.
template <class Kernel>
void launch(std::size_t n, const Kernel& kernel, std::size_t grain = 8192, std::size_t unit = 64) {
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
template <class Kernel>
void launch_rows(std::size_t rows, std::size_t width, const Kernel& kernel) {
  launch(rows, kernel, std::max<std::size_t>(1, 8192 / std::max<std::size_t>(width, 1)), 1);
}

/// The sum of `partial(from, to)` over pieces of fixed size, added in order: the same bits for any number of threads.
template <class Partial>
double launch_sum(std::size_t n, const Partial& partial) {
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
