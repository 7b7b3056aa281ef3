// SPDX-License-Identifier: Apache-2.0
// Products by cuBLASLt: which algorithm is chosen for which operands, and what fails. That products are FP64's is asked
// of each Device: ../native/devices/test_contractions.cpp.
#include <comp_cuda/bmm.hpp>
#include <comp_cuda/linear.hpp>
#include <comp_cuda/transfer.hpp>

#include "../native/devices/agree.hpp"
#include "product_test.hpp"

namespace comp::cuda::test {
namespace {

namespace contract = native::contract;

/// That `got` is a (m,k) by b (k,n), and `more`, of numbers that the product's precision has.
void check_product(const std::vector<float>& got, precision p, const std::vector<float>& a, const std::vector<float>& b,
                   const std::array<index, 3>& of, double more = 0) {
  const auto& [m, k, n] = of;
  native::reference::device exact;
  auto want = exact.bmm(exact.upload(a, {m, k}, p), exact.upload(b, {k, n}, p), false, false, 1);
  for (double& v : want.values()) v += more;
  REQUIRE(got.size() == want.values().size());
  const auto given = [&, k = k](const auto& v) {
    return contract::results::one{"product", {}, {v.begin(), v.end()}, p, static_cast<double>(k)};
  };
  CHECK(contract::worst_share(given(got), given(want.values())) <= 1);
}
std::size_t count(index a, index b) { return static_cast<std::size_t>(a * b); }

std::vector<precision> computed(const rig& r) {
  std::vector<precision> all{precision::fp32, precision::tf32, precision::bf16, precision::fp16};
  std::erase_if(all, [&](precision p) { return !r.has(p); });
  return all;
}

}  // namespace

TEST_CASE_FIXTURE(with_rig, "FP32 products keep what TF32 loses") {
  const float fine = 1 + 0x1p-12F;  // TF32 keeps 10 bits of fraction
#ifdef COMP_SIMT
  const index n = 4;
#else
  const index n = 1024;  // small products may run without tensor cores, and be exact
#endif
  std::vector<float> one(count(n, n));
  for (index i = 0; i < n; ++i) one[static_cast<std::size_t>(i * n + i)] = 1;
  const auto product_in = [&](precision p) {
    const tensor a = upload(r.c, std::vector<float>(count(n, n), fine), {n, n}, p), b = upload(r.c, one, {n, n}, p);
    return download(r.c, bmm(r.c, a, b, false, false)).front();
  };
  CHECK(product_in(precision::fp32) == fine);
  if (r.has(precision::tf32)) CHECK(product_in(precision::tf32) == 1.0F);
}

TEST_CASE_FIXTURE(fresh, "a batch of more matrices than cuBLASLt takes is multiplied in parts") {
  device d;
  contract::agree_on(d, [](auto& on, contract::results& r) {
    const auto rows = contract::tensor_of(on, {65535 + 2, 1, 2}, 5, precision::fp16);
    r.keep(on, "y", on.bmm(rows, contract::tensor_of(on, {65535 + 2, 2, 1}, 6, precision::fp16), false, false, 1), 2);
  });
}

TEST_CASE_FIXTURE(with_rig, "operands that lie at odd addresses are multiplied by an algorithm that can") {
  const index m = 16, n = 16, k = 16;
  for (const precision p : computed(r)) {
    const auto a = contract::numbers(m * k, 5, p), b = contract::numbers(k * n, 6, p);
    for (const index shift : {0, 1, 3, 8}) {
      INFO(std::string{name(p)}, " shifted by ", shift);
      const auto shifted = [&](const std::vector<float>& v) {
        std::vector<float> all(static_cast<std::size_t>(shift));
        all.insert(all.end(), v.begin(), v.end());
        return upload(r.c, all, {static_cast<index>(all.size())}, p);
      };
      const tensor x = shifted(a), w = shifted(b), y = upload(r.c, std::vector<float>(count(m, n) + 8), {m * n + 8}, p);
      const auto at = [&](const tensor& t) {
        return static_cast<std::byte*>(t.materialize()) + shift * bytes_of(storage_of(p));
      };
      const cudaDataType_t type = data_type(storage_of(p));
      multiply(r.c, {.a = {at(x), type, m, k},
                     .b = {at(w), type, k, n},
                     .to = at(y),
                     .type = type,
                     .tf32 = p == precision::tf32});
      auto got = download(r.c, y);
      got.erase(got.begin(), got.begin() + shift);
      got.resize(count(m, n));
      check_product(got, p, a, b, {m, k, n});
    }
  }
}

TEST_CASE_FIXTURE(with_rig, "layers of one size have each its own bias") {
  const std::vector<float> unit{1, 0, 0, 1}, weights{1, 2, 4, 8}, small{16, 32}, large{64, 128};
  for (const precision p : computed(r)) {
    INFO(name(p));
    const tensor in = upload(r.c, unit, {2, 2}, p);
    parameter weight = make_parameter(r.c, weights, {2, 2}, true), one = make_parameter(r.c, small, {2}, true),
              other = make_parameter(r.c, large, {2}, true);
    CHECK(download(r.c, linear(r.c, in, weight, &one)) == std::vector<float>{17, 36, 18, 40});
    CHECK(download(r.c, linear(r.c, in, weight, &other)) == std::vector<float>{65, 132, 66, 136});
  }
}

TEST_CASE_FIXTURE(with_rig, "only algorithms whose sums are rounded once are taken") {
  r.c.part<matrix_products>().settings.measure = false;
  const index k = 4096;  // the stand-in offers sums in place, rounded to BF16 in between, to who does not exclude them
  std::vector<float> a(static_cast<std::size_t>(k), 1.0F), b(static_cast<std::size_t>(k), 1.0F);
  a[0] = 257 - static_cast<float>(k / 2 - 1);  // halves: 257, which BF16 does not have, and 2048
  const tensor y =
      bmm(r.c, upload(r.c, a, {1, k}, precision::fp32), upload(r.c, b, {k, 1}, precision::fp32), false, false);
  CHECK(download(r.c, y).front() == 257 + 2048);
  if (!r.has(precision::bf16)) return;
  const tensor low =
      bmm(r.c, upload(r.c, a, {1, k}, precision::bf16), upload(r.c, b, {k, 1}, precision::bf16), false, false);
  const float exact = contract::rounded(a[0], precision::bf16) + static_cast<float>(k - 1);
  CHECK(download(r.c, low).front() == contract::rounded(exact, precision::bf16));
}

#ifdef COMP_SIMT  // what it proposes is known, and it fails to order

TEST_CASE_FIXTURE(with_rig, "an algorithm is measured once for a shape, elsewhere than in the results") {
  auto& products = r.c.part<matrix_products>();
  const index n = 64;
  const tensor a = upload(r.c, normal(count(n, n), 1), {n, n}, precision::bf16);
  const auto multiply_into = [&](const tensor& to, float beta) {
    multiply(r.c, {.a = {a.materialize(), CUDA_R_16BF, n, n},
                   .b = {a.materialize(), CUDA_R_16BF, n, n},
                   .to = to.materialize(),
                   .type = CUDA_R_32F,
                   .beta = beta});
  };
  const tensor to = upload(r.c, std::vector<float>(count(n, n), 1.0F), {n, n}, precision::fp32);
  multiply_into(to, 1);
  CHECK(products.measured() == 1);
  const auto once = download(r.c, to);
  multiply_into(to, 1);
  CHECK(products.measured() == 1);
  CHECK(products.shapes() == 1);
  SUBCASE("what is added to is added to once") {
    const auto rows = download(r.c, a);
    check_product(once, precision::fp32, rows, rows, {n, n, n}, 1);
  }
  SUBCASE("what measuring takes is no part of the peak") {
    const auto live = r.c.pool().live_bytes();
    r.c.pool().reset_peak();
    multiply_into(to, 0);
    CHECK(products.measured() == 2);
    CHECK(r.c.pool().live_bytes() <= live + (std::int64_t{1} << 20));  // a workspace at most
    CHECK(r.c.pool().peak_bytes() == r.c.pool().live_bytes());
  }
  SUBCASE("another alignment is another shape") {
    const tensor more = upload(r.c, std::vector<float>(count(n, n) + 1), {n * n + 1}, precision::fp32);
    multiply(r.c, {.a = {a.materialize(), CUDA_R_16BF, n, n},
                   .b = {a.materialize(), CUDA_R_16BF, n, n},
                   .to = more.materialize_as<float>() + 1,
                   .type = CUDA_R_32F,
                   .beta = 1});
    CHECK(products.shapes() == 2);
    CHECK(products.measured() == 1);  // one algorithm can do it
  }
  SUBCASE("not where it is switched off") {
    products.settings.measure = false;
    multiply_into(to, 0);
    CHECK(products.shapes() == 2);
    CHECK(products.measured() == 1);
  }
  SUBCASE("not while work is recorded for a graph") {
    const auto twice = download(r.c, to);
    CHECK(cudaStreamBeginCapture(r.c.stream().get(), cudaStreamCaptureModeThreadLocal) == cudaSuccess);
    multiply_into(to, 0);
    cudaGraph_t graph = nullptr;
    REQUIRE(cudaStreamEndCapture(r.c.stream().get(), &graph) == cudaSuccess);
    CHECK(products.shapes() == 2);
    CHECK(products.measured() == 1);
    CHECK(download(r.c, to) == twice);  // recorded, not run
    CHECK(cudaGraphDestroy(graph) == cudaSuccess);
  }
  SUBCASE("not where there is no memory for other results") {
    simt::device.fail_allocation = 1;
    simt::device.properties.totalGlobalMem = 0;  // nor when the pool asks again
    multiply_into(to, 0);
    CHECK(products.shapes() == 2);
    CHECK(products.measured() == 1);
    CHECK(download(r.c, to).size() == count(n, n));
  }
}

TEST_CASE_FIXTURE(fresh_for_products, "a product that the device cannot do is unsupported, in a sentence") {
  simt::device.properties.major = 7;
  context c{probe(), 0};
  const tensor a = c.make({4, 4}, precision::bf16);
  CHECK_THROWS_WITH_AS(
      bmm(c, a, a, false, false),
      "a product (4,4) by (4,4) of BF16 and BF16 into BF16 on stand-in (cuBLASLt has no algorithm for these "
      "types, sizes and a workspace of 0 bytes): use another precision or size",
      unsupported);
}

TEST_CASE_FIXTURE(with_rig, "a call of cuBLASLt that fails says which, and the next one runs") {
  const tensor a = upload(r.c, normal(16, 1), {4, 4}, precision::fp32);
  bool ran = false;
  for (int call = 1; !ran && call < 64; ++call) {
    simt::device.fail_library = call;
    try {
      (void)bmm(r.c, a, a, false, false);
      ran = true;
    } catch (const library_error& e) {
      CHECK(e.status == CUBLAS_STATUS_INTERNAL_ERROR);
      CHECK(std::string{e.what()}.find("cuBLASLt says CUBLAS_STATUS_INTERNAL_ERROR") != std::string::npos);
    }
  }
  CHECK(ran);
  simt::device.fail_library = 0;
  const auto rows = download(r.c, a);
  check_product(download(r.c, bmm(r.c, a, a, false, false)), precision::fp32, rows, rows, {4, 4, 4});
}

TEST_CASE_FIXTURE(with_rig, "statuses of cuBLASLt are the errors that a search can tell apart") {
  CHECK_NOTHROW(check(CUBLAS_STATUS_SUCCESS, "x"));
  CHECK_THROWS_AS(check(CUBLAS_STATUS_NOT_SUPPORTED, "x"), unsupported);
  CHECK_THROWS_AS(check(CUBLAS_STATUS_ARCH_MISMATCH, "x"), unsupported);
  CHECK_THROWS_AS(check(CUBLAS_STATUS_ALLOC_FAILED, "x"), comp::out_of_memory);
  CHECK_THROWS_AS(check(CUBLAS_STATUS_EXECUTION_FAILED, "x"), library_error);
  simt::device.lost = cudaErrorIllegalAddress;
  CHECK_THROWS_AS(check(CUBLAS_STATUS_EXECUTION_FAILED, "x"), device_lost);
  simt::device.lost = cudaSuccess;
}

#endif

}  // namespace comp::cuda::test
