// SPDX-License-Identifier: Apache-2.0
// The stand-in for cuBLASLt: it has algorithms only for what the documentation lists, runs them only for what they were
// found for, and faults if the library would read or write elsewhere.
#include <comp_cuda/blas.hpp>
#include <comp_cuda/transfer.hpp>

#include "product_test.hpp"

namespace comp::cuda::test {
namespace {

/// D (m,n) = A (m,k) B (k,n), by columns, FP32, with all that the library wants to be told.
struct raw {
  explicit raw(rig& of) : r{of} {}
  rig& r;
  index m = 32, n = 32, k = 32, batch = 1;
  cudaDataType_t a = CUDA_R_32F, b = CUDA_R_32F, d = CUDA_R_32F;
  bool transpose_a = false, transpose_b = false;
  cublasComputeType_t compute = CUBLAS_COMPUTE_32F;
  std::uint32_t epilogue = CUBLASLT_EPILOGUE_DEFAULT;
  const void* bias = nullptr;
  std::int32_t bias_type = -1;
  index lead = 0;
  std::uint32_t alignment = 256;
  std::uint64_t workspace = 1 << 20;

  product_description described() const {
    product_description p{compute};
    p.set(CUBLASLT_MATMUL_DESC_TRANSA, std::int32_t{transpose_a});
    p.set(CUBLASLT_MATMUL_DESC_TRANSB, std::int32_t{transpose_b});
    p.set(CUBLASLT_MATMUL_DESC_EPILOGUE, epilogue);
    if (bias) p.set(CUBLASLT_MATMUL_DESC_BIAS_POINTER, bias);
    p.set(CUBLASLT_MATMUL_DESC_BIAS_DATA_TYPE, bias_type);
    return p;
  }
  matrix_layout of_a() const {
    return transpose_a ? matrix_layout{a, k, m, k + lead, batch, m * k}
                       : matrix_layout{a, m, k, m + lead, batch, m * k};
  }
  matrix_layout of_b() const {
    return transpose_b ? matrix_layout{b, n, k, n, batch, k * n} : matrix_layout{b, k, n, k, batch, k * n};
  }
  matrix_layout of_d() const { return {d, m, n, m, batch, m * n}; }
  std::vector<cublasLtMatmulHeuristicResult_t> found() const { return std::get<1>(search()); }
  cublasStatus_t status() const { return std::get<0>(search()); }
  std::pair<cublasStatus_t, std::vector<cublasLtMatmulHeuristicResult_t>> search() const {
    const auto p = described();
    const auto la = of_a(), lb = of_b(), ld = of_d();
    search_preference wish;
    wish.set(CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, workspace);
    wish.set(CUBLASLT_MATMUL_PREF_REDUCTION_SCHEME_MASK, std::uint32_t{CUBLASLT_REDUCTION_SCHEME_COMPUTE_TYPE});
    wish.set(CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, alignment);
    std::vector<cublasLtMatmulHeuristicResult_t> results(8);
    int count = 0;
    const auto status = cublasLtMatmulAlgoGetHeuristic(r.c.part<blas>().get(), p.get(), la.get(), lb.get(), ld.get(),
                                                       ld.get(), wish.get(), 8, results.data(), &count);
    results.resize(static_cast<std::size_t>(count));
    return {status, results};
  }
  cublasStatus_t multiply(const cublasLtMatmulHeuristicResult_t& by, const void* at_a, const void* at_b, void* at_d,
                          void* work, std::size_t bytes, float beta = 0) const {
    const auto p = described();
    const auto la = of_a(), lb = of_b(), ld = of_d();
    const float alpha = 1;
    return cublasLtMatmul(r.c.part<blas>().get(), p.get(), &alpha, at_a, la.get(), at_b, lb.get(), &beta, at_d,
                          ld.get(), at_d, ld.get(), &by.algo, work, bytes, r.c.stream().get());
  }
};

}  // namespace

TEST_CASE_FIXTURE(with_rig, "the stand-in has algorithms only for what is documented") {
  raw p{r};
  CHECK(p.found().size() == 3);
  SUBCASE("types") {
    const auto is = [&](cudaDataType_t a, cudaDataType_t b, cudaDataType_t d) {
      p.a = a, p.b = b, p.d = d;
      return p.status();
    };
    CHECK(is(CUDA_R_16F, CUDA_R_16F, CUDA_R_16F) == CUBLAS_STATUS_SUCCESS);
    CHECK(is(CUDA_R_16F, CUDA_R_16F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
    CHECK(is(CUDA_R_16BF, CUDA_R_16BF, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
    CHECK(is(CUDA_R_16F, CUDA_R_16BF, CUDA_R_32F) == CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK(is(CUDA_R_16F, CUDA_R_16F, CUDA_R_16BF) == CUBLAS_STATUS_NOT_SUPPORTED);
    CHECK(is(CUDA_R_32F, CUDA_R_32F, CUDA_R_16BF) == CUBLAS_STATUS_NOT_SUPPORTED);
    p.compute = CUBLAS_COMPUTE_32F_FAST_TF32;
    CHECK(is(CUDA_R_32F, CUDA_R_32F, CUDA_R_32F) == CUBLAS_STATUS_SUCCESS);
    CHECK(is(CUDA_R_16BF, CUDA_R_16BF, CUDA_R_16BF) == CUBLAS_STATUS_NOT_SUPPORTED);
  }
  SUBCASE("FP8: transposed by untransposed, whole 16 bytes, not E5M2 twice, from 8.9") {
    p.a = p.b = CUDA_R_8F_E4M3, p.d = CUDA_R_16BF, p.transpose_a = true;
    CHECK(p.status() == CUBLAS_STATUS_SUCCESS);
    p.a = CUDA_R_8F_E5M2;
    CHECK(p.status() == CUBLAS_STATUS_SUCCESS);
    SUBCASE("E5M2 twice") { p.b = CUDA_R_8F_E5M2; }
    SUBCASE("A as it is") { p.transpose_a = false; }
    SUBCASE("B transposed") { p.transpose_b = true; }
    SUBCASE("an inner size of 24") { p.k = 24; }
    SUBCASE("8 rows, although they are 16 bytes of BF16") { p.m = 8; }
    SUBCASE("with BF16") { p.b = CUDA_R_16BF; }
    SUBCASE("an older device") { simt::device.properties.major = 8; }
    CHECK(p.status() == CUBLAS_STATUS_NOT_SUPPORTED);
  }
  SUBCASE("epilogues, and the type of their bias") {
    p.epilogue = CUBLASLT_EPILOGUE_BIAS;
    CHECK(p.status() == CUBLAS_STATUS_INVALID_VALUE);  // no pointer
    const tensor bias = upload(r.c, normal(32, 1), {32}, precision::fp32);
    p.bias = bias.materialize();
    CHECK(p.status() == CUBLAS_STATUS_SUCCESS);
    p.bias_type = CUDA_R_16BF;
    CHECK(p.status() == CUBLAS_STATUS_NOT_SUPPORTED);
    p.bias_type = -1, p.epilogue = 32;  // GELU
    CHECK(p.status() == CUBLAS_STATUS_NOT_SUPPORTED);
  }
  SUBCASE("less alignment and less workspace leave fewer") {
    p.workspace = 0;
    CHECK(p.found().size() == 2);
    p.alignment = 4;
    CHECK(p.found().size() == 1);
  }
  SUBCASE("as many matrices in a batch as 16 bits count, and more") {
    p.batch = 65535;
    CHECK(p.status() == CUBLAS_STATUS_SUCCESS);
    p.batch = 65536;
    CHECK(p.status() == CUBLAS_STATUS_NOT_SUPPORTED);
  }
  SUBCASE("a leading dimension smaller than the rows") {
    p.lead = -1;
    CHECK(p.status() == CUBLAS_STATUS_INVALID_VALUE);
  }
}

TEST_CASE_FIXTURE(with_rig, "the stand-in runs an algorithm only for what it was found for") {
  raw p{r};
  const tensor a = upload(r.c, normal(32 * 33, 1), {32 * 33}, precision::fp32),
               d = r.c.make({32 * 33}, precision::fp32);
  const tensor work = r.c.make({1 << 18}, precision::fp32);
  const auto found = p.found();
  const auto& split = found[1];
  REQUIRE(split.workspaceSize > 0);
  CHECK(p.multiply(split, a.materialize(), a.materialize(), d.materialize(), work.materialize(), split.workspaceSize) ==
        CUBLAS_STATUS_SUCCESS);
  SUBCASE("less workspace") {
    CHECK(p.multiply(split, a.materialize(), a.materialize(), d.materialize(), work.materialize(),
                     split.workspaceSize - 1) == CUBLAS_STATUS_INVALID_VALUE);
  }
  SUBCASE("no workspace where some is told of, or less than that") {
    const auto run = [&](void* workspace, std::size_t bytes) {
      (void)p.multiply(split, a.materialize(), a.materialize(), d.materialize(), workspace, bytes);
      r.c.synchronize();
    };
    CHECK_THROWS_WITH_AS(run(nullptr, split.workspaceSize), "a product is told of workspace and given none",
                         simt::fault);
    CHECK_THROWS_AS(run(work.materialize(), (std::size_t{1} << 20) + 512), simt::fault);
  }
  SUBCASE("workspace at another address than a multiple of 256") {
    for (const int shift : {1, 4, 32}) {
      CHECK(p.multiply(split, a.materialize(), a.materialize(), d.materialize(), work.materialize_as<float>() + shift,
                       split.workspaceSize) == CUBLAS_STATUS_INVALID_VALUE);
    }
  }
  SUBCASE("an operand at an odd address") {
    CHECK(p.multiply(found[0], a.materialize_as<float>() + 1, a.materialize(), d.materialize(), nullptr, 0) ==
          CUBLAS_STATUS_INVALID_VALUE);
    CHECK(p.multiply(found[2], a.materialize_as<float>() + 1, a.materialize(), d.materialize(), nullptr, 0) ==
          CUBLAS_STATUS_SUCCESS);
  }
  SUBCASE("other sizes") {
    p.k = 16;
    CHECK(p.multiply(found[0], a.materialize(), a.materialize(), d.materialize(), nullptr, 0) ==
          CUBLAS_STATUS_INVALID_VALUE);
  }
  SUBCASE("another leading dimension") {
    p.lead = 1;
    CHECK(p.multiply(found[0], a.materialize(), a.materialize(), d.materialize(), nullptr, 0) ==
          CUBLAS_STATUS_INVALID_VALUE);
  }
  r.c.synchronize();
}

TEST_CASE_FIXTURE(with_rig, "what would read or write elsewhere is a fault of the stand-in") {
  raw p{r};
  const tensor a = upload(r.c, normal(32 * 32, 1), {32 * 32}, precision::fp32),
               d = r.c.make({32 * 32}, precision::fp32);
  const auto by = p.found().back();
  const auto run = [&](const void* x, void* to, float beta = 0) {
    (void)p.multiply(by, x, a.materialize(), to, nullptr, 0, beta);
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
