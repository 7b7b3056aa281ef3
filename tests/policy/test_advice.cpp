// SPDX-License-Identifier: Apache-2.0
// The cases are those of the text of Paddle's guide.
#include <doctest/doctest.h>

#include <comp/policy/advice.hpp>
#include <comp/policy/devices.hpp>

namespace {
using comp::precision;
using namespace comp::policy;

comp::op_info gemm(std::int64_t m, std::int64_t n, std::int64_t k) {
  return {.name = "linear", .kind = "linear", .producers = {}, .m = m, .n = n, .k = k, .bytes = 100};
}
comp::op_info conv(std::int64_t in, std::int64_t out) {
  return {.name = "conv", .kind = "conv2d", .channels_in = in, .channels_out = out, .bytes = 100};
}
comp::op_graph chain(std::vector<comp::op_info> ops) {
  for (std::size_t i = 1; i < ops.size(); ++i) ops[i].producers = {i - 1};
  return {std::move(ops)};
}
std::string sizes(const comp::op_info& op, const char* device, precision low = precision::fp16) {
  return advise_sizes(op, low, device_named(device)).text;
}
}  // namespace

TEST_CASE("a matrix product wants M, N and K in multiples of 8, and of 16 on an A100") {
  CHECK(sizes(gemm(2048, 8192, 8192), "V100").empty());
  CHECK(sizes(gemm(2048, 8192, 8192), "A100").empty());
  CHECK(sizes(gemm(24, 8, 40), "V100").empty());
  CHECK(sizes(gemm(24, 8, 40), "A100") == "m = 24: pad to 32, n = 8: pad to 16, k = 40: pad to 48");
  CHECK_FALSE(advise_sizes(gemm(24, 8, 40), precision::fp16, device_named("A100")).excluded);
  CHECK(sizes(gemm(2047, 8192, 10), "V100") == "m = 2047: pad to 2048, k = 10: pad to 16");
  CHECK(advise_sizes(gemm(2047, 8192, 10), precision::fp16, device_named("V100")).excluded);
  CHECK(sizes(gemm(6, 4, 4), "A100", precision::tf32) == "m = 6: pad to 8");
  CHECK(sizes(gemm(0, 8, 8), "V100").empty());  // not known
  CHECK(sizes(gemm(7, 7, 7), "K40").empty());   // no padding helps
}

TEST_CASE("a convolution wants both channel counts in multiples of 8; the first one 4 channels at best") {
  CHECK(sizes(conv(64, 128), "V100").empty());
  CHECK(sizes(conv(8, 24), "A100").empty());
  CHECK(sizes(conv(4, 64), "V100").empty());
  CHECK(sizes(conv(3, 64), "V100") == "channels_in = 3: pad to 4");
  CHECK(sizes(conv(1, 6), "T4") == "channels_in = 1: pad to 4, channels_out = 6: pad to 8");
  comp::op_info later = conv(3, 64);
  later.producers = {0};
  CHECK(sizes(later, "V100") == "channels_in = 3: pad to 8");
  later.channels_in = 4;
  CHECK(sizes(later, "V100") == "channels_in = 4: pad to 8");
}

