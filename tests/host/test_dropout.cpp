// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <comp_host/device.hpp>
#include <comp_host/dropout.hpp>
#include <limits>
#include <vector>

namespace comp::host::test {

namespace {

TEST_CASE("normal numbers are those of a stream, bit for bit, for any number of threads") {
  for (const shape& s : {shape{1, 1}, shape{3, 5}, shape{16, 8}, shape{7, 333}, shape{1000, 1001}}) {
    for (const int threads : {1, 2, 3}) {
      CAPTURE(native::text(s));
      CAPTURE(threads);
      device d{{.threads = threads}};
      native::random_stream draws{5, 9};
      std::vector<float> expected(static_cast<std::size_t>(elements(s)));
      for (float& x : expected) x = static_cast<float>(draws.normal());
      CHECK(d.download(d.normal({.seed = 5, .draw = 9}, s, precision::fp32)) == expected);
      CHECK(d.download(d.normal({.seed = 5, .draw = 9}, s, precision::bf16)) ==
            d.download(d.upload(expected, s, precision::bf16)));
    }
  }
}

TEST_CASE("a dropout zeroes what it drops, and be it infinite or no number") {
  device d;
  constexpr float infinity = std::numeric_limits<float>::infinity(), nan = std::numeric_limits<float>::quiet_NaN();
  for (const precision p : {precision::fp32, precision::bf16}) {
    for (const float x : {infinity, -infinity, nan}) {
      const auto ones = d.download(d.dropout(d.upload(std::vector<float>(300, 1), {300}, p), 0.5, {})),
                 y = d.download(d.dropout(d.upload(std::vector<float>(300, x), {300}, p), 0.5, {}));
      for (std::size_t i = 0; i < y.size(); ++i) CHECK((ones[i] == 0 ? y[i] == 0 : !std::isfinite(y[i])));
    }
  }
}

}  // namespace
}  // namespace comp::host::test
