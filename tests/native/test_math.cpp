// SPDX-License-Identifier: Apache-2.0
// The arithmetic that hosts and GPUs share, beside published numbers, definitions in FP64, and the reference device.
#include <doctest/doctest.h>

#include <cmath>
#include <comp_native/math/elementwise.hpp>
#include <comp_native/math/fp8.hpp>
#include <comp_native/math/normal.hpp>
#include <comp_native/math/philox.hpp>
#include <comp_native/math/scaled.hpp>
#include <comp_native/math/updates.hpp>
#include <cstdint>
#include <limits>
#include <vector>

#include "reference_device.hpp"

using namespace comp::native;
using reference::layers;

namespace {

constexpr float no_number = std::numeric_limits<float>::quiet_NaN(), infinite = std::numeric_limits<float>::infinity();

/// The value of a code without its sign, as if the largest exponent were one like the others.
double value_by_definition(unsigned code, int exponent_bits, int fraction_bits) {
  const int exponent = static_cast<int>(code >> fraction_bits),
            fraction = static_cast<int>(code % (1U << fraction_bits));
  return std::ldexp(fraction + (exponent > 0 ? 1 << fraction_bits : 0),
                    std::max(exponent, 1) - ((1 << (exponent_bits - 1)) - 1) - fraction_bits);
}

/// How many codes of a format are read or written wrong: each finite value, the ties between two, and what is beside
/// a tie. What is larger than the largest code becomes that, or the next one: infinity.
template <class F>
std::size_t wrong_codes(int exponent_bits, int fraction_bits, unsigned largest, bool saturates) {
  const auto value = [=](unsigned code) { return value_by_definition(code, exponent_bits, fraction_bits); };
  std::size_t wrong = 0;
  for (unsigned code = 0; code <= largest; ++code) {
    const auto tie = static_cast<float>((value(code) + value(code + 1)) / 2);
    const unsigned above = code == largest && saturates ? code : code + 1;
    for (const unsigned sign : {0U, 1U << (exponent_bits + fraction_bits)}) {
      const auto bits_of = [&](float x) {
        F to{};
        math::store(to, sign ? -x : x);
        return unsigned{to.bits} ^ sign;
      };
      F stored{};
      stored.bits = static_cast<decltype(stored.bits)>(code | sign);
      wrong += bits_of(0x1p-149F) != 0;
      wrong += math::load(stored) != (sign ? -value(code) : value(code));
      wrong += bits_of(static_cast<float>(value(code))) != code;
      wrong += bits_of(tie) != (code % 2 ? above : code);
      wrong += bits_of(std::nextafter(tie, 0.0F)) != code;
      wrong += bits_of(std::nextafter(tie, infinite)) != above;
    }
  }
  return wrong;
}
template <class F>
float stored(float x) {
  F to{};
  math::store(to, x);
  return math::load(to);
}

double relative(double got, double want) { return std::abs(got - want) / std::max(1e-30, std::abs(want)); }

}  // namespace

TEST_CASE("Philox gives the words that its authors published") {
  struct known {
    std::uint32_t counter[4], key[2], words[4];
  };
  constexpr std::uint32_t ones = 0xffffffff;
  for (const known& k : {known{{0, 0, 0, 0}, {0, 0}, {0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}},
                         {{ones, ones, ones, ones}, {ones, ones}, {0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}},
                         {{0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344},
                          {0xa4093822, 0x299f31d0},
                          {0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}}}) {
    std::uint32_t words[4][3] = {};
    for (std::size_t j = 0; j < 4; ++j) words[j][1] = k.counter[j];
    math::philox(words, k.key[0], k.key[1]);
    for (std::size_t j = 0; j < 4; ++j) CHECK(words[j][1] == k.words[j]);
    CHECK(words[0][0] == words[0][2]);
  }
}

TEST_CASE("a dropout mask keeps what its key says, at any place and for any later draw, and scales it") {
  constexpr std::uint64_t high = std::uint64_t{1} << 32;
  const dropout_key key{5 + 3 * high, 2 * high - 2};
  for (const double p : {0.0, 1e-3, 0.25, 0.5, 0.9}) {
    for (const std::uint64_t group : {std::uint64_t{0}, std::uint64_t{7}, high - 1}) {
      for (const std::uint64_t more : {0, 1, 5}) {
        float factor[12];
        math::dropout_mask{p, key}.later(more).factors<3>(group, factor);
        for (std::size_t i = 0; i < 12; ++i) {
          const bool kept = reference::keeps(p, {key.seed, key.draw + more}, 4 * group + i);
          CHECK(factor[i] == (kept ? static_cast<float>(1 / (1 - p)) : 0.0F));
        }
      }
    }
  }
  const auto least = [](double p) { return math::dropout_mask{p, {}}.least; };
  CHECK(least(0) == 0);
  CHECK(least(1e-12) == 1);  // however seldom, some are dropped
  CHECK(least(0.5) == 0x80000000);
  CHECK(least(1) == 0xffffffff);
  CHECK(math::dropout_mask{1, {}}.scale == 0);
  math::dropout_mask at_bound{0.5, {}};
  for (const std::uint32_t more : {0, 1}) {  // a word that is just the bound is kept
    at_bound.least = reference::philox({}, {})[2] + more;
    float factor[4];
    at_bound.factors<1>(0, factor);
    CHECK(factor[2] == (more == 0 ? 2 : 0));
  }
}

