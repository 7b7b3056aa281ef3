// SPDX-License-Identifier: Apache-2.0
// What cuBLASLt's documentation allows: which types go together, what sizes and alignments FP8 asks for, which
// algorithms there are for a problem and what they need.
#pragma once

#include <algorithm>
#include <utility>
#include <vector>

#include "blas_types.hpp"

namespace simt::blas {

/// What is to be computed, as values: D (m,n) = epilogue(alpha op(A) op(B) + beta C), all by columns.
struct problem {
  cublasLtMatmulDescOpaque_t of;
  cublasLtMatrixLayoutOpaque_t a, b, c, d;

  bool fp8() const { return is_fp8(a.type); }
  bool has_bias() const { return (of.epilogue & CUBLASLT_EPILOGUE_BIAS) != 0; }
  std::uint64_t m() const { return d.rows; }
  std::uint64_t n() const { return d.cols; }
  std::uint64_t k() const { return of.transpose_a ? a.rows : a.cols; }
  /// The documentation: as D, but BF16 for FP8 operands with FP32 results.
  cudaDataType_t bias_type() const { return fp8() && d.type == CUDA_R_32F ? CUDA_R_16BF : d.type; }
};
struct operands {
  const void *a, *b, *c;
  void* d;
  void* workspace;
  std::size_t workspace_bytes;
  float alpha, beta;
};

constexpr bool matrix_fits(const cublasLtMatrixLayoutOpaque_t& l) {
  return l.rows > 0 && l.cols > 0 && l.ld >= static_cast<std::int64_t>(l.rows) && l.batch > 0 && l.batch_stride >= 0;
}
/// The header: usually sizes of 32 bits. Not documented: larger batches are refused by some releases.
constexpr bool matrix_is_small(const cublasLtMatrixLayoutOpaque_t& l) {
  return l.rows <= 0x7fffffff && l.cols <= 0x7fffffff && l.batch <= 65535;
}
inline bool sizes_fit(const problem& p) {
  const auto& [of, a, b, c, d] = p;
  for (const auto* l : {&a, &b, &c, &d}) {
    if (!matrix_fits(*l) || l->batch != d.batch) return false;
  }
  const std::uint64_t b_rows = of.transpose_b ? b.cols : b.rows, b_cols = of.transpose_b ? b.rows : b.cols;
  return (of.transpose_a ? a.cols : a.rows) == d.rows && b_cols == d.cols && b_rows == p.k() && c.rows == d.rows &&
         c.cols == d.cols;
}
inline bool at_least(int major, int minor) {
  const auto& has = device.properties;
  return has.major > major || (has.major == major && has.minor >= minor);
}
/// FP8: 16 bytes' alignment throughout, M a multiple of 16 whatever D is, A transposed and B not, E5M2 not twice.
inline bool fp8_fits(const problem& p) {
  const auto& [of, a, b, c, d] = p;
  const auto whole = [](std::int64_t elements, cudaDataType type) {
    return static_cast<std::size_t>(elements) * bytes_of(type) % 16 == 0;
  };
  return !(a.type == CUDA_R_8F_E5M2 && b.type == CUDA_R_8F_E5M2) && of.transpose_a == CUBLAS_OP_T &&
         of.transpose_b == CUBLAS_OP_N && whole(static_cast<std::int64_t>(p.k()), a.type) && whole(a.ld, a.type) &&
         whole(b.ld, b.type) && p.m() % 16 == 0 && whole(d.ld, d.type) && whole(c.ld, c.type);
}
/// The table of supported types: (compute, A, B, C, D).
inline bool types_fit(const problem& p) {
  const auto& [of, a, b, c, d] = p;
  if (c.type != d.type || of.scale != CUDA_R_32F) return false;
  if (of.compute == CUBLAS_COMPUTE_32F_FAST_TF32) {
    return at_least(8, 0) && a.type == CUDA_R_32F && b.type == CUDA_R_32F && d.type == CUDA_R_32F;
  }
  if (p.fp8() || is_fp8(b.type)) {
    return is_fp8(a.type) && is_fp8(b.type) && at_least(8, 9) && !is_fp8(d.type) && fp8_fits(p);
  }
  if (a.type != b.type || (a.type == CUDA_R_16BF && !at_least(8, 0))) return false;
  return d.type == a.type || d.type == CUDA_R_32F;
}
/// Returns: INVALID_VALUE for a contradiction, NOT_SUPPORTED for what the documentation does not list.
inline cublasStatus_t allowed(const problem& p) {
  if (!sizes_fit(p)) return CUBLAS_STATUS_INVALID_VALUE;
  for (const auto* l : {&p.a, &p.b, &p.d}) {
    if (!matrix_is_small(*l)) return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  const auto epilogue = p.of.epilogue;
  if (epilogue != CUBLASLT_EPILOGUE_DEFAULT && epilogue != CUBLASLT_EPILOGUE_RELU &&
      epilogue != CUBLASLT_EPILOGUE_BIAS && epilogue != CUBLASLT_EPILOGUE_RELU_BIAS) {
    return CUBLAS_STATUS_NOT_SUPPORTED;
  }
  if (!p.fp8() && (p.of.scale_a || p.of.scale_b)) return CUBLAS_STATUS_INVALID_VALUE;
  if (!types_fit(p)) return CUBLAS_STATUS_NOT_SUPPORTED;
  if (p.has_bias() && !p.of.bias) return CUBLAS_STATUS_INVALID_VALUE;
  const std::int32_t stored = p.of.bias_type < 0 ? static_cast<std::int32_t>(p.d.type) : p.of.bias_type;
  if (p.has_bias() && stored != p.bias_type()) return CUBLAS_STATUS_NOT_SUPPORTED;
  return CUBLAS_STATUS_SUCCESS;
}

/// The same for the same problem; pointers are no part of it.
inline std::uint64_t fingerprint(const problem& p) {
  std::uint64_t h = 1469598103934665603U;
  const auto mix = [&](std::uint64_t v) { h = (h ^ v) * 1099511628211U; };
  for (const auto* l : {&p.a, &p.b, &p.c, &p.d}) {
    for (const std::uint64_t v :
         {static_cast<std::uint64_t>(l->type), l->rows, l->cols, static_cast<std::uint64_t>(l->ld),
          static_cast<std::uint64_t>(l->batch_stride), static_cast<std::uint64_t>(l->batch)}) {
      mix(v);
    }
  }
  for (const std::uint64_t v : {static_cast<std::uint64_t>(p.of.compute), std::uint64_t{p.of.epilogue},
                                static_cast<std::uint64_t>(p.of.transpose_a),
                                static_cast<std::uint64_t>(p.of.transpose_b), static_cast<std::uint64_t>(p.of.fast)}) {
    mix(v);
  }
  return h;
}
inline std::uint64_t alignment_of(const void* p, std::uint64_t most) {
  const auto at = reinterpret_cast<std::uint64_t>(p);
  return at == 0 ? most : std::min(most, at & -at);
}

enum algorithm : std::uint64_t { vectors, elements, split, split_in_place };

/// Those that a preference allows, the best first. What the mask lets through and is not the same in every run comes
/// first, so that who forgets the mask finds it.
inline std::vector<std::pair<cublasLtMatmulAlgo_t, std::size_t>> algorithms(
    const problem& p, const cublasLtMatmulPreferenceOpaque_t& wish) {
  std::vector<std::pair<cublasLtMatmulAlgo_t, std::size_t>> found;
  const std::uint64_t aligned = std::min({wish.alignment_a, wish.alignment_b, wish.alignment_c, wish.alignment_d});
  const auto rows_aligned = [](const cublasLtMatrixLayoutOpaque_t& l) {
    return static_cast<std::size_t>(l.ld) * bytes_of(l.type) % 16 == 0 &&
           static_cast<std::size_t>(l.batch_stride) * bytes_of(l.type) % 16 == 0;
  };
  const bool by_vectors = aligned >= 16 && rows_aligned(p.a) && rows_aligned(p.b) && rows_aligned(p.d);
  const std::uint64_t bias = p.has_bias() ? alignment_of(p.of.bias, 16) : 1;
  const auto offer = [&](algorithm id, std::size_t workspace, std::uint64_t alignment) {
    if (workspace > wish.workspace) return;
    const auto at_least_one = [&](const cublasLtMatrixLayoutOpaque_t& l) {
      return std::max<std::uint64_t>(alignment, bytes_of(l.type));
    };
    found.push_back({{{fingerprint(p), id, workspace, at_least_one(p.a), at_least_one(p.b), at_least_one(p.c),
                       at_least_one(p.d), bias}},
                     workspace});
  };
  const std::size_t partials = 2 * p.m() * p.n() * static_cast<std::size_t>(p.d.batch) * sizeof(float);
  if (p.k() >= 2 && !p.fp8() && (wish.reductions & CUBLASLT_REDUCTION_SCHEME_INPLACE)) offer(split_in_place, 0, 1);
  if (by_vectors) offer(vectors, 0, 16);
  if (by_vectors && p.k() >= 32 && (wish.reductions & CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE))
    offer(split, partials, 16);
  if (!p.fp8()) offer(elements, 0, 1);
  return found;
}

/// True when `algo` was found for this problem, and its workspace and alignments are there.
inline bool fits(const cublasLtMatmulAlgo_t& algo, const problem& p, const operands& at) {
  if (algo.data[0] != fingerprint(p) || at.workspace_bytes < algo.data[2]) return false;
  if (algo.data[2] && (!at.workspace || alignment_of(at.workspace, 256) < 256)) return false;
  const void* pointers[] = {at.a, at.b, at.beta != 0 ? at.c : at.d, at.d, p.has_bias() ? p.of.bias : nullptr};
  for (std::size_t i = 0; i < 5; ++i) {
    if (alignment_of(pointers[i], algo.data[3 + i]) < algo.data[3 + i]) return false;
  }
  return at.beta == 0 || at.c;
}

}  // namespace simt::blas
