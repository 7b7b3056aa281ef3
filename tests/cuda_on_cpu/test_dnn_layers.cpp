// SPDX-License-Identifier: Apache-2.0
// Pooling and batch norm of the cuda Device against FP64, in every precision and both orders, and when cuDNN refuses a
// type or an order.
#include "dnn_test.hpp"

namespace comp::cuda::test {
namespace {

namespace contract = native::contract;
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

/// In every precision and both orders.
void check_pools(device& d) {
  for (const pool_case& k : pool_cases) {
    CAPTURE(text(k.x));
    contract::agree_on(d, [&](auto& on, contract::results& r) {
      for (const precision p : precisions) {
        for (const order places : both_orders) {
          const auto x = laid(on, k.x, 1, p, places);
          const auto highest = on.max_pool2d(x, k.options);
          const auto mean = on.avg_pool2d(x, k.options);
          r.keep(on, "max", highest.output);
          r.keep(on, "mean", mean, 4);
          for (const order of_dy : both_orders) {
            const auto dy = laid(on, mean.shape(), 2, p, of_dy);
            r.keep(on, "max dx", on.max_pool2d_backward(dy, x, highest.saved, k.options), 4);
            r.keep(on, "mean dx", on.avg_pool2d_backward(dy, k.x, k.options), 4);
          }
        }
      }
    });
  }
}

/// The parameters of a batch norm of n channels, and what its steps give.
template <class D>
struct norm {
  using parameter = typename D::parameter;
  D& d;
  std::int64_t n;
  parameter gamma = contract::parameter_of(d, {n}, 11, precision::fp32),
            beta = contract::parameter_of(d, {n}, 12, precision::fp32),
            mean = contract::parameter_of(d, {n}, 13, precision::fp32),
            variance = contract::parameter_of(d, {n}, 14, precision::fp32, 0.5F, 2.5F);

  void step(contract::results& r, const shape& s, precision p, order places, bool training) {
    const native::batch_norm_options o{.eps = 1e-3, .momentum = 0.25, .training = training};
    const auto seed = static_cast<unsigned>(20 + 2 * r.all.size());
    const auto x = laid(d, s, seed, p, places), dy = laid(d, s, seed + 1, p, order::row_major);
    const auto y = d.batch_norm(x, gamma, beta, mean, variance, o);
    r.keep(d, "y", y.output, 4);
    r.keep_values(d, "mean", mean, 4);
    r.keep_values(d, "variance", variance, 4);
    r.keep(d, "dx", d.batch_norm_backward(dy, x, y.saved, gamma, beta, o), 8);  // it is a difference
    const double count = std::min(64.0, static_cast<double>(elements(s) / n));
    r.keep_gradient(d, "dgamma", gamma, 4 * count);  // added up over all steps
    r.keep_gradient(d, "dbeta", beta, 2 * count);
  }
};
const std::vector<shape> norm_shapes{{4, 3, 5, 2}, {7, 8, 1, 1}, {2, 1, 4, 4}, {9, 6}, {2, 33}, {1, 4, 3, 3}};

/// Trainings and evaluations in turns: gradients are added up, statistics move on in training alone.
void check_norms(device& d, const std::vector<shape>& shapes = norm_shapes) {
  for (const shape& s : shapes) {
    CAPTURE(text(s));
    contract::agree_on(d, [&](auto& on, contract::results& r) {
      norm n{on, s[1]};
      for (const precision p : precisions) {
        for (const order places : both_orders) {
          for (const bool training : {true, false, true}) n.step(r, s, p, places, training);
        }
      }
    });
  }
}

}  // namespace

struct with_layers : fresh_dnn {
  device d;
};

TEST_CASE_FIXTURE(
    with_layers,
    "pools agree with FP64 in every precision and order, also of types and orders that cuDNN refuses, and "
    "a refusal is remembered") {
  SUBCASE("nothing is refused") {}
  SUBCASE("BF16") { simt::dnn.bf16_pooling = false; }
  SUBCASE("channels_last") { simt::dnn.nhwc_pooling = false; }
  SUBCASE("both") { simt::dnn.bf16_pooling = simt::dnn.nhwc_pooling = false; }
  SUBCASE("both, as a bad parameter") {
    simt::dnn.bf16_pooling = simt::dnn.nhwc_pooling = false;
    simt::dnn.refusal = CUDNN_STATUS_BAD_PARAM;
  }
  check_pools(d);
  for (const int mode : simt::dnn.pools) CHECK(mode != CUDNN_POOLING_MAX);  // whose gradient is not deterministic
  const tensor x = laid(d, {2, 3, 8, 6}, 1, precision::bf16, order::channels_last);
  simt::device.fail_library = 1000;
  (void)d.max_pool2d(x, {});
  const int first = 1000 - simt::device.fail_library;
  simt::dnn.bf16_pooling = simt::dnn.nhwc_pooling = true;  // nobody asks again
  (void)d.max_pool2d(x, {});
  CHECK(1000 - simt::device.fail_library == 2 * first);
  simt::device.fail_library = 0;
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
  contract::agree_on(d, [](auto& on, contract::results& r) {
    norm n{on, 2};
    for (const precision p : {precision::fp32, precision::bf16}) {
      for (const bool training : {true, false}) n.step(r, {131071, 2}, p, order::row_major, training);
    }
  });
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

TEST_CASE_FIXTURE(with_layers, "a batch of one value moves the running mean, and takes the variance for 0") {
  auto gamma = d.make_parameter(std::vector<float>{2}, {1}), beta = d.make_parameter(std::vector<float>{3}, {1});
  auto mean = d.make_parameter(std::vector<float>{4}, {1}, false);
  auto variance = d.make_parameter(std::vector<float>{8}, {1}, false);
  const tensor x = d.upload(std::vector<float>{8}, {1, 1}, precision::fp32);
  CHECK(d.download(d.batch_norm(x, gamma, beta, mean, variance, {.momentum = 0.25}).output)[0] == 3);
  CHECK(d.values(mean)[0] == 5);
  CHECK(d.values(variance)[0] == 6);
}

}  // namespace comp::cuda::test
