// SPDX-License-Identifier: Apache-2.0
// Stands in for cuSPARSE's header: the calls of its generic interface that are in use, with their documented results.
// A status if the documentation has one; a fault if the library would read or write elsewhere, or use what has been
// destroyed. The work runs when the stream is waited for.
// Source: the documentation of cuSPARSE 12.6; numbers are those of its header.
#pragma once

#include "library_memory.hpp"
#include "library_types.h"

enum cusparseStatus_t {
  CUSPARSE_STATUS_SUCCESS = 0,
  CUSPARSE_STATUS_NOT_INITIALIZED = 1,
  CUSPARSE_STATUS_ALLOC_FAILED = 2,
  CUSPARSE_STATUS_INVALID_VALUE = 3,
  CUSPARSE_STATUS_ARCH_MISMATCH = 4,
  CUSPARSE_STATUS_MAPPING_ERROR = 5,
  CUSPARSE_STATUS_EXECUTION_FAILED = 6,
  CUSPARSE_STATUS_INTERNAL_ERROR = 7,
  CUSPARSE_STATUS_MATRIX_TYPE_NOT_SUPPORTED = 8,
  CUSPARSE_STATUS_ZERO_PIVOT = 9,
  CUSPARSE_STATUS_NOT_SUPPORTED = 10,
  CUSPARSE_STATUS_INSUFFICIENT_RESOURCES = 11
};
enum cusparseIndexBase_t { CUSPARSE_INDEX_BASE_ZERO = 0, CUSPARSE_INDEX_BASE_ONE = 1 };
enum cusparseOperation_t {
  CUSPARSE_OPERATION_NON_TRANSPOSE = 0,
  CUSPARSE_OPERATION_TRANSPOSE = 1,
  CUSPARSE_OPERATION_CONJUGATE_TRANSPOSE = 2
};
enum cusparseOrder_t { CUSPARSE_ORDER_COL = 1, CUSPARSE_ORDER_ROW = 2 };
enum cusparseIndexType_t { CUSPARSE_INDEX_16U = 1, CUSPARSE_INDEX_32I = 2, CUSPARSE_INDEX_64I = 3 };
enum cusparseSpMMAlg_t {
  CUSPARSE_SPMM_ALG_DEFAULT = 0,
  CUSPARSE_SPMM_CSR_ALG1 = 4,
  CUSPARSE_SPMM_CSR_ALG2 = 6,
  CUSPARSE_SPMM_CSR_ALG3 = 12
};

struct cusparseContext {
  cudaStream_t stream = nullptr;
};
/// Rows of 32-bit indices that count from zero; other forms are refused by cusparseCreateCsr.
struct cusparseSpMatDescr {
  std::int64_t rows, columns, elements;
  const void *offsets, *column, *values;
  cudaDataType type;
  const void* active = nullptr;  // the buffer of the last preprocess
  std::uint64_t made_for = 0;    // what that call was made for
};
struct cusparseDnMatDescr {
  std::int64_t rows, columns, leading;
  void* values;
  cudaDataType type;
  cusparseOrder_t order;
};
using cusparseHandle_t = cusparseContext*;
using cusparseSpMatDescr_t = cusparseSpMatDescr*;
using cusparseConstSpMatDescr_t = const cusparseSpMatDescr*;
using cusparseDnMatDescr_t = cusparseDnMatDescr*;
using cusparseConstDnMatDescr_t = const cusparseDnMatDescr*;

#include "cusparse_work.hpp"

inline const char* cusparseGetErrorName(cusparseStatus_t status) {
  constexpr const char* names[] = {"CUSPARSE_STATUS_SUCCESS",
                                   "CUSPARSE_STATUS_NOT_INITIALIZED",
                                   "CUSPARSE_STATUS_ALLOC_FAILED",
                                   "CUSPARSE_STATUS_INVALID_VALUE",
                                   "CUSPARSE_STATUS_ARCH_MISMATCH",
                                   "CUSPARSE_STATUS_MAPPING_ERROR",
                                   "CUSPARSE_STATUS_EXECUTION_FAILED",
                                   "CUSPARSE_STATUS_INTERNAL_ERROR",
                                   "CUSPARSE_STATUS_MATRIX_TYPE_NOT_SUPPORTED",
                                   "CUSPARSE_STATUS_ZERO_PIVOT",
                                   "CUSPARSE_STATUS_NOT_SUPPORTED",
                                   "CUSPARSE_STATUS_INSUFFICIENT_RESOURCES"};
  return names[status];
}

