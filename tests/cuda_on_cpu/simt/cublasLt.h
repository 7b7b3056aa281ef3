// SPDX-License-Identifier: Apache-2.0
// Stands in for cuBLASLt: the calls that the backend uses, with the documented results. What the documentation lists is
// computed (blas_product.hpp), what it does not list has no algorithm (blas_rules.hpp). Stricter than the library: an
// algorithm runs only for the sizes and alignments it was found for, and what would read or write elsewhere is a fault.
#pragma once

#include <cstring>

#include "blas_product.hpp"
#include "blas_rules.hpp"

struct cublasLtContext {
  char unused = 0;
};
using cublasLtHandle_t = cublasLtContext*;

struct cublasLtMatmulHeuristicResult_t {
  cublasLtMatmulAlgo_t algo;
  std::size_t workspaceSize;
  cublasStatus_t state;
  float wavesCount;
  int reserved[4];
};

namespace simt::blas {

inline object_set<cublasLtContext> handles;
inline object_set<cublasLtMatrixLayoutOpaque_t> layouts;
inline object_set<cublasLtMatmulDescOpaque_t> descriptors;
inline object_set<cublasLtMatmulPreferenceOpaque_t> preferences;
/// How many of all of them were made and not destroyed.
inline std::size_t live() { return handles.size() + layouts.size() + descriptors.size() + preferences.size(); }

template <class F>
cublasStatus_t call(F f) {
  return library_call(CUBLAS_STATUS_INTERNAL_ERROR, f);
}
/// Copies the value of an attribute. Returns: INVALID_VALUE for another size than the attribute has.
template <class T>
cublasStatus_t set(T& to, const void* from, std::size_t bytes) {
  if (!from || bytes != sizeof(T)) return CUBLAS_STATUS_INVALID_VALUE;
  std::memcpy(&to, from, bytes);
  return CUBLAS_STATUS_SUCCESS;
}
inline problem known(cublasLtMatmulDesc_t of, cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d) {
  return {descriptors.get(of), layouts.get(a), layouts.get(b), layouts.get(c), layouts.get(d)};
}

}  // namespace simt::blas

inline const char* cublasLtGetStatusName(cublasStatus_t status) { return simt::blas::name(status); }

inline std::size_t cublasLtGetVersion() { return 130100; }
inline cublasStatus_t cublasLtCreate(cublasLtHandle_t* to) {
  return simt::blas::call([=] { return *to = simt::blas::handles.make(), CUBLAS_STATUS_SUCCESS; });
}
inline cublasStatus_t cublasLtDestroy(cublasLtHandle_t h) { return simt::blas::destroyed(simt::blas::handles, h); }

inline cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t* to, cudaDataType type, std::uint64_t rows,
                                                 std::uint64_t cols, std::int64_t ld) {
  return simt::blas::call([=] {
    *to = simt::blas::layouts.make();
    (*to)->type = type, (*to)->rows = rows, (*to)->cols = cols, (*to)->ld = ld;
    return CUBLAS_STATUS_SUCCESS;
  });
}
inline cublasStatus_t cublasLtMatrixLayoutDestroy(cublasLtMatrixLayout_t l) {
  return simt::blas::destroyed(simt::blas::layouts, l);
}
inline cublasStatus_t cublasLtMatrixLayoutSetAttribute(cublasLtMatrixLayout_t l, cublasLtMatrixLayoutAttribute_t which,
                                                       const void* from, std::size_t bytes) {
  return simt::blas::call([=] {
    auto& of = simt::blas::layouts.get(l);
    if (which == CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT) return simt::blas::set(of.batch, from, bytes);
    return simt::blas::set(of.batch_stride, from, bytes);
  });
}

inline cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t* to, cublasComputeType_t compute,
                                               cudaDataType_t scale) {
  return simt::blas::call([=] {
    *to = simt::blas::descriptors.make();
    (*to)->compute = compute, (*to)->scale = scale;
    return CUBLAS_STATUS_SUCCESS;
  });
}
inline cublasStatus_t cublasLtMatmulDescDestroy(cublasLtMatmulDesc_t d) {
  return simt::blas::destroyed(simt::blas::descriptors, d);
}
inline cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d, cublasLtMatmulDescAttributes_t which,
                                                     const void* from, std::size_t bytes) {
  return simt::blas::call([=] {
    auto& of = simt::blas::descriptors.get(d);
    const auto set = [=](auto& to) { return simt::blas::set(to, from, bytes); };
    if (which == CUBLASLT_MATMUL_DESC_TRANSA) return set(of.transpose_a);
    if (which == CUBLASLT_MATMUL_DESC_TRANSB) return set(of.transpose_b);
    if (which == CUBLASLT_MATMUL_DESC_EPILOGUE) return set(of.epilogue);
    if (which == CUBLASLT_MATMUL_DESC_BIAS_POINTER) return set(of.bias);
    if (which == CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE) return set(of.bias_type);
    if (which == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER) return set(of.scale_a);
    if (which == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER) return set(of.scale_b);
    if (which == CUBLASLT_MATMUL_DESC_FAST_ACCUM) return set(of.fast);
    return CUBLAS_STATUS_INVALID_VALUE;
  });
}

