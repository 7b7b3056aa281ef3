// SPDX-License-Identifier: Apache-2.0
// The rule-based plans of PyTorch, TensorFlow, TVM and Paddle for one model. Use them for a table of what each system
// would lower, or as rivals of a search (system_rules.hpp). To set a system's options, call its pass.
#pragma once

#include <comp/autocast/rule_plan.hpp>
#include <comp/core/error.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/precision.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp/systems/paddle_pass.hpp>
#include <comp/systems/tensorflow_pass.hpp>
#include <comp/systems/tvm_pass.hpp>
#include <functional>
#include <string>
#include <utility>
#include <vector>

namespace comp::autocast {

struct named_plan {
  std::string name;  // "pytorch", "paddle O2"
  typed_plan types;  // types.plan is what a backend can run; a backend chooses the formats of tensors itself
};

/// Makes the plans of all systems for one low precision. If a system has lists for GPUs and for CPUs, those for
/// `machine` are taken; for an unknown machine the GPU's lists with FP16 and the CPU's with BF16, the usual format of
/// each. A system that refuses the model (Paddle's O2 does if parameters are stored low already) is left out: `refused`
/// is called with its name and its sentence.
/// Returns: one plan per system and level, all of which fit `graph`; several may be equal.
/// Throws: `settings_error` for a precision that is neither FP16 nor BF16.
inline std::vector<named_plan> all_rules(
    const op_graph& graph, precision low, const hardware& machine = {},
    const std::function<void(const std::string& system, const std::string& why)>& refused = {}) {
  require<settings_error>(low == precision::fp16 || low == precision::bf16,
                          "rules for {} (every system has them for fp16 and bf16 only): choose one of these",
                          name(low));
  const bool bf16 = low == precision::bf16;
  const bool cpu = machine.kind == device_kind::unknown ? bf16 : machine.kind == device_kind::cpu;
  const policy::pytorch torch{.list = cpu ? policy::pytorch_list::cpu : policy::pytorch_list::cuda, .low = low};
  const policy::tensorflow flow{.list = bf16  ? policy::tensorflow_list::onednn_bf16
                                        : cpu ? policy::tensorflow_list::onednn_fp16
                                              : policy::tensorflow_list::cuda_fp16};
  const policy::tvm tvm{.low = low, .missing = policy::missing_rule::silent};
  std::vector<named_plan> all;
  const auto add = [&](const std::string& system, const auto& make) {
    try {
      all.push_back({system, make()});
    } catch (const error& e) {
      if (refused) refused(system, e.what());
    }
  };
  add("pytorch", [&] { return typed(graph, rule_plan(torch, graph, low)); });
  add("tensorflow", [&] { return typed(graph, tensorflow_pass(flow, graph)); });
  add("tvm", [&] { return tvm_pass(tvm, graph); });
  for (const auto& [text, level] : {std::pair{"paddle OD", policy::paddle_level::od},
                                    {"paddle O1", policy::paddle_level::o1},
                                    {"paddle O2", policy::paddle_level::o2}}) {
    add(text, [&, level = level] { return paddle_pass({.level = level, .low = low}, graph); });
  }
  return all;
}

}  // namespace comp::autocast
