// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <comp_host/quantize.hpp>
#include <map>

#include "../native/reference_scaled.hpp"

namespace comp::host::test {

using native::test::differing;
using native::test::drawn_values;
using native::test::quantized_by_definition;

namespace {

/// What a matrix is drawn with.
struct drawn_case {
  precision p;
  product of;
  operand o;
  std::size_t rows, columns;
  contraction over;
  native::dropout_key key;
  std::vector<float> values;

  operand_format format() const { return format_of(p, of, o); }
  std::vector<float> by_definition() const {
    return quantized_by_definition(format(), values, rows, columns, over == contraction::over_rows, key);
  }
};
drawn_case draw(bool hostile) {
  const auto precisions = rc::gen::element(precision::fp8_e4m3, precision::fp8_e5m2, precision::fp8_block128,
                                           precision::mxfp8, precision::mxfp4, precision::nvfp4);
  drawn_case d{*precisions,
               *rc::gen::element(product::forward, product::input_gradient, product::weight_gradient),
               *rc::gen::element(operand::input, operand::weight, operand::gradient),
               *rc::gen::inRange<std::size_t>(1, 150),
               *rc::gen::inRange<std::size_t>(1, *rc::gen::element(20, 200, 1200)),
               *rc::gen::element(contraction::over_columns, contraction::over_rows),
               {.seed = *rc::gen::arbitrary<std::uint64_t>(), .draw = *rc::gen::arbitrary<std::uint64_t>()},
               {}};
  d.rows = std::min(d.rows, 12000 / d.columns + 1);
  d.values = drawn_values(d.rows * d.columns, d.key.seed, hostile);
  return d;
}

/// quantize() of a device with so many threads.
std::vector<float> quantized(const drawn_case& d, const std::vector<float>& values, int threads = 1) {
  context c{{}};
  const int before = threads_of_loops();
  set_threads(threads);
  std::vector<float> to(values.size());
  quantize(c, d.format(), values.data(), static_cast<std::int64_t>(d.rows), static_cast<std::int64_t>(d.columns),
           d.over, d.key, to.data());
  set_threads(before);
  return to;
}

TEST_CASE("the host rounds as other implementations do") {
  for (const native::test::recorded_result& r : native::test::recorded_results) {
    const native::test::recorded_matrix& m = native::test::recorded_matrices[r.matrix];
    CAPTURE(name(r.precision));
    CAPTURE(static_cast<int>(r.operand));
    CAPTURE(r.matrix);
    drawn_case d{r.precision, r.product, r.operand, m.rows, m.columns, contraction::over_columns, {}, {}};
    d.values = native::test::floats(m.words);
    const std::vector<float> expected = native::test::values_of(r);
    CHECK(differing(quantized(d, d.values), expected) == 0);
    // the same matrix, transposed
    const auto turned = [&](const std::vector<float>& from) {
      std::vector<float> to(from.size());
      for (std::size_t i = 0; i < from.size(); ++i) to[i % m.columns * m.rows + i / m.columns] = from[i];
      return to;
    };
    d = {r.precision, r.product, r.operand, m.columns, m.rows, contraction::over_rows, {}, {}};
    CHECK(differing(quantized(d, turned(native::test::floats(m.words))), turned(expected)) == 0);
  }
}

TEST_CASE("the host gives the bits of the definition, for any shape, values, number of threads") {
  CHECK(rc::check([] {
    const drawn_case d = draw(*rc::gen::arbitrary<bool>());
    const std::vector<float> expected = d.by_definition();
    RC_ASSERT(differing(quantized(d, d.values, *rc::gen::inRange(1, 4)), expected) == 0U);
  }));
  // few draws round at random in rows that are wider than a piece of them
  const drawn_case wide{
      precision::nvfp4, product::input_gradient,         operand::gradient, 3, 1300, contraction::over_columns,
      {5, 7},           drawn_values(3 * 1300, 1, false)};
  CHECK(wide.format().elements == element_rounding::stochastic);
  CHECK(differing(quantized(wide, wide.values), wide.by_definition()) == 0U);
}

/// quantize() without its transform, in one of the vector units that this CPU has.
std::vector<float> quantized_in(vector_unit unit, const drawn_case& d) {
  std::vector<float> to(d.values.size());
  const auto m = detail::in_blocks(d.format(), d.values.data(), d.rows, d.columns, d.over, d.key, to.data());
  const auto kernel = [&m](std::size_t begin, std::size_t end)
                          COMP_HOST_KERNEL { detail::quantize_bands(m, begin, end); };
  if (unit == vector_unit::baseline) detail::run_baseline(kernel, 0, m.bands() * m.strips());
#if COMP_HOST_DISPATCH
  if (unit == vector_unit::avx2) detail::run_avx2(kernel, 0, m.bands() * m.strips());
  if (unit == vector_unit::avx512) detail::run_avx512(kernel, 0, m.bands() * m.strips());
#endif
  return to;
}

TEST_CASE("every vector unit gives the same bits") {
  CHECK(rc::check([] {
    const drawn_case d = draw(true);
    const std::vector<float> expected = quantized_in(vector_unit::baseline, d);
    for (const vector_unit unit : {vector_unit::avx2, vector_unit::avx512}) {
      if (unit <= widest_unit()) RC_ASSERT(differing(quantized_in(unit, d), expected) == 0U);
    }
  }));
}

TEST_CASE("scales that are powers of two clamp no value, and a second rounding changes nothing") {
  CHECK(rc::check([] {
    drawn_case d = draw(false);
    d.p = *rc::gen::element(precision::fp8_block128, precision::mxfp8, precision::mxfp4);
    const operand_format f = d.format();
    const std::vector<float> once = quantized(d, d.values);
    RC_ASSERT(differing(quantized(d, once), once) == 0U);
    const bool down = d.over == contraction::over_rows;
    const auto block_of = [&](std::size_t i) {
      const std::size_t row = i / d.columns, column = i % d.columns;
      return std::pair{(down ? row : column) / static_cast<std::size_t>(f.block.along),
                       (down ? column : row) / static_cast<std::size_t>(f.block.across)};
    };
    std::map<std::pair<std::size_t, std::size_t>, float> largest;
    for (std::size_t i = 0; i < once.size(); ++i) {
      float& most = largest[block_of(i)];
      most = std::max(most, std::abs(d.values[i]));
    }
    const double subnormal = std::ldexp(1.0, f.element.smallest_exponent() - f.element.fraction_bits - 1);
    for (std::size_t i = 0; i < once.size(); ++i) {
      const double most_scale = 2 * static_cast<double>(largest[block_of(i)]) / f.element.largest;
      const double allowed = traits(d.p).half_ulp * std::abs(d.values[i]) + subnormal * most_scale;
      RC_ASSERT(std::abs(static_cast<double>(once[i]) - d.values[i]) <= allowed);
    }
  }));
}

TEST_CASE("a transformed product in FP64 is the product, but for what BF16 rounds") {
  const std::size_t rows = 48, columns = 5;
  const std::vector<float> x = drawn_values(rows * columns, 1, false), dy = drawn_values(rows * columns, 2, false);
  std::vector<float> tx(x.size()), tdy(x.size());
  for (const contraction over : {contraction::over_rows, contraction::over_columns}) {
    const bool down = over == contraction::over_rows;
    detail::transform16(x.data(), down ? rows : columns, down ? columns : rows, over, tx.data());
    detail::transform16(dy.data(), down ? rows : columns, down ? columns : rows, over, tdy.data());
    const auto at = [&](const std::vector<float>& m, std::size_t k, std::size_t i) {
      return static_cast<double>(down ? m[k * columns + i] : m[i * rows + k]);
    };
    for (std::size_t i = 0; i < columns; ++i) {
      for (std::size_t j = 0; j < columns; ++j) {
        double plain = 0, transformed = 0, xx = 0, yy = 0;
        for (std::size_t k = 0; k < rows; ++k) {
          plain += at(x, k, i) * at(dy, k, j);
          transformed += at(tx, k, i) * at(tdy, k, j);
          xx += at(x, k, i) * at(x, k, i);
          yy += at(dy, k, j) * at(dy, k, j);
        }
        CHECK(std::abs(plain - transformed) <= 2.01 * traits(precision::bf16).half_ulp * std::sqrt(xx * yy));
      }
    }
  }
}

}  // namespace
}  // namespace comp::host::test