inline cublasStatus_t cublasLtMatmulPreferenceCreate(cublasLtMatmulPreference_t* to) {
  return simt::blas::call([=] { return *to = simt::blas::preferences.make(), CUBLAS_STATUS_SUCCESS; });
}
inline cublasStatus_t cublasLtMatmulPreferenceDestroy(cublasLtMatmulPreference_t p) {
  return simt::blas::destroyed(simt::blas::preferences, p);
}
inline cublasStatus_t cublasLtMatmulPreferenceSetAttribute(cublasLtMatmulPreference_t p,
                                                           cublasLtMatmulPreferenceAttributes_t which, const void* from,
                                                           std::size_t bytes) {
  return simt::blas::call([=] {
    auto& of = simt::blas::preferences.get(p);
    const auto set = [=](auto& to) { return simt::blas::set(to, from, bytes); };
    if (which == CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES) return set(of.workspace);
    if (which == CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK) return set(of.reductions);
    if (which == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES) return set(of.alignment_a);
    if (which == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES) return set(of.alignment_b);
    if (which == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES) return set(of.alignment_c);
    if (which == CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES) return set(of.alignment_d);
    return CUBLAS_STATUS_INVALID_VALUE;
  });
}

inline cublasStatus_t cublasLtMatmulAlgoGetHeuristic(cublasLtHandle_t h, cublasLtMatmulDesc_t d,
                                                     cublasLtMatrixLayout_t a, cublasLtMatrixLayout_t b,
                                                     cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t to,
                                                     cublasLtMatmulPreference_t wish, int most,
                                                     cublasLtMatmulHeuristicResult_t* results, int* count) {
  return simt::blas::call([=] {
    *count = 0;
    if (!simt::blas::handles.has(h)) return CUBLAS_STATUS_NOT_INITIALIZED;
    if (most <= 0) return CUBLAS_STATUS_INVALID_VALUE;
    const simt::blas::problem p = simt::blas::known(d, a, b, c, to);
    if (const cublasStatus_t s = simt::blas::allowed(p); s != CUBLAS_STATUS_SUCCESS) return s;
    for (const auto& [algo, workspace] : simt::blas::algorithms(p, simt::blas::preferences.get(wish))) {
      if (*count == most) break;
      results[(*count)++] = {algo, workspace, CUBLAS_STATUS_SUCCESS, 1.0F, {}};
    }
    return *count ? CUBLAS_STATUS_SUCCESS : CUBLAS_STATUS_NOT_SUPPORTED;
  });
}

inline cublasStatus_t cublasLtMatmul(cublasLtHandle_t h, cublasLtMatmulDesc_t d, const void* alpha, const void* A,
                                     cublasLtMatrixLayout_t a, const void* B, cublasLtMatrixLayout_t b,
                                     const void* beta, const void* C, cublasLtMatrixLayout_t c, void* D,
                                     cublasLtMatrixLayout_t to, const cublasLtMatmulAlgo_t* algo, void* workspace,
                                     std::size_t bytes, cudaStream_t stream) {
  return simt::blas::call([=] {
    if (!simt::blas::handles.has(h)) return CUBLAS_STATUS_NOT_INITIALIZED;
    const simt::blas::problem p = simt::blas::known(d, a, b, c, to);
    if (const cublasStatus_t s = simt::blas::allowed(p); s != CUBLAS_STATUS_SUCCESS) return s;
    if (!alpha || !beta || !A || !B || !D || !algo || !known_stream(stream)) return CUBLAS_STATUS_INVALID_VALUE;
    const simt::blas::operands at{
        A, B, C, D, workspace, bytes, *static_cast<const float*>(alpha), *static_cast<const float*>(beta)};
    if (bytes && !workspace) throw simt::fault{"a product is told of workspace and given none"};
    if (!simt::blas::fits(*algo, p, at)) return CUBLAS_STATUS_INVALID_VALUE;
    simt::blas::require_apart(p, at);
    simt::note_workspace(bytes);
    simt::device.give(stream, [=, id = algo->data[1]] { simt::blas::multiply(p, at, id); });
    return CUBLAS_STATUS_SUCCESS;
  });
}
