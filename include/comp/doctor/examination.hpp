// SPDX-License-Identifier: Apache-2.0
// An examination is a doctor's record of one training step: counts of the values of each operator's results and of the
// gradients that its backward made, in the order of the calls. A doctor belongs to a backend and looks at a step for
// faults (comp_libtorch/doctor).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <comp/core/fields.hpp>
#include <comp/core/precision.hpp>
#include <comp/doctor/blocks.hpp>
#include <comp/doctor/values.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace comp {

/// One entry of an examination: an operator, or a tensor that no operator made (a parameter, or an input of the
/// user's).
struct examined {
  std::string name = {};                 // an operator's name is the same as in a plan
  std::string kind = {};                 // "aten::linear"; "parameter" and "input" for tensors
  std::vector<std::int64_t> shape = {};  // elements per axis
  std::vector<std::size_t> inputs = {};  // indices of the entries that it read; of a view, the tensor behind it
  value_counts values = {};              // counts of its result's values
  value_counts gradients = {};           // counts of the gradients of its inputs; none without a backward
  std::vector<float> sample = {};        // some values of the result, at the same places in each run
  std::vector<float> gradient_sample = {};
  std::size_t backward = 0;            // its place in the order of the backward, from 1; 0: it had none
  std::vector<double> constants = {};  // numbers that it adds, divides by, fills in or compares with
  /// Relative error in the low precision, as op_error::output; infinite: out of its range; NaN: was not run low.
  double error = std::numeric_limits<double>::quiet_NaN();
  // Only of a step among many (history.hpp); no file has them.
  std::optional<bool> trains = {};  // of dropout and batch norm: whether they run as in training
  bool without_gradients = false;   // ran in a forward that makes no gradients
  std::array<std::array<block_counts, 3>, block_formats.size()> blocks = {};  // of a product: by format, then `operand`

  bool is_operator() const { return kind != "parameter" && kind != "input"; }
  /// True for an operator that makes infinities on purpose, as a mask of an attention does.
  bool fills_in_infinity() const {
    return std::ranges::any_of(constants, [](double c) { return std::isinf(c); });
  }
};

void fields(auto& io, examined& e) {
  io("name", e.name);
  io("kind", e.kind);
  io("shape", e.shape);
  io("inputs", e.inputs);
  io("values", e.values);
  io("sample", e.sample);
  io("gradients", e.gradients, if_any);
  io("gradient_sample", e.gradient_sample, if_any);
  io("backward", e.backward, if_any, 1);
  io("constants", e.constants, if_any);
  io("error", e.error, if_any, 0);
}

/// All entries of one training step.
struct examination {
  precision low = precision::bf16;  // the precision that each `examined::error` was measured in
  std::vector<examined> entries = {};
};

/// Returns the places from which a sample of n values is taken, the first and the last among them. They only depend on
/// n, so that samples of two runs can be compared.
inline std::vector<std::size_t> sample_places(std::size_t n, std::size_t most = 24) {
  std::vector<std::size_t> places;
  const std::size_t count = n < most ? n : most;
  for (std::size_t i = 0; i < count; ++i) places.push_back(count == 1 ? 0 : i * (n - 1) / (count - 1));
  return places;
}

namespace detail {

/// "aten::add_.Tensor" -> "add".
inline std::string_view word_of(std::string_view kind) {
  if (const auto colons = kind.rfind("::"); colons != std::string_view::npos) kind.remove_prefix(colons + 2);
  kind = kind.substr(0, kind.find('.'));
  return kind.substr(0, kind.find_last_not_of('_') + 1);
}

}  // namespace detail
}  // namespace comp
