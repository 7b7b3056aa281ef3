// SPDX-License-Identifier: Apache-2.0
// Steps that no backend ran.
#pragma once

#include <comp/doctor/examination.hpp>
#include <string>
#include <utility>
#include <vector>

namespace made_up {

inline comp::examined entry(std::string name, std::string kind, std::vector<float> values,
                            std::vector<std::size_t> inputs = {}) {
  comp::examined e{.name = std::move(name), .kind = std::move(kind), .inputs = std::move(inputs)};
  e.shape = {static_cast<std::int64_t>(values.size())};
  e.values = comp::counted(values);
  for (const std::size_t place : comp::sample_places(values.size())) e.sample.push_back(values[place]);
  return e;
}

/// A parameter, a product and an activation.
inline comp::examination step(std::vector<float> weight = {0.5F, -0.25F}, std::vector<float> product = {1, -2, 3},
                              std::vector<float> activation = {1, 0, 3}) {
  comp::examination e;
  e.entries = {entry("fc.weight", "parameter", std::move(weight)),
               entry("fc.linear", "aten::linear", std::move(product), {0}),
               entry("fc.relu", "aten::relu", std::move(activation), {1})};
  return e;
}

}  // namespace made_up
