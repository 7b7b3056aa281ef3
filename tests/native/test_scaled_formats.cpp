// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <comp_native/math/fp8.hpp>
#include <random>

#include "reference_scaled.hpp"

namespace comp::native::test {

namespace {

constexpr element_format e4m3{4, 3, 448}, e5m2{5, 2, 57344}, e2m1{2, 1, 6};
constexpr double unbiased_to = 0x1p-17;  // of the distance of two elements, for 16 random bits

TEST_CASE("each format rounds the operands of its products as its source does") {
  using enum operand;
  using enum product;
  const auto one = [](element_format e, scale_kind s, block_shape b = {}, scale_rounding r = scale_rounding::nearest) {
    return operand_format{e, s, b, r};
  };
  for (const product of : {forward, input_gradient, weight_gradient}) {
    for (const operand o : {input, weight, gradient}) {
      const bool w = o == weight, dy = o == gradient;
      CHECK(format_of(precision::fp8_e4m3, of, o) == one(dy ? e5m2 : e4m3, scale_kind::tensor_fp32));
      CHECK(format_of(precision::fp8_e5m2, of, o) ==
            one(dy || (of == forward && o == input) ? e5m2 : e4m3, scale_kind::tensor_fp32));
      CHECK(format_of(precision::fp8_block128, of, o) ==
            one(e4m3, scale_kind::block_fp32, {128, w ? 128 : 1}, scale_rounding::up));
      CHECK(format_of(precision::mxfp8, of, o) == one(e4m3, scale_kind::block_e8m0, {32, 1}, scale_rounding::up));
      CHECK(format_of(precision::mxfp4, of, o) == one(e2m1, scale_kind::block_e8m0, {32, 1}, scale_rounding::up));
      operand_format nvfp4 = one(e2m1, scale_kind::block_e4m3, {16, w ? 16 : 1});
      if (dy) nvfp4.elements = element_rounding::stochastic;
      if (of == weight_gradient) nvfp4.before = transform::hadamard16;
      CHECK(format_of(precision::nvfp4, of, o) == nvfp4);
    }
  }
}

TEST_CASE("the definition of each format gives what other implementations gave") {
  for (const recorded_result& r : recorded_results) {
    const recorded_matrix& m = recorded_matrices[r.matrix];
    CAPTURE(name(r.precision));
    CAPTURE(static_cast<int>(r.operand));
    CAPTURE(r.matrix);
    CHECK(differing(quantized_by_definition(format_of(r.precision, r.product, r.operand), floats(m.words), m.rows,
                                            m.columns, false, {}),
                    values_of(r)) == 0);
  }
}

/// Every element, every tie, and what is beside these.
std::vector<float> probes(const element_format& f) {
  std::vector<float> all{0.0F, 0x1p-149F, 0x1p-30F, 1e9F, 0x1.fffffep127F};
  for (int code = 0; element_value(f, code) <= f.largest; ++code) {
    for (const double x : {element_value(f, code), (element_value(f, code) + element_value(f, code + 1)) / 2}) {
      const auto at = static_cast<float>(x);
      for (const float beside : {at, std::nextafter(at, 0.0F), std::nextafter(at, 1e9F)}) all.push_back(beside);
    }
  }
  const std::size_t half = all.size();
  for (std::size_t i = 0; i < half; ++i) all.push_back(-all[i]);
  return all;
}

TEST_CASE("an element is the nearest one, ties to even, and the largest one where none is near") {
  for (const element_format& f : {e4m3, e5m2, e2m1}) {
    for (const scale_kind s : {scale_kind::tensor_fp32, scale_kind::block_fp32, scale_kind::block_e8m0}) {
      const math::element_rounder rounder{{f, s}};
      std::size_t wrong = 0;
      for (const float x : probes(f)) {
        const auto wanted = static_cast<float>(nearest_element(f, x));
        wrong += std::bit_cast<std::uint32_t>(wanted) != std::bit_cast<std::uint32_t>(rounder.nearest(x, {1, 1}));
      }
      CAPTURE(f.fraction_bits);
      CHECK(wrong == 0);
      CHECK(std::isnan(rounder.nearest(std::nanf(""), {1, 1})));
      CHECK(std::isnan(rounder.nearest(-INFINITY, {1, 1})) == (s != scale_kind::block_e8m0));
    }
  }
}

TEST_CASE("an element in FP8 is the one of the conversion to codes, which is what GPUs multiply") {
  for (const float x : probes(e5m2)) {
    const math::element_rounder by_value{{e4m3, scale_kind::tensor_fp32}}, wide{{e5m2, scale_kind::tensor_fp32}};
    CHECK(by_value.nearest(x, {1, 1}) == math::fp8_value<math::e4m3>(math::fp8_bits<math::e4m3>(x)));
    CHECK(wide.nearest(x, {1, 1}) == math::fp8_value<math::e5m2>(math::fp8_bits<math::e5m2>(x)));
  }
}

TEST_CASE("scales are those of the definition for magnitudes of all sizes") {
  std::mt19937 draws{33};
  std::size_t wrong[4] = {};
  const auto differ = [](math::scale_pair a, math::scale_pair b) {
    return differing({a.encode, a.decode}, {b.encode, b.decode}) != 0;
  };
  constexpr float most = std::numeric_limits<float>::max();
  for (int i = 0; i < 50000; ++i) {
    auto bits = static_cast<std::uint32_t>(draws() >> 1);
    if (i % 4 == 0) bits = (bits & 0x7f800000) + 0x600000 + i % 5;  // beside 7/8 of a power of two: 448 and 3.5
    const float amax = i == 1 ? std::numeric_limits<float>::infinity() : std::bit_cast<float>(bits);
    const auto other = std::bit_cast<float>(static_cast<std::uint32_t>(draws() >> 1));
    for (const element_format& f : {e4m3, e5m2, e2m1}) {
      wrong[0] += differ(math::fp32_scales(amax, f.largest, false, 0x1p100F),
                         scales_by_definition({f, scale_kind::tensor_fp32}, amax, amax));
      wrong[1] += differ(math::fp32_scales(amax, f.largest, true, most),
                         scales_by_definition({f, scale_kind::block_fp32, {}, scale_rounding::up}, amax, amax));
      wrong[2] +=
          differ(math::e8m0_scales(amax, 1 / f.largest), scales_by_definition({f, scale_kind::block_e8m0}, amax, amax));
    }
    // A scale that is a tie, or beside one, shows how often its product was rounded.
    const int code = i % 126;
    const double tie = (element_value(e4m3, code) + element_value(e4m3, code + 1)) / 2;
    const auto of_tie = std::nextafter(static_cast<float>(tie / 448 * other), i % 3 ? 0.0F : other);
    for (const auto& [of_block, of_matrix] :
         {std::pair{amax, amax * 1.3F}, std::pair{amax, other}, std::pair{amax, amax}, std::pair{of_tie, other}}) {
      if (!(of_matrix >= of_block)) continue;
      wrong[3] += differ(math::nvfp4_scales{of_matrix}.of_block(of_block),
                         scales_by_definition({e2m1, scale_kind::block_e4m3}, of_block, of_matrix));
    }
  }
  for (const std::size_t count : wrong) CHECK(count == 0);
}

TEST_CASE("stochastic rounding gives the two elements beside a value, and the value itself in the mean") {
  for (const element_format& f : {e4m3, e5m2, e2m1}) {
    const math::element_rounder rounder{{f, scale_kind::block_e8m0}};
    for (const float x : {0.0F, 1e-9F, 0.3F, -0.74F, 0.999F, 1.0F, 1.26F, -2.9F, 3.001F, 5.99F, 6.0F}) {
      CAPTURE(x);
      const double below = element_value(f, code_below(f, std::abs(x)));
      const double above = element_value(f, code_below(f, std::abs(x)) + 1);
      double sum = 0;
      std::size_t strange = 0;
      for (std::uint32_t random = 0; random < 65536; ++random) {
        const double y = std::abs(rounder.stochastic(x, {1, 1}, random));
        strange += y != below && y != above;
        sum += y;
      }
      CHECK(strange == 0);
      CHECK(std::abs(sum / 65536 - std::abs(x)) <= unbiased_to * (above - below));
    }
    CHECK(rounder.stochastic(1e9F, {1, 1}, 0xffff) == f.largest);
    CHECK(std::isnan(rounder.stochastic(std::nanf(""), {1, 1}, 0xffff)));
  }
}

TEST_CASE("the numbers of rounding differ by row, column, draw and seed, and have all bits") {
  std::uint32_t first[256], other[256], ones = 0, zeros = 0;
  math::rounding_noise({.seed = 5, .draw = 7}, 3, 2, first);
  const auto alike = [&] {
    std::size_t all = 0;
    for (std::size_t i = 0; i < 256; ++i) all += first[i] == other[i];
    return all;
  };
  for (const std::uint32_t random : first) ones |= random, zeros |= ~random & 0xffff;
  CHECK(ones == 0xffff);
  CHECK(zeros == 0xffff);
  for (std::size_t i = 0; i < 256; ++i) other[i] = first[(i + 32) % 256];
  CHECK(alike() < 4);
  math::rounding_noise({.seed = 5, .draw = 7}, 4, 2, other);
  CHECK(alike() < 4);
  math::rounding_noise({.seed = 5, .draw = 7}, 3, 3, other);
  CHECK(alike() < 4);
  std::size_t again = 0;  // wherever they are
  for (const std::uint32_t random : other) again += std::ranges::find(first, random) != std::end(first);
  CHECK(again < 12);
  math::rounding_noise({.seed = 5, .draw = 7 + (1ULL << 32)}, 3, 2, other);
  CHECK(alike() < 4);
  math::rounding_noise({.seed = 5 + (1ULL << 32), .draw = 7}, 3, 2, other);
  CHECK(alike() < 4);
}

TEST_CASE(
    "a Hadamard matrix of 16 has orthogonal rows of length 4, so a product of transformed operands is the product") {
  float rows[16][16] = {};
  for (std::size_t i = 0; i < 16; ++i) rows[i][i] = 1;
  math::hadamard16(rows);
  for (std::size_t i = 0; i < 16; ++i) {
    for (std::size_t j = 0; j < 16; ++j) {
      float product = 0;
      for (std::size_t k = 0; k < 16; ++k) product += rows[i][k] * rows[j][k];
      CHECK(product == (i == j ? 16 : 0));
      CHECK(rows[i][j] == (std::popcount(i & j) % 2 ? -1 : 1));
    }
  }
}

}  // namespace
}  // namespace comp::native::test
