// SPDX-License-Identifier: Apache-2.0
// The settings of a training, beside its model and data.
#pragma once

#include <fmt/format.h>

#include <cmath>
#include <comp/core/error.hpp>
#include <comp/scaling/settings.hpp>
#include <comp_native/optimizer.hpp>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace comp::native {

/// Forward and backward of a step as one piece of work for the Device, on one that captures (passes.hpp). The bits are
/// those of plain steps.
enum class capture_mode : std::uint8_t {
  off,
  measured,  // of the training after a search: the faster of both, by its own first steps (capture_choice.hpp)
  on         // of every epoch
};
constexpr std::string_view name(capture_mode m) {
  constexpr std::string_view names[] = {"off", "measured", "on"};
  return names[static_cast<std::size_t>(m)];
}

/// A validation score of one's own, in the place of that which validate() has.
struct scoring {
  std::vector<std::string> reads = {};  // operators, whose outputs it is given: of all examples, in order
  std::function<double(std::span<const std::vector<float>> outputs)> score = {};  // higher is better
};

struct training {
  native::optimizer optimizer = sgd_options{};
  /// By the names of phases, where they have others.
  std::map<std::string, native::optimizer, std::less<>> optimizer_of = {};
  native::schedule schedule = {};
  double clip_norm = 0;  // largest norm of all gradients together; 0: no clipping
  std::uint64_t seed = 0;
  bool shuffle = true;
  bool keep_last = false;  // true: train on a last batch that is not full
  /// Threads that make batches ahead, beside those of the Device; 0: each step makes its own. Empty: what suits the
  /// Device. Batches are the same for any number.
  std::optional<int> loading_threads = {};
  /// Scales while the plan has FP16; `micro_batches` are accumulated in every plan. One by name: comp::scaling::preset.
  comp::scaling::settings scaling = {};
  /// Which steps are captured; see training_step.hpp. `measured` is `off` on a Device that does not capture.
  capture_mode captured = capture_mode::measured;
  int profile_steps = 2;  // that are measured, after one that is not
  scoring score = {};
};

inline const optimizer& optimizer_of(const training& chosen, std::string_view phase) {
  const auto own = chosen.optimizer_of.find(phase);
  return own == chosen.optimizer_of.end() ? chosen.optimizer : own->second;
}

/// Throws: `settings_error`, naming the setting.
inline void require_usable(const training& t) {
  require_usable(t.optimizer);
  for (const auto& [phase, own] : t.optimizer_of) require_usable(own);
  require<settings_error>(std::isfinite(t.clip_norm) && t.clip_norm >= 0,
                          "clip_norm {} (it must be finite and not negative): change it", t.clip_norm);
  require<settings_error>(t.schedule.warmup >= 0 && t.schedule.total >= 0 && t.schedule.floor >= 0,
                          "schedule of {} steps with {} of warm-up down to {} (none may be negative): change it",
                          t.schedule.total, t.schedule.warmup, t.schedule.floor);
  require_usable(t.scaling);
  require<settings_error>(t.loading_threads.value_or(0) >= 0, "{} threads to make batches (0 is the least): change it",
                          t.loading_threads.value_or(0));
  require<settings_error>(t.profile_steps > 0, "profile of {} steps (at least one): change it", t.profile_steps);
}

/// "65536 up 2 after 2000 down 0.5 after 1, of 4 micro-batches".
inline std::string text(const comp::scaling::settings& s) {
  const std::string moves = s.dynamic
                                ? fmt::format(" up {} after {} down {} after {}, {} to {}", s.growth, s.growth_interval,
                                              s.backoff, s.backoff_interval, s.floor, s.ceiling)
                                : "";
  return fmt::format("{}{}{}", s.initial, moves,
                     s.micro_batches > 1 ? fmt::format(", of {} micro-batches", s.micro_batches) : "");
}

/// Everything that changes the course of a training or how it is timed, for signatures.
inline std::string text(const training& t) {
  std::string own;
  for (const auto& [phase, optimizer] : t.optimizer_of) own += fmt::format(", {} {}", phase, text(optimizer));
  for (const std::string& name : t.score.reads) own += fmt::format(" | score of {}", name);
  return fmt::format("{}{} | warm-up {} of {} to {} | clip {} | scale {} | seed {}{}{}{}", text(t.optimizer), own,
                     t.schedule.warmup, t.schedule.total, t.schedule.floor, t.clip_norm, text(t.scaling), t.seed,
                     t.shuffle ? "" : " in order", t.keep_last ? " with last" : "",
                     t.captured == capture_mode::on ? " captured" : "");
}

}  // namespace comp::native
