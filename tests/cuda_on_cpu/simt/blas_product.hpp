// SPDX-License-Identifier: Apache-2.0
// The product itself, as cuBLASLt documents it: products summed in FP32 (TF32: operands rounded to 10 bits first),
// alpha, beta C, bias and ReLU (which makes 0 of NaN, as has been reported of it) in FP32, one rounding. An FP8 operand
// is multiplied by its scale. Fast accumulation of FP8 keeps 13 bits of fraction, about what the tensor cores of 8.9
// and 9.0 keep.
#pragma once

#include <cmath>
#include <comp_native/math/fp8.hpp>

#include "blas_rules.hpp"

namespace simt::blas {

namespace math = comp::native::math;

/// f(T{}) for the type that `type` stands for.
template <class F>
decltype(auto) with_type(cudaDataType_t type, F f) {
  switch (type) {
    case CUDA_R_16F:
      return f(math::fp16{});
    case CUDA_R_16BF:
      return f(math::bf16{});
    case CUDA_R_8F_E4M3:
      return f(math::e4m3{});
    case CUDA_R_8F_E5M2:
      return f(math::e5m2{});
    default:
      return f(float{});
  }
}
/// How many elements lie from the first to the last, of one matrix of a batch.
inline std::size_t span_of(const cublasLtMatrixLayoutOpaque_t& l) {
  return (l.cols - 1) * static_cast<std::size_t>(l.ld) + l.rows;
}
/// To that many bits of fraction, ties to even.
template <int Fraction>
float cut_to(float x) {
  if (!std::isfinite(x)) return x;
  constexpr std::uint32_t cut = 23 - Fraction, below_half = (1U << (cut - 1)) - 1;
  const auto bits = __builtin_bit_cast(std::uint32_t, x);
  return __builtin_bit_cast(float, (bits + below_half + (bits >> cut & 1U)) >> cut << cut);
}
inline float as_tf32(float x) { return cut_to<10>(x); }

/// Matrix `which` of the batch as FP32, by columns, (rows, cols) after the transposition that is asked for.
inline std::vector<float> values(const cublasLtMatrixLayoutOpaque_t& l, const void* from, std::int32_t which,
                                 bool transposed, bool tf32) {
  std::vector<float> to(l.rows * l.cols);
  with_type(l.type, [&](auto kind) {
    using T = decltype(kind);
    const T* start = static_cast<const T*>(from) + which * l.batch_stride;
    for (std::size_t c = 0; c < l.cols; ++c) {
      const T* column = library_reads<T>(start + c * static_cast<std::size_t>(l.ld), l.rows);
      for (std::size_t r = 0; r < l.rows; ++r) {
        const float v = math::load(column[r]);
        to[transposed ? r * l.cols + c : c * l.rows + r] = tf32 ? as_tf32(v) : v;
      }
    }
  });
  return to;
}

/// sum (m,n) += a (m,k) b (k,n) over k in [from, end), all by columns.
template <bool Fast = false>
void add_product(const float* a, const float* b, float* sum, std::size_t m, std::size_t n, std::size_t k,
                 std::size_t from, std::size_t end) {
  for (std::size_t j = 0; j < n; ++j) {
    float* const to = sum + j * m;
    for (std::size_t i = from; i < end; ++i) {
      const float factor = b[j * k + i];
      const float* const column = a + i * m;
      for (std::size_t r = 0; r < m; ++r)
        to[r] = Fast ? cut_to<13>(to[r] + column[r] * factor) : to[r] + column[r] * factor;
    }
  }
}

inline float as_stored(cudaDataType_t type, float v) {
  return with_type(type, [&](auto to) {
    math::store(to, v);
    return math::load(to);
  });
}

/// The sums of one matrix, as the algorithm makes them. The one that adds in place rounds its parts to D's type.
inline std::vector<float> sums(const problem& p, const operands& at, std::int32_t which, std::uint64_t id) {
  const std::size_t m = p.m(), n = p.n(), k = p.k(), half = k / 2;
  const bool tf32 = p.of.compute == CUBLAS_COMPUTE_32F_FAST_TF32;
  const auto a = values(p.a, at.a, which, p.of.transpose_a, tf32), b = values(p.b, at.b, which, p.of.transpose_b, tf32);
  std::vector<float> sum(m * n);
  if (p.of.fast && p.fp8()) return add_product<true>(a.data(), b.data(), sum.data(), m, n, k, 0, k), sum;
  if (id != split && id != split_in_place) return add_product(a.data(), b.data(), sum.data(), m, n, k, 0, k), sum;
  add_product(a.data(), b.data(), sum.data(), m, n, k, 0, half);
  std::vector<float> rest(m * n);
  add_product(a.data(), b.data(), rest.data(), m, n, k, half, k);
  for (std::size_t i = 0; i < m * n; ++i) {
    sum[i] = id == split ? sum[i] + rest[i] : as_stored(p.d.type, sum[i]) + as_stored(p.d.type, rest[i]);
  }
  return sum;
}

inline void store_result(const problem& p, const operands& at, std::int32_t which, const std::vector<float>& sum,
                         float alpha, const std::vector<float>& bias) {
  const bool relu = (p.of.epilogue & CUBLASLT_EPILOGUE_RELU) != 0;
  with_type(p.d.type, [&](auto kind) {
    using T = decltype(kind);
    for (std::size_t c = 0; c < p.n(); ++c) {
      const T* old = static_cast<const T*>(at.c) + which * p.c.batch_stride + c * static_cast<std::size_t>(p.c.ld);
      if (at.beta != 0) library_reads<T>(old, p.m());
      T* column = static_cast<T*>(at.d) + which * p.d.batch_stride + c * static_cast<std::size_t>(p.d.ld);
      for (std::size_t r = 0; r < p.m(); ++r) {
        float v = alpha * sum[c * p.m() + r];
        if (at.beta != 0) v += at.beta * math::load(old[r]);
        if (!bias.empty()) v += bias[r];
        if (relu && !(v > 0)) v = 0;
        if (r == 0) library_writes<T>(column, p.m());
        math::store(column[r], v);
      }
    }
  });
}

inline void multiply(const problem& p, const operands& at, std::uint64_t id) {
  float alpha = at.alpha;
  for (const void* scale : {p.of.scale_a, p.of.scale_b}) {
    if (scale) alpha *= *library_reads<float>(scale, 1);
  }
  std::vector<float> bias;
  if (p.has_bias()) {
    cublasLtMatrixLayoutOpaque_t of{p.bias_type(), p.m(), 1, static_cast<std::int64_t>(p.m()), 0, 1};
    bias = values(of, p.of.bias, 0, false, false);
  }
  library_writes<char>(at.workspace, at.workspace_bytes);  // it is free to use all that it is told of
  for (std::int32_t which = 0; which < p.d.batch; ++which) {
    store_result(p, at, which, sums(p, at, which, id), alpha, bias);
  }
}

/// Throws: fault if D lies over an operand or over itself, or the workspace over anything: the results would depend
/// on who is first. C may be D.
inline void require_apart(const problem& p, const operands& at) {
  const auto range = [](const cublasLtMatrixLayoutOpaque_t& l, const void* from) {
    const auto start = reinterpret_cast<std::uintptr_t>(from);
    const std::size_t all =
        static_cast<std::size_t>(l.batch - 1) * static_cast<std::size_t>(l.batch_stride) + span_of(l);
    return std::pair{start, start + all * bytes_of(l.type)};
  };
  const auto apart = [](auto x, auto y) { return x.second <= y.first || y.second <= x.first; };
  const auto a = range(p.a, at.a), b = range(p.b, at.b), d = range(p.d, at.d);
  const auto work = std::pair{reinterpret_cast<std::uintptr_t>(at.workspace),
                              reinterpret_cast<std::uintptr_t>(at.workspace) + at.workspace_bytes};
  bool good = apart(a, d) && apart(b, d);
  if (at.workspace_bytes) good = good && apart(work, a) && apart(work, b) && apart(work, d);
  if (at.beta != 0 && at.c != at.d) good = good && apart(range(p.c, at.c), d);
  if (p.d.batch > 1) good = good && static_cast<std::size_t>(p.d.batch_stride) >= span_of(p.d);
  if (at.beta != 0 && at.c == at.d) good = good && p.c.ld == p.d.ld && p.c.batch_stride == p.d.batch_stride;
  if (!good) throw fault{"a product is written over its own operands or workspace"};
}

}  // namespace simt::blas
