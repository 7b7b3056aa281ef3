// SPDX-License-Identifier: Apache-2.0
// cuBLASLt's handle and descriptors as values that free themselves, its types of elements, and its status as the
// exceptions of errors.hpp. cuBLAS has no FP8, and its algorithms cannot be chosen by the order of their sums.
#pragma once

#include <cublasLt.h>

#include <utility>

#include "context.hpp"

namespace comp::cuda {

inline library_status status_of(cublasStatus_t s) {
  const auto stands_for = [=] {
    switch (s) {
      case CUBLAS_STATUS_SUCCESS:
        return verdict::fine;
      case CUBLAS_STATUS_NOT_SUPPORTED:
      case CUBLAS_STATUS_ARCH_MISMATCH:
        return verdict::unsupported;
      case CUBLAS_STATUS_ALLOC_FAILED:
        return verdict::no_memory;
      default:
        return verdict::failed;
    }
  };
  return {"cuBLASLt", cublasLtGetStatusName(s), static_cast<int>(s), stands_for()};
}
inline void check(cublasStatus_t s, std::string_view doing, std::source_location at = std::source_location::current()) {
  if (s != CUBLAS_STATUS_SUCCESS) check(status_of(s), doing, at);
}

constexpr cudaDataType_t data_type(storage s) {
  return s == storage::fp32 ? CUDA_R_32F : s == storage::bf16 ? CUDA_R_16BF : CUDA_R_16F;
}
constexpr const char* name_of(cudaDataType_t type) {
  switch (type) {
    case CUDA_R_16F:
      return "FP16";
    case CUDA_R_16BF:
      return "BF16";
    case CUDA_R_8F_E4M3:
      return "FP8 (E4M3)";
    case CUDA_R_8F_E5M2:
      return "FP8 (E5M2)";
    default:
      return "FP32";
  }
}
constexpr index bytes_of(cudaDataType_t type) {
  return type == CUDA_R_32F ? 4 : type == CUDA_R_8F_E4M3 || type == CUDA_R_8F_E5M2 ? 1 : 2;
}

/// Owns a handle of the library, which `Destroy` frees.
template <class Handle, auto Destroy>
class blas_object {
 public:
  blas_object() = default;
  explicit blas_object(Handle handle) : handle_{handle} {}
  blas_object(blas_object&& other) noexcept : handle_{std::exchange(other.handle_, nullptr)} {}
  blas_object& operator=(blas_object&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~blas_object() {
    if (handle_) (void)Destroy(handle_);
  }
  Handle get() const { return handle_; }

 private:
  Handle handle_ = nullptr;
};

/// The part of a context that holds cuBLASLt's handle, which takes time to make.
class blas {
 public:
  explicit blas(context&) {
    cublasLtHandle_t handle = nullptr;
    check(cublasLtCreate(&handle), "starting cuBLASLt");
    handle_ = blas_object<cublasLtHandle_t, cublasLtDestroy>{handle};
  }
  cublasLtHandle_t get() const { return handle_.get(); }

 private:
  blas_object<cublasLtHandle_t, cublasLtDestroy> handle_;
};

/// cuBLASLt's description of `batch` matrices of (rows, columns), stored by columns and `stride` elements apart.
class matrix_layout {
 public:
  matrix_layout(cudaDataType_t type, index rows, index columns, index leading, index batch, index stride) {
    cublasLtMatrixLayout_t handle = nullptr;
    check(cublasLtMatrixLayoutCreate(&handle, type, static_cast<std::uint64_t>(rows),
                                     static_cast<std::uint64_t>(columns), leading),
          "describing a matrix");
    layout_ = blas_object<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy>{handle};
    if (batch == 1) return;
    set(CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, static_cast<std::int32_t>(batch));
    set(CUBLASLT_MATRIX_LAYOUT_STRIDED_BATCH_OFFSET, std::int64_t{stride});
  }
  cublasLtMatrixLayout_t get() const { return layout_.get(); }

 private:
  template <class T>
  void set(cublasLtMatrixLayoutAttribute_t which, T value) {
    check(cublasLtMatrixLayoutSetAttribute(get(), which, &value, sizeof(T)), "describing a batch of matrices");
  }
  blas_object<cublasLtMatrixLayout_t, cublasLtMatrixLayoutDestroy> layout_;
};

/// cuBLASLt's description of how a product is computed. alpha, beta and scales are FP32.
class product_description {
 public:
  explicit product_description(cublasComputeType_t compute) {
    cublasLtMatmulDesc_t handle = nullptr;
    check(cublasLtMatmulDescCreate(&handle, compute, CUDA_R_32F), "describing a product");
    description_ = blas_object<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy>{handle};
  }
  template <class T>
  void set(cublasLtMatmulDescAttributes_t which, T value) {
    check(cublasLtMatmulDescSetAttribute(get(), which, &value, sizeof(T)), "describing a product");
  }
  cublasLtMatmulDesc_t get() const { return description_.get(); }

 private:
  blas_object<cublasLtMatmulDesc_t, cublasLtMatmulDescDestroy> description_;
};

/// cuBLASLt's description of what its heuristics may propose.
class search_preference {
 public:
  search_preference() {
    cublasLtMatmulPreference_t handle = nullptr;
    check(cublasLtMatmulPreferenceCreate(&handle), "describing a search for algorithms");
    preference_ = blas_object<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy>{handle};
  }
  template <class T>
  void set(cublasLtMatmulPreferenceAttributes_t which, T value) {
    check(cublasLtMatmulPreferenceSetAttribute(get(), which, &value, sizeof(T)), "describing a search for algorithms");
  }
  cublasLtMatmulPreference_t get() const { return preference_.get(); }

 private:
  blas_object<cublasLtMatmulPreference_t, cublasLtMatmulPreferenceDestroy> preference_;
};

}  // namespace comp::cuda
