// SPDX-License-Identifier: Apache-2.0
#include <comp_host/adaptive_pooling.hpp>
#include <comp_host/pooling.hpp>

#include "agree.hpp"

namespace comp::host::test {
namespace {

struct sizes {
  native::shape x;
  native::pool2d_options options;
};

TEST_CASE("max and average pooling and their gradients agree with FP64") {
  for (const auto& s :
       {sizes{{2, 3, 8, 8}, {}}, sizes{{1, 17, 7, 5}, {.kernel = {3, 2}, .stride = {2, 1}, .padding = {1, 1}}},
        sizes{{1, 1, 3, 3}, {.kernel = {3, 3}, .stride = {1, 1}}},
        sizes{{2, 16, 9, 9}, {.kernel = {3, 3}, .stride = {2, 2}}}}) {
    for (const precision p : tested) {
      CAPTURE(text(s.x));
      CAPTURE(name(p));
      agree([&](auto& d, results& r) {
        // all different in every precision, so that each window has one largest element
        std::vector<float> v(static_cast<std::size_t>(elements(s.x)));
        for (std::size_t i = 0; i < v.size(); ++i) v[i] = static_cast<float>(i * 37 % 251) - 100.0F;
        auto x = d.upload(v, s.x, p);
        auto y = d.max_pool2d(x, s.options);
        r.keep(d, "max", y.output);
        auto dy = tensor_of(d, y.output.shape(), 2, p);
        r.keep(d, "max dx", d.max_pool2d_backward(dy, x, y.saved, s.options), 9);
        r.keep(d, "average", d.avg_pool2d(x, s.options), 9);
        r.keep(d, "average dx", d.avg_pool2d_backward(dy, s.x, s.options), 9);
      });
    }
  }
}

TEST_CASE("adaptive pooling and its gradient agree with FP64, for even and uneven bins") {
  for (const std::array<std::int64_t, 2> size : {std::array<std::int64_t, 2>{1, 1}, {3, 3}, {7, 5}, {2, 6}, {9, 7}}) {
    for (const precision p : tested) {
      CAPTURE(size[0]);
      CAPTURE(name(p));
      agree([&](auto& d, results& r) {
        auto x = tensor_of(d, {2, 3, 6, 6}, 1, p);
        auto y = d.adaptive_avg_pool2d(x, size);
        r.keep(d, "y", y, 36);
        r.keep(d, "dx", d.adaptive_avg_pool2d_backward(tensor_of(d, y.shape(), 2, p), {2, 3, 6, 6}), 36);
      });
    }
  }
}

TEST_CASE("NaN and infinity pass through pooling") {
  for (const precision p : tested) {
    CAPTURE(name(p));
    device d;
    std::vector<float> v(32, -1.0F);
    v[0] = NAN;
    v[3] = INFINITY;
    const auto x = d.upload(v, {1, 2, 4, 4}, p);
    const auto average = d.download(d.avg_pool2d(x, {})), largest = d.download(d.max_pool2d(x, {}).output);
    CHECK(std::isnan(average[0]));
    CHECK(average[1] == INFINITY);
    CHECK(std::isnan(largest[0]));
    CHECK(largest[1] == INFINITY);
  }
}

TEST_CASE("pooling refuses windows that do not fit") {
  device d;
  const auto x = tensor_of(d, {1, 1, 2, 2}, 1, precision::fp32);
  CHECK_THROWS_WITH_AS(
      d.max_pool2d(x, {.kernel = {3, 3}}),
      "max_pool2d of x (1,1,2,2) with a kernel of 3 (it is larger than the padded image): use a smaller kernel", error);
  CHECK_THROWS_AS(d.avg_pool2d(x, {.padding = {2, 2}}), error);
  CHECK_THROWS_AS(d.adaptive_avg_pool2d(x, {0, 1}), error);
  CHECK_THROWS_AS(d.max_pool2d(tensor_of(d, {2, 2}, 1, precision::fp32), {}), error);
}

}  // namespace
}  // namespace comp::host::test
