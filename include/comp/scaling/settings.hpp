// SPDX-License-Identifier: Apache-2.0
// The constants of loss scaling, with those of PyTorch, Paddle and Keras by name.
// Use `settings{}` (PyTorch's) for FP16 gradients; `fixed(128)` for one scale throughout; `off()` for BF16 and FP32.
// Source: torch.amp.GradScaler of PyTorch 2.11; paddle.amp.GradScaler of Paddle 3.3.1, and the defaults in Paddle's
// guide to automatic mixed precision, section 1.2.2; keras.optimizers.LossScaleOptimizer of Keras 3.15.
#pragma once

#include <charconv>
#include <cmath>
#include <comp/core/error.hpp>
#include <comp/core/precision.hpp>
#include <cstdint>
#include <string_view>
#include <system_error>

namespace comp::scaling {

struct settings {
  double initial = 65536;
  double growth = 2.0;                  // times the scale, after `growth_interval` steps in a row that were finite
  double backoff = 0.5;                 // times the scale, after `backoff_interval` steps in a row that were not
  std::int64_t growth_interval = 2000;  // [steps]
  std::int64_t backoff_interval = 1;    // [steps]
  double floor = 0x1p-16;    // no scale below it: there a gradient that overflows does so without the scale's help
  double ceiling = 0x1p127;  // no scale above it, nor above what makes the loss infinite in FP32
  bool dynamic = true;       // false: the scale stays at `initial`; steps that overflow are skipped all the same
  std::int64_t micro_batches = 1;  // whose gradients are accumulated before a step
  friend bool operator==(const settings&, const settings&) = default;
};

constexpr settings pytorch() { return {}; }
/// Of the guide: 2^15, 2.0, 0.5, 1000, 2.
constexpr settings paddle_guide() { return {.initial = 32768, .growth_interval = 1000, .backoff_interval = 2}; }
constexpr settings keras() { return {.initial = 32768}; }
/// Static scaling. Requires: `scale` is a power of two, or scaling rounds every gradient.
constexpr settings fixed(double scale) { return {.initial = scale, .floor = scale, .dynamic = false}; }
/// No scaling: for precisions with FP32's range. Steps that are not finite are skipped all the same.
constexpr settings off() { return fixed(1); }
/// Paddle 3: its scaler turns itself off where `low`, the precision of auto_cast, is not FP16.
constexpr settings paddle(precision low = precision::fp16) { return low == precision::fp16 ? settings{} : off(); }

/// The settings of a name: "pytorch", "paddle", "paddle-guide", "keras", "off", or a number, which is a static scale.
/// Throws: `settings_error`, naming those.
inline settings preset(std::string_view name) {
  if (name == "pytorch") return pytorch();
  if (name == "paddle") return paddle();
  if (name == "paddle-guide") return paddle_guide();
  if (name == "keras") return keras();
  if (name == "off") return off();
  double scale = 0;
  const auto [end, fault] = std::from_chars(name.data(), name.data() + name.size(), scale);
  require<settings_error>(fault == std::errc{} && end == name.data() + name.size() && std::isfinite(scale) && scale > 0,
                          "loss scaling \"{}\" (it is pytorch, paddle, paddle-guide, keras, off, or a positive number, "
                          "which is a static scale): choose one of those",
                          name);
  return fixed(scale);
}

/// Throws: `settings_error`, naming the values.
inline void require_usable(const settings& s) {
  require<settings_error>(s.floor > 0 && s.initial >= s.floor && s.initial <= s.ceiling && std::isfinite(s.ceiling),
                          "loss scale {} between floor {} and ceiling {} (0 < floor <= scale <= ceiling, all finite): "
                          "change it",
                          s.initial, s.floor, s.ceiling);
  require<settings_error>(s.growth >= 1 && std::isfinite(s.growth) && s.backoff > 0 && s.backoff < 1,
                          "loss scale grows by {} and backs off by {} (at least 1, and between 0 and 1): change it",
                          s.growth, s.backoff);
  require<settings_error>(
      s.growth_interval > 0 && s.backoff_interval > 0 && s.micro_batches > 0,
      "loss scale grows after {} steps, backs off after {}, over {} micro-batches (all at least 1): "
      "change it",
      s.growth_interval, s.backoff_interval, s.micro_batches);
}

}  // namespace comp::scaling
