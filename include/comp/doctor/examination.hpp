// SPDX-License-Identifier: Apache-2.0
// What a doctor saw of one training step: the values of each operator's results and of the gradients that its backward
// made, in the order of their calls. What is wrong with them: doctor/faults.hpp.
#pragma once

#include <cmath>
#include <comp/core/precision.hpp>
#include <comp/doctor/values.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <string_view>
#include <vector>

namespace comp {

/// An operator, or what is read before any operator made it: a parameter, or a tensor of the user's.
struct examined {
  std::string name = {};  // an operator's is that of a plan
  std::string kind = {};  // "aten::linear"; "parameter", "input"
  std::vector<std::int64_t> shape = {};
  std::vector<std::size_t> inputs = {};  // indices of what it read, each below its own; views are what they show
  value_counts values = {};
  value_counts gradients = {};     // of all that it read; none where there was no backward
  std::vector<float> sample = {};  // some of `values`, at the same places each time
  std::vector<float> gradient_sample = {};
  std::size_t backward = 0;            // from 1, in the order of the backward; 0: had none
  std::vector<double> constants = {};  // numbers that it adds, divides by, fills in or holds values against
  double error = std::numeric_limits<double>::quiet_NaN();  // 2-norm of what the low precision changes, over that of
                                                            // FP32's; infinite where it leaves the range; NaN: not run

  bool is_operator() const { return kind != "parameter" && kind != "input"; }
  bool fills_in_infinity() const {
    for (const double c : constants) {
      if (std::isinf(c)) return true;
    }
    return false;
  }
};

struct examination {
  precision low = precision::bf16;  // what `examined::error` is of
  std::vector<examined> entries = {};
};

/// Places that a sample of n values is taken from, both ends included: always the same for one n.
inline std::vector<std::size_t> sample_places(std::size_t n, std::size_t most = 24) {
  std::vector<std::size_t> places;
  const std::size_t count = n < most ? n : most;
  for (std::size_t i = 0; i < count; ++i) places.push_back(count == 1 ? 0 : i * (n - 1) / (count - 1));
  return places;
}

namespace detail {

/// "aten::add_.Tensor" -> "add_".
inline std::string_view word_of(std::string_view kind) {
  if (const auto colons = kind.rfind("::"); colons != std::string_view::npos) kind.remove_prefix(colons + 2);
  return kind.substr(0, kind.find('.'));
}

}  // namespace detail
}  // namespace comp
