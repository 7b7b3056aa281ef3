// SPDX-License-Identifier: Apache-2.0
// A plan for a forward that runs for the first time, operator by operator (first_forward.hpp).
#pragma once

#include <comp/core/op_info.hpp>
#include <comp/core/product.hpp>
#include <comp_libtorch/hook/op_names.hpp>
#include <cstddef>
#include <functional>
#include <optional>
#include <string>

namespace comp::libtorch::detail {

/// What a plan says of an operator before it has run for the first time.
struct first_choice {
  product_precisions chosen = {};
  bool hands_on_fp32 = false;
  bool gives_low = false;  // without a plan, too
};

/// A plan for operators that are not recorded yet.
struct first_plan {
  /// Chooses for operator `number` of the graph to be. The op_info is known only as far as it can be before the
  /// operator has run. `layer`: its common name (layer_names.hpp). Throws to end the forward.
  std::function<first_choice(std::size_t number, const op_info&, const std::string& layer)> choose = {};
  named_choice by_name = {};                    // for forwards in evaluation mode
  std::optional<at::ScalarType> autocast = {};  // if set, LibTorch's autocast to this format runs everything
};

}  // namespace comp::libtorch::detail
