// SPDX-License-Identifier: Apache-2.0
// The stand-in for cuBLASLt: it has algorithms only for what the documentation lists, runs them only for what they were
// found for, and faults if the library would read or write elsewhere.
#include <comp_cuda/blas.hpp>
#include <comp_cuda/transfer.hpp>

#include "product_test.hpp"

namespace comp::cuda::test {
namespace {

/// A product of two squares of 32, FP32, with all that the library wants to be told.
struct raw {
  explicit raw(rig& of) : r{of} {}
  rig& r;
  product_description described{CUBLAS_COMPUTE_32F};
  matrix_layout square{CUDA_R_32F, 32, 32, 32, 1, 32 * 32};

  cublasLtMatmulHeuristicResult_t found() const {
    search_preference wish;
    wish.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, std::uint64_t{1} << 20);
    std::vector<cublasLtMatmulHeuristicResult_t> results(8);
    int count = 0;
    CHECK(cublasLtMatmulAlgoGetHeuristic(r.c.part<blas>().get(), described.get(), square.get(), square.get(),
                                         square.get(), square.get(), wish.get(), 8, results.data(),
                                         &count) == CUBLAS_STATUS_SUCCESS);
    return results.at(static_cast<std::size_t>(count - 1));
  }
  void multiply(const cublasLtMatmulHeuristicResult_t& by, const void* a, const void* b, void* d, float beta) const {
    const float alpha = 1;
    (void)cublasLtMatmul(r.c.part<blas>().get(), described.get(), &alpha, a, square.get(), b, square.get(), &beta, d,
                         square.get(), d, square.get(), &by.algo, nullptr, 0, r.c.stream().get());
  }
};

}  // namespace

TEST_CASE_FIXTURE(with_rig, "what would read or write elsewhere is a fault of the stand-in") {
  const raw p{r};
  const tensor a = upload(r.c, normal(32 * 32, 1), {32 * 32}, precision::fp32),
               d = r.c.make({32 * 32}, precision::fp32);
  const auto by = p.found();
  const auto run = [&](const void* x, void* to, float beta = 0) {
    p.multiply(by, x, a.materialize(), to, beta);
    r.c.synchronize();
  };
  CHECK_NOTHROW(run(a.materialize(), d.materialize()));
  CHECK_THROWS_WITH_AS(run(a.materialize_as<float>() + 16, d.materialize()), doctest::Contains("of an allocation"),
                       simt::fault);
  CHECK_THROWS_WITH_AS(run(a.materialize(), d.materialize_as<float>() + 16), doctest::Contains("of an allocation"),
                       simt::fault);
  CHECK_THROWS_WITH_AS(run(a.materialize(), a.materialize()), "a product is written over its own operands or workspace",
                       simt::fault);
  const tensor unwritten = r.c.make({32 * 32}, precision::fp32);
  CHECK_THROWS_WITH_AS(run(unwritten.materialize(), d.materialize()), "a library reads memory that nobody has written",
                       simt::fault);
  CHECK_THROWS_WITH_AS(run(a.materialize(), unwritten.materialize(), 1),
                       "a library reads memory that nobody has written", simt::fault);
  const std::vector<float> of_host(32 * 32);
  CHECK_THROWS_WITH_AS(run(of_host.data(), d.materialize()), "a library reads memory that is not the device's",
                       simt::fault);
  cublasLtMatrixLayout_t gone = nullptr;
  CHECK(cublasLtMatrixLayoutCreate(&gone, CUDA_R_32F, 1, 1, 1) == CUBLAS_STATUS_SUCCESS);
  CHECK(cublasLtMatrixLayoutDestroy(gone) == CUBLAS_STATUS_SUCCESS);
  CHECK(cublasLtMatrixLayoutDestroy(gone) == CUBLAS_STATUS_INVALID_VALUE);
  const std::int32_t two = 2;
  CHECK_THROWS_AS(cublasLtMatrixLayoutSetAttribute(gone, CUBLASLT_MATRIX_LAYOUT_BATCH_COUNT, &two, sizeof(two)),
                  simt::fault);
  product_description described{CUBLAS_COMPUTE_32F};
  CHECK_THROWS_AS(described.set(CUBLASLT_MATMUL_DESC_TRANSA, std::int64_t{1}), library_error);  // 8 bytes, not 4
}

}  // namespace comp::cuda::test
