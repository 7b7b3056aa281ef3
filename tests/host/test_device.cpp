// SPDX-License-Identifier: Apache-2.0
#include <comp_host/device.hpp>
#include <numeric>

#include "../native/devices/agree.hpp"

namespace comp::host::test {

using namespace native::contract;

namespace {

TEST_CASE("after a step nothing is live, and the next step asks the system for nothing") {
  device d;
  (void)one_step(d, precision::bf16);
  CHECK(d.live_bytes() == 0);
  const auto made = d.primitives_made();
  (void)one_step(d, precision::bf16);
  CHECK(d.primitives_made() == made);
  CHECK(d.live_bytes() == 0);
  CHECK(d.peak_bytes() > 4 * 3 * 64 * 2);
}

TEST_CASE("operators on graphs give the same bits for any number of threads") {
  const auto bits = [](int threads, precision p) {
    device d{{.threads = threads}};
    native::host_csr m{.rows = 3000, .columns = 3000, .begin = {0}};  // rows of 0 to 16 elements, one of all columns
    for (std::int32_t r = 0; r < 3000; ++r) {
      for (std::int32_t k = 0; k < (r == 17 ? 3000 : r % 17); ++k)
        m.column.push_back(r == 17 ? k : (r * 7 + k * 13) % 3000);
      m.begin.push_back(static_cast<std::int32_t>(m.column.size()));
    }
    const auto a = d.make_sparse(m);
    auto b = parameter_of(d, {24}, 1, p), w = parameter_of(d, {3000, 24}, 2, p),
         source = parameter_of(d, {1, 8, 3}, 3, p), target = parameter_of(d, {1, 8, 3}, 4, p);
    const auto h = d.spmm(a, d.sparse_linear(a, tensor_of(d, {1, a.elements()}, 5, p), w), &b);
    const auto scores = d.edge_scores(a, h, source, target, 0.2);
    const auto shares = d.edge_softmax(a, scores.output);
    const auto y = d.weighted_sum(a, shares, h, &b);
    const auto [d_share, dh] = d.weighted_sum_backward(a, y, shares, h, &b);
    const auto d_scores = d.edge_softmax_backward(a, d_share, shares);
    const auto dx = d.edge_scores_backward(a, d_scores, h, scores.saved, source, target, 0.2);
    (void)d.sparse_linear_backward(a, d.spmm_backward(a, dx, &b, true), tensor_of(d, {1, a.elements()}, 5, p), w,
                                   false);
    std::vector<float> all = d.download(dh);
    for (const auto* q : {&b, &w, &source, &target}) {
      const auto g = d.gradient(*q);
      all.insert(all.end(), g.begin(), g.end());
    }
    return all;
  };
  for (const precision p : {precision::fp32, precision::bf16}) {
    const auto one = bits(1, p);
    CHECK(std::ranges::all_of(one, [](float v) { return std::isfinite(v); }));
    for (const int threads : {2, 3, 8}) CHECK(bits(threads, p) == one);
  }
}

TEST_CASE("live and peak bytes are those of the tensors") {
  device d;
  {
    const auto a = d.upload(std::vector<float>(1000), {1000}, precision::fp32);
    CHECK(d.live_bytes() == 4000);
    const auto half = d.cast(a, precision::bf16);
    CHECK(d.live_bytes() == 6000);
    const auto view = d.reshape(half, {10, 100});
    CHECK(d.live_bytes() == 6000);
  }
  CHECK(d.live_bytes() == 0);
  CHECK(d.peak_bytes() == 6000);
  d.reset_peak();
  CHECK(d.peak_bytes() == 0);
}

TEST_CASE("a device over its limit says how much was asked for, and stays usable") {
  device d{settings{.memory_limit = 10000}};
  const auto a = d.upload(std::vector<float>(2000), {2000}, precision::fp32);
  CHECK_THROWS_WITH_AS(
      d.upload(std::vector<float>(1000), {1000}, precision::fp32),
      "4000 bytes asked for with 8000 live (the memory limit is 10000): use a smaller batch or raise the limit",
      out_of_memory);
  CHECK(d.live_bytes() == 8000);
  CHECK(d.download(d.upload(std::vector<float>(500), {500}, precision::fp32)).size() == 500);
}

TEST_CASE("tensors may outlive the device that made them") {
  tensor kept;
  {
    device d;
    kept = d.upload(std::vector{1.0F, 2.0F}, {2}, precision::fp32);
  }
  CHECK(kept.as<float>()[1] == 2.0F);
}

TEST_CASE("merging the heads of a product takes no memory") {
  device d;
  const auto q = d.split_heads(tensor_of(d, {2, 16, 32}, 1, precision::fp32), 4);
  const auto mixed = d.bmm(tensor_of(d, {2, 4, 16, 16}, 2, precision::fp32), q);
  const auto before = d.live_bytes();
  const auto merged = d.merge_heads(mixed);
  CHECK(d.live_bytes() == before);
  CHECK(merged.data() == mixed.data());
}

TEST_CASE("the clocks count only while asked for") {
  device d;
  (void)one_step(d, precision::fp32);
  CHECK(d.primitive_seconds() == 0);
  d.profile_primitives(true);
  (void)one_step(d, precision::fp32);
  CHECK(d.primitive_seconds() > 0);
  CHECK(d.shares().kernels > 0);
  d.profile_primitives(true);
  CHECK(d.primitive_seconds() == 0);
}

TEST_CASE("another epsilon or factor is another primitive") {
  device d, fresh;
  const auto norm = [](device& on, double eps) {
    auto gamma = parameter_of(on, {8}, 1, precision::fp32), beta = parameter_of(on, {8}, 2, precision::fp32);
    return on.download(on.layer_norm(tensor_of(on, {4, 8}, 3, precision::fp32), gamma, beta, eps).output);
  };
  CHECK(norm(d, 1e-5) != norm(d, 1));
  CHECK(norm(d, 1) == norm(fresh, 1));
  const auto product = [](device& on, double alpha) {
    const auto a = tensor_of(on, {4, 8}, 4, precision::fp32), b = tensor_of(on, {8, 4}, 5, precision::fp32);
    return on.download(on.bmm(a, b, false, false, alpha));
  };
  CHECK(product(d, 1) != product(d, 0.5));
  CHECK(product(d, 0.5) == product(fresh, 0.5));
}

TEST_CASE("sums have the same bits on any number of threads, and threads leave no element out") {
  const std::int64_t n = 2 * 313 * 64 + 1;  // shares of whole cache lines, and one element
  std::vector<double> losses;
  for (const int threads : {1, 2, 3}) {
    device d{settings{.threads = threads}};
    const auto x = tensor_of(d, {n}, 1, precision::fp16), y = tensor_of(d, {n}, 2, precision::fp32);
    CHECK(d.download(x) == numbers(n, 1, precision::fp16));
    d.mse_loss(d.cast(x, precision::fp32), y, &losses.emplace_back());
  }
  CHECK(losses[1] == losses[0]);
  CHECK(losses[2] == losses[0]);
}

TEST_CASE("gradients have a norm where FP32 cannot hold their squares") {
  device d;
  for (const float each : {1e13F, 1e-15F}) {
    auto w = parameter_of(d, {1, 1}, 1, precision::fp32);
    const auto x = d.upload(std::vector{each}, {1, 1}, precision::fp32);
    (void)d.linear_backward(x, x, w, nullptr, false);
    const double want = static_cast<double>(each) * static_cast<double>(each);
    CHECK(d.gradient_norm(std::vector{&w}) == doctest::Approx(want).scale(0));
  }
}

TEST_CASE("an embedding's gradient has the same bits on any number of threads") {
  std::vector<std::vector<float>> gradients;
  for (const int threads : {1, 2, 3}) {
    device d{settings{.threads = threads}};
    auto w = parameter_of(d, {24, 64}, 1, precision::fp32);
    std::vector<std::int32_t> each(24);
    std::iota(each.begin(), each.end(), 0);
    d.embedding_backward(tensor_of(d, {24, 64}, 2, precision::fp32), d.upload(each, {24}), w);
    gradients.push_back(d.gradient(w));
  }
  CHECK(gradients[1] == gradients[0]);
  CHECK(gradients[2] == gradients[0]);
}

TEST_CASE("weights are rounded to the precision of their product") {
  for (const precision p : {precision::bf16, precision::fp16}) {
    device d;
    auto w = d.make_parameter(std::vector{1 + 0x1p-12F, 1.0F}, {1, 2});
    const auto x = d.upload(std::vector{1.0F, -1.0F}, {1, 2}, p);
    CHECK(d.download(d.linear(x, w, nullptr)) == std::vector{0.0F});
  }
}

TEST_CASE("a gradient lies where its values lie, whatever precision came before") {
  for (const precision before : {precision::fp32, precision::bf16}) {
    device d;
    auto w = parameter_of(d, {64, 48}, 1, precision::fp32);
    for (const precision p : {before, precision::mxfp8}) {
      d.zero_gradient(w);
      (void)d.linear_backward(tensor_of(d, {32, 64}, 2, p), tensor_of(d, {32, 48}, 3, p), w, nullptr, false);
      CHECK(w.gradient.layout() == w.value.layout());
    }
  }
}

TEST_CASE("slots that are set lie where the values lie") {
  device d;
  auto w = parameter_of(d, {16, 16, 3, 3}, 1, precision::fp32);
  const std::vector all{&w};
  const auto x = tensor_of(d, {2, 16, 6, 6}, 2, precision::fp32);
  const auto y = d.conv2d(x, w, nullptr, {});
  (void)d.conv2d_backward(y, x, w, nullptr, {}, false);
  d.sgd_step(all, {.learning_rate = 0.1, .momentum = 0.9});
  d.set_slots(w, d.slots(w));
  CHECK(w.first.layout() == w.value.layout());
}

TEST_CASE("what an evaluation's batch norm saved is its own") {
  device d;
  auto gamma = parameter_of(d, {3}, 1, precision::fp32), beta = parameter_of(d, {3}, 2, precision::fp32),
       mean = parameter_of(d, {3}, 3, precision::fp32), variance = parameter_of(d, {3}, 4, precision::fp32, 0.5F, 1.5F);
  const auto x = tensor_of(d, {4, 3}, 5, precision::fp32);
  const native::batch_norm_options fixed{.training = false};
  const auto y = d.batch_norm(x, gamma, beta, mean, variance, fixed);
  const auto gradient = [&] {
    d.zero_gradient(gamma);
    (void)d.batch_norm_backward(x, x, y.saved, gamma, beta, fixed);
    return d.gradient(gamma);
  };
  const auto before = gradient();
  (void)d.batch_norm(x, gamma, beta, mean, variance, {});
  CHECK(gradient() == before);
}

TEST_CASE("what oneDNN refuses is an error of comp") {
  device d;
  auto w = parameter_of(d, {4, 4, 1, 1}, 1, precision::fp32);
  const auto x = tensor_of(d, {1, 4, 4, 4}, 2, precision::fp32);
  CHECK_THROWS_AS(d.conv2d(x, w, nullptr, {.stride = {1, 1}, .padding = {-1, -1}}), error);
  CHECK_THROWS_AS(d.bmm(tensor_of(d, {2, 2}, 1, precision::fp32), tensor_of(d, {3, 2}, 1, precision::fp32)), error);
}

TEST_CASE("settings that cannot be are refused") {
  CHECK_THROWS_WITH_AS(device{settings{.threads = -1}},
                       "-1 threads asked for (a device needs at least one): use 0 for all", settings_error);
}

}  // namespace
}  // namespace comp::host::test
