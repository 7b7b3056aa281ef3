// SPDX-License-Identifier: Apache-2.0
// Pooling and batch norm of the cuda Device against FP64, in every precision and both orders, and when cuDNN refuses a
// type or an order.
#include <comp_cuda/device.hpp>

#include "../native/reference_device.hpp"
#include "dnn_test.hpp"

namespace comp::cuda::test {
namespace {

namespace reference = native::reference;
constexpr order both_orders[] = {order::row_major, order::channels_last};

struct pool_case {
  shape x;
  pool2d_options options{};
};
const std::vector<pool_case> pool_cases{
    {{2, 3, 8, 6}},
    {{1, 5, 7, 9}, {.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 1}}},
    {{2, 4, 5, 5}, {.kernel = {3, 3}, .stride = {1, 1}, .padding = {1, 0}}},
    {{3, 1, 4, 4}, {.kernel = {4, 4}, .stride = {4, 4}}},
    {{2, 2, 9, 9}, {.kernel = {2, 2}, .stride = {3, 3}}},
};

tensor laid(device& d, const std::vector<float>& v, const shape& s, precision p, order places) {
  return in_order(d.shared(), d.upload(v, s, p), places);
}
void check_pools(device& d, const pool_case& k, precision p, order places) {
  CAPTURE(text(k.x));
  CAPTURE(name(p));
  CAPTURE(static_cast<int>(places));
  reference::device exact;
  const auto values = coarse(elements(k.x), 1);
  const tensor x = laid(d, values, k.x, p, places);
  const auto exact_x = exact.upload(values, k.x, p);
  const auto highest = d.max_pool2d(x, k.options);
  const auto exact_highest = exact.max_pool2d(exact_x, k.options);
  check_near(d.download(highest.output), exact_highest.output.values(), p);
  const tensor mean = d.avg_pool2d(x, k.options);
  check_near(d.download(mean), exact.avg_pool2d(exact_x, k.options).values(), p);
  CHECK(highest.output.precision() == p);
  CHECK(mean.precision() == p);
  const auto gradients = coarse(mean.size(), 2);
  for (const order of_dy : both_orders) {
    const tensor dy = laid(d, gradients, mean.shape(), p, of_dy);
    const auto exact_dy = exact.upload(gradients, mean.shape(), p);
    const tensor dx = d.max_pool2d_backward(dy, x, highest.saved, k.options);
    CHECK(dx.precision() == p);
    check_near(d.download(dx), exact.max_pool2d_backward(exact_dy, exact_x, exact_highest.saved, k.options).values(),
               p);
    check_near(d.download(d.avg_pool2d_backward(dy, k.x, k.options)),
               exact.avg_pool2d_backward(exact_dy, k.x, k.options).values(), p);
  }
}
void check_all_pools(device& d) {
  for (const pool_case& k : pool_cases) {
    for (const precision p : precisions) {
      for (const order places : both_orders) check_pools(d, k, p, places);
    }
  }
}

/// The parameters of a batch norm on both devices.
struct norm_pair {
  device& d;
  reference::device exact{};
  device::parameter gamma, beta, mean, variance;
  reference::parameter exact_gamma, exact_beta, exact_mean, exact_variance;
  static std::vector<float> positive(std::int64_t n) {
    auto v = coarse(n, 14);
    for (float& x : v) x = 0.5F + std::abs(x);
    return v;
  }
  norm_pair(device& on, std::int64_t n)
      : d{on},
        gamma{d.make_parameter(coarse(n, 11), {n})},
        beta{d.make_parameter(coarse(n, 12), {n})},
        mean{d.make_parameter(coarse(n, 13), {n}, false)},
        variance{d.make_parameter(positive(n), {n}, false)},
        exact_gamma{exact.make_parameter(coarse(n, 11), {n})},
        exact_beta{exact.make_parameter(coarse(n, 12), {n})},
        exact_mean{exact.make_parameter(coarse(n, 13), {n}, false)},
        exact_variance{exact.make_parameter(positive(n), {n}, false)} {}

