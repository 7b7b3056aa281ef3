// SPDX-License-Identifier: Apache-2.0
// Runs attention's heads on all threads (attention.hpp): the memory of each thread, and copying a head's rows into it
// and back. A head's rows have gaps between them in a tensor (batch,tokens,channels), which oneDNN's fast products do
// not take.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <exception>
#include <initializer_list>
#include <type_traits>
#include <utility>

#include "attention_blocks.hpp"
#include "context.hpp"
#include "convert.hpp"

namespace comp::host::detail {

/// Hands out pieces of a thread's memory, each at the begin of a cache line. Without memory it hands out null pointers
/// and counts, so that the same code first finds how much memory is needed.
class pieces {
 public:
  explicit pieces(void* from = nullptr) : from_{static_cast<std::byte*>(from)} {}
  template <class T>
  T* take(std::int64_t count) {
    const std::size_t lines = (static_cast<std::size_t>(count) * sizeof(T) + pool::alignment - 1) / pool::alignment;
    const std::size_t at = std::exchange(used_, used_ + lines * pool::alignment);
    return from_ ? reinterpret_cast<T*>(from_ + at) : nullptr;
  }
  /// Returns memory for `count` values of type T: `there` if T is float, else a new piece. FP32 values are computed in
  /// place.
  template <class T>
  T* take_or(float* there, std::int64_t count) {
    if constexpr (std::is_same_v<T, float>) {
      return there;
    } else {
      return take<T>(count);
    }
  }
  std::size_t used() const { return used_; }

 private:
  std::byte* from_;
  std::size_t used_ = 0;
};

/// A thread that computes heads one after the other.
struct head_worker {
  context& c;
  const block_products& products;
  dnnl::stream stream;
  int thread;
  void* scratch;

  void run(product kind, const score_block& b, const void* left, const void* right, void* to) const {
    c.run_on(
        stream, products(kind, b, thread),
        {{DNNL_ARG_SRC, const_cast<void*>(left)}, {DNNL_ARG_WEIGHTS, const_cast<void*>(right)}, {DNNL_ARG_DST, to}},
        scratch);
  }
};

/// Sets the number of threads of OpenMP and oneDNN to 1 for this thread while it lives, so that primitives are made for
/// a single thread.
class one_thread_each {
 public:
  one_thread_each() { set_threads(1); }
  one_thread_each(const one_thread_each&) = delete;
  one_thread_each& operator=(const one_thread_each&) = delete;
  ~one_thread_each() { set_threads(before_); }

 private:
  int before_ = threads_of_loops();
};

/// One head of one example: its first element in a tensor, and copies of its rows.
struct one_head {
  const attention_case& of;
  std::int64_t example, head;

  /// Return the head's first element in a tensor (batch,queries,channels) or (batch,keys,channels).
  template <class T>
  T* queries(T* all) const {
    return all + example * of.queries * of.channels() + head * of.width;
  }
  template <class T>
  T* keys(T* all) const {
    return all + example * of.keys * of.channels() + head * of.width;
  }
  /// Returns the number of its first query among all of batch and heads.
  std::int64_t row() const { return (example * of.heads + head) * of.queries; }

  /// Copies `rows` of its rows to `to`, without gaps.
  template <class From, class To>
  void take(const From* from, To* to, std::int64_t rows) const {
    each_row(rows, [=](std::size_t n, std::size_t there, std::size_t here) COMP_HOST_KERNEL {
      const From* x = from + there;
      To* y = to + here;
      if constexpr (std::is_same_v<From, To>) {
        std::memcpy(y, x, n * sizeof(To));
      } else if constexpr (std::is_same_v<From, fp16>) {
        convert(x, y, n);
      } else {
#pragma omp simd
        for (std::size_t i = 0; i < n; ++i) store(y[i], load(x[i]));
      }
    });
  }
  /// Copies rows back into the tensor, row r multiplied by factor(r).
  template <class To, class Factor>
  void put(float* from, To* to, std::int64_t rows, const Factor& factor) const {
    each_row(rows, [=](std::size_t n, std::size_t there, std::size_t here) COMP_HOST_KERNEL {
      float* x = from + here;
      To* y = to + there;
      const float by = factor(here / n);
      if constexpr (std::is_same_v<To, fp16>) {
#pragma omp simd
        for (std::size_t i = 0; i < n; ++i) x[i] *= by;
        convert(x, y, n);
      } else {
#pragma omp simd
        for (std::size_t i = 0; i < n; ++i) store(y[i], x[i] * by);
      }
    });
  }