TEST_CASE("the noise of stochastic rounding is Philox's words, the lower halves before the upper ones") {
  const dropout_key key{5 + (std::uint64_t{3} << 32), 7 + (std::uint64_t{9} << 32)};
  std::uint32_t noise[256];
  math::rounding_noise(key, 70000, 6, noise);
  for (std::uint32_t i = 0; i < 256; ++i) {
    const std::uint32_t word = reference::philox({6 * 32 + i % 32, 70000, 7, 9}, {5, 3})[i / 64];
    CHECK(noise[i] == (i % 64 < 32 ? word & 0xffff : word >> 16));
  }
}

TEST_CASE("every code of the formats below FP32 has the value of its definition, and is what rounds to it") {
  CHECK(wrong_codes<math::fp16>(5, 10, 0x7bff, false) == 0);
  CHECK(wrong_codes<math::bf16>(8, 7, 0x7f7f, false) == 0);
  CHECK(wrong_codes<math::e4m3>(4, 3, 0x7e, true) == 0);
  CHECK(wrong_codes<math::e5m2>(5, 2, 0x7b, true) == 0);
  for (const float x : {infinite, -infinite}) {
    CHECK(stored<math::fp16>(x) == x);
    CHECK(stored<math::bf16>(x) == x);
    CHECK(std::isnan(stored<math::e4m3>(x)));  // a conversion hides no overflow
    CHECK(std::isnan(stored<math::e5m2>(x)));
  }
  for (const float x :
       {no_number, -no_number, __builtin_bit_cast(float, 0x7f800001), __builtin_bit_cast(float, 0xffffffff)}) {
    CHECK(std::isnan(stored<math::fp16>(x)));
    CHECK(std::isnan(stored<math::bf16>(x)));
    CHECK(std::isnan(stored<math::e4m3>(x)));
    CHECK(std::isnan(stored<math::e5m2>(x)));
    CHECK(std::signbit(stored<math::fp16>(x)) == std::signbit(x));
  }
  for (unsigned code = 0x7c01; code < 0x8000; ++code) {
    if (!std::isnan(math::load(math::fp16{static_cast<std::uint16_t>(code)}))) FAIL_CHECK(code);
  }
  CHECK(math::load(math::e5m2{0xfc}) == -infinite);
  CHECK(std::isnan(math::load(math::e5m2{0x7d})));
  CHECK(1e9F == [] {
    float to = 0;
    math::store(to, 1e9F);
    return math::load(to);
  }());
}

TEST_CASE("the logarithm and the turn behind normal numbers are exact to 2e-15, everywhere") {
  for (double u = 0x1p-53; u < 1; u *= 1.0137) {
    if (!(relative(math::log_of(u), std::log(u)) < 2e-15)) FAIL_CHECK(u);
  }
  CHECK(math::log_of(1) == 0);
  for (double angle = 0; angle < 6.283; angle += 0.00137) {
    double cosine = 0, sine = 0;
    math::turn(angle, cosine, sine);
    if (!(relative(cosine, std::cos(angle)) < 2e-15 && relative(sine, std::sin(angle)) < 2e-15)) FAIL_CHECK(angle);
  }
}

TEST_CASE("the exponential and the root are exact to two units in the last place") {
  for (double x = -87.2; x < 88; x += 0.0137) {
    const auto at = static_cast<float>(x);
    if (!(relative(math::exp_of(at), std::exp(double{at})) < 2.4e-7)) FAIL_CHECK(x);
  }
  for (double v = 1e-30; v < 1e30; v *= 1.037) {
    const auto at = static_cast<float>(v);
    if (!(relative(math::root_of(at), std::sqrt(double{at})) < 2.4e-7)) FAIL_CHECK(v);
  }
  CHECK(math::exp_of(0) == 1);
  CHECK(math::exp_of(-87.4F) == 0);
  CHECK(math::exp_of(-infinite) == 0);
  CHECK(std::isfinite(math::exp_of(500)));
  CHECK(std::isnan(math::exp_of(no_number)));
  CHECK(math::root_of(0) == 0);
}

