// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <comp_native/model_builder.hpp>

namespace native_models {

using namespace comp::native;

inline model added(std::int64_t batch) {
  model_builder net{"added", input_kind::values, {batch, 8}};
  net.input().linear("hidden", 16).tanh("tanh").linear("head", 2).cross_entropy_loss("loss");
  return net.finish();
}

}  // namespace native_models
