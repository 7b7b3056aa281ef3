// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/core/hardware.hpp>

TEST_CASE("hardware that nobody described is unknown and has no feature") {
  const comp::hardware unknown;
  CHECK(unknown.name == "unknown");
  CHECK(comp::name(unknown.kind) == "unknown");
  CHECK_FALSE(unknown.has("avx2"));
}

TEST_CASE("a feature is had only under its whole name") {
  const comp::hardware cpu{
      .name = "some CPU", .kind = comp::device_kind::cpu, .isa = {"avx2", "avx512_bf16"}, .threads = 2};
  CHECK(comp::name(cpu.kind) == "cpu");
  CHECK(cpu.has("avx512_bf16"));
  CHECK_FALSE(cpu.has("avx512"));
  CHECK_FALSE(cpu.has("avx512_bf16 "));
  CHECK_FALSE(cpu.has(""));
}

TEST_CASE("two machines are equal only when every fact is") {
  const comp::hardware one{.name = "GPU", .kind = comp::device_kind::cuda, .compute_capability = 80};
  comp::hardware other = one;
  CHECK(comp::name(one.kind) == "cuda");
  CHECK(other == one);
  SUBCASE("another capability") { other.compute_capability = 90; }
  SUBCASE("another name") { other.name = "GPU 2"; }
  SUBCASE("another kind") { other.kind = comp::device_kind::unknown; }
  SUBCASE("other features") { other.isa = {"avx2"}; }
  SUBCASE("other threads") { other.threads = 1; }
  CHECK(other != one);
}