 private:
  void each_row(std::int64_t rows, const auto& f) const {
    const auto n = static_cast<std::size_t>(of.width), step = static_cast<std::size_t>(of.channels());
    run_widest(
        [&](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
          for (std::size_t r = begin; r < end; ++r) f(n, r * step, r * n);
        },
        0, static_cast<std::size_t>(rows));
  }
};

/// Calls f(worker, Buffers, one_head) for all heads of all examples, on all threads. Buffers{pieces, case} takes the
/// thread's memory. An exception of a thread is thrown again here, since none may leave a parallel region.
template <class Buffers, class F>
void each_head(context& c, const attention_case& of, precision p, std::initializer_list<product> kinds, const F& f) {
  const std::int64_t heads = of.batch * of.heads;
  const int threads = static_cast<int>(std::min<std::int64_t>(threads_of_loops(), heads));
  const one_thread_each sequential;
  const block_products products{c, of, p, kinds, threads};
  const auto scratch_bytes = static_cast<std::int64_t>(products.scratch_bytes());
  pieces counted;
  (void)counted.take<std::byte>(scratch_bytes);
  (void)Buffers{counted, of};
  const std::size_t each = counted.used();
  const block memory{c.memory, each * static_cast<std::size_t>(threads)};
  std::exception_ptr failure;
  c.run_kernel([&] {
#pragma omp parallel for schedule(dynamic) num_threads(threads)
    for (std::int64_t i = 0; i < heads; ++i) {
      const int thread = this_thread();
      try {
        pieces own{static_cast<std::byte*>(memory.data()) + each * static_cast<std::size_t>(thread)};
        void* const scratch = own.take<std::byte>(scratch_bytes);
        f(head_worker{c, products, dnnl::stream{c.engine}, thread, scratch}, Buffers{own, of},
          one_head{of, i / of.heads, i % of.heads});
      } catch (...) {
#pragma omp critical(comp_host_attention)
        failure = std::current_exception();
      }
    }
  });
  if (failure) std::rethrow_exception(failure);
}

/// Sets to[r] to the dot product of row r of a and of b; both are (rows,width).
template <class A>
void multiply_rows(const A* a, const float* b, float* to, std::int64_t rows, std::int64_t width) {
  run_widest(
      [=, n = static_cast<std::size_t>(width)](std::size_t begin, std::size_t end) COMP_HOST_KERNEL {
        for (std::size_t r = begin; r < end; ++r) {
          const A* x = a + r * n;
          const float* y = b + r * n;
          float dot = 0;
#pragma omp simd reduction(+ : dot)
          for (std::size_t i = 0; i < n; ++i) dot += load(x[i]) * y[i];
          to[r] = dot;
        }
      },
      0, static_cast<std::size_t>(rows));
}

/// Calls f with the precision in which products read values of `p` (BF16 if the CPU computes in it, else FP32), and
/// null pointers of that type and of the type that stores `p`.
void with_products(context& c, precision p, const auto& f) {
  if (p == precision::bf16 && c.computes(p)) return f(p, static_cast<bf16*>(nullptr), static_cast<bf16*>(nullptr));
  with_storage(p, [&](auto* stored) { f(precision::fp32, static_cast<float*>(nullptr), stored); });
}

}  // namespace comp::host::detail
