// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/core/cpu.hpp>
#include <comp/core/hardware.hpp>
#include <fstream>
#include <string>
#include <vector>

TEST_CASE("a feature is had only under its whole name") {
  const comp::hardware cpu{
      .name = "some CPU", .kind = comp::device_kind::cpu, .isa = {"avx2", "avx512_bf16"}, .threads = 2};
  CHECK(comp::name(cpu.kind) == "cpu");
  CHECK(cpu.has("avx512_bf16"));
  CHECK_FALSE(cpu.has("avx512"));
  CHECK_FALSE(cpu.has("avx512_bf16 "));
  CHECK_FALSE(cpu.has(""));
}

TEST_CASE("the probe names this CPU and its sets as the kernel does") {
  const comp::hardware cpu = comp::this_cpu();
  CHECK(cpu.kind == comp::device_kind::cpu);
  CHECK(cpu.threads >= 1);
  CHECK(comp::this_cpu(3).threads == 3);
  std::ifstream file{"/proc/cpuinfo"};
  std::string text{std::istreambuf_iterator<char>{file}, {}};
  if (!COMP_X86 || text.find("model name") == std::string::npos) return;
  CHECK(text.find(cpu.name) != std::string::npos);
  const auto kernel_says = [&](const std::string& flag) { return text.find(" " + flag + " ") != std::string::npos; };
  CHECK(cpu.has("f16c") == kernel_says("f16c"));
  CHECK(cpu.has("avx512_bf16") == kernel_says("avx512_bf16"));
  CHECK(cpu.has("amx_bf16") == kernel_says("amx_bf16"));
  CHECK(cpu.has("avx512_fp16") == kernel_says("avx512_fp16"));
}

TEST_CASE("a unit for a precision is what the capability or the instruction sets of a machine say") {
  const auto gpu = [](int capability) {
    return comp::hardware{.kind = comp::device_kind::cuda, .compute_capability = capability};
  };
  CHECK_FALSE(comp::has_unit(comp::precision::fp16, gpu(61)));
  CHECK(comp::has_unit(comp::precision::fp16, gpu(70)));
  CHECK_FALSE(comp::has_unit(comp::precision::bf16, gpu(75)));
  CHECK(comp::has_unit(comp::precision::tf32, gpu(80)));
  CHECK_FALSE(comp::has_unit(comp::precision::fp8_e4m3, gpu(86)));
  CHECK(comp::has_unit(comp::precision::fp8_e5m2, gpu(89)));
  const auto cpu = [](std::vector<std::string> sets) {
    return comp::hardware{.kind = comp::device_kind::cpu, .isa = std::move(sets)};
  };
  CHECK_FALSE(comp::has_unit(comp::precision::bf16, cpu({"avx2", "avx512_core"})));
  CHECK(comp::has_unit(comp::precision::bf16, cpu({"amx_bf16"})));
  CHECK(comp::has_unit(comp::precision::fp16, cpu({"amx_fp16"})));
  // LibTorch 2.11's products are no faster in it than in FP32, and its convolutions' gradients reference code.
  CHECK_FALSE(comp::has_unit(comp::precision::fp16, cpu({"avx512_bf16", "amx_bf16", "avx512_fp16"})));
  CHECK_FALSE(comp::has_unit(comp::precision::tf32, cpu({"avx512_bf16", "amx_bf16", "avx512_fp16", "amx_fp16"})));
  for (const comp::precision p : comp::all_precisions) {
    CAPTURE(comp::name(p));
    CHECK(comp::has_unit(p, comp::hardware{}) == is_low(p));
    CHECK(comp::has_unit(p, gpu(0)) == is_low(p));
    CHECK_FALSE(comp::has_unit(p, cpu({""})));
  }
}
