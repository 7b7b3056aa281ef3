// SPDX-License-Identifier: Apache-2.0
// The state of a training for a file (core/stored_state.hpp, files/training_file.hpp): models, optimizers, random
// generators and numbers under their names. A training goes on from it in another process, with the same losses.
// Such a state does not exist if numbers do not tell the place in the batches, as with a loader; for optimizers with
// state classes of the user's own; and for setup::extra.
#pragma once

#include <ATen/ATen.h>
#include <torch/optim.h>

#include <comp/core/error.hpp>
#include <comp/core/stored_state.hpp>
#include <comp_libtorch/support/exceptions.hpp>
#include <comp_libtorch/support/generators.hpp>
#include <comp_libtorch/train/optimizer_state.hpp>
#include <comp_libtorch/train/setup.hpp>
#include <comp_libtorch/train/stored_values.hpp>
#include <comp_libtorch/train/training_state.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

/// Returns: an empty state of the class that LibTorch's optimizer with these options has; null for options of the
/// user's own.
inline std::unique_ptr<OptimizerParamState> empty_state(const torch::optim::OptimizerOptions& options) {
  std::unique_ptr<OptimizerParamState> state;
  any_own_optimizer([&]<class Options, class State>() {
    if (typeid(options) == typeid(Options)) state = std::make_unique<State>();
    return state != nullptr;
  });
  return state;
}

inline void require_storable(const setup& s) {
  require<error>(!s.extra.save,
                 "setup::extra has state that only this process can hold (it is any object of yours): train "
                 "without checkpoints, or write a file of your own");
  for (auto* optimizer : s.optimizers) {
    for (const auto& group : optimizer->param_groups()) {
      require<error>(group.has_options() && empty_state(group.options()) != nullptr,
                     "an optimizer has options of a class of yours (the states of LibTorch's own can be stored): train "
                     "without checkpoints");
    }
  }
}

/// Calls `f(name, group)` with each group, and `g(name, optimizer, group, parameter)` with each of its parameters.
void for_optimizers(const setup& s, auto f, auto g) {
  for (std::size_t o = 0; o < s.optimizers.size(); ++o) {
    auto& groups = s.optimizers[o]->param_groups();
    for (std::size_t i = 0; i < groups.size(); ++i) {
      f(fmt::format("optimizer {} group {}", o, i), groups[i]);
      for (std::size_t p = 0; p < groups[i].params().size(); ++p)
        g(fmt::format("optimizer {} group {} parameter {}", o, i, p), *s.optimizers[o], groups[i],
          groups[i].params()[p]);
    }
  }
}

inline void store_training(const setup& from, c10::Device device, state_writer& to) {
  for_tensors(
      from.modules, [&](const std::string& name, const at::Tensor& t) { to.add(name, t); },
      [&](const std::string& name, const at::Tensor& parameter) { to.add(name, parameter.grad()); });
  for_optimizers(
      from,
      [&](const std::string& name, auto& group) {
        const std::string bytes = serialized(group.options());
        to.add(name + " options", at::tensor(std::vector<std::uint8_t>(bytes.begin(), bytes.end()), at::kByte));
      },
      [&](const std::string& name, auto& optimizer, auto& /*group*/, const at::Tensor& parameter) {
        const auto at = optimizer.state().find(parameter.unsafeGetTensorImpl());
        if (at == optimizer.state().end()) return;
        std::size_t member = 0;
        for_members(*at->second, *at->second, [&](auto& /*same*/, const auto& value) {
          to.add(fmt::format("{} state {}", name, member++), value);
        });
        to.add(name + " members", member);
      });
  const std::vector<at::Tensor> generators = generator_states::save(device, from.generators).tensors();
  to.add("generators", generators);
}

inline void load_training(setup& to, c10::Device device, const state_reader& from) {
  const torch::NoGradGuard no_grad;
  // Only checks: another training's state throws before anything is changed.
  for_tensors(
      to.modules, [&](const std::string& name, at::Tensor& t) { (void)from.tensor(name, t); },
      [](const std::string& /*name*/, at::Tensor& /*parameter*/) {});
  for_tensors(
      to.modules, [&](const std::string& name, at::Tensor& t) { t.copy_(from.tensor(name, t)); },
      [&](const std::string& name, at::Tensor& parameter) {
        put(parameter.mutable_grad(), from.tensor(name), parameter.device());
      });
  for_optimizers(
      to,
      [&](const std::string& name, auto& group) {
        const at::Tensor bytes = from.tensor(name + " options");
        require<error>(bytes.defined(),
                       "no stored \"{} options\" (it is another training's state): load what this "
                       "trainer stored",
                       name);
        const auto* begin = static_cast<const char*>(bytes.const_data_ptr());
        auto archive = archive_of(std::string{begin, begin + bytes.nbytes()});
        group.options().serialize(archive);
      },
      [&](const std::string& name, auto& optimizer, auto& group, const at::Tensor& parameter) {
        void* key = parameter.unsafeGetTensorImpl();
        optimizer.state().erase(key);
        if (!from.has(name + " members")) return;
        auto state = empty_state(group.options());
        std::size_t member = 0;
        for_members(*state, *state, [&](auto& value, const auto& /*same*/) {
          std::remove_cvref_t<decltype(value)> read{};
          from.get(fmt::format("{} state {}", name, member++), read);
          value = std::remove_cvref_t<decltype(value)>{};
          put(value, read, parameter.device());
        });
        optimizer.state()[key] = std::move(state);
      });
  std::vector<at::Tensor> generators;
  from.get("generators", generators);
  generator_states{std::move(generators)}.restore(device, to.generators);
}

}  // namespace comp::libtorch::detail
