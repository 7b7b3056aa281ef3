// SPDX-License-Identifier: Apache-2.0
// The rule-based plans of PyTorch, TensorFlow, TVM and Paddle as rivals of a search:
//   settings.rivals = comp::system_rules();                           // all of them
//   settings.rivals = comp::system_rules({"tensorflow", "paddle-o2"});
// A plan only says in what operators compute. That Paddle's O2 stores parameters low is lost; the trainer casts weights
// as it does under any plan. To set a system's options, write a rival_source of your own over its pass.
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/error.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/rival.hpp>
#include <comp/policy/devices.hpp>
#include <comp/systems/all_rules.hpp>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp {

inline constexpr std::array<std::string_view, 6> system_names{"pytorch",   "tensorflow", "tvm",
                                                              "paddle-od", "paddle-o1",  "paddle-o2"};

/// Makes a rival for each system and each low precision that is searched and that the systems have (FP16, BF16).
/// `systems` names the systems; empty: all. `machine` (trainer.hardware()) decides between lists for GPUs and for CPUs.
/// The rival of a system that refuses the model has its sentence and no plan.
/// Throws: `settings_error`, naming the known systems, for another name.
inline rival_source system_rules(std::vector<std::string> systems = {}, hardware machine = {}) {
  for (const std::string& name : systems) {
    require<settings_error>(std::find(system_names.begin(), system_names.end(), name) != system_names.end(),
                            "\"{}\" is no system whose rules are known (they are {}): name some of those", name,
                            joined(system_names, ", "));
  }
  return [systems = std::move(systems), machine = std::move(machine)](const op_graph& graph,
                                                                      std::span<const precision> lows) {
    std::vector<rival> rivals;
    for (const precision low : lows) {
      if (low != precision::fp16 && low != precision::bf16) continue;
      const auto add = [&](const std::string& system, plan p, std::string refusal) {
        const auto is_system = [&](const std::string& name) {
          return policy::plain_name(name) == policy::plain_name(system);  // "paddle-o1" is "paddle O1"
        };
        if (systems.empty() || std::ranges::any_of(systems, is_system))
          rivals.push_back(
              {fmt::format("rule-based {} {}", system, name(low)), std::move(p), true, std::move(refusal)});
      };
      const auto refused = [&](const std::string& system, const std::string& why) { add(system, {}, why); };
      for (const auto& [system, types] : autocast::all_rules(graph, low, machine, refused)) add(system, types.plan, {});
    }
    return rivals;
  };
}

}  // namespace comp
