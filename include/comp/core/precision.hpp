// SPDX-License-Identifier: Apache-2.0
// The floating-point formats that an operator can run in, with their sizes and ranges (the paper's figure 1).
// Each has a letter in plan strings; `0` = FP16 and `1` = FP32 are the paper's, so a published plan can be pasted in.
// Formats below 16 bits are those of matrix products alone: an operator rounds what it multiplies, with scales, and its
// result is BF16 (core/scaled_formats.hpp). `bf16_fp32` is a product of BF16 values whose sum is not rounded to BF16
// again, as routers and heads want it (torch's out_dtype, TVM's out_dtype).
// Code that handles each format is a switch, so that a format that is added does not compile until all code knows it
// (docs/look-up/adding.md).
#pragma once

#include <comp/core/cxx20.hpp>
//
#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>

namespace comp {

enum class precision : std::uint8_t {
  fp32,
  tf32,
  bf16,
  fp16,
  fp8_e4m3,  // scaled by tensor
  fp8_e5m2,
  fp8_block128,  // scaled by blocks of 128, as DeepSeek-V3
  mxfp8,
  mxfp4,
  nvfp4,
  fp64,  // ledgers hold these numbers: the next format comes last
  bf16_fp32
};

inline constexpr std::array all_precisions{precision::fp32,         precision::tf32,     precision::bf16,
                                           precision::fp16,         precision::fp8_e4m3, precision::fp8_e5m2,
                                           precision::fp8_block128, precision::mxfp8,    precision::mxfp4,
                                           precision::nvfp4,        precision::fp64,     precision::bf16_fp32};

/// Size, range and rounding of a format. `bytes` is the size in memory, which for TF32 is that of FP32: a GPU rounds to
/// TF32 only inside its Tensor Cores, and for bf16_fp32 that of its result. For a format below 16 bits `bytes` is an
/// element without its scale; two elements of 4 bits share a byte. Source: IEEE 754-2019 (fp64, fp32, fp16), NVIDIA
/// A100 white paper (tf32), Intel bfloat16 white paper, OCP FP8 1.0 (fp8), OCP Microscaling Formats 1.0 (mxfp8, mxfp4,
/// and the elements of nvfp4).
struct precision_traits {
  std::string_view name;
  char letter;  // in a plan string
  double bytes;
  int exponent_bits;
  int fraction_bits;
  double largest;   // largest finite value
  double half_ulp;  // largest relative error of one rounding to nearest, for normal values
};

constexpr precision_traits traits(precision p) {
  switch (p) {
    case precision::fp32:
      return {"fp32", '1', 4, 8, 23, 0x1.fffffep127, 0x1p-24};
    case precision::tf32:
      return {"tf32", 't', 4, 8, 10, 0x1.ffcp127, 0x1p-11};
    case precision::bf16:
      return {"bf16", 'b', 2, 8, 7, 0x1.fep127, 0x1p-8};
    case precision::fp16:
      return {"fp16", '0', 2, 5, 10, 65504.0, 0x1p-11};
    case precision::fp8_e4m3:
      return {"fp8_e4m3", 'e', 1, 4, 3, 448.0, 0x1p-4};
    case precision::fp8_e5m2:
      return {"fp8_e5m2", 'E', 1, 5, 2, 57344.0, 0x1p-3};
    case precision::fp8_block128:
      return {"fp8_block128", 'k', 1, 4, 3, 448.0, 0x1p-4};
    case precision::mxfp8:
      return {"mxfp8", '8', 1, 4, 3, 448.0, 0x1p-4};
    case precision::mxfp4:
      return {"mxfp4", '4', 0.5, 2, 1, 6.0, 0x1p-2};
    case precision::nvfp4:
      return {"nvfp4", 'n', 0.5, 2, 1, 6.0, 0x1p-2};
    case precision::fp64:
      return {"fp64", 'd', 8, 11, 52, 0x1.fffffffffffffp1023, 0x1p-53};
    case precision::bf16_fp32:
      return {"bf16>fp32", 'B', 4, 8, 7, 0x1.fep127, 0x1p-8};
  }
  return {};
}
static_assert(traits(precision{all_precisions.size()}).name.empty(), "a precision is missing in all_precisions");

constexpr std::string_view name(precision p) { return traits(p).name; }
constexpr char letter(precision p) { return traits(p).letter; }

namespace detail {

inline constexpr auto letters = [] {
  std::array<char, all_precisions.size()> all{};
  for (std::size_t i = 0; i < all.size(); ++i) all[i] = letter(all_precisions[i]);
  return all;
}();

}  // namespace detail

/// The letters of plan strings, in the order of `precision`.
inline constexpr std::string_view precision_letters{detail::letters.data(), detail::letters.size()};

/// Returns: the precision of a letter of a plan string; nothing for another character.
constexpr std::optional<precision> precision_of(char letter) {
  for (const precision p : all_precisions) {
    if (comp::letter(p) == letter) return p;
  }
  return std::nullopt;
}

/// Returns: the precision of a name such as "bf16"; nothing for an unknown name.
constexpr std::optional<precision> precision_of(std::string_view name) {
  for (const precision p : all_precisions) {
    if (comp::name(p) == name) return p;
  }
  return std::nullopt;
}

/// True for every format that is less precise than FP32.
constexpr bool is_low(precision p) { return p != precision::fp32 && p != precision::fp64; }
constexpr bool is_fp8(precision p) { return p == precision::fp8_e4m3 || p == precision::fp8_e5m2; }
/// True for every format below 16 bits, whose values have scales.
constexpr bool is_scaled(precision p) { return traits(p).bytes < 2; }

/// Returns: the format of what an operator that runs in `p` reads. TF32 exists only inside of an operator.
constexpr precision read_in(precision p) {
  return p == precision::tf32 ? precision::fp32 : p == precision::bf16_fp32 ? precision::bf16 : p;
}
/// Returns: the format of its result.
constexpr precision handed_on(precision p) {
  return p == precision::tf32 || p == precision::bf16_fp32 ? precision::fp32 : p;
}

/// Returns the names of `precisions`, for messages: "fp32, bf16".
inline std::string names_of(std::span<const precision> precisions) {
  std::string names;
  for (const precision p : precisions) names.append(names.empty() ? "" : ", ").append(name(p));
  return names;
}

}  // namespace comp
