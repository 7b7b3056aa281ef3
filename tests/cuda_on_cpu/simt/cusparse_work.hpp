// SPDX-License-Identifier: Apache-2.0
// What cuSPARSE's stand-in does: which products it has, what they are checked for, and the products themselves, summed
// in FP32 in the order of the elements, with one rounding at the end.
// Included by cusparse.h, whose types it needs.
#pragma once

#include <comp_native/math/formats.hpp>

namespace simt::sparse {

inline std::set<const void*> live;  // handles and descriptors
/// Set by a test: no product of 16-bit matrices, as in the releases of CUDA 13.1 and 13.2.
inline bool without_16_bits = false;

inline void require_live(const void* p) {
  if (!live.contains(p)) throw fault{"cuSPARSE is given a handle or descriptor that was destroyed, or never made"};
}
template <class T>
void destroy(const T* p) {
  require_live(p);
  live.erase(p);
  delete p;
}
cusparseStatus_t call(auto f) { return library_call(CUSPARSE_STATUS_INTERNAL_ERROR, f); }

using comp::native::math::bf16;
using comp::native::math::fp16;

inline bool known_type(cudaDataType t) { return t == CUDA_R_32F || t == CUDA_R_16F || t == CUDA_R_16BF; }
void with_type(cudaDataType t, auto f) {
  if (t == CUDA_R_16F) return f(fp16{});
  if (t == CUDA_R_16BF) return f(bf16{});
  f(0.0F);
}

struct request {
  cusparseOperation_t a, b;
  cusparseSpMMAlg_t algorithm;
  cudaDataType compute;
};
/// Everything that a product has in common with the call that prepared its buffer.
inline std::uint64_t digest(const request& r, const cusparseSpMatDescr& a, const cusparseDnMatDescr& b,
                            const cusparseDnMatDescr& c) {
  std::uint64_t h = 0xcbf29ce484222325ULL;
  for (const std::int64_t v : {std::int64_t{r.a}, std::int64_t{r.b}, std::int64_t{r.algorithm}, std::int64_t{r.compute},
                               a.rows, a.columns, a.elements, reinterpret_cast<std::int64_t>(a.offsets),
                               reinterpret_cast<std::int64_t>(a.column), std::int64_t{a.type}, b.rows, b.columns,
                               b.leading, std::int64_t{b.order}, c.rows, c.columns, c.leading, std::int64_t{c.order}}) {
    h = (h ^ static_cast<std::uint64_t>(v)) * 0x100000001b3ULL;
  }
  return h | 1;
}

/// The status of a product that is asked for. CSR only; of the element types those with one for all three matrices.
inline cusparseStatus_t accepts(cusparseHandle_t handle, const request& r, const void* alpha,
                                cusparseConstSpMatDescr_t a, cusparseConstDnMatDescr_t b, const void* beta,
                                cusparseConstDnMatDescr_t c) {
  if (!handle) return CUSPARSE_STATUS_NOT_INITIALIZED;
  require_live(handle);
  if (!alpha || !a || !b || !beta || !c) return CUSPARSE_STATUS_INVALID_VALUE;
  for (const void* p : {static_cast<const void*>(a), static_cast<const void*>(b), static_cast<const void*>(c)})
    require_live(p);
  if (r.a != CUSPARSE_OPERATION_NON_TRANSPOSE || r.b != CUSPARSE_OPERATION_NON_TRANSPOSE)
    return CUSPARSE_STATUS_NOT_SUPPORTED;  // as algorithm 3 of CSR, which alone gives the same bits in each run
  if (r.algorithm != CUSPARSE_SPMM_CSR_ALG3) return CUSPARSE_STATUS_NOT_SUPPORTED;
  if (a->rows != c->rows || a->columns != b->rows || b->columns != c->columns) return CUSPARSE_STATUS_INVALID_VALUE;
  if (r.compute != CUDA_R_32F || a->type != b->type || b->type != c->type) return CUSPARSE_STATUS_NOT_SUPPORTED;
  if (without_16_bits && a->type != CUDA_R_32F) return CUSPARSE_STATUS_NOT_SUPPORTED;
  if (a->type == CUDA_R_16BF && device.properties.major < 8) return CUSPARSE_STATUS_ARCH_MISMATCH;
  return CUSPARSE_STATUS_SUCCESS;
}

inline std::size_t buffer_bytes(const cusparseSpMatDescr& a) {
  return static_cast<std::size_t>(8 + (a.elements + a.rows) / 32 * 4);
}
/// Marks the buffer with what it was prepared for.
inline void prepare(const cusparseSpMatDescr& a, void* buffer) {
  auto* to = library_writes<unsigned char>(buffer, buffer_bytes(a));
  std::memset(to, 0x5A, buffer_bytes(a));
  std::memcpy(to, &a.made_for, sizeof(a.made_for));
}
inline void use_buffer(const cusparseSpMatDescr& a, void* buffer) {
  if (buffer != a.active) return (void)library_writes<unsigned char>(buffer, buffer_bytes(a));
  const auto* from = library_reads<unsigned char>(buffer, buffer_bytes(a));
  bool same = std::memcmp(from, &a.made_for, sizeof(a.made_for)) == 0;
  for (std::size_t i = sizeof(a.made_for); i < buffer_bytes(a); ++i) same = same && from[i] == 0x5A;
  if (!same) throw fault{"a buffer of cusparseSpMM was changed after it had been prepared"};
}

struct product {
  cusparseSpMatDescr a;
  cusparseDnMatDescr b, c;
  float alpha, beta;
};
inline void require_aligned(const void* p) {
  if (reinterpret_cast<std::uintptr_t>(p) % 16) throw fault{"cuSPARSE is given memory that is not aligned to 16 bytes"};
}
/// The elements that the matrix spans, leading dimension and all.
inline std::size_t span_of(const cusparseDnMatDescr& m) {
  const auto lines = m.order == CUSPARSE_ORDER_ROW ? m.rows : m.columns;
  const auto width = m.order == CUSPARSE_ORDER_ROW ? m.columns : m.rows;
  return lines && width ? static_cast<std::size_t>((lines - 1) * m.leading + width) : 0;
}
inline std::size_t place(const cusparseDnMatDescr& m, std::int64_t row, std::int64_t column) {
  return static_cast<std::size_t>(m.order == CUSPARSE_ORDER_ROW ? row * m.leading + column : column * m.leading + row);
}
/// The rows of the matrix, checked: a real library reads and writes anywhere when they are wrong.
struct csr_rows {
  const std::int32_t *begin, *column;
  explicit csr_rows(const cusparseSpMatDescr& a)
      : begin{library_reads<std::int32_t>(a.offsets, static_cast<std::size_t>(a.rows) + 1)},
        column{library_reads<std::int32_t>(a.column, static_cast<std::size_t>(a.elements))} {
    bool fine = begin[0] == 0 && begin[a.rows] == a.elements;
    for (std::int64_t r = 0; r < a.rows; ++r) fine = fine && begin[r] <= begin[r + 1];
    for (std::int64_t e = 0; fine && e < a.elements; ++e) fine = column[e] >= 0 && column[e] < a.columns;
    if (!fine) throw fault{"cuSPARSE is given rows that do not rise from 0 to the last element, or a column beyond"};
  }
};

template <class T>
void multiply(const product& p) {
  for (const void* at : {p.a.offsets, p.a.column, p.a.values, static_cast<const void*>(p.b.values),
                         static_cast<const void*>(p.c.values)})
    require_aligned(at);
  const csr_rows rows{p.a};
  const T* values = library_reads<T>(p.a.values, static_cast<std::size_t>(p.a.elements));
  const T* b = library_reads<T>(p.b.values, span_of(p.b));
  if (p.beta != 0) library_reads<T>(p.c.values, span_of(p.c));
  T* c = library_writes<T>(p.c.values, span_of(p.c));
  if (c < b + span_of(p.b) && b < c + span_of(p.c)) throw fault{"cusparseSpMM writes where it reads"};
  for (std::int64_t r = 0; r < p.c.rows; ++r) {
    for (std::int64_t k = 0; k < p.c.columns; ++k) {
      float total = 0;
      for (std::int32_t e = rows.begin[r]; e < rows.begin[r + 1]; ++e)
        total += comp::native::math::load(values[e]) * comp::native::math::load(b[place(p.b, rows.column[e], k)]);
      T& to = c[place(p.c, r, k)];
      const float before = p.beta != 0 ? p.beta * comp::native::math::load(to) : 0.0F;
      comp::native::math::store(to, p.alpha * total + before);
    }
  }
}

}  // namespace simt::sparse
