// SPDX-License-Identifier: Apache-2.0
// Policies and strategies by their names on the command line.
#pragma once

#include <comp/policy/all_fp32.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <comp/strategy/exhaustive.hpp>
#include <comp/strategy/greedy.hpp>
#include <comp/strategy/guided.hpp>
#include <cstdint>
#include <string>

namespace train {

inline comp::any_strategy strategy_named(const std::string& name, std::uint64_t plans) {
  if (name == "greedy") return comp::strategy::greedy{};
  if (name == "exhaustive") return comp::strategy::exhaustive{.limit = plans};
  return comp::strategy::guided{};
}

inline comp::any_policy policy_named(const std::string& name, comp::precision low) {
  using comp::policy::pytorch_list;
  if (name == "fp32") return comp::policy::all_fp32{};
  return comp::policy::pytorch{.list = name == "pytorch-cuda" ? pytorch_list::cuda : pytorch_list::cpu, .low = low};
}

}  // namespace train
