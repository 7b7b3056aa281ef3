// SPDX-License-Identifier: Apache-2.0
// The update of one element by SGD, Adam or AdamW, in FP32. Hosts and GPUs share it.
// Source: torch.optim.SGD (no dampening), Adam and AdamW.
#pragma once

#include <cmath>
#include <comp_native/device.hpp>
#include <cstdint>

#include "functions.hpp"

namespace comp::native::math {

struct sgd_update {
  float rate, decay;
  sgd_update() = default;
  explicit sgd_update(const sgd_options& o)
      : rate{static_cast<float>(o.learning_rate)}, decay{static_cast<float>(o.weight_decay)} {}
  /// Returns: the new value.
  COMP_HD float operator()(float value, float gradient) const { return value - rate * (gradient + decay * value); }
};

struct momentum_update {
  float rate, decay, momentum;
  bool nesterov;
  momentum_update() = default;
  explicit momentum_update(const sgd_options& o)
      : rate{static_cast<float>(o.learning_rate)},
        decay{static_cast<float>(o.weight_decay)},
        momentum{static_cast<float>(o.momentum)},
        nesterov{o.nesterov} {}
  COMP_HD void operator()(float& value, float gradient, float& velocity) const {
    const float g = gradient + decay * value;
    const float v = momentum * velocity + g;
    velocity = v;
    value -= rate * (nesterov ? g + momentum * v : v);
  }
};

struct adam_update {
  float beta1, beta2, rest1, rest2, rate, root2, eps, decay, shrink;
  adam_update() = default;
  adam_update(const adam_options& o, std::int64_t step)
      : beta1{static_cast<float>(o.beta1)},
        beta2{static_cast<float>(o.beta2)},
        rest1{static_cast<float>(1 - o.beta1)},
        rest2{static_cast<float>(1 - o.beta2)},
        rate{static_cast<float>(o.learning_rate / (1 - std::pow(o.beta1, static_cast<double>(step))))},
        root2{static_cast<float>(1 / std::sqrt(1 - std::pow(o.beta2, static_cast<double>(step))))},
        eps{static_cast<float>(o.eps)},
        decay{static_cast<float>(o.decoupled ? 0 : o.weight_decay)},
        shrink{static_cast<float>(o.decoupled ? 1 - o.learning_rate * o.weight_decay : 1)} {}
  COMP_HD void operator()(float& value, float gradient, float& first, float& second) const {
    const float w = value * shrink, g = gradient + decay * w;
    const float m = beta1 * first + rest1 * g, v = beta2 * second + rest2 * g * g;
    first = m;
    second = v;
    value = w - rate * m / (root_of(v) * root2 + eps);
  }
};

}  // namespace comp::native::math
