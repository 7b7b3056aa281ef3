// SPDX-License-Identifier: Apache-2.0
// Reads amp_configs as Paddle's high-level API takes them: a level ("O1"), or a dictionary with a level, lists and the
// parameters of loss scaling. It stands apart from the policy because it includes nlohmann-json.
//   amp_configs configs = parse_amp_configs(nlohmann::json{{"level", "O1"}, {"custom_white_list", {"conv2d"}}});
// custom_black_varnames is refused, since tensors have no names in comp: by_name of policy/custom.hpp keeps operators
// in FP32.
// Source: paddle.Model.prepare, python/paddle/hapi/model.py; scaler defaults: the guide's section 1.2.2 and
// Paddle 3.3.1.
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/error.hpp>
#include <comp/policy/nearest.hpp>
#include <comp/scaling/settings.hpp>
#include <comp/systems/paddle.hpp>
#include <nlohmann/json.hpp>
#include <string>
#include <string_view>

namespace comp::policy {

/// The policy and the loss scaling that a user's amp_configs ask for.
struct amp_configs {
  paddle amp = {};
  scaling::settings scaling = scaling::paddle();
};

namespace detail {

inline paddle_level paddle_level_of(const nlohmann::json& value) {
  constexpr std::array<std::string_view, 4> levels{"O0", "OD", "O1", "O2"};
  const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
  const auto at = std::find(levels.begin(), levels.end(), text);
  require<settings_error>(at != levels.end(), "level is \"{}\" (Paddle has O0, OD, O1 and O2): choose one of them",
                          text);
  return static_cast<paddle_level>(at - levels.begin());
}

/// Reads one entry of a user's dictionary. A scale may be written 128 or 128.0; a number of steps must be whole.
inline void read_amp_config(const std::string& key, const nlohmann::json& value, amp_configs& into) {
  require<settings_error>(key != "use_pure_fp16",
                          "amp_configs has \"use_pure_fp16\" (only the level decides, O1 or O2): set level to O2");
  nearest_word near{key};
  bool known = false;
  const auto named = [&](std::string_view name) {
    near.offer(name);
    known = known || key == name;
    return key == name;
  };
  const auto read = [&](std::string_view name, auto& setting, bool fits, std::string_view range) {
    if (!named(name)) return;
    require<settings_error>(fits, "{} is {} (it must be {}): correct it", key, value.dump(), range);
    value.get_to(setting);
  };
  const bool names = value.is_array() && std::all_of(value.begin(), value.end(), [](auto& v) { return v.is_string(); });
  const bool positive = value.is_number() && value.get<double>() > 0 && value.get<double>() <= 1e9;
  const bool whole = positive && value.is_number_integer();
  if (named("level")) into.amp.level = paddle_level_of(value);
  read("custom_white_list", into.amp.custom_white_list, names, "a list of operators");
  read("custom_black_list", into.amp.custom_black_list, names, "a list of operators");
  read("use_fp16_guard", into.amp.use_fp16_guard, value.is_boolean(), "true or false");
  read("init_loss_scaling", into.scaling.initial, positive, "a positive number up to 1e9");
  read("incr_ratio", into.scaling.growth, positive, "a positive number up to 1e9");
  read("decr_ratio", into.scaling.backoff, positive, "a positive number up to 1e9");
  read("incr_every_n_steps", into.scaling.growth_interval, whole, "a positive whole number up to 1e9");
  read("decr_every_n_nan_or_inf", into.scaling.backoff_interval, whole, "a positive whole number up to 1e9");
  read("use_dynamic_loss_scaling", into.scaling.dynamic, value.is_boolean(), "true or false");
  require<settings_error>(known, "amp_configs has \"{}\" (Paddle knows no such key): {}", key, near.remedy("drop it"));
}

}  // namespace detail

/// Reads a level as a string, or an object with any of Paddle's keys. As in Paddle, nothing or an empty object is O0,
/// and an object without a level is O1.
/// Throws: `settings_error`, naming the key, for an unknown key, a value of the wrong type or out of range, and lists
/// that overlap.
inline amp_configs parse_amp_configs(const nlohmann::json& from, paddle_version version = paddle_version::v3) {
  amp_configs configs{.amp = {.version = version},
                      .scaling = version == paddle_version::v3 ? scaling::paddle() : scaling::paddle_guide()};
  if (from.is_null() || (from.is_structured() && from.empty()) || from == "") {
    configs.amp.level = paddle_level::o0;
    return configs;
  }
  if (from.is_string()) {
    configs.amp.level = detail::paddle_level_of(from);
    return configs;
  }
  require<settings_error>(from.is_object(), "amp_configs is {} (it must be a level or an object): write \"O1\"",
                          from.dump().substr(0, 40));
  for (const auto& [key, value] : from.items()) detail::read_amp_config(key, value, configs);
  require<settings_error>(configs.scaling.growth > 1, "incr_ratio is {} (the scale grows by it): make it larger than 1",
                          configs.scaling.growth);
  require<settings_error>(configs.scaling.backoff < 1,
                          "decr_ratio is {} (the scale shrinks by it): make it smaller than 1",
                          configs.scaling.backoff);
  configs.amp.check();
  scaling::require_usable(configs.scaling);
  return configs;
}

}  // namespace comp::policy
