// SPDX-License-Identifier: Apache-2.0
// Products by cuBLASLt against FP64, over sizes, transposes, precisions and alignments; linear and bmm, forward and
// backward; and how an algorithm is chosen.
#include <comp_cuda/bmm.hpp>
#include <comp_cuda/linear.hpp>
#include <comp_cuda/transfer.hpp>

#include "product_test.hpp"

namespace comp::cuda::test {
namespace {

/// The relative size of one rounding of a result.
double rounding(precision p) { return p == precision::tf32 ? 0x1p-24 : traits(p).half_ulp; }
/// To 10 bits of fraction, ties to even.
double as_tf32(float x) {
  int exponent = 0;
  const double fraction = std::frexp(static_cast<double>(x), &exponent);
  return std::ldexp(std::nearbyint(std::ldexp(fraction, 11)), exponent - 11);
}
/// What `p` keeps of a value.
double kept(float v, precision p) {
  if (p == precision::tf32) return as_tf32(v);
  return with_storage(p, [&]<class T>(std::type_identity<T>) {
    T to;
    native::math::store(to, v);
    return static_cast<double>(native::math::load(to));
  });
}

/// a (m,k) by b (k,n), as they lie in memory, in FP64; and the sum of the magnitudes, which bounds the error.
struct reference {
  std::vector<double> value, magnitude;
  reference(const std::vector<double>& a, bool ta, const std::vector<double>& b, bool tb, index m, index n, index k)
      : value(static_cast<std::size_t>(m * n)), magnitude(value.size()) {
    for (index i = 0; i < m; ++i) {
      for (index j = 0; j < n; ++j) {
        const auto at = static_cast<std::size_t>(i * n + j);
        for (index x = 0; x < k; ++x) {
          const double term = a[static_cast<std::size_t>(ta ? x * m + i : i * k + x)] *
                              b[static_cast<std::size_t>(tb ? j * k + x : x * n + j)];
          value[at] += term;
          magnitude[at] += std::abs(term);
        }
      }
    }
  }
};
/// Each value is off by one rounding of the result, and by the roundings of an FP32 sum of k terms of precision p.
void check_within(const std::vector<float>& got, const reference& want, index k, precision p, double result,
                  double alpha = 1) {
  REQUIRE(got.size() == want.value.size());
  double worst = 0;
  for (std::size_t i = 0; i < got.size(); ++i) {
    const double exact = alpha * want.value[i];
    const double terms = one_term(p) * (static_cast<double>(k) + 4) + 2 * one_operand(p);
    const double allowed = std::abs(exact) * result * 1.01 + std::abs(alpha) * want.magnitude[i] * terms + 1e-30;
    worst = std::max(worst, std::abs(static_cast<double>(got[i]) - exact) / allowed);
  }
  CHECK(worst <= 1);
}
std::vector<double> all_kept(const std::vector<float>& v, precision p) {
  std::vector<double> to(v.size());
  std::transform(v.begin(), v.end(), to.begin(), [=](float x) { return kept(x, p); });
  return to;
}
std::size_t count(index a, index b) { return static_cast<std::size_t>(a * b); }

std::vector<precision> computed(const rig& r) {
  std::vector<precision> all{precision::fp32, precision::tf32, precision::bf16, precision::fp16};
  std::erase_if(all, [&](precision p) { return !r.has(p); });
  return all;
}
std::vector<std::array<index, 3>> grid() {
  if (small) return {{1, 1, 1}, {3, 5, 7}, {8, 16, 32}, {33, 17, 65}};
  return {{1, 1, 1},    {1, 7, 3},    {7, 1, 3},     {3, 5, 1},    {2, 2, 2},    {3, 5, 7},     {8, 8, 8},
          {16, 32, 64}, {31, 33, 35}, {64, 16, 128}, {65, 64, 63}, {5, 100, 33}, {100, 10, 84}, {1, 300, 257}};
}

}  // namespace

TEST_CASE_FIXTURE(with_rig, "products in each precision and transposition are those of FP64 within their rounding") {
  for (const precision p : computed(r)) {
    for (const auto [m, n, k] : grid()) {
      for (const int transposes : {0, 1, 2, 3}) {
        const bool ta = transposes & 1, tb = transposes & 2;
        INFO(std::string{name(p)}, " ", m, "x", n, "x", k, " transposes ", transposes);
        const auto a = normal(count(m, k), 1), b = normal(count(k, n), 2);
        const tensor x = upload(r.c, a, ta ? shape{k, m} : shape{m, k}, p);
        const tensor w = upload(r.c, b, tb ? shape{n, k} : shape{k, n}, p);
        const reference want{all_kept(a, p), ta, all_kept(b, p), tb, m, n, k};
        const tensor y = bmm(r.c, x, w, ta, tb, 0.5);
        CHECK(y.precision() == p);
        check_within(download(r.c, y), want, k, p, rounding(p), 0.5);
      }
    }
  }
}

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

TEST_CASE_FIXTURE(with_rig, "a batch of more matrices than cuBLASLt takes is multiplied in parts") {
  const index batch = 65535 + 2;
  const auto a = normal(count(batch, 2), 5), b = normal(count(batch, 2), 6);
  const auto y = download(r.c, bmm(r.c, upload(r.c, a, {batch, 1, 2}, precision::fp16),
                                   upload(r.c, b, {batch, 2, 1}, precision::fp16), false, false));
  const auto left = all_kept(a, precision::fp16), right = all_kept(b, precision::fp16);
  REQUIRE(y.size() == count(batch, 1));
  double worst = 0;
  for (std::size_t i = 0; i < y.size(); ++i) {
    const double first = left[2 * i] * right[2 * i], second = left[2 * i + 1] * right[2 * i + 1];
    const double allowed = 0x1p-11 * (std::abs(first) + std::abs(second)) + 0x1p-25;  // of the least that FP16 has
    worst = std::max(worst, std::abs(static_cast<double>(y[i]) - first - second) / (1.01 * allowed));
  }
  CHECK(worst <= 1);
}

TEST_CASE_FIXTURE(with_rig, "matrices of one size are multiplied by turns in batches of any number") {
  for (const precision p : computed(r)) {
    for (const index batch : {3, 1, 5, 2}) {
      INFO(std::string{name(p)}, " ", batch);
      const auto a = normal(count(batch, 16 * 16), 5), b = normal(count(batch, 16 * 16), 6);
      const auto y =
          download(r.c, bmm(r.c, upload(r.c, a, {batch, 16, 16}, p), upload(r.c, b, {batch, 16, 16}, p), false, false));
      for (index i = 0; i < batch; ++i) {
        const auto one = [&](const std::vector<float>& all) {
          return std::vector<float>(all.begin() + i * 256, all.begin() + (i + 1) * 256);
        };
        check_within(one(y), {all_kept(one(a), p), false, all_kept(one(b), p), false, 16, 16, 16}, 16, p, rounding(p));
      }
    }
  }
}

TEST_CASE_FIXTURE(with_rig, "operands that lie at odd addresses are multiplied by an algorithm that can") {
  const index m = 16, n = 16, k = 16;
  const auto a = normal(count(m, k), 5), b = normal(count(k, n), 6);
  for (const precision p : computed(r)) {
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
      check_within(got, {all_kept(a, p), false, all_kept(b, p), false, m, n, k}, k, p, rounding(p));
    }
  }
}

