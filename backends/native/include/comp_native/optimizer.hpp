// SPDX-License-Identifier: Apache-2.0
// The optimizers SGD, Adam and AdamW, and the learning rate over the steps. Settings are values; slots (momentum,
// moments) live in the Device's parameters.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <comp/core/error.hpp>
#include <comp_native/device.hpp>
#include <cstdint>
#include <numbers>
#include <span>
#include <string>
#include <variant>

namespace comp::native {

using optimizer = std::variant<sgd_options, adam_options>;

inline optimizer sgd(double learning_rate, double momentum = 0, double weight_decay = 0, bool nesterov = false) {
  return sgd_options{learning_rate, momentum, weight_decay, nesterov};
}
inline optimizer adam(double learning_rate = 1e-3, double weight_decay = 0) {
  return adam_options{.learning_rate = learning_rate, .weight_decay = weight_decay};
}
inline optimizer adamw(double learning_rate = 1e-3, double weight_decay = 1e-2) {
  return adam_options{.learning_rate = learning_rate, .weight_decay = weight_decay, .decoupled = true};
}

/// Returns "sgd lr 0.1 momentum 0.9 decay 0.0005", for signatures and reports.
inline std::string text(const optimizer& o) {
  if (const auto* s = std::get_if<sgd_options>(&o)) {
    return fmt::format("sgd lr {} momentum {}{} decay {}", s->learning_rate, s->momentum,
                       s->nesterov ? " nesterov" : "", s->weight_decay);
  }
  const auto& a = std::get<adam_options>(o);
  return fmt::format("{} lr {} betas {},{} eps {} decay {}", a.decoupled ? "adamw" : "adam", a.learning_rate, a.beta1,
                     a.beta2, a.eps, a.weight_decay);
}

/// Throws: `settings_error` for a learning rate, momentum, decay or beta with which no training is possible.
inline void require_usable(const optimizer& o) {
  const auto check = [](bool holds, const char* what, double value, const char* range) {
    require<settings_error>(holds, "optimizer with {} = {} (it must be {}): change it", what, value, range);
  };
  const auto common = [&](const auto& s) {
    check(std::isfinite(s.learning_rate) && s.learning_rate >= 0, "learning rate", s.learning_rate,
          "finite and not negative");
    check(std::isfinite(s.weight_decay) && s.weight_decay >= 0, "weight decay", s.weight_decay,
          "finite and not negative");
  };
  std::visit(common, o);
  if (const auto* s = std::get_if<sgd_options>(&o)) {
    check(s->momentum >= 0 && s->momentum < 1, "momentum", s->momentum, "in [0, 1)");
    check(!s->nesterov || s->momentum > 0, "nesterov and momentum", s->momentum, "positive for nesterov");
  } else {
    const auto& a = std::get<adam_options>(o);
    check(a.beta1 >= 0 && a.beta1 < 1, "beta1", a.beta1, "in [0, 1)");
    check(a.beta2 >= 0 && a.beta2 < 1, "beta2", a.beta2, "in [0, 1)");
    check(a.eps > 0, "eps", a.eps, "positive");
  }
}

/// The learning rate over the steps: a linear warm-up, and then a constant rate or half a cosine down to `floor`.
struct schedule {
  std::int64_t warmup = 0;  // [steps]
  std::int64_t total = 0;   // [steps], warm-up included; 0: constant after the warm-up
  double floor = 0;         // the last rate, as a part of the learning rate

  /// Returns the factor on the learning rate in step `step`, counted from 0.
  double factor(std::int64_t step) const {
    if (step < warmup) return static_cast<double>(step + 1) / static_cast<double>(warmup);
    if (total <= warmup) return 1;
    const double done = std::min(1.0, static_cast<double>(step - warmup) / static_cast<double>(total - warmup));
    return floor + (1 - floor) * 0.5 * (1 + std::cos(std::numbers::pi * done));
  }
};

/// Takes one step of the optimizer. `step` is how many were taken before.
template <class D>
void update(D& device, std::span<typename D::parameter* const> parameters, optimizer o, const schedule& over,
            std::int64_t step) {
  std::visit([&](auto& s) { s.learning_rate *= over.factor(step); }, o);
  if (const auto* s = std::get_if<sgd_options>(&o)) {
    device.sgd_step(parameters, *s);
  } else {
    device.adam_step(parameters, std::get<adam_options>(o), step + 1);
  }
}

/// The same for the parameters that a phase of a network trains. Some of them may have no weight decay.
void update(auto& device, const auto& network, std::size_t phase, optimizer o, const schedule& over,
            std::int64_t step) {
  if (!network.decaying(phase).empty()) update(device, network.decaying(phase), o, over, step);
  if (network.not_decaying(phase).empty()) return;
  std::visit([](auto& s) { s.weight_decay = 0; }, o);
  update(device, network.not_decaying(phase), o, over, step);
}

}  // namespace comp::native
