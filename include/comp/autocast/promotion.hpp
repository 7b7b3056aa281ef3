// SPDX-License-Identifier: Apache-2.0
// PyTorch's type promotion: the format in which an operator computes whose inputs have different formats.
// Source: c10/core/ScalarType.h (promoteTypes), ATen/native/TypeProperties.cpp (0-dimensional tensors), and the
// operators of ATen that call TensorIteratorConfig::promote_inputs_to_common_dtype, or at::result_type; PyTorch 2.11.0.
#pragma once

#include <algorithm>
#include <comp/core/precision.hpp>
#include <comp/policy/kind_name.hpp>
#include <iterator>
#include <string_view>

namespace comp::autocast {

/// Returns the format that holds both: the larger one, or FP32 if two formats have the same size (BF16 and FP16).
constexpr precision promoted(precision a, precision b) {
  if (a == b) return a;
  if (traits(a).bytes == traits(b).bytes) return precision::fp32;
  return traits(a).bytes > traits(b).bytes ? a : b;
}

// clang-format off
/// Operators that accept inputs of different formats and promote them. Every other operator raises an error for such
/// inputs, or computes in the format of its first input while others (the weights of a norm) may differ.
inline constexpr std::string_view promoting_kinds[] = {
    "add", "addcdiv", "addcmul", "arctan2", "atan2", "cat", "clamp", "clamp_max", "clamp_min", "column_stack", "concat",
    "concatenate", "copysign", "div", "divide", "dstack", "eq", "floor_divide", "fmax", "fmin", "fmod", "ge", "gt",
    "heaviside", "hstack", "hypot", "le", "lerp", "logaddexp", "logaddexp2", "lt", "max", "maximum", "min", "minimum", "mul",
    "multiply", "ne", "nextafter", "pow", "remainder", "rsub", "stack", "sub", "subtract", "true_divide", "vstack", "where",
    "xlogy"};
// clang-format on

constexpr bool promotes(std::string_view kind) {
  return std::binary_search(std::begin(promoting_kinds), std::end(promoting_kinds), policy::without_overload(kind));
}

}  // namespace comp::autocast
