// SPDX-License-Identifier: Apache-2.0
// The constants of loss scaling, and the defaults of PyTorch, Paddle and Keras by name.
// Use `settings{}` (PyTorch's) for FP16 gradients; `fixed(128)` for a scale that never changes; `off()` for BF16 and
// FP32, whose range is large enough.
// Source: torch.amp.GradScaler of PyTorch 2.11; paddle.amp.GradScaler of Paddle 3.3.1, and the defaults in Paddle's
// guide to automatic mixed precision, section 1.2.2; keras.optimizers.LossScaleOptimizer of Keras 3.15.
#pragma once

#include <bit>
#include <charconv>
#include <cmath>
#include <comp/core/error.hpp>
#include <comp/core/precision.hpp>
#include <cstdint>
#include <string_view>
#include <system_error>

namespace comp::scaling {

/// The constants of loss scaling.
struct settings {
  double initial = 65536;               // the scale at the start
  double growth = 2.0;                  // factor on the scale after `growth_interval` steps in a row without overflow
  double backoff = 0.5;                 // factor on the scale after `backoff_interval` steps in a row with overflow
  std::int64_t growth_interval = 2000;  // [steps]
  std::int64_t backoff_interval = 1;    // [steps]
  double floor = 0x1p-16;               // the lowest scale: gradients that overflow there overflow because of the model
  double ceiling = 0x1p127;             // the highest scale: a larger one could make the loss infinite in FP32
  bool dynamic = true;                  // false: the scale stays at `initial`; steps that overflow are still skipped
  std::int64_t micro_batches = 1;       // how many micro-batches' gradients are accumulated for a step
  friend bool operator==(const settings&, const settings&) = default;
};

constexpr settings pytorch() { return {}; }
/// The defaults of Paddle's guide: 2^15, 2.0, 0.5, 1000, 2.
constexpr settings paddle_guide() { return {.initial = 32768, .growth_interval = 1000, .backoff_interval = 2}; }
constexpr settings keras() { return {.initial = 32768}; }
/// Static scaling. Throws: `settings_error` if `scale` is no power of two, because it would round every gradient.
constexpr settings fixed(double scale) {
  const auto bits = std::bit_cast<std::uint64_t>(scale);
  const std::uint64_t fraction = bits << 12, sign_and_exponent = bits >> 52;
  if (fraction != 0 || sign_and_exponent == 0 || sign_and_exponent >= 0x7ff) {
    throw settings_error{
        fmt::format("static loss scale {} (only a power of two rounds no gradient): give one, such as 1024", scale)};
  }
  return {.initial = scale, .floor = scale, .dynamic = false};
}
/// No scaling, for precisions with FP32's range. Steps whose gradients are not finite are still skipped.
constexpr settings off() { return fixed(1); }
/// The defaults of Paddle 3, whose scaler turns itself off if `low`, the precision of auto_cast, is not FP16.
constexpr settings paddle(precision low = precision::fp16) { return low == precision::fp16 ? settings{} : off(); }

/// Returns the settings of a name: "pytorch", "paddle", "paddle-guide", "keras", "off", or a number for a static scale.
/// Throws: `settings_error`, with the names, for anything else.
inline settings preset(std::string_view name) {
  if (name == "pytorch") return pytorch();
  if (name == "paddle") return paddle();
  if (name == "paddle-guide") return paddle_guide();
  if (name == "keras") return keras();
  if (name == "off") return off();
  double scale = 0;
  const auto [end, fault] = std::from_chars(name.data(), name.data() + name.size(), scale);
  require<settings_error>(fault == std::errc{} && end == name.data() + name.size(),
                          "loss scaling \"{}\" (it is pytorch, paddle, paddle-guide, keras, off, or a number, which "
                          "is a static scale): choose one of those",
                          name);
  return fixed(scale);
}

/// Throws: `settings_error`, naming the values, for constants with which scaling cannot work.
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
