// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <comp/core/cpu.hpp>
#include <comp_host/hardware.hpp>
#include <comp_host/kernel.hpp>

namespace comp::host::test {
namespace {

TEST_CASE("loops take the widest unit that the probe names") {
  const hardware cpu = this_cpu();
  CHECK(cpu.has("avx2") == (widest_unit() != vector_unit::baseline));
  CHECK(cpu.has("avx512_core") == (widest_unit() == vector_unit::avx512));
}

TEST_CASE("only what the instruction set speeds up counts as accelerated") {
  hardware plain{.name = "old", .kind = device_kind::cpu, .isa = {"avx2", "f16c"}}, bf16 = plain, all = plain;
  bf16.isa.emplace_back("avx512_bf16");
  all.isa = {"amx_bf16", "avx512_fp16", "amx_fp16"};
  CHECK_FALSE(accelerated(plain, precision::bf16));
  CHECK(accelerated(bf16, precision::bf16));
  CHECK(accelerated(all, precision::bf16));
  for (const precision p : comp::all_precisions) {
    CHECK(std::ranges::count(supported_precisions(), p) == (p != precision::tf32));
    if (p != precision::bf16) CHECK_FALSE(accelerated(all, p));
  }
}

}  // namespace
}  // namespace comp::host::test