TEST_CASE("a GPU below 7.0 is warned of as Paddle does, with its name and capability") {
  const auto warned = machine_advice({.name = "Tesla K40m", .kind = comp::device_kind::cuda, .compute_capability = 35},
                                     precision::fp16);
  CHECK(warned.front() ==
        "Tesla K40m has compute capability 3.5, and mixed precision needs 7.0 or higher: leave it off, it would save "
        "memory but no time");
  CHECK(
      machine_advice(device_named("V100"), precision::bf16) ==
      std::vector<std::string>{"tensor cores take bf16 from compute capability 8.0 (this GPU has 7.0): use fp16, with "
                               "loss scaling"});
  CHECK(machine_advice(device_named("A100"), precision::bf16).empty());
  CHECK(machine_advice(device_named("A100"), precision::fp8_e4m3).size() == 1);
  CHECK(machine_advice(device_named("H100"), precision::fp8_e4m3).empty());
  CHECK(machine_advice(device_named("A100"), precision::fp16) ==
        std::vector<std::string>{"fp16 ends at 65504 and thins out below 2^-14: scale the loss (comp/scaling)"});
  const comp::hardware cpu{.name = "CPU", .kind = comp::device_kind::cpu, .isa = {"avx512_bf16"}};
  CHECK(machine_advice(cpu, precision::bf16).empty());
  CHECK(machine_advice(cpu, precision::fp16).front() == "this CPU has no amx_fp16: choose another");
  CHECK(machine_advice({.name = "an old CPU", .kind = comp::device_kind::cpu, .isa = {"avx2"}}, precision::bf16) ==
        std::vector<std::string>{"an old CPU has none of avx512_bf16, amx_bf16 and amx_fp16, and mixed precision needs "
                                 "one of them: leave it off, it would save memory but no time"});
  CHECK(no_faster_precision({}).empty());  // nothing is known
}

TEST_CASE("float16 starts with Volta, bfloat16 and TF32 with Ampere, FP8 with Ada") {
  const auto has = [](const char* device, precision p) { return no_unit(p, device_named(device)).empty(); };
  for (const char* device : {"V100", "T4", "A100", "RTX 3090", "H100", "H200"}) CHECK(has(device, precision::fp16));
  for (const char* device : {"K40", "M40", "P100"}) CHECK_FALSE(has(device, precision::fp16));
  for (const precision p : {precision::bf16, precision::tf32}) {
    for (const char* device : {"A100", "RTX 3090", "H100", "H200"}) CHECK(has(device, p));
    for (const char* device : {"V100", "T4"}) CHECK_FALSE(has(device, p));
  }
  for (const char* device : {"L4", "RTX 4090", "H100"}) CHECK(has(device, precision::fp8_e4m3));
  for (const char* device : {"A100", "A10"}) CHECK_FALSE(has(device, precision::fp8_e5m2));
}

TEST_CASE("a model is told of NHWC, and when it has little to compute") {
  auto net = chain({conv(3, 64), {.name = "relu", .kind = "relu", .bytes = 50}, conv(64, 64), gemm(64, 10, 64)});
  const auto found = advise(net, precision::fp16, device_named("V100"));
  CHECK(found.contractions == 3);
  CHECK(found.contraction_bytes == doctest::Approx(300 / 350.0));
  REQUIRE(found.sizes.size() == 2);
  CHECK(found.sizes[0].op == 0);
  CHECK(found.sizes[1].op == 3);
  CHECK(found.sizes[1].text == "n = 10: pad to 16");
  CHECK(found.model ==
        std::vector<std::string>{"2 convolutions: keep their tensors in NHWC (channels last), or each is "
                                 "preceded by a conversion"});
  const auto light = advise(chain({gemm(64, 64, 64), {.name = "relu", .kind = "relu", .bytes = 900}}), precision::fp16,
                            device_named("V100"));
  CHECK(light.model == std::vector<std::string>{
                           "matrix products and convolutions move 10% of the bytes (the rest gains little and pays for "
                           "casts): mixed precision may not pay, measure it"});
  const comp::hardware cpu{.name = "CPU", .kind = comp::device_kind::cpu, .isa = {"avx512_bf16"}};
  CHECK(advise(net, precision::bf16, cpu).sizes.empty());  // oneDNN blocks any size
  CHECK_THROWS_WITH_AS(advise(net, precision::fp32, cpu),
                       "advice on fp32 (it is about running below fp32): choose a lower precision",
                       comp::settings_error);
}

TEST_CASE("a device is found by its name however it is written, and an unknown one refused with those that are known") {
  CHECK(device_named("rtx-4090").compute_capability == 89);
  CHECK(device_named("v100").name == "V100");
  CHECK_THROWS_AS(device_named("TPU"), comp::settings_error);
}