TEST_CASE_FIXTURE(with_rig, "linear adds its bias and clips with the product, and one rounding is all") {
  for (const precision p : computed(r)) {
    for (const auto [rows, outputs, inputs] : grid()) {
      INFO(std::string{name(p)}, " ", rows, "x", outputs, "x", inputs);
      const auto x = normal(count(rows, inputs), 7), w = normal(count(outputs, inputs), 8),
                 b = normal(count(outputs, 1), 9);
      parameter weight = make_parameter(r.c, w, {outputs, inputs}, true),
                bias = make_parameter(r.c, b, {outputs}, true);
      const tensor in = upload(r.c, x, {rows, 1, inputs}, p);
      reference want{all_kept(x, p), false, all_kept(w, p), true, rows, outputs, inputs};
      for (std::size_t i = 0; i < want.value.size(); ++i) {
        const double add = p == precision::tf32 ? static_cast<double>(b[i % b.size()]) : kept(b[i % b.size()], p);
        want.value[i] += add;
        want.magnitude[i] += std::abs(add);
      }
      const tensor y = linear(r.c, in, weight, &bias);
      CHECK(y.shape() == shape{rows, 1, outputs});
      check_within(download(r.c, y), want, inputs, p, rounding(p));
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

TEST_CASE("the backward of linear adds gradients in FP32 and returns the input's in the precision of dy") {
  rig r;
  for (const precision p : computed(r)) {
    for (const auto [rows, outputs, inputs] : grid()) {
      INFO(std::string{name(p)}, " ", rows, "x", outputs, "x", inputs);
      const auto x = normal(count(rows, inputs), 10), w = normal(count(outputs, inputs), 11),
                 dy = normal(count(rows, outputs), 12);
      parameter weight = make_parameter(r.c, w, {outputs, inputs}, true);
      parameter bias = make_parameter(r.c, std::vector<float>(static_cast<std::size_t>(outputs)), {outputs}, true);
      const tensor in = upload(r.c, x, {rows, inputs}, precision::fp32), g = upload(r.c, dy, {rows, outputs}, p);
      const tensor dx = linear_backward(r.c, g, in, weight, &bias, true);
      CHECK(dx.precision() == p);
      check_within(download(r.c, dx), {all_kept(dy, p), false, all_kept(w, p), false, rows, inputs, outputs}, outputs,
                   p, rounding(p));
      reference dw{all_kept(dy, p), true, all_kept(x, p), false, outputs, inputs, rows};
      check_within(gradient(r.c, weight), dw, rows, p, 0x1p-24);
      // TF32 tensors keep FP32's bits: only the product rounds them
      const precision stored = p == precision::tf32 ? precision::fp32 : p;
      const std::vector<double> ones(static_cast<std::size_t>(rows), 1.0);
      check_within(gradient(r.c, bias), {ones, false, all_kept(dy, stored), false, 1, outputs, rows}, rows,
                   precision::fp32, 0x1p-24);
      CHECK_FALSE(linear_backward(r.c, g, in, weight, nullptr, false));  // a second time: added
      for (double& v : dw.value) v *= 2;
      for (double& v : dw.magnitude) v *= 2;
      check_within(gradient(r.c, weight), dw, rows + 1, p, 0x1p-24);
    }
  }
}

TEST_CASE_FIXTURE(with_rig, "bmm refuses what only it can be asked for, with the shapes in the sentence") {
  const tensor x = upload(r.c, normal(12, 3), {3, 4}, precision::fp32),
               y = upload(r.c, normal(12, 3), {4, 3}, precision::fp32);
  CHECK_THROWS_WITH_AS(bmm(r.c, x, y, true, false),
                       "bmm of (3,4)' and (4,3) (the inner sizes and the batches must be equal): fix the shapes",
                       error);
  CHECK_THROWS_WITH_AS(bmm(r.c, x, upload(r.c, normal(12, 3), {1, 4, 3}, precision::fp32), false, false),
                       "bmm of (3,4) and (1,4,3) (they need as many axes): reshape one of them", error);
  CHECK_THROWS_WITH_AS(bmm(r.c, y.viewed(precision::fp8_e4m3), x, false, false),
                       "bmm in fp8_e4m3 (of matrix products only linear has FP8): use bf16", unsupported);
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
  const double exact = kept(a[0], precision::bf16) + static_cast<double>(k - 1);
  CHECK(static_cast<double>(download(r.c, low).front()) == kept(static_cast<float>(exact), precision::bf16));
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
    const auto rows = all_kept(download(r.c, a), precision::bf16);
    reference want{rows, false, rows, false, n, n, n};
    for (double& v : want.value) v += 1;
    check_within(once, want, n, precision::bf16, 0x1p-24);
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
  const auto rows = all_kept(download(r.c, a), precision::fp32);
  check_within(download(r.c, bmm(r.c, a, a, false, false)), {rows, false, rows, false, 4, 4, 4}, 4, precision::fp32,
               0x1p-24);
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
