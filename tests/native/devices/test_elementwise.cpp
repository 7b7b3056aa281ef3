// SPDX-License-Identifier: Apache-2.0
#include <comp_native/batch_upload.hpp>
#include <map>

#include "agree.hpp"

namespace comp::native::contract {
namespace {

constexpr std::array activations{activation::relu,    activation::gelu, activation::gelu_tanh, activation::tanh,
                                 activation::sigmoid, activation::elu,  activation::leaky_relu};

TEST_CASE("activations and their gradients agree with FP64") {
  agree_for(with({{3, 17}, {2, 3, 5, 7}, {64, 1024}}, sizes), [&](auto& d, results& r, const shape& s, precision p) {
    auto x = tensor_of(d, s, 1, p, -6, 6), dy = tensor_of(d, s, 2, p), y = tensor_of(d, s, 3, p, 0.01F, 0.99F);
    for (const activation a : activations) {
      const std::string which = fmt::format(" of activation {}", static_cast<int>(a));
      r.keep(d, "y" + which, d.activate(a, x), 2);
      r.keep(d, "dx" + which, d.activate_backward(a, dy, x, y), 4);
    }
  });
}

TEST_CASE("at 0 the slopes of activations are PyTorch's") {
  const std::map<activation, float> slopes{{activation::relu, 0.0F},
                                           {activation::gelu, 0.5F},
                                           {activation::gelu_tanh, 0.5F},
                                           {activation::tanh, 1.0F},
                                           {activation::sigmoid, 0.25F},
                                           {activation::elu, 1.0F},
                                           {activation::leaky_relu, leaky_slope}};
  for (const precision p : tested::precisions) {
    for (const auto& [a, slope] : slopes) {
      CAPTURE(name(p));
      CAPTURE(static_cast<int>(a));
      device d;
      const auto x = d.upload(std::vector{0.0F, -0.0F}, {2}, p), dy = d.upload(std::vector{1.0F, 1.0F}, {2}, p);
      const float stored = p == precision::tf32 ? slope : rounded(slope, p);  // TF32 is rounded in products alone
      CHECK(d.download(d.activate_backward(a, dy, x, d.activate(a, x))) == std::vector<float>(2, stored));
    }
  }
}

TEST_CASE("bytes become the values that their channel has for them, bit for bit") {
  device d;
  for (const shape& s : {shape{1, 1}, {5, 3}, {2, 3, 4, 5}, {4, 3, 40, 40}, {2, 3, 31}, {1, 3, 5001}, {3000, 3, 4}}) {
    CAPTURE(text(s));
    const auto channels = static_cast<std::size_t>(s[1]), n = static_cast<std::size_t>(elements(s));
    std::vector<float> table;
    for (std::size_t i = 0; i < channels * 256; ++i) {
      table.push_back((static_cast<float>(i % 256) / 255 - 0.47F) / (0.2F + static_cast<float>(i / 256)));
    }
    std::vector<std::uint8_t> bytes(n);
    for (std::size_t i = 0; i < n; ++i) bytes[i] = static_cast<std::uint8_t>(i * 37);
    const auto of_bytes = d.upload(table, {s[1], 256}, precision::fp32);
    CHECK(d.download(d.upload(std::span<const std::uint8_t>{bytes}, s, of_bytes)) == values_of(bytes, s, table));
    bytes.pop_back();
    CHECK_THROWS_WITH_AS((void)d.upload(std::span<const std::uint8_t>{bytes}, s, of_bytes),
                         fmt::format("upload of {} bytes as {}, with values for {} channels (they must agree): give as "
                                     "many bytes",
                                     n - 1, text(s), s[1])
                             .c_str(),
                         error);
    const std::vector<std::uint8_t> of_more(2 * (channels + 1));
    CHECK_THROWS_AS((void)d.upload(std::span<const std::uint8_t>{of_more}, {2, s[1] + 1}, of_bytes), error);
  }
}

TEST_CASE("NaN and infinity pass through an activation and its gradient") {
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const precision p : tested::precisions) {
    for (const activation a : activations) {
      CAPTURE(name(p));
      CAPTURE(static_cast<int>(a));
      device d;
      const auto x = d.upload(std::vector{nan, infinity, 1.0F, -nan}, {4}, p);
      const auto y = d.download(d.activate(a, x));
      CHECK(std::isnan(y[0]));
      CHECK(std::isnan(y[3]));
      if (a == activation::gelu || a == activation::gelu_tanh) {
        CHECK_FALSE(std::isfinite(y[1]));  // oneDNN 3 has NaN for infinity
      } else {
        const bool unbounded = a == activation::relu || a == activation::leaky_relu || a == activation::elu;
        CHECK(y[1] == (unbounded ? infinity : 1.0F));
      }
      const auto dx = d.download(d.activate_backward(a, x, d.upload(std::vector{1.0F, 1.0F, 1.0F, -nan}, {4}, p),
                                                     d.upload(std::vector{0.5F, 0.5F, 0.5F, -nan}, {4}, p)));
      CHECK(std::isnan(dx[0]));
      CHECK(dx[1] == infinity);
      CHECK(std::isnan(dx[3]));
    }
  }
}

TEST_CASE("sums and products of tensors agree with FP64") {
  agree_for(with({{3, 17}, {2, 3, 5, 7}, {50, 999}}, sizes), [&](auto& d, results& r, const shape& s, precision p) {
    auto a = tensor_of(d, s, 1, p), b = tensor_of(d, s, 2, p), c = tensor_of(d, s, 3, p);
    r.keep(d, "add", d.add(a, b));
    r.keep(d, "mul", d.mul(a, b));
    const std::vector two{a, b}, four{a, b, c, a};
    r.keep(d, "sum of two", d.sum(two));
    r.keep(d, "sum of four", d.sum(four), 4);
    r.keep(d, "sum of twenty", d.sum(std::vector(20, a)), 20);
  });
}

TEST_CASE("a sum of several terms is rounded once") {
  device d;
  for (const precision p : {precision::bf16, precision::fp16}) {
    const float ulp = p == precision::bf16 ? 0x1p-7F : 0x1p-10F;  // of 1
    const auto one = d.upload(std::vector{1.0F}, {1}, p), part = d.upload(std::vector{0.375F * ulp}, {1}, p);
    const std::vector terms{one, part, part};  // each alone would be lost
    CHECK(d.download(d.sum(terms))[0] == 1.0F + ulp);
  }
  const std::vector mixed{d.upload(std::vector{1.0F}, {1}, precision::bf16),
                          d.upload(std::vector{0x1.8p-9F + 0x1p-20F}, {1}, precision::fp32),
                          d.upload(std::vector{0x1p-9F}, {1}, precision::fp32)};
  CHECK(d.download(d.sum(mixed))[0] == 1.0F + 0x1p-7F);
}

TEST_CASE("element-wise operators refuse different shapes, naming both") {
  device d;
  const auto a = tensor_of(d, {2, 3}, 1, precision::fp32), b = tensor_of(d, {3, 2}, 1, precision::fp32);
  CHECK_THROWS_WITH_AS(d.add(a, b), "add of (2,3) and (3,2) (the shapes must be equal): reshape one of them", error);
  CHECK_THROWS_WITH_AS(d.mul(a, b), "mul of (2,3) and (3,2) (the shapes must be equal): reshape one of them", error);
  CHECK_THROWS_WITH_AS(d.sum({}), "sum of 0 tensors (there is nothing to add): give at least one", error);
}

TEST_CASE("a dropout zeroes the same elements as FP64 for any size, and its gradient as well") {
  agree_for(with({{33, 999}}, sizes), [&](auto& d, results& r, const shape& s, precision p) {
    auto x = tensor_of(d, s, 1, p, 0.5F, 1);
    const dropout_key key{.seed = 0x123456789abcdefULL, .draw = 0x100000007ULL};
    for (const double rate : {0.0, 0.1, 0.5, 0.999}) {
      r.keep(d, fmt::format("y at {}", rate), d.dropout(x, rate, key), 2);
      r.keep(d, fmt::format("dx at {}", rate), d.dropout_backward(x, rate, key), 2);
    }
  });
}

TEST_CASE("a dropout keeps about 1-p, differs from draw to draw, and drops all at p = 1") {
  device d;
  const auto x = d.upload(std::vector<float>(100000, 1.0F), {100000}, precision::fp32);
  const auto a = d.download(d.dropout(x, 0.25, {.seed = 1, .draw = 0})),
             b = d.download(d.dropout(x, 0.25, {.seed = 1, .draw = 1}));
  const auto kept = static_cast<double>(std::ranges::count_if(a, [](float v) { return v != 0; }));
  CHECK(std::abs(kept - 75000) < 5 * std::sqrt(100000 * 0.25 * 0.75));
  CHECK(a != b);
  CHECK(d.download(d.dropout(x, 1, {})) == std::vector<float>(100000));
  CHECK_THROWS_WITH_AS(d.dropout(x, 1.5, {}), "dropout with p = 1.5 (it is a probability): use 0 to 1", error);
}

TEST_CASE("uploads and casts overflow FP16 to infinity and keep NaN") {
  for (const std::int64_t n : {std::int64_t{1}, std::int64_t{3}, std::int64_t{17}, std::int64_t{100000}}) {
    device d;
    std::vector<float> from(static_cast<std::size_t>(n), 65504.0F);
    from.back() = 65536.0F;
    const auto x = d.upload(from, {n}, precision::fp16);
    CHECK(d.download(x).back() == INFINITY);
    CHECK(d.download(d.add(x, x))[0] == INFINITY);
    CHECK(d.download(d.cast(d.upload(from, {n}, precision::fp32), precision::fp16)).back() == INFINITY);
    CHECK(d.download(d.cast(x, precision::bf16))[0] == (n == 1 ? INFINITY : 65536.0F));
    from.back() = NAN;
    for (const precision p : tested::precisions) CHECK(std::isnan(d.download(d.upload(from, {n}, p)).back()));
  }
}

#ifndef COMP_TESTED_ON_GPU  // which may have them all
TEST_CASE("a precision that the device lacks is refused by name") {
  device d = tested::without_a_precision();
  CHECK_THROWS_WITH_AS(d.upload(std::vector{1.0F}, {1}, tested::lacking), tested::refusal, error);
  CHECK_THROWS_AS(d.cast(d.upload(std::vector{1.0F}, {1}, precision::fp32), tested::lacking), error);
}
#endif

}  // namespace
}  // namespace comp::native::contract
