// SPDX-License-Identifier: Apache-2.0
// The arithmetic of one element, in FP32: activations, sums, products, gradients of softmax, and losses. Loops of the
// host and kernels of a GPU share it, so that both give the same values. A NaN passes through all of them, so that a
// training that has failed is noticed.
#pragma once

#include <cmath>
#include <comp_native/device.hpp>

#include "functions.hpp"

namespace comp::native::math {

struct plus {
  COMP_HD float operator()(float a, float b) const { return a + b; }
};
struct times {
  COMP_HD float operator()(float a, float b) const { return a * b; }
};

/// Of each activation f, f(x) is its value and backward(dy, x, y) the gradient of x, with y = f(x).
struct relu {
  COMP_HD float operator()(float x) const { return x > 0 || x != x ? x : 0.0F; }
  COMP_HD float backward(float dy, float, float y) const { return y != y ? y : y > 0 ? dy : 0.0F; }
};
struct leaky_relu {
  COMP_HD float operator()(float x) const { return x > 0 ? x : leaky_slope * x; }
  COMP_HD float backward(float dy, float, float y) const { return y != y ? y : y > 0 ? dy : leaky_slope * dy; }
};
struct gelu {
  COMP_HD float operator()(float x) const { return 0.5F * x * (1.0F + erff(x * 0.70710678F)); }
  COMP_HD float backward(float dy, float x, float) const {
    return dy * (0.5F * (1.0F + erff(x * 0.70710678F)) + x * 0.39894228F * exp_of(-0.5F * x * x));
  }
};
/// Source: Hendrycks and Gimpel 2016 (arXiv 1606.08415), section 2; constants: sqrt(2 / pi), and 3 times 0.044715.
struct gelu_tanh {
  COMP_HD static float tangent(float x) { return tanhf(0.79788456F * (x + 0.044715F * x * x * x)); }
  COMP_HD float operator()(float x) const { return 0.5F * x * (1.0F + tangent(x)); }
  COMP_HD float backward(float dy, float x, float) const {
    const float t = tangent(x);
    return dy * (0.5F * (1.0F + t) + 0.5F * x * (1.0F - t * t) * (0.79788456F * (1.0F + 0.134145F * x * x)));
  }
};
struct hyperbolic_tangent {
  COMP_HD float operator()(float x) const { return tanhf(x); }
  COMP_HD float backward(float dy, float, float y) const { return dy * (1.0F - y * y); }
};
struct sigmoid {
  COMP_HD float operator()(float x) const {  // exp(-|x|) never overflows
    const float e = exp_of(x > 0 ? -x : x);
    return (x > 0 ? 1.0F : e) / (1.0F + e);
  }
  COMP_HD float backward(float dy, float, float y) const { return dy * (y * (1.0F - y)); }
};

struct elu {                                 // with alpha = 1
  COMP_HD float operator()(float x) const {  // the sum of both branches: with a choice between them ptxas spilled
    const std::uint32_t bits = bits_as<std::uint32_t>(x), positive = 0U - static_cast<std::uint32_t>(x > 0);  // a mask
    return bits_as<float>(bits & positive) +
           (exp_of(bits_as<float>(bits & ~positive)) - 1.0F);  // off by half an ulp of 1
  }
  COMP_HD float backward(float dy, float, float y) const { return y > 0 ? dy : dy * (y + 1.0F); }
};

/// The gradients of softmax and log-softmax. `dot` is the row's sum of dy * y, `total` that of dy.
COMP_HD float softmax_gradient(float dy, float y, float dot) { return y * (dy - dot); }
COMP_HD float log_softmax_gradient(float dy, float y, float total) { return dy - exp_of(y) * total; }
/// The gradient of cross-entropy: share * (softmax - 1 at the target, 0 elsewhere). `log_sum` is the logarithm of the
/// row's sum of exponentials.
COMP_HD float cross_entropy_gradient(float x, float log_sum, float share) { return share * exp_of(x - log_sum); }
COMP_HD float cross_entropy_gradient_at_target(float x, float log_sum, float share) {
  return share * (exp_of(x - log_sum) - 1.0F);
}
/// -(target log s(x) + (1 - target) log(1 - s(x))) with the sigmoid s, in a form that cannot overflow, and its
/// gradient.
COMP_HD float binary_cross_entropy(float x, float target) {
  return (x > 0 ? x : 0.0F) - x * target + log1pf(exp_of(x > 0 ? -x : x));
}
COMP_HD float binary_cross_entropy_gradient(float x, float target, float factor) {
  return factor * (sigmoid{}(x)-target);
}
COMP_HD float squared_error_gradient(float x, float target, float factor) { return factor * (x - target); }

}  // namespace comp::native::math