TEST_CASE("activations and their slopes are those of FP64, and pass what is no number") {
  const auto check = [](activation kind, auto f) {
    CAPTURE(traits(kind).name);
    for (double x = -9; x < 9; x += 0.0173) {
      const auto at = static_cast<float>(x), y = f(at);
      const double want = layers::activated(kind, at), slope = layers::slope(kind, at, want);
      if (!(std::abs(y - want) < 2e-7 + 3e-7 * std::abs(want))) FAIL_CHECK(x);
      if (!(std::abs(f.backward(-3, at, y) + 3 * slope) < 3e-6)) FAIL_CHECK(x);
    }
    CHECK(std::isnan(f(no_number)));
    CHECK(std::isnan(f.backward(1, no_number, no_number)));
  };
  check(activation::relu, math::relu{});
  check(activation::gelu, math::gelu{});
  check(activation::gelu_tanh, math::gelu_tanh{});
  check(activation::tanh, math::hyperbolic_tangent{});
  check(activation::sigmoid, math::sigmoid{});
  check(activation::elu, math::elu{});
  check(activation::leaky_relu, math::leaky_relu{});
  CHECK(math::relu{}.backward(5, 0, 0) == 0);
}

TEST_CASE("losses and the gradients of rows are those of their definitions") {
  for (const float x : {-40.0F, -3.0F, -0.1F, 0.0F, 0.7F, 5.0F, 40.0F}) {
    for (const float target : {0.0F, 0.3F, 1.0F}) {
      CAPTURE(x);
      CAPTURE(target);
      const double yes = 1 / (1 + std::exp(-double{x})), no = 1 / (1 + std::exp(double{x}));
      const double loss = -target * std::log(yes) - (1 - double{target}) * std::log(no);
      CHECK(math::binary_cross_entropy(x, target) == doctest::Approx(loss).epsilon(1e-6));
      CHECK(std::abs(math::binary_cross_entropy_gradient(x, target, 4) - 4 * (yes - target)) < 1e-6);
      CHECK(math::squared_error_gradient(x, target, 4) == 4 * (x - target));
    }
    CHECK(math::cross_entropy_gradient(x - 40, 1.5F, 4) == doctest::Approx(4 * std::exp(x - 41.5)).epsilon(1e-6));
    CHECK(math::cross_entropy_gradient_at_target(x - 40, 1.5F, 4) ==
          doctest::Approx(4 * (std::exp(x - 41.5) - 1)).epsilon(1e-6));
  }
  CHECK(math::softmax_gradient(3, 0.25F, 5) == -0.5F);
  CHECK(math::log_softmax_gradient(3, std::log(0.25F), 5) == doctest::Approx(1.75));
  CHECK(math::plus{}(2, 3) == 5);
  CHECK(math::times{}(2, 3) == 6);
}

TEST_CASE("updates of one element are those of the reference device, for all of their options") {
  const auto check = [](const auto& options, auto make) {
    reference::device device;
    auto p = device.make_parameter(std::vector<float>{1.5F}, {1});
    reference::parameter* all[] = {&p};
    float value = 1.5F, first = 0, second = 0;
    for (std::int64_t step = 1; step <= 4; ++step) {
      const float gradient = step == 3 ? -0.75F : 0.5F;
      p.gradient = {gradient};
      if constexpr (requires { options.beta1; }) {
        device.adam_step(all, options, step);
      } else {
        device.sgd_step(all, options);
      }
      make(step)(value, gradient, first, second);
      CHECK(value == doctest::Approx(p.value[0]).epsilon(1e-6));
    }
  };
  for (const double decay : {0.0, 0.3}) {
    const sgd_options plain{.learning_rate = 0.1, .weight_decay = decay};
    check(plain, [&](auto) {
      return [&](float& value, float g, float&, float&) { value = math::sgd_update{plain}(value, g); };
    });
    for (const bool nesterov : {false, true}) {
      const sgd_options o{.learning_rate = 0.1, .momentum = 0.8, .weight_decay = decay, .nesterov = nesterov};
      check(o, [&](auto) {
        return [&](float& value, float g, float& first, float&) { math::momentum_update{o}(value, g, first); };
      });
      const adam_options a{
          .learning_rate = 0.1, .beta1 = 0.8, .beta2 = 0.97, .eps = 0.1, .weight_decay = decay, .decoupled = nesterov};
      check(a, [&](std::int64_t step) { return math::adam_update{a, step}; });
    }
  }
}
