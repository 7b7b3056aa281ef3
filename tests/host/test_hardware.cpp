// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp_host/hardware.hpp>
#include <fstream>
#include <string>

#include "comp_host/kernel.hpp"

namespace comp::host::test {
namespace {

TEST_CASE("the probe names this CPU and its sets as the kernel does") {
  const hardware cpu = probe();
  CHECK(cpu.kind == device_kind::cpu);
  CHECK(cpu.threads >= 1);
  CHECK(probe(3).threads == 3);
  CHECK(cpu.has("avx2") == (widest_unit() != vector_unit::baseline));
  CHECK(cpu.has("avx512_core") == (widest_unit() == vector_unit::avx512));
  std::ifstream file{"/proc/cpuinfo"};
  std::string text{std::istreambuf_iterator<char>{file}, {}};
  if (!COMP_HOST_X86 || text.find("model name") == std::string::npos) return;
  CHECK(text.find(cpu.name) != std::string::npos);
  const auto kernel_says = [&](const std::string& flag) { return text.find(" " + flag + " ") != std::string::npos; };
  CHECK(cpu.has("f16c") == kernel_says("f16c"));
  CHECK(cpu.has("avx512_bf16") == kernel_says("avx512_bf16"));
  CHECK(cpu.has("amx_bf16") == kernel_says("amx_bf16"));
  CHECK(cpu.has("avx512_fp16") == kernel_says("avx512_fp16"));
}

TEST_CASE("only what the instruction set speeds up counts as accelerated") {
  hardware plain{.name = "old", .kind = device_kind::cpu, .isa = {"avx2", "f16c"}}, bf16 = plain, all = plain;
  bf16.isa.emplace_back("avx512_bf16");
  all.isa = {"amx_bf16", "avx512_fp16", "amx_fp16"};
  CHECK_FALSE(accelerated(plain, precision::bf16));
  CHECK(accelerated(bf16, precision::bf16));
  CHECK(accelerated(all, precision::bf16));
  CHECK_FALSE(accelerated(all, precision::fp16));
  CHECK_FALSE(accelerated(all, precision::fp32));
  CHECK(supported_precisions() == std::vector{precision::fp32, precision::bf16, precision::fp16});
}

}  // namespace
}  // namespace comp::host::test
