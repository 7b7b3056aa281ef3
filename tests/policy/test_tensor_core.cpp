// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/policy/tensor_core.hpp>

namespace {
using comp::precision;
using namespace comp::policy;

comp::hardware gpu(int capability) {
  return {.name = "GPU", .kind = comp::device_kind::cuda, .compute_capability = capability};
}
comp::hardware cpu(std::vector<std::string> isa) {
  return {.name = "CPU", .kind = comp::device_kind::cpu, .isa = std::move(isa)};
}
const comp::hardware unknown;
comp::op_info gemm(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.kind = "linear", .m = m, .n = n, .k = k};
}
comp::op_info conv(std::int64_t in, std::int64_t out) {
  return {.kind = "conv2d", .producers = {0}, .channels_in = in, .channels_out = out};
}

TEST_CASE("each size of a matrix product must be a multiple of 16 bytes") {
  struct row {
    precision p;
    std::int64_t multiple;
  };
  for (const auto& [p, multiple] : {row{precision::fp16, 8},
                                    {precision::bf16, 8},
                                    {precision::tf32, 4},
                                    {precision::fp8_e4m3, 16},
                                    {precision::fp8_e5m2, 16}}) {
    CAPTURE(name(p));
    CHECK(required_multiple(p) == multiple);
    CHECK(suits_tensor_cores(gemm(3 * multiple, multiple, 5 * multiple), p, gpu(90)));
    CHECK_FALSE(suits_tensor_cores(gemm(3 * multiple + 1, multiple, multiple), p, gpu(90)));
    CHECK_FALSE(suits_tensor_cores(gemm(multiple, multiple / 2, multiple), p, gpu(90)));
    CHECK_FALSE(suits_tensor_cores(gemm(multiple, multiple, multiple - 1), p, gpu(90)));
  }
}

TEST_CASE("a convolution is judged by its channels, not by the sizes of the product it becomes") {
  comp::op_info op = conv(64, 128);
  op.m = 99;
  CHECK(suits_tensor_cores(op, precision::fp16, gpu(70)));
  CHECK_FALSE(suits_tensor_cores(conv(3, 64), precision::fp16, gpu(70)));
  CHECK_FALSE(suits_tensor_cores(conv(64, 10), precision::fp16, gpu(70)));
}

TEST_CASE("the first convolution may have 4 channels, a later one not") {
  comp::op_info stem = conv(4, 64);
  CHECK_FALSE(suits_tensor_cores(stem, precision::fp16, gpu(70)));
  stem.producers.clear();
  CHECK(suits_tensor_cores(stem, precision::fp16, gpu(70)));
  CHECK_FALSE(suits_tensor_cores(stem, precision::fp8_e4m3, gpu(90)));
  stem.channels_in = 3;
  CHECK_FALSE(suits_tensor_cores(stem, precision::fp16, gpu(70)));
}

TEST_CASE("tensor cores take FP16 from 7.0, BF16 and TF32 from 8.0, FP8 from 8.9") {
  const comp::op_info op = gemm(64, 64, 64);
  struct row {
    precision p;
    int first;
  };
  for (const auto& [p, first] : {row{precision::fp16, 70},
                                 {precision::bf16, 80},
                                 {precision::tf32, 80},
                                 {precision::fp8_e4m3, 89},
                                 {precision::fp8_e5m2, 89}}) {
    CAPTURE(name(p));
    CHECK(suits_tensor_cores(op, p, gpu(first)));
    CHECK_FALSE(suits_tensor_cores(op, p, gpu(first - 1)));
    CHECK(suits_tensor_cores(op, p, gpu(0)));  // a GPU of unknown capability
  }
}

TEST_CASE("on a CPU the instruction set decides, whatever the size") {
  const comp::op_info odd = gemm(7, 5, 3);
  for (const char* unit : {"avx512_bf16", "amx_bf16"}) {
    CHECK(suits_tensor_cores(odd, precision::bf16, cpu({"avx2", unit})));
    CHECK_FALSE(suits_tensor_cores(odd, precision::fp16, cpu({"avx2", unit})));
  }
  CHECK(suits_tensor_cores(odd, precision::fp16, cpu({"amx_fp16"})));
  CHECK_FALSE(suits_tensor_cores(odd, precision::bf16, cpu({"amx_fp16"})));
  CHECK_FALSE(suits_tensor_cores(odd, precision::bf16, cpu({"avx2", "avx512_core"})));
  CHECK_FALSE(suits_tensor_cores(odd, precision::tf32, cpu({"amx_bf16", "amx_fp16"})));
  CHECK_FALSE(suits_tensor_cores(odd, precision::fp8_e4m3, cpu({"amx_bf16", "amx_fp16"})));
}

TEST_CASE("on unknown hardware the sizes alone decide") {
  CHECK(suits_tensor_cores(gemm(8, 16, 24), precision::fp16, unknown));
  CHECK_FALSE(suits_tensor_cores(gemm(8, 16, 20), precision::fp16, unknown));
  CHECK_FALSE(suits_tensor_cores(gemm(8, 8, 8), precision::fp8_e4m3, unknown));
}

TEST_CASE("unknown sizes suit, an operator that is known to be no contraction does not") {
  CHECK(suits_tensor_cores({.kind = "conv2d"}, precision::fp16, gpu(80)));
  CHECK(suits_tensor_cores(gemm(0, 64, 0), precision::fp16, gpu(80)));
  CHECK_FALSE(suits_tensor_cores(gemm(0, 63, 0), precision::fp16, gpu(80)));
  const comp::op_info prelu{.kind = "prelu", .inputs = {{.shape = {8, 64}}}, .outputs = {{.shape = {8, 64}}}};
  CHECK(why_not(prelu, precision::fp16, gpu(80)) == "it is no contraction: matrix units do not speed it up");
  CHECK_FALSE(suits_tensor_cores(prelu, precision::bf16, cpu({"amx_bf16"})));
}

TEST_CASE("why_not names the sizes and the padding, or the missing unit, and is empty for what suits") {
  CHECK(why_not(gemm(64, 10, 27), precision::fp16, gpu(80)) ==
        "n = 10 (pad to 16), k = 27 (pad to 32): no multiple of 8, which fp16 needs");
  CHECK(why_not(conv(3, 64), precision::bf16, gpu(80)) ==
        "channels_in = 3 (pad to 8): no multiple of 8, which bf16 needs");
  CHECK(why_not(gemm(8, 8, 8), precision::bf16, gpu(75)) ==
        "tensor cores take bf16 from compute capability 8.0 (this GPU has 7.5)");
  CHECK(why_not(gemm(8, 8, 8), precision::fp16, cpu({"avx512_bf16", "avx512_fp16"})) == "this CPU has no amx_fp16");
  CHECK(why_not(gemm(8, 8, 8), precision::bf16, cpu({"avx2"})) == "this CPU has neither avx512_bf16 nor amx_bf16");
  CHECK(why_not(gemm(8, 8, 8), precision::tf32, cpu({"amx_bf16"})) == "no CPU computes in tf32");
  CHECK(why_not(gemm(8, 8, 8), precision::fp32, gpu(80)) == "fp32 has no matrix unit");
  CHECK(why_not(gemm(8, 8, 8), precision::fp16, gpu(80)).empty());
}

}  // namespace
