// SPDX-License-Identifier: Apache-2.0
#include <comp_host/device.hpp>
#include <cstring>

#include "agree.hpp"

namespace comp::host::test {
namespace {

/// One forward and backward of a small net; all that it gave, as bytes.
std::vector<float> one_step(device& d, precision p) {
  auto k = parameter_of(d, {17, 3, 3, 3}, 1, p), w = parameter_of(d, {10, 17 * 16}, 2, p),
       gamma = parameter_of(d, {17}, 3, p), beta = parameter_of(d, {17}, 4, p), mean = parameter_of(d, {17}, 5, p),
       variance = parameter_of(d, {17}, 6, p, 0.5F, 1);
  const auto x = tensor_of(d, {4, 3, 8, 8}, 7, p);
  const auto target = d.upload(std::vector<std::int32_t>{1, 2, 3, 4}, {4});
  double loss = 0;
  const auto y = d.conv2d(x, k, nullptr, {.padding = {1, 1}});
  const auto n = d.batch_norm(y, gamma, beta, mean, variance, {});
  const auto a = d.activate(activation::relu, n.output);
  const auto m = d.max_pool2d(a, {});
  const auto flat = d.reshape(m.output, {4, 17 * 16});
  const auto e = d.cross_entropy(d.linear(flat, w, nullptr), target, &loss);
  const auto back = d.linear_backward(d.cross_entropy_backward(e.saved, target, 1), flat, w, nullptr, true);
  const auto dn = d.activate_backward(
      activation::relu, d.max_pool2d_backward(d.reshape(back, m.output.shape()), a, m.saved, {}), n.output, a);
  const auto dx = d.conv2d_backward(d.batch_norm_backward(dn, y, n.saved, gamma, beta, {}), x, k, nullptr,
                                    {.padding = {1, 1}}, true);
  auto all = d.download(dx);
  for (parameter* q : {&k, &w, &gamma, &beta}) {
    const auto g = d.gradient(*q);
    all.insert(all.end(), g.begin(), g.end());
  }
  all.push_back(static_cast<float>(loss));
  return all;
}

TEST_CASE("a step gives the same bits twice, on one device and on two") {
  for (const precision p : tested) {
    CAPTURE(name(p));
    device d, other;
    const auto first = one_step(d, p), again = one_step(d, p), elsewhere = one_step(other, p);
    CHECK(std::memcmp(first.data(), again.data(), first.size() * sizeof(float)) == 0);
    CHECK(std::memcmp(first.data(), elsewhere.data(), first.size() * sizeof(float)) == 0);
  }
}

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

TEST_CASE("reshape keeps the row-major meaning and refuses another number of elements") {
  device d;
  const auto x = tensor_of(d, {2, 6}, 1, precision::fp32);
  CHECK(d.download(d.reshape(x, {3, 4})) == d.download(x));
  CHECK_THROWS_WITH_AS(d.reshape(x, {5}),
                       "reshape of (2,6) to (5) (it has 12 elements, not 5): keep the number of elements", error);
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
