// SPDX-License-Identifier: Apache-2.0
#include <comp_host/linear.hpp>

#include "agree.hpp"

namespace comp::host::test {
namespace {

struct sizes {
  native::shape x;
  std::int64_t outputs;
};

TEST_CASE("a linear layer and its gradients agree with FP64") {
  for (const auto& s :
       {sizes{{1, 1}, 1}, sizes{{3, 17}, 5}, sizes{{2, 3, 17}, 17}, sizes{{4, 7, 64}, 96}, sizes{{33, 256}, 10}}) {
    for (const precision p : tested) {
      for (const bool bias : {false, true}) {
        CAPTURE(text(s.x));
        CAPTURE(name(p));
        CAPTURE(bias);
        agree([&](auto& d, results& r) {
          const std::int64_t k = s.x.back(), rows = elements(s.x) / k;
          auto w = parameter_of(d, {s.outputs, k}, 1, p), b = parameter_of(d, {s.outputs}, 2, p);
          auto x = tensor_of(d, s.x, 3, p);
          auto y_shape = s.x;
          y_shape.back() = s.outputs;
          auto dy = tensor_of(d, y_shape, 4, p);
          r.keep(d, "y", d.linear(x, w, bias ? &b : nullptr), static_cast<double>(k));
          fresh(d, w, b);
          r.keep(d, "dx", d.linear_backward(dy, x, w, bias ? &b : nullptr, true), static_cast<double>(s.outputs));
          r.keep_gradient(d, "dw", w, static_cast<double>(rows));
          if (bias) r.keep_gradient(d, "db", b, static_cast<double>(rows));
          CHECK_FALSE(d.linear_backward(dy, x, w, bias ? &b : nullptr, false));
          r.keep_gradient(d, "dw twice", w, 2.0 * static_cast<double>(rows));
        });
      }
    }
  }
}

TEST_CASE("a linear layer follows its weights when they change") {
  for (const precision p : tested) {
    agree([&](auto& d, results& r) {
      auto w = parameter_of(d, {17, 33}, 1, p);
      auto x = tensor_of(d, {3, 33}, 2, p);
      r.keep(d, "before", d.linear(x, w, nullptr), 33);
      d.set_values(w, numbers(17 * 33, 9, p));
      r.keep(d, "after", d.linear(x, w, nullptr), 33);
      fresh(d, w);
      (void)d.linear_backward(tensor_of(d, {3, 17}, 3, p), x, w, nullptr, true);
      r.keep(d, "in the layout of the gradient", d.linear(x, w, nullptr), 33);
      r.keep_values(d, "w", w);
    });
  }
}

TEST_CASE("a linear layer refuses shapes that do not fit, naming both") {
  device d;
  auto w = parameter_of(d, {5, 4}, 1, precision::fp32), b = parameter_of(d, {4}, 2, precision::fp32);
  const auto x = tensor_of(d, {2, 3}, 3, precision::fp32), fits = tensor_of(d, {2, 4}, 3, precision::fp32);
  CHECK_THROWS_WITH_AS(d.linear(x, w, nullptr),
                       "linear of x (2,3) with weights (5,4) (the last sizes must be equal): make the weights (N,3)",
                       error);
  CHECK_THROWS_WITH_AS(d.linear(fits, w, &b),
                       "linear with weights (5,4) and a bias of (4) (the first sizes must be equal): make the bias (5)",
                       error);
  CHECK_THROWS_WITH_AS(d.linear_backward(x, fits, w, nullptr, true),
                       "linear_backward of (2,3) and (2,5) (the shapes must be equal): reshape one of them", error);
  CHECK_THROWS_WITH_AS(d.upload(std::vector<float>{}, {0, 4}, precision::fp32),
                       "upload of a tensor of shape (0,4) (it has no elements): leave out empty batches", error);
}

}  // namespace
}  // namespace comp::host::test