inline cusparseStatus_t cusparseCreate(cusparseHandle_t* to) {
  return simt::sparse::call([=] {
    if (!to) return CUSPARSE_STATUS_INVALID_VALUE;
    simt::sparse::live.insert(*to = new cusparseContext);
    return CUSPARSE_STATUS_SUCCESS;
  });
}
inline cusparseStatus_t cusparseDestroy(cusparseHandle_t handle) {
  if (!handle) return CUSPARSE_STATUS_NOT_INITIALIZED;
  simt::sparse::destroy(handle);
  return CUSPARSE_STATUS_SUCCESS;
}
inline cusparseStatus_t cusparseSetStream(cusparseHandle_t handle, cudaStream_t stream) {
  return simt::sparse::call([=] {
    if (!handle) return CUSPARSE_STATUS_NOT_INITIALIZED;
    simt::sparse::require_live(handle);
    if (!known_stream(stream)) throw simt::fault{"cuSPARSE is given a stream that there is not"};
    handle->stream = stream;
    return CUSPARSE_STATUS_SUCCESS;
  });
}

inline cusparseStatus_t cusparseCreateCsr(cusparseSpMatDescr_t* to, std::int64_t rows, std::int64_t columns,
                                          std::int64_t elements, void* offsets, void* column, void* values,
                                          cusparseIndexType_t offsets_are, cusparseIndexType_t columns_are,
                                          cusparseIndexBase_t base, cudaDataType type) {
  return simt::sparse::call([=] {
    if (!to || rows < 0 || columns < 0 || elements < 0 || elements > rows * columns || !offsets)
      return CUSPARSE_STATUS_INVALID_VALUE;
    if (elements && (!column || !values)) return CUSPARSE_STATUS_INVALID_VALUE;
    if (!simt::sparse::known_type(type)) return CUSPARSE_STATUS_NOT_SUPPORTED;
    if (offsets_are != CUSPARSE_INDEX_32I || columns_are != CUSPARSE_INDEX_32I || base != CUSPARSE_INDEX_BASE_ZERO)
      return CUSPARSE_STATUS_NOT_SUPPORTED;  // the real one has more
    simt::sparse::live.insert(*to = new cusparseSpMatDescr{rows, columns, elements, offsets, column, values, type});
    return CUSPARSE_STATUS_SUCCESS;
  });
}
inline cusparseStatus_t cusparseDestroySpMat(cusparseConstSpMatDescr_t matrix) {
  if (!matrix) return CUSPARSE_STATUS_INVALID_VALUE;
  simt::sparse::destroy(matrix);
  return CUSPARSE_STATUS_SUCCESS;
}

/// The leading dimension counts elements from row to row, or from column to column.
inline cusparseStatus_t cusparseCreateDnMat(cusparseDnMatDescr_t* to, std::int64_t rows, std::int64_t columns,
                                            std::int64_t leading, void* values, cudaDataType type,
                                            cusparseOrder_t order) {
  return simt::sparse::call([=] {
    if (!to || rows < 0 || columns < 0 || leading < (order == CUSPARSE_ORDER_ROW ? columns : rows))
      return CUSPARSE_STATUS_INVALID_VALUE;
    if (rows > 0 && columns > 0 && !values) return CUSPARSE_STATUS_INVALID_VALUE;
    if (!simt::sparse::known_type(type)) return CUSPARSE_STATUS_NOT_SUPPORTED;
    simt::sparse::live.insert(*to = new cusparseDnMatDescr{rows, columns, leading, values, type, order});
    return CUSPARSE_STATUS_SUCCESS;
  });
}
inline cusparseStatus_t cusparseDestroyDnMat(cusparseConstDnMatDescr_t matrix) {
  if (!matrix) return CUSPARSE_STATUS_INVALID_VALUE;
  simt::sparse::destroy(matrix);
  return CUSPARSE_STATUS_SUCCESS;
}
inline cusparseStatus_t cusparseDnMatSetValues(cusparseDnMatDescr_t matrix, void* values) {
  return simt::sparse::call([=] {
    if (!matrix || !values) return CUSPARSE_STATUS_INVALID_VALUE;
    simt::sparse::require_live(matrix);
    matrix->values = values;
    return CUSPARSE_STATUS_SUCCESS;
  });
}

