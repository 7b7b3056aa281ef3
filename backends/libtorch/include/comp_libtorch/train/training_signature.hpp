// SPDX-License-Identifier: Apache-2.0
// What makes two trainings comparable, in words. A search is resumed only if all of it agrees.
#pragma once

#include <c10/util/Type.h>
#include <torch/serialize/archive.h>

#include <comp_libtorch/train/data_order.hpp>
#include <comp_libtorch/train/optimizer_state.hpp>
#include <comp_libtorch/train/setup.hpp>
#include <cstddef>
#include <cstdint>
#include <sstream>
#include <string>

namespace comp::libtorch {

/// Returns: the class of an optimizer and the options of its groups, in words.
inline std::string text(const torch::optim::Optimizer& optimizer) {
  std::string words = c10::demangle(typeid(optimizer).name());
  for (const auto& group : optimizer.param_groups()) {
    words += fmt::format(" [{}", group.params().size());
    if (group.has_options()) {
      auto archive = detail::archive_of(detail::serialized(group.options()));
      for (const std::string& key : archive.keys()) {
        c10::IValue value;
        archive.read(key, value);
        std::ostringstream shown;
        shown << value;
        words += fmt::format(" {}={}", key, shown.str());
      }
    }
    words += "]";
  }
  return words;
}

/// Returns: models with samples of their weights (which tell the seed that made them), data, optimizers and loss
/// scaling.
inline std::string signature_of(const setup& s, const std::string& data) {
  std::string words = fmt::format("libtorch {} | {}", s.about, data);
  for (const named_module& m : s.modules) {
    std::uint64_t hash = 0;
    std::size_t parameters = 0;
    for (const at::Tensor& p : m.module->parameters()) {
      hash = hash * 31 + detail::sampled_hash(p);
      ++parameters;
    }
    words += fmt::format(" | model {} of {} parameters {:016x}", m.name, parameters, hash);
  }
  for (const auto* optimizer : s.optimizers) words += " | " + text(*optimizer);
  if (s.update == optimizer_pass::fused) words += " | fused";
  if (s.moments) words += " | moments";
  const comp::scaling::settings& scale = s.scaling;
  return words + fmt::format(" | scale {} {} {} {} {} {} {} {} {}", static_cast<int>(s.scale_loss), scale.initial,
                             scale.growth, scale.backoff, scale.growth_interval, scale.backoff_interval, scale.floor,
                             scale.ceiling, scale.dynamic);
}

}  // namespace comp::libtorch