  void step(const shape& s, precision p, order places, bool training, unsigned seed) {
    CAPTURE(text(s));
    CAPTURE(name(p));
    CAPTURE(static_cast<int>(places));
    CAPTURE(training);
    const native::batch_norm_options o{.eps = 1e-3, .momentum = 0.25, .training = training};
    const auto values = coarse(elements(s), seed), gradients = coarse(elements(s), seed + 1);
    const tensor x = laid(d, values, s, p, places);
    const auto exact_x = exact.upload(values, s, p), exact_dy = exact.upload(gradients, s, p);
    const auto y = d.batch_norm(x, gamma, beta, mean, variance, o);
    const auto want = exact.batch_norm(exact_x, exact_gamma, exact_beta, exact_mean, exact_variance, o);
    CHECK(y.output.precision() == p);
    check_near(d.download(y.output), want.output.values(), p);
    check_near(d.values(mean), exact_mean.value, precision::fp32);
    check_near(d.values(variance), exact_variance.value, precision::fp32);
    const tensor dx = d.batch_norm_backward(laid(d, gradients, s, p, order::row_major), x, y.saved, gamma, beta, o);
    const auto exact_dx = exact.batch_norm_backward(exact_dy, exact_x, want.saved, exact_gamma, exact_beta, o);
    CHECK(dx.precision() == p);
    check_near(d.download(dx), exact_dx.values(), p, storage_of(p) == storage::fp32 ? 16 : 0);  // it is a difference
    check_near(d.gradient(gamma), exact_gamma.gradient, precision::fp32);
    check_near(d.gradient(beta), exact_beta.gradient, precision::fp32);
  }
};
const std::vector<shape> norm_shapes{{4, 3, 5, 2}, {7, 8, 1, 1}, {2, 1, 4, 4}, {9, 6}, {2, 33}, {1, 4, 3, 3}};

/// Trainings and evaluations in turns: gradients are added up, statistics move on in training alone.
void check_norms(device& d, const std::vector<shape>& shapes = norm_shapes) {
  for (const shape& s : shapes) {
    norm_pair n{d, s[1]};
    unsigned seed = 20;
    for (const precision p : precisions) {
      for (const order places : both_orders) {
        for (const bool training : {true, false, true}) n.step(s, p, places, training, seed += 2);
      }
    }
  }
}

}  // namespace

struct with_layers : fresh_dnn {
  device d;
};

TEST_CASE_FIXTURE(with_layers, "pools agree with FP64 in every precision and order") {
  check_all_pools(d);
  for (const int mode : simt::dnn.pools) CHECK(mode != CUDNN_POOLING_MAX);  // whose gradient is not deterministic
}

TEST_CASE_FIXTURE(with_layers,
                  "pools of types and orders that cuDNN refuses agree with FP64 too, and the refusal is remembered") {
  SUBCASE("BF16") { simt::dnn.bf16_pooling = false; }
  SUBCASE("channels_last") { simt::dnn.nhwc_pooling = false; }
  SUBCASE("both") { simt::dnn.bf16_pooling = simt::dnn.nhwc_pooling = false; }
  SUBCASE("both, as a bad parameter") {
    simt::dnn.bf16_pooling = simt::dnn.nhwc_pooling = false;
    simt::dnn.refusal = CUDNN_STATUS_BAD_PARAM;
  }
  check_all_pools(d);
  const tensor x = laid(d, coarse(2 * 3 * 8 * 6, 1), {2, 3, 8, 6}, precision::bf16, order::channels_last);
  simt::device.fail_library = 1000;
  (void)d.max_pool2d(x, {});
  const int first = 1000 - simt::device.fail_library;
  simt::dnn.bf16_pooling = simt::dnn.nhwc_pooling = true;  // nobody asks again
  (void)d.max_pool2d(x, {});
  CHECK(1000 - simt::device.fail_library == 2 * first);
  simt::device.fail_library = 0;
}

TEST_CASE_FIXTURE(with_layers, "NaN goes through a maximum and its order does not matter") {
  const float nan = std::numeric_limits<float>::quiet_NaN();
  for (const order places : both_orders) {
    for (const precision p : precisions) {
      const tensor x = laid(d, {1, nan, 3, 4, 5, 6, 7, 8}, {1, 1, 2, 4}, p, places);
      const auto y = d.download(d.max_pool2d(x, {}).output);
      CHECK(std::isnan(y[0]));
      CHECK(y[1] == 8);
    }
  }
}

TEST_CASE_FIXTURE(with_layers, "batch norm agrees with FP64 in training and evaluation, in every precision and order") {
  check_norms(d);
  CHECK(std::ranges::count(simt::dnn.norms, CUDNN_BATCHNORM_SPATIAL_PERSISTENT) > 0);
  CHECK(std::ranges::count(simt::dnn.norms, CUDNN_BATCHNORM_SPATIAL) > 0);
  CHECK(std::ranges::count(simt::dnn.norms, CUDNN_BATCHNORM_PER_ACTIVATION) > 0);
}

TEST_CASE_FIXTURE(fresh_dnn, "batch norm of types and orders that cuDNN refuses agrees with FP64 too") {
  SUBCASE("BF16") { simt::dnn.bf16_norm = false; }
  SUBCASE("channels_last") { simt::dnn.nhwc_norm = false; }
  SUBCASE("both") { simt::dnn.bf16_norm = simt::dnn.nhwc_norm = false; }
  SUBCASE("both, as a bad parameter") {
    simt::dnn.bf16_norm = simt::dnn.nhwc_norm = false;
    simt::dnn.refusal = CUDNN_STATUS_BAD_PARAM;
  }
  device d;
  check_norms(d);
}

