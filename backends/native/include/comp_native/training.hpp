// SPDX-License-Identifier: Apache-2.0
// The settings of a training other than its model and data.
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

/// Which steps are captured, that is, recorded once and launched as one piece of work, on a Device that can
/// (passes.hpp). Captured steps give the same bits as plain ones.
enum class capture_mode : std::uint8_t {
  off,
  measured,  // in the training after a search, if its own first steps show that it is faster (capture_choice.hpp)
  on         // in every epoch
};
constexpr std::string_view name(capture_mode m) {
  constexpr std::string_view names[] = {"off", "measured", "on"};
  return names[static_cast<std::size_t>(m)];
}

/// A validation score of the user's, in place of the one that validate() has.
struct scoring {
  std::vector<std::string> reads = {};  // names of operators; the score gets their outputs for all examples, in order
  std::function<double(std::span<const std::vector<float>> outputs)> score = {};  // higher is better
};

/// The settings.
struct training {
  native::optimizer optimizer = sgd_options{};
  /// Other optimizers for some phases, by the names of the phases.
  std::map<std::string, native::optimizer, std::less<>> optimizer_of = {};
  native::schedule schedule = {};
  double clip_norm = 0;  // the largest norm of all gradients together; 0: no clipping
  std::uint64_t seed = 0;
  bool shuffle = true;
  bool keep_last = false;  // true: also trains on a last batch that is not full
  /// How many threads make batches ahead; 0: each step makes its own; empty: as many as suit the Device. Batches are
  /// the same for any number.
  std::optional<int> loading_threads = {};
  /// Losses are scaled while the plan has FP16; `micro_batches` are accumulated under every plan. comp::scaling::preset
  /// makes settings by name.
  comp::scaling::settings scaling = {};
  /// Which steps are captured (training_step.hpp). On a Device that cannot capture, `measured` is `off`.
  capture_mode captured = capture_mode::measured;
  /// True: the optimizer's moments are operators of the graph (moments.hpp), so that a plan has the format that each is
  /// kept in and a search tries BF16. Needs a Device that KeepsMoments.
  bool moments = false;
  int profile_steps = 2;  // how many steps profile() measures, after one that does not count
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

/// Returns "65536 up 2 after 2000 down 0.5 after 1, of 4 micro-batches".
inline std::string text(const comp::scaling::settings& s) {
  const std::string moves = s.dynamic
                                ? fmt::format(" up {} after {} down {} after {}, {} to {}", s.growth, s.growth_interval,
                                              s.backoff, s.backoff_interval, s.floor, s.ceiling)
                                : "";
  return fmt::format("{}{}{}", s.initial, moves,
                     s.micro_batches > 1 ? fmt::format(", of {} micro-batches", s.micro_batches) : "");
}

/// Returns everything that changes the losses of a training or its times, for signatures.
inline std::string text(const training& t) {
  std::string own;
  for (const auto& [phase, optimizer] : t.optimizer_of) own += fmt::format(", {} {}", phase, text(optimizer));
  for (const std::string& name : t.score.reads) own += fmt::format(" | score of {}", name);
  return fmt::format("{}{} | warm-up {} of {} to {} | clip {} | scale {} | seed {}{}{}{}{}", text(t.optimizer), own,
                     t.schedule.warmup, t.schedule.total, t.schedule.floor, t.clip_norm, text(t.scaling), t.seed,
                     t.shuffle ? "" : " in order", t.keep_last ? " with last" : "",
                     t.captured == capture_mode::on ? " captured" : "", t.moments ? " | moments" : "");
}

}  // namespace comp::native
