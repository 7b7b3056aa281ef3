// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <comp_host/quantize.hpp>

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

}  // namespace
}  // namespace comp::host::test
