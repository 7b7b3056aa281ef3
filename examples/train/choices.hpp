// SPDX-License-Identifier: Apache-2.0
// Policies and strategies chosen at run time: one variant each, which models the concept like any type in it. So
// `train` instantiates one search instead of one per combination.
#pragma once

#include <comp/policy/all_fp32.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp/strategy/exhaustive.hpp>
#include <comp/strategy/greedy.hpp>
#include <comp/strategy/guided.hpp>
#include <comp/strategy/random.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace train {

class any_strategy {
  using chosen_type =
      std::variant<comp::strategy::guided, comp::strategy::greedy, comp::strategy::exhaustive, comp::strategy::random>;

 public:
  any_strategy() = default;
  any_strategy(const std::string& name, std::uint64_t seed) {
    if (name == "greedy") chosen_ = comp::strategy::greedy{};
    if (name == "exhaustive") chosen_ = comp::strategy::exhaustive{};
    if (name == "random") chosen_ = comp::strategy::random{.trials = 16, .seed = seed};
  }

  class run {
   public:
    using started_type =
        std::variant<comp::strategy::greedy::run, comp::strategy::exhaustive::run, comp::strategy::random::run>;
    explicit run(started_type started) : started_{std::move(started)} {}
    std::vector<comp::plan> ask(std::size_t at_most) {
      return std::visit([&](auto& s) { return s.ask(at_most); }, started_);
    }
    void tell(const comp::trial& seen) {
      std::visit([&](auto& s) { s.tell(seen); }, started_);
    }
    std::size_t at_most() const {
      return std::visit([](const auto& s) { return static_cast<std::size_t>(s.at_most()); }, started_);
    }

   private:
    started_type started_;
  };

  /// Settings of a guided search, where it is one: comp asks for them.
  const comp::strategy::guided* guide() const { return std::get_if<comp::strategy::guided>(&chosen_); }

  run start(comp::search_space over) const {
    return std::visit([&](const auto& s) { return run{run::started_type{s.start(std::move(over))}}; }, chosen_);
  }

 private:
  chosen_type chosen_;
};

class any_policy {
 public:
  any_policy() = default;
  any_policy(const std::string& name, comp::precision low) {
    using comp::policy::pytorch_list;
    if (name == "fp32") chosen_ = comp::policy::all_fp32{};
    if (name == "pytorch-cpu") chosen_ = comp::policy::pytorch{.list = pytorch_list::cpu, .low = low};
    if (name == "pytorch-cuda") chosen_ = comp::policy::pytorch{.list = pytorch_list::cuda, .low = low};
  }
  comp::decision classify(const comp::op_info& op) const {
    return std::visit([&](const auto& p) { return p.classify(op); }, chosen_);
  }

 private:
  std::variant<comp::policy::pytorch, comp::policy::all_fp32> chosen_;
};

}  // namespace train
