// SPDX-License-Identifier: Apache-2.0
// Converts the parameters and counters of a training to comp::stored_state and back. Weights have their names, an
// optimizer's slots are called "optimizer.first.NAME" and "optimizer.second.NAME".
#pragma once

#include <cmath>
#include <comp/core/error.hpp>
#include <comp/core/stored_state.hpp>
#include <comp_native/device.hpp>
#include <comp_native/network.hpp>
#include <comp_native/scaled_update.hpp>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::native {

/// A Device whose optimizer slots can be read and set.
template <class D>
concept StoresSlots = Device<D> && requires(D& d, typename D::parameter& p, const parameter_slots& s) {
  { d.slots(p) } -> std::same_as<parameter_slots>;
  d.set_slots(p, s);
};

namespace detail {

inline std::string slot_name(std::string_view which, const std::string& parameter) {
  return fmt::format("optimizer.{}.{}", which, parameter);
}

}  // namespace detail

/// Returns the weights and running statistics of a network, in FP32.
template <Device D>
std::vector<named_tensor> stored_weights(D& device, network<D>& of) {
  std::vector<named_tensor> all;
  for (std::size_t i = 0; i < of.parameters().size(); ++i) {
    const parameter_info& info = of.model().parameters[i];
    all.push_back({info.name, info.shape, device.values(of.parameters()[i])});
  }
  return all;
}

/// Returns the same with the optimizer's slots.
template <StoresSlots D>
std::vector<named_tensor> stored_parameters(D& device, network<D>& of) {
  std::vector<named_tensor> all = stored_weights(device, of);
  for (std::size_t i = 0; i < of.parameters().size(); ++i) {
    const parameter_info& info = of.model().parameters[i];
    parameter_slots slots = device.slots(of.parameters()[i]);
    for (auto [which, values] : {std::pair{"first", &slots.first}, std::pair{"second", &slots.second}}) {
      if (!values->empty()) all.push_back({detail::slot_name(which, info.name), info.shape, std::move(*values)});
    }
  }
  return all;
}

/// Puts weights and slots back.
/// Throws: `error`, naming the tensor, if they are not those of this network; nothing is changed then.
template <StoresSlots D>
void load_parameters(D& device, network<D>& into, const std::vector<named_tensor>& from) {
  constexpr auto remedy = "load what this model stored";
  std::map<std::string_view, const named_tensor*> known;
  for (const named_tensor& t : from) known.emplace(t.name, &t);
  std::size_t used = 0;
  const auto find = [&](const std::string& name, const shape& wanted) -> const named_tensor* {
    const auto found = known.find(name);
    if (found == known.end()) return nullptr;
    const named_tensor& t = *found->second;
    require<error>(t.shape == wanted && std::ssize(t.values) == elements(wanted),
                   "stored tensor \"{}\" has shape {} and {} values (the model's has {}): {}", name, text(t.shape),
                   t.values.size(), text(wanted), remedy);
    ++used;
    return &t;
  };
  struct parts {
    const named_tensor *value, *first, *second;
  };
  std::vector<parts> all;
  for (const parameter_info& info : into.model().parameters) {
    all.push_back({find(info.name, info.shape), find(detail::slot_name("first", info.name), info.shape),
                   find(detail::slot_name("second", info.name), info.shape)});
    require<error>(all.back().value != nullptr, "no stored tensor \"{}\" (the model has one): {}", info.name, remedy);
  }
  require<error>(used == from.size(), "{} stored tensors, of which the model has {} (it is another model's): {}",
                 from.size(), used, remedy);
  const auto values = [](const named_tensor* t) { return t ? t->values : std::vector<float>{}; };
  for (std::size_t i = 0; i < all.size(); ++i) {
    typename D::parameter& p = into.parameters()[i];
    device.set_values(p, all[i].value->values);
    device.set_slots(p, {values(all[i].first), values(all[i].second)});
  }
}

/// Returns a stored count. Throws: `error` if it is missing, or is no whole number from 0 on.
inline std::uint64_t stored_count(const stored_state& from, const std::string& name) {
  const auto found = from.numbers.find(name);
  const double value = found == from.numbers.end() ? -1 : found->second;
  require<error>(value >= 0 && value <= 0x1p53 && value == std::floor(value),
                 "stored number \"{}\" is {} (it counts something): load what this model stored", name, value);
  return static_cast<std::uint64_t>(value);
}

namespace detail {

/// Returns "step", or "step of generator" for a phase with a name.
inline std::string of_phase(const char* what, const std::string& phase) {
  return phase.empty() ? what : fmt::format("{} of {}", what, phase);
}

}  // namespace detail

/// Returns the numbers of a phase's updates. `phase` is its name if the model has several, else empty.
inline std::map<std::string, double> stored_update(const update_state& from, const std::string& phase) {
  std::map<std::string, double> numbers;
  const auto store = [&](const char* what, auto number) {
    numbers.emplace(detail::of_phase(what, phase), static_cast<double>(number));
  };
  store("step", from.taken);
  store("loss scale", from.scale.scale);
  store("loss scale, finite steps", from.scale.finite_steps);
  store("loss scale, overflows", from.scale.overflows);
  store("loss scale, skipped", from.scale.skipped);
  store("loss scale, steps", from.scale.steps);
  return numbers;
}
/// Reads the numbers of a phase's updates. Throws: `error` if one is missing or is no count.
inline update_state update_from(const stored_state& from, const std::string& phase) {
  const auto count = [&](const char* what) {
    return static_cast<std::int64_t>(stored_count(from, detail::of_phase(what, phase)));
  };
  const auto scale = from.numbers.find(detail::of_phase("loss scale", phase));
  return {count("step"),
          {.scale = scale == from.numbers.end() ? 0 : scale->second,
           .finite_steps = count("loss scale, finite steps"),
           .overflows = count("loss scale, overflows"),
           .skipped = count("loss scale, skipped"),
           .steps = count("loss scale, steps")}};
}

}  // namespace comp::native
