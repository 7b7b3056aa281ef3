// SPDX-License-Identifier: Apache-2.0
#include <comp_host/conv2d.hpp>

#include "agree.hpp"

namespace comp::host::test {
namespace {

struct sizes {
  native::shape x, w;
  native::conv2d_options options;
};
const std::vector<sizes>& cases() {
  static const std::vector<sizes> all{
      {{1, 1, 1, 1}, {1, 1, 1, 1}, {}},
      {{2, 3, 9, 7}, {17, 3, 3, 3}, {.padding = {1, 1}}},
      {{3, 17, 5, 5}, {16, 17, 3, 3}, {.stride = {2, 1}, .padding = {1, 2}}},
      {{1, 32, 6, 6}, {32, 32, 3, 3}, {.padding = {2, 2}, .dilation = {2, 2}}},
      {{2, 6, 5, 5}, {4, 3, 3, 3}, {.padding = {1, 1}, .groups = 2}},
      {{2, 16, 5, 5}, {16, 1, 3, 3}, {.padding = {1, 1}, .groups = 16}},
      {{2, 3, 11, 11}, {8, 3, 5, 5}, {.stride = {2, 2}}},
  };
  return all;
}

TEST_CASE("a convolution and its gradients agree with FP64") {
  for (const sizes& s : cases()) {
    for (const precision p : tested) {
      for (const bool bias : {false, true}) {
        CAPTURE(text(s.x));
        CAPTURE(text(s.w));
        CAPTURE(name(p));
        CAPTURE(bias);
        agree([&](auto& d, results& r) {
          auto w = parameter_of(d, s.w, 1, p), b = parameter_of(d, {s.w[0]}, 2, p);
          auto x = tensor_of(d, s.x, 3, p);
          const double terms = static_cast<double>(elements(s.w) / s.w[0]);
          auto y = d.conv2d(x, w, bias ? &b : nullptr, s.options);
          r.keep(d, "y", y, terms);
          auto dy = tensor_of(d, y.shape(), 4, p);
          const double sums = static_cast<double>(elements(y.shape()) / s.w[0]);
          fresh(d, w, b);
          r.keep(d, "dx", d.conv2d_backward(dy, x, w, bias ? &b : nullptr, s.options, true),
                 terms * static_cast<double>(s.w[0]));
          r.keep_gradient(d, "dw", w, sums);
          if (bias) r.keep_gradient(d, "db", b, sums);
          CHECK_FALSE(d.conv2d_backward(dy, x, w, bias ? &b : nullptr, s.options, false));
          r.keep_gradient(d, "dw twice", w, 2 * sums);
          r.keep_values(d, "w", w);
        });
      }
    }
  }
}

TEST_CASE("a convolution's result goes on in its own layout into every kind of operator") {
  for (const precision p : tested) {
    CAPTURE(name(p));
    agree([&](auto& d, results& r) {
      auto w = parameter_of(d, {17, 3, 3, 3}, 1, p);
      auto x = tensor_of(d, {2, 3, 6, 6}, 2, p, -4, 4);
      auto plain = tensor_of(d, {2, 17, 6, 6}, 3, p);
      // numbers that every precision holds, so that what follows starts from equal values
      auto exact = d.make_parameter(std::vector<float>(17 * 3 * 9, 0.0F), {17, 3, 3, 3});
      auto zeros = d.conv2d(x, exact, nullptr, {.padding = {1, 1}});
      auto same = d.add(zeros, plain);
      r.keep(d, "blocked + plain", same);
      r.keep(d, "plain + blocked", d.add(plain, zeros));
      r.keep(d, "product", d.mul(same, plain));
      const std::vector terms{same, plain, same};
      r.keep(d, "sum", d.sum(terms), 3);
      r.keep(d, "relu", d.activate(native::activation::relu, same));
      r.keep(d, "sigmoid", d.activate(native::activation::sigmoid, same));
      r.keep(d, "gelu backward", d.activate_backward(native::activation::gelu, plain, same, same), 4);
      r.keep(d, "max pool", d.max_pool2d(same, {}).output);
      r.keep(d, "average pool", d.avg_pool2d(same, {}), 4);
      r.keep(d, "flatten", d.reshape(same, {2, 17 * 36}));
      r.keep(d, "dropout", d.dropout(same, 0.5, {.seed = 1, .draw = 2}));
      r.keep(d, "cast", d.cast(d.cast(same, precision::fp32), p));
      auto gamma = parameter_of(d, {17}, 4, p), beta = parameter_of(d, {17}, 5, p), mean = parameter_of(d, {17}, 6, p),
           variance = parameter_of(d, {17}, 7, p, 0.5, 1);
      r.keep(d, "batch norm", d.batch_norm(same, gamma, beta, mean, variance, {}).output, 72);
    });
  }
}

TEST_CASE("a convolution refuses shapes that do not fit, naming both") {
  device d;
  auto w = parameter_of(d, {5, 4, 3, 3}, 1, precision::fp32);
  CHECK_THROWS_WITH_AS(
      d.conv2d(tensor_of(d, {1, 3, 8, 8}, 2, precision::fp32), w, nullptr, {}),
      "conv2d of x (1,3,8,8) with weights (5,4,3,3) in 1 groups (they must be (B,C,H,W) and (O,C/groups,R,S)): fix the shapes",
      error);
  CHECK_THROWS_WITH_AS(
      d.conv2d(tensor_of(d, {1, 4, 2, 2}, 2, precision::fp32), w, nullptr, {}),
      "conv2d of x (1,4,2,2) with weights (5,4,3,3) (the kernel is larger than the padded image): pad more or use a smaller kernel",
      error);
}

}  // namespace
}  // namespace comp::host::test
