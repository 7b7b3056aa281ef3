// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <comp/core/cpu.hpp>
#include <comp_host/hardware.hpp>
#include <comp_host/kernel.hpp>
#include <vector>

namespace comp::host::test {
namespace {

TEST_CASE("loops take the widest unit that the probe names") {
  const hardware cpu = this_cpu();
  CHECK(cpu.has("avx2") == (widest_unit() != vector_unit::baseline));
  CHECK(cpu.has("avx512_core") == (widest_unit() == vector_unit::avx512));
}

TEST_CASE("a loop passes each element once, in pieces of whole units, on as many threads as there are and no more") {
  const int before = threads_of_loops();
  for (const int threads : {1, 2, 3, 7}) {
    for (const std::size_t n : {0, 1, 63, 130, 500, 1000, 1001, 100000}) {
      for (const std::size_t unit : {1, 64}) {
        CAPTURE(threads);
        CAPTURE(n);
        set_threads(threads);
        std::vector<int> times(n);
        std::atomic<int> pieces = 0, wrong = 0;
        launch(
            n,
            [&](std::size_t from, std::size_t to) {
              ++pieces;
              wrong += from >= to || from % unit != 0;
              for (std::size_t i = from; i < to; ++i) ++times[i];
            },
            n == 130 ? 2 : 1000, unit);  // 130: units for fewer threads than there are
        CHECK(times == std::vector<int>(n, 1));
        CHECK(wrong == 0);
        CHECK(pieces <= threads);
        if (n == 100000) CHECK(pieces == threads);
        if (n <= 63 || n == 500) CHECK(pieces == (n > 0));
      }
    }
  }
  set_threads(before);
}

TEST_CASE("only what the instruction set speeds up counts as accelerated") {
  hardware plain{.name = "old", .kind = device_kind::cpu, .isa = {"avx2", "f16c"}}, bf16 = plain, all = plain;
  bf16.isa.emplace_back("avx512_bf16");
  all.isa = {"amx_bf16", "avx512_fp16", "amx_fp16"};
  CHECK_FALSE(accelerated(plain, precision::bf16));
  CHECK(accelerated(bf16, precision::bf16));
  CHECK(accelerated(all, precision::bf16));
  for (const precision p : comp::all_precisions) {
    CHECK(std::ranges::count(supported_precisions(), p) == (p != precision::tf32 && p != precision::fp64));
    if (p != precision::bf16) CHECK_FALSE(accelerated(all, p));
  }
}

}  // namespace
}  // namespace comp::host::test
