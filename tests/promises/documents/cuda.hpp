// SPDX-License-Identifier: Apache-2.0
// What the program with the CUDA backend has around it.
#pragma once
#include <comp_native/model_builder.hpp>

struct points {
  std::size_t size() const { return 1; }
  comp::native::example_layout layout() const { return {.input_shape = {2}}; }
  void write(std::size_t, const comp::native::example_spans&) const {}
  std::string signature() const { return {}; }
};
inline points train, validation;
inline const comp::native::model model =
    comp::native::model_builder{"net", comp::native::input_kind::values, {64, 2}}.finish();
