// SPDX-License-Identifier: Apache-2.0
// The plans of PyTorch's, TensorFlow's, TVM's and Paddle's mixed precision as rivals of a search:
//   settings.rivals = comp::system_rules();                           // all of them
//   settings.rivals = comp::system_rules({"tensorflow", "paddle-o2"});
// What a plan cannot say is left out: that Paddle's O2 stores parameters low (the trainer's casts of weights decide).
// Not here: their settings (autocast/*_pass.hpp); a rival_source of one's own takes any.
#pragma once

#include <algorithm>
#include <array>
#include <cctype>
#include <comp/core/error.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/rival.hpp>
#include <comp/systems/all_rules.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp {

inline constexpr std::array<std::string_view, 6> system_names{"pytorch",   "tensorflow", "tvm",
                                                              "paddle-od", "paddle-o1",  "paddle-o2"};

namespace detail {

/// "paddle O1" is "paddle-o1" where it is typed.
inline std::string typed_name(std::string_view name) {
  std::string typed;
  for (const char c : name) {
    typed += c == ' ' ? '-' : static_cast<char>(std::tolower(static_cast<unsigned char>(c)));
  }
  return typed;
}

}  // namespace detail

/// One rival per system and per searched precision that the systems have (FP16, BF16), by the lists for `machine`
/// (trainer.hardware()); empty `wanted`: all systems.
/// Throws: `settings_error`, naming the systems, for one that is not among them.
inline rival_source system_rules(std::vector<std::string> wanted = {}, hardware machine = {}) {
  for (const std::string& name : wanted) {
    require<settings_error>(std::find(system_names.begin(), system_names.end(), name) != system_names.end(),
                            "\"{}\" is no system whose rules are known (they are {}): name some of those", name,
                            joined(system_names, ", "));
  }
  return [wanted = std::move(wanted), machine = std::move(machine)](const op_graph& graph,
                                                                    std::span<const precision> lows) {
    std::vector<rival> rivals;
    for (const precision low : lows) {
      if (low != precision::fp16 && low != precision::bf16) continue;
      for (const auto& [system, types] : autocast::all_rules(graph, low, machine)) {
        const bool asked =
            wanted.empty() || std::find(wanted.begin(), wanted.end(), detail::typed_name(system)) != wanted.end();
        if (asked) rivals.push_back({fmt::format("rule-based {} {}", system, name(low)), types.plan, true});
      }
    }
    return rivals;
  };
}

}  // namespace comp