inline cusparseStatus_t cusparseSpMM_bufferSize(cusparseHandle_t handle, cusparseOperation_t op_a,
                                                cusparseOperation_t op_b, const void* alpha,
                                                cusparseConstSpMatDescr_t a, cusparseConstDnMatDescr_t b,
                                                const void* beta, cusparseDnMatDescr_t c, cudaDataType compute,
                                                cusparseSpMMAlg_t algorithm, std::size_t* bytes) {
  return simt::sparse::call([=] {
    const auto status = simt::sparse::accepts(handle, {op_a, op_b, algorithm, compute}, alpha, a, b, beta, c);
    if (status != CUSPARSE_STATUS_SUCCESS) return status;
    if (!bytes) return CUSPARSE_STATUS_INVALID_VALUE;
    *bytes = simt::sparse::buffer_bytes(*a);
    return CUSPARSE_STATUS_SUCCESS;
  });
}
/// From now on the buffer belongs to the matrix: its contents may not change, nor what the product is asked for.
inline cusparseStatus_t cusparseSpMM_preprocess(cusparseHandle_t handle, cusparseOperation_t op_a,
                                                cusparseOperation_t op_b, const void* alpha,
                                                cusparseConstSpMatDescr_t a, cusparseConstDnMatDescr_t b,
                                                const void* beta, cusparseDnMatDescr_t c, cudaDataType compute,
                                                cusparseSpMMAlg_t algorithm, void* buffer) {
  return simt::sparse::call([=] {
    const simt::sparse::request asked{op_a, op_b, algorithm, compute};
    const auto status = simt::sparse::accepts(handle, asked, alpha, a, b, beta, c);
    if (status != CUSPARSE_STATUS_SUCCESS) return status;
    if (!buffer) return CUSPARSE_STATUS_INVALID_VALUE;
    auto* matrix = const_cast<cusparseSpMatDescr*>(a);
    matrix->active = buffer;
    matrix->made_for = simt::sparse::digest(asked, *a, *b, *c);
    simt::device.give(handle->stream, [=, m = *matrix] { simt::sparse::prepare(m, buffer); });
    return CUSPARSE_STATUS_SUCCESS;
  });
}
inline cusparseStatus_t cusparseSpMM(cusparseHandle_t handle, cusparseOperation_t op_a, cusparseOperation_t op_b,
                                     const void* alpha, cusparseConstSpMatDescr_t a, cusparseConstDnMatDescr_t b,
                                     const void* beta, cusparseDnMatDescr_t c, cudaDataType compute,
                                     cusparseSpMMAlg_t algorithm, void* buffer) {
  return simt::sparse::call([=] {
    const simt::sparse::request asked{op_a, op_b, algorithm, compute};
    const auto status = simt::sparse::accepts(handle, asked, alpha, a, b, beta, c);
    if (status != CUSPARSE_STATUS_SUCCESS) return status;
    if (!buffer) return CUSPARSE_STATUS_INVALID_VALUE;
    if (buffer == a->active && a->made_for != simt::sparse::digest(asked, *a, *b, *c))
      throw simt::fault{"cusparseSpMM is asked for another product than its buffer was prepared for"};
    simt::note_workspace(simt::sparse::buffer_bytes(*a));
    const simt::sparse::product p{*a, *b, *c, *static_cast<const float*>(alpha), *static_cast<const float*>(beta)};
    simt::device.give(handle->stream, [=] {
      simt::sparse::use_buffer(p.a, buffer);
      simt::sparse::with_type(p.a.type, [&](auto zero) { simt::sparse::multiply<decltype(zero)>(p); });
    });
    return CUSPARSE_STATUS_SUCCESS;
  });
}
