// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/core/concepts.hpp>
#include <comp/policy/all_fp32.hpp>

namespace {
static_assert(comp::OperatorPolicy<comp::policy::all_fp32>);

TEST_CASE("all_fp32 fixes every operator at FP32, so that no search tries anything else") {
  for (const char* kind : {"conv2d", "softmax", "relu", ""}) {
    CAPTURE(kind);
    const comp::decision said = comp::policy::all_fp32{}.classify({.kind = kind});
    CHECK(said.compute == comp::precision::fp32);
    CHECK(said.category == comp::category::deny);
    CHECK(said.fixed);
  }
}
}  // namespace
