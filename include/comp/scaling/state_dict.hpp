// SPDX-License-Identifier: Apache-2.0
// Converts between a grad_scaler and the JSON form of PyTorch's state_dict of a scaler, so that a training can move
// between both.
// In Python, json.dump(scaler.state_dict(), file) writes the JSON that is read here; pickled files are not read.
// Source: torch/amp/grad_scaler.py of PyTorch 2.15.
#pragma once

#include <fmt/core.h>

#include <comp/core/error.hpp>
#include <comp/scaling/grad_scaler.hpp>
#include <comp/scaling/settings.hpp>
#include <exception>

namespace comp::scaling {

/// Returns what torch.amp.GradScaler.state_dict() returns: the scale, its constants, and the steps since it last
/// changed.
template <class Json>
Json state_dict(const grad_scaler& scaler) {
  const settings& constants = scaler.constants();
  return {{"scale", scaler.scale()},
          {"growth_factor", constants.growth},
          {"backoff_factor", constants.backoff},
          {"growth_interval", constants.growth_interval},
          {"_growth_tracker", scaler.now().finite_steps}};
}
/// Sets the scaler to the state and the constants of a state_dict, as PyTorch's load_state_dict does.
/// Throws: `settings_error` for anything that is no state_dict of a scaler, or has a value out of range.
void load_state_dict(grad_scaler& scaler, const auto& from) {
  settings constants = scaler.constants();
  state next;
  try {
    from.at("growth_factor").get_to(constants.growth);
    from.at("backoff_factor").get_to(constants.backoff);
    from.at("growth_interval").get_to(constants.growth_interval);
    from.at("scale").get_to(next.scale);
    from.at("_growth_tracker").get_to(next.finite_steps);
  } catch (const std::exception& fault) {
    throw settings_error{fmt::format(
        "a scaler's state_dict cannot be read ({}): it has scale, growth_factor, backoff_factor, growth_interval and "
        "_growth_tracker, and is empty where the scaler was not enabled",
        fault.what())};
  }
  scaler.load(constants, next);
}

}  // namespace comp::scaling
