// SPDX-License-Identifier: Apache-2.0
// Products of a sparse and a dense matrix, and their gradients, by cuSPARSE: a graph convolution mixes the features of
// neighbours with them. Sums are FP32 in every precision and have the same bits in each run. This takes cuSPARSE's
// third algorithm for compressed rows, which has a fixed order only without a transpose, so that csr.hpp keeps the
// columns too.
// cuSPARSE analyses a matrix at its first product in a storage and width, and later products use the analysis.
// Releases of cuSPARSE differ in the 16-bit types that they multiply. What cuSPARSE does not multiply within the limit
// of workspaces, an own kernel does. FP8 is stored and computed as BF16.
// A user calls spmm(d.shared(), matrix, x) for a `device` d.
#pragma once

#include <cusparse.h>

#include <map>
#include <memory>
#include <tuple>

#include "csr.hpp"

namespace comp::cuda {

namespace detail {

inline void check_sparse(cusparseStatus_t status, std::string_view doing,
                         std::source_location at = std::source_location::current()) {
  verdict means = verdict::failed;
  switch (status) {
    case CUSPARSE_STATUS_SUCCESS:
      means = verdict::fine;
      break;
    case CUSPARSE_STATUS_ARCH_MISMATCH:
    case CUSPARSE_STATUS_NOT_SUPPORTED:
    case CUSPARSE_STATUS_MATRIX_TYPE_NOT_SUPPORTED:
      means = verdict::unsupported;
      break;
    case CUSPARSE_STATUS_ALLOC_FAILED:
    case CUSPARSE_STATUS_INSUFFICIENT_RESOURCES:
      means = verdict::no_memory;
      break;
    default:
      break;
  }
  check(library_status{"cuSPARSE", cusparseGetErrorName(status), static_cast<int>(status), means}, doing, at);
}

/// The part of a context that holds cuSPARSE's handle, which launches on the context's stream.
class sparse_library {
 public:
  explicit sparse_library(context& c) {
    cusparseHandle_t handle = nullptr;
    check_sparse(cusparseCreate(&handle), "starting cuSPARSE");
    handle_.reset(handle);
    check_sparse(cusparseSetStream(handle, c.stream().get()), "giving cuSPARSE a stream");
  }
  cusparseHandle_t handle() const { return handle_.get(); }

 private:
  struct end {
    void operator()(cusparseHandle_t h) const { (void)cusparseDestroy(h); }
  };
  std::unique_ptr<std::remove_pointer_t<cusparseHandle_t>, end> handle_;
};

/// Owns cuSPARSE's description of a sparse matrix.
struct sparse_description {
  struct end {
    void operator()(cusparseSpMatDescr_t d) const { (void)cusparseDestroySpMat(d); }
  };
  std::unique_ptr<cusparseSpMatDescr, end> of;
};
/// Owns cuSPARSE's description of a dense matrix.
struct dense_description {
  struct end {
    void operator()(cusparseDnMatDescr_t d) const { (void)cusparseDestroyDnMat(d); }
  };
  std::unique_ptr<cusparseDnMatDescr, end> of;
  /// Describes a row-major matrix without gaps between rows.
  dense_description(std::int64_t rows, std::int64_t columns, void* at, cudaDataType type) {
    cusparseDnMatDescr_t description = nullptr;
    check_sparse(cusparseCreateDnMat(&description, rows, columns, columns, at, type, CUSPARSE_ORDER_ROW),
                 "describing a dense matrix");
    of.reset(description);
  }
  void points_to(void* at) const {
    check_sparse(cusparseDnMatSetValues(of.get(), at), "pointing cuSPARSE to a dense matrix");
  }
};

constexpr cudaDataType sparse_type(storage s) {
  return s == storage::fp32 ? CUDA_R_32F : s == storage::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}

/// A prepared product: one side of a sparse matrix times dense matrices of one width, in one storage. cuSPARSE keeps
/// its analysis in buffer_.
class sparse_product {
 public:
  sparse_product(context& c, const csr_side& side, const shape& extents, tensor value, const tensor& x, const tensor& y)
      : value_{std::move(value)},
        x_{extents[1], x.shape()[1], x.materialize(), sparse_type(storage_of(x.precision()))},
        y_{extents[0], x.shape()[1], y.materialize(), sparse_type(storage_of(y.precision()))} {
    cusparseSpMatDescr_t description = nullptr;
    check_sparse(cusparseCreateCsr(
                     &description, extents[0], extents[1], value_.size(), const_cast<std::int32_t*>(side.begin.data()),
                     const_cast<std::int32_t*>(side.other.data()), value_.materialize(), CUSPARSE_INDEX_32I,
                     CUSPARSE_INDEX_32I, CUSPARSE_INDEX_BASE_ZERO, sparse_type(storage_of(value_.precision()))),
                 "describing a sparse matrix");
    a_.of.reset(description);
    std::size_t bytes = 0;
    asked([&](auto... arguments) {
      check_sparse(cusparseSpMM_bufferSize(c.part<sparse_library>().handle(), arguments..., &bytes),
                   "asking for the memory of a sparse product");
    });
    require<unsupported>(static_cast<std::int64_t>(bytes) <= c.workspace_limit(),
                         "a sparse product of {} and {} asks for {} bytes of scratch memory ({} are allowed): raise "
                         "the limit",
                         text(extents), text(x.shape()), bytes, c.workspace_limit());
    buffer_ = c.allocate(std::max<std::int64_t>(static_cast<std::int64_t>(bytes), 16));
    asked([&](auto... arguments) {
      check_sparse(cusparseSpMM_preprocess(c.part<sparse_library>().handle(), arguments..., buffer_->materialize()),
                   "preparing a sparse product");
    });
  }
  void run(context& c, const tensor& x, const tensor& y) const {
    x_.points_to(x.materialize());
    y_.points_to(y.materialize());
    asked([&](auto... arguments) {
      check_sparse(cusparseSpMM(c.part<sparse_library>().handle(), arguments..., buffer_->materialize()),
                   "multiplying a sparse matrix");
    });
  }

