// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <comp_host/softmax.hpp>
#include <limits>

namespace comp::host::test {

namespace {

TEST_CASE("the exponential of the loops is right to two units in the last place") {
  for (float x = -87.0F; x < 88.0F; x += 0.00713F) {
    const double wanted = std::exp(static_cast<double>(x));
    REQUIRE(std::abs(exp_of(x) - wanted) <= 2 * 0x1p-23 * wanted);
  }
  CHECK(exp_of(-std::numeric_limits<float>::infinity()) == 0.0F);
  CHECK(exp_of(-88.0F) == 0.0F);
  CHECK(std::isnan(exp_of(std::numeric_limits<float>::quiet_NaN())));
}

}  // namespace
}  // namespace comp::host::test
