// SPDX-License-Identifier: Apache-2.0
// Linear layers in formats below 16 bits: which operand each product rounds, along which axis, and whole trainings.
#include <doctest/doctest.h>

#include <cmath>
#include <comp_host/device.hpp>
#include <comp_host/scaled_linear.hpp>
#include <comp_native/trainer.hpp>
#include <examples/models/native/gpt.hpp>

#include "../native/support.hpp"

namespace comp::host::test {
namespace {

using namespace native::testing;
using host_trainer = native::trainer<device>;

std::vector<precision> below_16_bits() {
  std::vector<precision> all = supported_precisions();
  std::erase_if(all, [](precision p) { return !is_scaled(p); });
  return all;
}

/// Random numbers that BF16 holds.
std::vector<float> numbers(std::int64_t count, std::uint64_t seed) {
  native::random_stream draws{seed, 3};
  std::vector<float> all(static_cast<std::size_t>(count));
  for (float& x : all) {
    bf16 held;
    store(held, static_cast<float>(draws.normal()));
    x = load(held);
  }
  return all;
}

struct matrix {
  std::int64_t rows, columns;
  std::vector<float> values;
  double at(std::int64_t i, std::int64_t j) const { return values[static_cast<std::size_t>(i * columns + j)]; }
  matrix transposed() const {
    matrix result{columns, rows, {}};
    for (std::int64_t j = 0; j < columns; ++j) {
      for (std::int64_t i = 0; i < rows; ++i) result.values.push_back(static_cast<float>(at(i, j)));
    }
    return result;
  }
};
/// Returns what a product that sums over the columns of `m`, or over its rows, reads of it.
matrix rounded(const operand_format& f, const matrix& m, contraction over, native::dropout_key key) {
  context c{{}};
  matrix result = m;
  quantize(c, f, m.values.data(), m.rows, m.columns, over, key, result.values.data());
  return result;
}
/// Checks that `got` is a b', up to the sums' rounding and, for a result in BF16, that of the result.
void check_product(const std::vector<float>& got, const matrix& a, const matrix& b, double result_ulp) {
  REQUIRE(got.size() == static_cast<std::size_t>(a.rows * b.rows));
  std::size_t wrong = 0;
  for (std::int64_t i = 0; i < a.rows; ++i) {
    for (std::int64_t j = 0; j < b.rows; ++j) {
      double sum = 0, size = 0;
      for (std::int64_t k = 0; k < a.columns; ++k)
        sum += a.at(i, k) * b.at(j, k), size += std::abs(a.at(i, k) * b.at(j, k));
      const double off = got[static_cast<std::size_t>(i * b.rows + j)] - sum;
      wrong += !(std::abs(off) <= result_ulp * std::abs(sum) + tolerance::fp32 * size);
    }
  }
  CHECK(wrong == 0);
}

TEST_CASE("each product of a linear layer rounds its two operands along what it sums over") {
  constexpr std::int64_t rows = 42, inputs = 200, outputs = 136;  // no multiples of 128, 32 or 16
  const matrix x{rows, inputs, numbers(rows * inputs, 1)}, w{outputs, inputs, numbers(outputs * inputs, 2)};
  const matrix dy{rows, outputs, numbers(rows * outputs, 3)};
  using enum contraction;
  for (const precision p : below_16_bits()) {
    CAPTURE(name(p));
    device d{{.threads = 1}};
    d.round_by({5, 2});
    auto weights = d.make_parameter(w.values, {outputs, inputs});
    auto in = d.cast(d.upload(x.values, {2, 21, inputs}, precision::bf16), p);
    const auto format = [&](comp::product of, operand o) { return format_of(p, of, o); };
    const native::dropout_key first{5, 2 << 20}, second{5, first.draw + 1}, third{5, first.draw + 2};
    const auto y = d.linear(in, weights, nullptr);
    CHECK(y.precision() == p);
    CHECK(y.shape() == native::shape{2, 21, outputs});
    check_product(d.download(y), rounded(format(product::forward, operand::input), x, over_columns, first),
                  rounded(format(product::forward, operand::weight), w, over_columns, first), 0x1p-8);
    const auto g = d.cast(d.upload(dy.values, {2, 21, outputs}, precision::bf16), p);
    const auto dx = d.linear_backward(g, in, weights, nullptr, true);
    CHECK(dx.shape() == in.shape());
    check_product(d.gradient(weights),
                  rounded(format(product::weight_gradient, operand::gradient), dy, over_rows, second).transposed(),
                  rounded(format(product::weight_gradient, operand::input), x, over_rows, second).transposed(), 0);
    check_product(d.download(dx), rounded(format(product::input_gradient, operand::gradient), dy, over_columns, third),
                  rounded(format(product::input_gradient, operand::weight), w, over_rows, third).transposed(), 0x1p-8);
  }
}

TEST_CASE("bf16>fp32 multiplies what BF16 multiplies, and rounds no sum") {
  constexpr std::int64_t rows = 42, inputs = 200, outputs = 136;
  const auto wide = [](std::int64_t count, std::uint64_t seed) {
    std::vector<float> all = numbers(count, seed);
    for (float& v : all) v *= 1.003F;
    return all;
  };
  const auto in_bf16 = [](std::vector<float> values) {
    for (float& v : values) {
      bf16 held;
      store(held, v);
      v = load(held);
    }
    return values;
  };
  const std::vector<float> xs = wide(rows * inputs, 1), ws = wide(outputs * inputs, 2), dys = wide(rows * outputs, 3);
  const matrix x{rows, inputs, in_bf16(xs)}, w{outputs, inputs, in_bf16(ws)}, dy{rows, outputs, in_bf16(dys)};
  for (const bool native_bf16 : {true, false}) {
    device d{{.threads = 1, .native_bf16 = native_bf16}};
    auto weights = d.make_parameter(ws, {outputs, inputs});
    const auto in = d.upload(xs, {2, 21, inputs}, precision::bf16_fp32);
    const auto y = d.linear(in, weights, nullptr);
    CHECK(y.precision() == precision::fp32);
    check_product(d.download(y), x, w, 0);
    const auto g = d.upload(dys, {2, 21, outputs}, precision::bf16_fp32);
    const auto dx = d.linear_backward(g, in, weights, nullptr, true);
    CHECK(dx.precision() == precision::fp32);
    check_product(d.gradient(weights), dy.transposed(), x.transposed(), 0);
    check_product(d.download(dx), dy, w.transposed(), 0);
  }
}

TEST_CASE("biases and their gradients are not rounded, and gradients of further micro-batches are added") {
  device d{{.threads = 1}};
  const std::vector<float> zeros(32 * 8), bias{0.1F, -3, 0.7F, 1e-3F, 5, 6, 7, 8}, ones(24, 1);
  auto w = d.make_parameter(zeros, {8, 32}), b = d.make_parameter(bias, {8});
  const auto x = d.cast(d.upload(numbers(96, 1), {3, 32}, precision::bf16), precision::nvfp4);
  const auto y = d.download(d.linear(x, w, &b));
  for (std::size_t i = 0; i < y.size(); ++i) CHECK(y[i] == doctest::Approx(bias[i % 8]).epsilon(0x1p-8));
  auto narrow = d.make_parameter(numbers(128, 2), {8, 16}), short_of = d.make_parameter(numbers(4, 2), {4});
  CHECK_THROWS_AS(d.linear(x, narrow, nullptr), error);
  CHECK_THROWS_AS(d.linear(x, w, &short_of), error);
  const auto dy = d.cast(d.upload(ones, {3, 8}, precision::bf16), precision::nvfp4);
  CHECK_FALSE(d.linear_backward(dy, x, w, &b, false));
  const std::vector<float> once = d.gradient(w);
  CHECK(d.gradient(b) == std::vector<float>(8, 3));
  CHECK_FALSE(d.linear_backward(dy, x, w, &b, false));
  CHECK(d.gradient(b) == std::vector<float>(8, 6));
  CHECK(d.linear_backward(dy, x, w, &b, true, false).shape() == x.shape());
  std::size_t other = 0;
  for (std::size_t i = 0; i < once.size(); ++i) other += d.gradient(w)[i] != 2 * once[i];
  CHECK(other == 0);  // ones are elements of the format, so that nothing is drawn
  CHECK(d.gradient(b) == std::vector<float>(8, 6));
}

native::model small_gpt() {
  native::model gpt =
      native_models::gpt({.batch = 4, .vocabulary = 9, .context = 16, .layers = 2, .width = 32, .dropout = 0.1});
  gpt.separate_products = true;
  return gpt;
}
plan linear_layers_in(const op_graph& graph, precision p) {
  plan choice{graph.size(), precision::bf16};
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (!graph[i].choosable) choice[i] = precision::fp32;
    if (graph[i].kind == "linear") choice[i] = p;
  }
  return choice;
}

TEST_CASE("a training in each format learns, and goes on with the same bits from where it was saved") {
  device d{{.threads = 1}};
  const auto tokens = counting_tokens(9, 400, 16);
  auto formats = below_16_bits();
  formats.push_back(precision::bf16_fp32);
  for (const precision p : formats) {
    CAPTURE(name(p));
    host_trainer t{d, small_gpt(), tokens, tokens, {.optimizer = native::adam(3e-3), .seed = 2}};
    t.set_precision(linear_layers_in(t.graph(), p));
    const sample first = t.run_epoch();
    REQUIRE(first.ok());
    const auto saved = t.save();
    const auto stored = t.store_state();
    const sample second = t.run_epoch();
    CHECK(second.loss < 0.8 * first.curve.front());
    const double score = t.validate();
    t.restore(saved);
    CHECK(t.run_epoch().curve == second.curve);
    CHECK(t.validate() == score);
    host_trainer other{d, small_gpt(), tokens, tokens, {.optimizer = native::adam(3e-3), .seed = 2}};
    other.set_precision(linear_layers_in(t.graph(), p));
    other.load_state(stored);
    CHECK(other.run_epoch().curve == second.curve);
  }
}

TEST_CASE("a sensitivity to a format that rounds at random is the same when it is asked for again") {
  device d{{.threads = 1}};
  const auto tokens = counting_tokens(9, 100, 16);
  host_trainer t{d, small_gpt(), tokens, tokens};
  const auto gradients = [&] {
    std::vector<double> all;
    for (const op_error& e : t.sensitivity(precision::nvfp4)) all.push_back(e.gradient);
    return all;
  };
  CHECK(gradients() == gradients());
}

TEST_CASE("the roundings of a step follow from the number of its batch in the training") {
  device d{{.threads = 1}};
  const native::model m = native_models::gpt({.batch = 4, .vocabulary = 9, .context = 16, .layers = 1, .width = 32});
  native::batch_feed<device> feed{d, m, counting_tokens(9, 400, 16), {.batch = 4, .shuffle = false}};
  native::device_batch<device> batch = feed.next();
  CHECK(batch.number == 0);
  CHECK(feed.next().number == 1);
  feed.seek({2, 3});
  CHECK(feed.next().number == 2 * feed.batches_per_epoch() + 3);
  native::network<device> net{d, m, 1};
  net.set_precision(linear_layers_in(net.graph(), precision::nvfp4));
  const auto gradients = [&](std::uint64_t number) {
    batch.number = number;
    net.zero_gradients();
    net.forward(batch);
    net.backward(batch);
    std::vector<std::vector<float>> all;
    for (const auto* p : net.trainable()) all.push_back(d.gradient(*p));
    return all;
  };
  const auto first = gradients(0);
  CHECK(gradients(0) == first);
  CHECK(gradients(1) != first);
  net.evaluate(batch, 7);
  CHECK(gradients(0) == first);
}

}  // namespace
}  // namespace comp::host::test