 private:
  /// Calls f with the arguments that cuSPARSE's three calls for a product share.
  void asked(auto f) const {
    constexpr auto as_is = CUSPARSE_OPERATION_NON_TRANSPOSE;
    static constexpr float one = 1, zero = 0;
    f(as_is, as_is, static_cast<const void*>(&one), a_.of.get(), x_.of.get(), static_cast<const void*>(&zero),
      y_.of.get(), CUDA_R_32F, CUSPARSE_SPMM_CSR_ALG3);
  }
  tensor value_;
  sparse_description a_;
  dense_description x_, y_;
  std::shared_ptr<memory> buffer_;
};

/// The prepared products of a matrix.
struct sparse_products {
  /// By whether the product goes by row, by storage and by width; null if cuSPARSE has no such product.
  std::map<std::tuple<bool, storage, std::int64_t>, std::unique_ptr<const sparse_product>> products;
  /// The matrix's values by side and storage.
  std::map<std::tuple<bool, storage>, tensor> values;
};

/// Returns: a prepared product; null if cuSPARSE does not multiply this storage, or not within the limit of workspaces.
inline std::unique_ptr<const sparse_product> prepared_product(context& c, const csr_side& side, const shape& extents,
                                                              const tensor& value, const tensor& x, const tensor& y) {
  try {
    return std::make_unique<const sparse_product>(c, side, extents, value, x, y);
  } catch (const unsupported&) {
    return nullptr;
  }
}
/// The product by the kernel of graph attention: with one head, its sums along the edges are this product.
inline void own_product(context& c, const csr_side& side, const tensor& value, const tensor& x, const tensor& y) {
  with_storage(x.precision(), [&]<class T>(std::type_identity<T>) {
    weighted_sums<T>(c.stream().get(), value.materialize_as<T>(), x.materialize_as<T>(), side.begin.data(),
                     side.other.data(), nullptr, y.materialize_as<T>(), y.shape()[0], 1, y.shape()[1]);
  });
}

inline tensor sparse_times(context& c, const csr& m, bool by_row, const tensor& x) {
  const shape extents = by_row ? shape{m.rows(), m.columns()} : shape{m.columns(), m.rows()};
  const tensor y = c.make({extents[0], x.shape()[1]}, x.precision());
  if (m.elements() == 0) {
    c.clear(y.materialize(), y.size() * bytes_of(storage_of(y.precision())));
    return y;
  }
  auto& [products, values] = m.part<sparse_products>();
  const csr_side& side = by_row ? m.by_row() : m.by_column();
  const storage kept = storage_of(x.precision());
  tensor& value = values[{by_row, kept}];
  if (!value) value = cast(c, side.value, x.precision());
  auto found = products.find({by_row, kept, x.shape()[1]});
  if (found == products.end()) {
    auto product = prepared_product(c, side, extents, value, x, y);
    found = products.try_emplace({by_row, kept, x.shape()[1]}, std::move(product)).first;
  }
  if (found->second) {
    found->second->run(c, x, y);
  } else {
    own_product(c, side, value, x, y);
  }
  return y;
}

}  // namespace detail

/// x is (columns,K). Returns: m x, which is (rows,K), in the precision of x.
/// Throws: error if the sizes do not agree.
inline tensor spmm(context& c, const csr& m, const tensor& x) {
  require_some("spmm", x.shape());
  require<error>(x.shape().size() == 2 && x.shape()[0] == m.columns(),
                 "spmm of a {} x {} matrix with x {} (x has a row for each column): make x ({},K)", m.rows(),
                 m.columns(), text(x.shape()), m.columns());
  return detail::sparse_times(c, m, true, x);
}
/// dy is (rows,K). Returns: the gradient of x, which is (columns,K): the product of dy with the transpose of m.
inline tensor spmm_backward(context& c, const csr& m, const tensor& dy) {
  require_some("spmm_backward", dy.shape());
  require<error>(dy.shape().size() == 2 && dy.shape()[0] == m.rows(),
                 "spmm_backward of a {} x {} matrix with dy {} (dy has a row for each row): make dy ({},K)", m.rows(),
                 m.columns(), text(dy.shape()), m.rows());
  return detail::sparse_times(c, m, false, dy);
}

}  // namespace comp::cuda
