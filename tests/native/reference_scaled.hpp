// SPDX-License-Identifier: Apache-2.0
// Formats below 16 bits by definition: an element is found among all values of its format by comparing distances in
// FP64, and a power of two by trying. And the recorded results of other implementations (scaled_formats.inc).
#pragma once

#include <bit>
#include <cmath>
#include <comp/core/scaled_formats.hpp>
#include <comp_native/math/scaled.hpp>
#include <cstdint>
#include <limits>
#include <random>
#include <string_view>
#include <vector>

namespace comp::native::test {

/// Returns: the value of an element without its sign.
inline double element_value(const element_format& f, int code) {
  const int exponent = code >> f.fraction_bits, fraction = code & ((1 << f.fraction_bits) - 1);
  const int lead = exponent ? 1 << f.fraction_bits : 0, from = exponent ? exponent - 1 : 0;
  return std::ldexp(lead + fraction, f.smallest_exponent() - f.fraction_bits + from);
}
/// Returns: the code of the largest element that is at most t.
inline int code_below(const element_format& f, double t) {
  int code = 0;
  while (element_value(f, code) < f.largest && element_value(f, code + 1) <= t) ++code;
  return code;
}
/// Returns: the element nearest to x, ties to the even code; the largest one if x is larger; NaN for NaN.
inline double nearest_element(const element_format& f, double x) {
  if (std::isnan(x)) return x;
  const double t = std::abs(x);
  int code = code_below(f, t);
  const double below = element_value(f, code), above = element_value(f, code + 1);
  if (below < f.largest && (t - below > above - t || (t - below == above - t && code % 2 == 1))) ++code;
  return std::copysign(element_value(f, code), x);
}
/// Returns: one of the two elements beside x, the larger one if 16 random bits say so.
inline double drawn_element(const element_format& f, float x, std::uint32_t random) {
  if (std::isnan(x)) return x;
  const float t = std::abs(x), normal = std::ldexp(1.0F, f.smallest_exponent());
  const double exact = t < normal ? static_cast<double>(t + normal) - normal : t;  // FP32 has no more bits of the sum
  const int code = code_below(f, exact);
  const double below = element_value(f, code), spacing = element_value(f, code + 1) - below;
  const bool up = below < f.largest && (exact - below) / spacing + (random + 0.5) * 0x1p-16 >= 1;
  return std::copysign(element_value(f, up ? code + 1 : code), x);
}

/// Returns: the scales of a block with this largest magnitude, in a matrix with that one.
inline math::scale_pair scales_by_definition(const operand_format& f, float amax, float of_matrix) {
  constexpr float most = std::numeric_limits<float>::max();
  const auto at_most = [](float x, float bound) { return x > bound ? bound : x; };
  const float largest = f.element.largest;
  if (f.scale == scale_kind::block_e8m0) {
    const float wanted = amax * (1 / largest);
    if (std::isnan(wanted)) return {wanted, wanted};
    int e = -127;
    while (e < 127 && std::ldexp(1.0, e) < wanted) ++e;
    return {std::ldexp(1.0F, -e), std::ldexp(1.0F, e)};
  }
  if (f.scale == scale_kind::block_e4m3) {
    float s_enc = at_most(448 * 6 / of_matrix, most);
    if (of_matrix == 0 || s_enc == 0) s_enc = 1;
    const auto scale = static_cast<float>(nearest_element({4, 3, 448}, amax * (s_enc * (1.0F / 6))));
    return {at_most(1 / (scale * (1 / s_enc)), most), scale * of_matrix * (1.0F / 2688)};
  }
  if (amax == 0 || !std::isfinite(amax)) return {1, 1};
  float encode = at_most(largest / amax, f.scale == scale_kind::tensor_fp32 ? 0x1p100F : most);
  if (f.scales == scale_rounding::up) encode = std::ldexp(1.0F, std::ilogb(encode));
  return {encode, 1 / encode};
}

/// Returns: what a product reads of the matrix.
inline std::vector<float> quantized_by_definition(const operand_format& f, std::vector<float> x, std::size_t rows,
                                                  std::size_t columns, bool over_rows, const dropout_key& key) {
  const std::size_t length = over_rows ? rows : columns, lines = over_rows ? columns : rows;
  const auto at = [&](std::size_t along, std::size_t line) {
    return over_rows ? along * columns + line : line * columns + along;
  };
  for (std::size_t line = 0; f.before == transform::hadamard16 && line < lines; ++line) {
    for (std::size_t i = 0; i + 16 <= length; i += 16) {
      float v[16][1];
      for (std::size_t j = 0; j < 16; ++j) {
        v[j][0] = x[at(i + j, line)] * (comp::hadamard_negative >> j & 1 ? -0.25F : 0.25F);
      }
      math::hadamard16(v);
      for (std::size_t j = 0; j < 16; ++j) {
        math::bf16 rounded;
        math::store(rounded, v[j][0]);
        x[at(i + j, line)] = math::load(rounded);
      }
    }
  }
  const auto larger = [](float a, float b) { return std::isnan(a) || a >= std::abs(b) ? a : std::abs(b); };
  float of_matrix = 0;
  for (const float value : x) of_matrix = larger(of_matrix, value);
  const std::size_t along = f.block.along ? static_cast<std::size_t>(f.block.along) : length;
  const std::size_t across = f.block.across ? static_cast<std::size_t>(f.block.across) : lines;
  const bool hides_infinity = f.scale == scale_kind::block_e8m0 || f.scale == scale_kind::block_e4m3;
  std::vector<float> y(x.size());
  for (std::size_t i0 = 0; i0 < length; i0 += along) {
    for (std::size_t l0 = 0; l0 < lines; l0 += across) {
      const auto each = [&](auto&& use) {
        for (std::size_t i = i0; i < std::min(i0 + along, length); ++i) {
          for (std::size_t l = l0; l < std::min(l0 + across, lines); ++l) use(at(i, l));
        }
      };
      float amax = 0;
      each([&](std::size_t k) { amax = larger(amax, x[k]); });
      const math::scale_pair s = scales_by_definition(f, amax, of_matrix);
      each([&](std::size_t k) {
        std::uint32_t noise[256];
        if (f.elements == element_rounding::stochastic) {
          math::rounding_noise(key, k / columns, k % columns / 256, noise);
        }
        const float scaled = x[k] * s.encode;
        const double element = std::isinf(scaled) && !hides_infinity ? std::nan("")
                               : f.elements == element_rounding::stochastic
                                   ? drawn_element(f.element, scaled, noise[k % columns % 256])
                                   : nearest_element(f.element, scaled);
        y[k] = static_cast<float>(element) * s.decode;
      });
    }
  }
  return y;
}

/// Returns: values of all sizes; if `hostile`, also zeros, equal blocks, ties, subnormals and some that are not
/// finite.
inline std::vector<float> drawn_values(std::size_t count, std::uint64_t seed, bool hostile) {
  std::mt19937_64 words{seed};
  std::normal_distribution<float> normal;
  std::vector<float> all;
  while (all.size() < count) {
    const std::uint64_t word = words(), length = 1 + words() % 48;
    const auto size = std::ldexp(1.0F, static_cast<int>(words() % 40) - 20);
    for (std::uint64_t i = 0; i < length; ++i) {
      const auto any = std::bit_cast<float>(static_cast<std::uint32_t>(words()));
      const float equal = std::bit_cast<float>(static_cast<std::uint32_t>(word));
      const float tie = static_cast<float>(words() % 64) / 8 * size;
      switch (hostile ? word >> 60 : 15) {
        case 0:
          all.push_back(any);  // one of 256 is not finite
          break;
        case 1:
          all.push_back(std::isfinite(equal) ? equal : 1);
          break;
        case 2:
          all.push_back(i % 2 ? -0.0F : 0.0F);
          break;
        case 3:
        case 4:
        case 5:
          all.push_back(tie);
          break;
        case 6:
          all.push_back(std::bit_cast<float>(static_cast<std::uint32_t>(words() & 0x80ffffff)));
          break;
        default:
          all.push_back(normal(words) * size);
      }
    }
  }
  all.resize(count);
  return all;
}

struct recorded_matrix {
  std::size_t rows, columns;
  std::string_view words;
};
/// Codes by rows, and the scale of each block; both in hexadecimal digits.
struct recorded_result {
  comp::precision precision;
  comp::operand operand;
  comp::product product;
  std::size_t matrix;
  std::string_view codes, scales;
};
#include "scaled_formats.inc"

inline std::uint32_t hexadecimal(std::string_view text) {
  std::uint32_t value = 0;
  for (const char c : text) value = 16 * value + static_cast<std::uint32_t>(c <= '9' ? c - '0' : c - 'a' + 10);
  return value;
}
inline std::vector<float> floats(std::string_view words) {
  std::vector<float> all;
  for (std::size_t i = 0; i < words.size(); i += 8)
    all.push_back(std::bit_cast<float>(hexadecimal(words.substr(i, 8))));
  return all;
}
/// Returns: the values that the recorded codes and scales stand for.
inline std::vector<float> values_of(const recorded_result& r) {
  const operand_format f = format_of(r.precision, r.product, r.operand);
  const recorded_matrix& m = recorded_matrices[r.matrix];
  const std::vector<float> scales = floats(r.scales);
  const std::size_t along = f.block.along ? static_cast<std::size_t>(f.block.along) : m.columns;
  const std::size_t across = f.block.across ? static_cast<std::size_t>(f.block.across) : m.rows;
  const int sign = 1 << (f.element.exponent_bits + f.element.fraction_bits);
  std::vector<float> values;
  for (std::size_t i = 0; i < m.rows * m.columns; ++i) {
    const auto code = static_cast<int>(hexadecimal(r.codes.substr(2 * i, 2)));
    const double element = element_value(f.element, code % sign);
    const float magnitude = element > f.element.largest ? std::nanf("") : static_cast<float>(element);
    const std::size_t block = i / m.columns / across * ((m.columns + along - 1) / along) + i % m.columns / along;
    values.push_back((code >= sign ? -magnitude : magnitude) * scales[block]);
  }
  return values;
}

/// Returns: how many of two vectors' values differ; a NaN is as another.
inline std::size_t differing(const std::vector<float>& a, const std::vector<float>& b) {
  std::size_t all = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    const bool nan = std::isnan(a[i]) && std::isnan(b[i]);
    all += !nan && std::bit_cast<std::uint32_t>(a[i]) != std::bit_cast<std::uint32_t>(b[i]);
  }
  return all;
}

}  // namespace comp::native::test