TEST_CASE_FIXTURE(fresh_dnn, "the persistent kernels' workspace is bounded: without it batch norm runs row-major") {
  device d{{.workspace_limit = 0}};
  check_norms(d, {{4, 3, 5, 2}});
  for (const int mode : simt::dnn.norms) CHECK(mode != CUDNN_BATCHNORM_SPATIAL_PERSISTENT);
}

TEST_CASE_FIXTURE(with_layers,
                  "more rows than cuDNN normalises per activation are images of one pixel to it, or one image") {
  norm_pair n{d, 2};
  for (const precision p : {precision::fp32, precision::bf16}) {
    for (const bool training : {true, false}) n.step({131071, 2}, p, order::row_major, training, 5);
  }
  CHECK(simt::dnn.norms == std::vector<int>(2, CUDNN_BATCHNORM_SPATIAL));
}

TEST_CASE_FIXTURE(with_layers, "a channel of more rows than one call sums keeps the sums of the first ones") {
  const std::int64_t most = std::int64_t{1} << 23;
  const tensor all = d.shared().make({most + 1, 1}, precision::bf16), sum = d.shared().make({1}, precision::fp32);
  d.shared().clear(all.materialize(), 2 * (most + 1));
  for (const std::int64_t row : {std::int64_t{0}, most}) {
    check(cudaMemcpyAsync(all.materialize_as<bf16>() + row,
                          d.upload(std::vector{1.0F}, {1}, precision::bf16).materialize(), 2, cudaMemcpyDeviceToDevice,
                          d.shared().stream().get()),
          "writing an element");
  }
  channel_sums(d.shared(), all, {sum.materialize_as<float>(), false});
  CHECK(d.download(sum) == std::vector{2.0F});
}

TEST_CASE_FIXTURE(with_layers,
                  "gradients of scale and shift are kept apart where only one is trained or only one is fresh") {
  const shape s{4, 3, 2, 2};
  const tensor x = d.upload(coarse(elements(s), 1), s, precision::fp32);
  for (const bool training : {true, false}) {
    const native::batch_norm_options o{.training = training};
    norm_pair n{d, 3};
    const auto y = d.batch_norm(x, n.gamma, n.beta, n.mean, n.variance, o);
    const auto back = [&] { (void)d.batch_norm_backward(x, x, y.saved, n.gamma, n.beta, o); };
    back();
    const auto once = d.gradient(n.gamma), shift = d.gradient(n.beta);
    d.zero_gradient(n.beta);
    back();
    for (std::size_t i = 0; i < 3; ++i) CHECK(d.gradient(n.gamma)[i] == 2 * once[i]);
    CHECK(d.gradient(n.beta) == shift);
    n.gamma.trainable = false;
    back();
    for (std::size_t i = 0; i < 3; ++i) {
      CHECK(d.gradient(n.gamma)[i] == 2 * once[i]);
      CHECK(d.gradient(n.beta)[i] == 2 * shift[i]);
    }
  }
}

TEST_CASE_FIXTURE(with_layers, "a batch of one value moves the running mean, and takes the variance for 0") {
  auto gamma = d.make_parameter(std::vector<float>{2}, {1}), beta = d.make_parameter(std::vector<float>{3}, {1});
  auto mean = d.make_parameter(std::vector<float>{4}, {1}, false);
  auto variance = d.make_parameter(std::vector<float>{8}, {1}, false);
  const tensor x = d.upload(std::vector<float>{8}, {1, 1}, precision::fp32);
  CHECK(d.download(d.batch_norm(x, gamma, beta, mean, variance, {.momentum = 0.25}).output)[0] == 3);
  CHECK(d.values(mean)[0] == 5);
  CHECK(d.values(variance)[0] == 6);
}

TEST_CASE_FIXTURE(with_layers,
                  "what an evaluation saved is its own, whatever a training does to the running statistics after it") {
  const shape s{4, 3, 2, 2};
  const tensor x = d.upload(coarse(elements(s), 1), s, precision::bf16);
  norm_pair n{d, 3};
  const native::batch_norm_options fixed{.training = false};
  const auto y = d.batch_norm(x, n.gamma, n.beta, n.mean, n.variance, fixed);
  const auto before = d.download(d.batch_norm_backward(x, x, y.saved, n.gamma, n.beta, fixed));
  (void)d.batch_norm(x, n.gamma, n.beta, n.mean, n.variance, {});
  CHECK(d.download(d.batch_norm_backward(x, x, y.saved, n.gamma, n.beta, fixed)) == before);
}

}  // namespace comp::cuda::test
