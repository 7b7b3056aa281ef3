// SPDX-License-Identifier: Apache-2.0
#include <comp_host/normalization.hpp>

#include "agree.hpp"

namespace comp::host::test {
namespace {

TEST_CASE("batch norm, its running statistics and its gradients agree with FP64") {
  for (const native::shape& s : {native::shape{4, 3, 5, 5}, {2, 17, 3, 3}, {5, 16}, {7, 1}, {3, 33, 1, 1}}) {
    for (const precision p : tested) {
      for (const bool training : {true, false}) {
        CAPTURE(text(s));
        CAPTURE(name(p));
        CAPTURE(training);
        agree([&](auto& d, results& r) {
          const native::shape vector{s[1]};
          const double count = static_cast<double>(elements(s) / s[1]);
          auto gamma = parameter_of(d, vector, 1, p), beta = parameter_of(d, vector, 2, p),
               mean = parameter_of(d, vector, 3, p), variance = parameter_of(d, vector, 4, p, 0.5F, 1.5F);
          const native::batch_norm_options o{.training = training};
          auto x = tensor_of(d, s, 5, p), dy = tensor_of(d, s, 6, p);
          auto y = d.batch_norm(x, gamma, beta, mean, variance, o);
          r.keep(d, "y", y.output, count);
          r.keep_values(d, "mean", mean, count);
          r.keep_values(d, "variance", variance, count);
          fresh(d, gamma, beta);
          r.keep(d, "dx", d.batch_norm_backward(dy, x, y.saved, gamma, beta, o), 4 * count);
          r.keep_gradient(d, "dgamma", gamma, 2 * count);
          r.keep_gradient(d, "dbeta", beta, count);
          (void)d.batch_norm_backward(dy, x, y.saved, gamma, beta, o);
          r.keep_gradient(d, "dgamma twice", gamma, 4 * count);
        });
      }
    }
  }
}

TEST_CASE("layer norm and its gradients agree with FP64") {
  for (const native::shape& s : {native::shape{1, 3}, {3, 17}, {2, 5, 64}, {17, 256}}) {
    for (const precision p : tested) {
      CAPTURE(text(s));
      CAPTURE(name(p));
      agree([&](auto& d, results& r) {
        const native::shape vector{s.back()};
        const auto width = static_cast<double>(s.back());
        auto gamma = parameter_of(d, vector, 1, p), beta = parameter_of(d, vector, 2, p);
        auto x = tensor_of(d, s, 3, p), dy = tensor_of(d, s, 4, p);
        auto y = d.layer_norm(x, gamma, beta, 1e-5);
        r.keep(d, "y", y.output, width);
        fresh(d, gamma, beta);
        r.keep(d, "dx", d.layer_norm_backward(dy, x, y.saved, gamma, beta, 1e-5), 4 * width);
        r.keep_gradient(d, "dgamma", gamma, 2 * static_cast<double>(elements(s)) / width + width);
        r.keep_gradient(d, "dbeta", beta, static_cast<double>(elements(s)) / width);
      });
    }
  }
}

TEST_CASE("a norm refuses parameters of another size") {
  device d;
  auto three = parameter_of(d, {3}, 1, precision::fp32), four = parameter_of(d, {4}, 1, precision::fp32);
  CHECK_THROWS_WITH_AS(d.layer_norm(tensor_of(d, {2, 4}, 2, precision::fp32), three, four, 1e-5),
                       "layer_norm of x (2,4) with a parameter of (3) (it needs one value for each of 4): make it (4)",
                       error);
  CHECK_THROWS_WITH_AS(d.batch_norm(tensor_of(d, {2, 4}, 2, precision::fp32), four, four, four, three, {}),
                       "batch_norm of x (2,4) with a parameter of (3) (it needs one value for each of 4): make it (4)",
                       error);
}

}  // namespace
}  // namespace comp::host::test
