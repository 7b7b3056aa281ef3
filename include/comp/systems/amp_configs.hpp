// SPDX-License-Identifier: Apache-2.0
// Reads amp_configs as Paddle's high-level API takes them: a level ("O1"), or a dictionary with a level, lists and the
// parameters of loss scaling. It stands apart from the policy because it includes nlohmann-json.
//   amp_configs configs = parse_amp_configs(nlohmann::json{{"level", "O1"}, {"custom_white_list", {"conv2d"}}});
// custom_black_varnames is refused, since tensors have no names in comp: by_name of policy/custom.hpp keeps operators
// in FP32.
// Source: paddle.Model.prepare, python/paddle/hapi/model.py; scaler defaults: the guide's section 1.2.2 and
// Paddle 3.3.1.
#pragma once

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

inline constexpr std::array<std::string_view, 10> amp_config_keys{
    "level",      "custom_white_list", "custom_black_list",  "use_fp16_guard",          "init_loss_scaling",
    "incr_ratio", "decr_ratio",        "incr_every_n_steps", "decr_every_n_nan_or_inf", "use_dynamic_loss_scaling"};

class amp_config_reader {
 public:
  amp_config_reader(const nlohmann::json& from, amp_configs& into) : from_{from}, into_{into} {}

  void read() {
    for (const auto& [key, value] : from_.items()) require_known(key);
    if (const auto* level = find("level")) into_.amp.level = level_of(*level);
    take("custom_white_list", into_.amp.custom_white_list, "a list of operators");
    take("custom_black_list", into_.amp.custom_black_list, "a list of operators");
    take("use_fp16_guard", into_.amp.use_fp16_guard, "true or false");
    take("use_dynamic_loss_scaling", into_.scaling.dynamic, "true or false");
    take_positive("init_loss_scaling", into_.scaling.initial);
    take_positive("incr_ratio", into_.scaling.growth);
    take_positive("decr_ratio", into_.scaling.backoff);
    take_positive("incr_every_n_steps", into_.scaling.growth_interval);
    take_positive("decr_every_n_nan_or_inf", into_.scaling.backoff_interval);
    require<settings_error>(into_.scaling.growth > 1, "incr_ratio is {} (the scale grows by it): make it larger than 1",
                            into_.scaling.growth);
    require<settings_error>(into_.scaling.backoff < 1,
                            "decr_ratio is {} (the scale shrinks by it): make it smaller than 1",
                            into_.scaling.backoff);
    into_.amp.check();
    scaling::require_usable(into_.scaling);
  }
  static paddle_level level_of(const nlohmann::json& value) {
    constexpr std::array<std::string_view, 4> levels{"O0", "OD", "O1", "O2"};
    const std::string text = value.is_string() ? value.get<std::string>() : value.dump();
    const auto at = std::find(levels.begin(), levels.end(), text);
    require<settings_error>(at != levels.end(), "level is \"{}\" (Paddle has O0, OD, O1 and O2): choose one of them",
                            text);
    return static_cast<paddle_level>(at - levels.begin());
  }

 private:
  static void require_known(const std::string& key) {
    require<settings_error>(key != "use_pure_fp16",
                            "amp_configs has \"use_pure_fp16\" (only the level decides, O1 or O2): set level to O2");
    nearest_word near{key};
    for (const std::string_view known : amp_config_keys) near.offer(known);
    require<settings_error>(std::find(amp_config_keys.begin(), amp_config_keys.end(), key) != amp_config_keys.end(),
                            "amp_configs has \"{}\" (Paddle knows no such key): {}", key, near.remedy("drop it"));
  }
  const nlohmann::json* find(const char* key) const {
    const auto at = from_.find(key);
    return at == from_.end() ? nullptr : &*at;
  }
  void take(const char* key, auto& into, std::string_view wanted) const {
    const auto* value = find(key);
    if (value == nullptr) return;
    try {
      value->get_to(into);
    } catch (const nlohmann::json::exception&) {
      throw settings_error{fmt::format("{} is {} (it must be {}): correct it", key, value->dump(), wanted)};
    }
  }
  /// Reads a positive number. A scale may be written 128 or 128.0; a number of steps must be whole.
  template <class T>
  void take_positive(const char* key, T& into) const {
    const auto* value = find(key);
    if (value == nullptr) return;
    const bool fits = std::is_integral_v<T> ? value->is_number_integer() : value->is_number();
    require<settings_error>(fits && value->template get<double>() > 0 && value->template get<double>() <= 1e9,
                            "{} is {} (it must be a positive {} up to 1e9): correct it", key, value->dump(),
                            std::is_integral_v<T> ? "whole number" : "number");
    value->get_to(into);
  }

  const nlohmann::json& from_;
  amp_configs& into_;
};

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
    configs.amp.level = detail::amp_config_reader::level_of(from);
    return configs;
  }
  require<settings_error>(from.is_object(), "amp_configs is {} (it must be a level or an object): write \"O1\"",
                          from.dump().substr(0, 40));
  detail::amp_config_reader{from, configs}.read();
  return configs;
}

}  // namespace comp::policy
