// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp_simulated/trainer.hpp>

#include "graphs.hpp"

namespace {

using comp::precision;

/// Trains nothing.
struct sizes_only {
  comp::op_graph graph_;
  const comp::op_graph& graph() const { return graph_; }
  void set_precision(const comp::plan&) {}
  comp::sample run_batch() { return {.loss = 0}; }
  comp::sample run_epoch() { return {.loss = 0}; }
};

/// Returns how many times as fast a step is whose operators of `kinds` are in `low`, beside one in `base` alone. FSDP
/// shards the optimizer over 8 GPUs.
double speedup(const comp::op_graph& graph, const char* target, precision low, precision base,
               const std::string& kinds) {
  sizes_only inner{graph};
  comp::simulated::trainer on{inner, target, {.optimizer_bytes = 28 / 8.}};
  comp::plan before{graph.size()}, after{graph.size()};
  for (std::size_t i = 0; i < graph.size(); ++i) {
    before[i] = base;
    const bool head = graph[i].n == 128256;
    after[i] = kinds.find(graph[i].kind) != std::string::npos && !head ? low : base;
  }
  return on.batch_seconds(before) / on.batch_seconds(after);
}

// Of a figure: what a step of the model may be off from it.
constexpr double rounding = 1e-3;   // from the script that fitted the coefficients, which are rounded
constexpr double published = 0.12;  // from a speedup that somebody measured

comp::op_info linear(std::int64_t m, std::int64_t k, std::int64_t n, comp::product which = comp::product::all) {
  return {.name = "layer",
          .kind = "linear",
          .m = m,
          .n = n,
          .k = k,
          .bytes = 4 * (m * k + k * n + m * n),
          .flops = 2 * m * n * k,
          .product = which};
}
double sum(const comp::op_time& t) { return t.forward + t.backward; }
comp::simulated::operator_model model_of(std::string_view name) {
  return comp::simulated::operator_model{comp::simulated::gpu_named(name)};
}

}  // namespace

TEST_CASE("a product takes as long as in the script that fitted the model") {
  struct {
    const char* gpu;
    precision p;
    comp::simulated::contraction of;
    double microseconds;
  } const recorded[] = {{"B200", precision::nvfp4, {1, 4096, 4096, 4096}, 38.2028},
                        {"H100", precision::bf16, {16, 512, 64, 512}, 7.0003},
                        {"A100", precision::fp32, {1, 1000, 300, 3000}, 125.0823},
                        {"RTX 4090", precision::tf32, {1, 64, 8192, 128}, 12.0288},
                        {"H200", precision::fp8_e4m3, {1, 256, 256, 65536}, 13.5669}};
  for (const auto& [gpu, p, of, microseconds] : recorded) {
    CAPTURE(gpu);
    CHECK(1e6 * model_of(gpu).product(of, p) == doctest::Approx(microseconds).epsilon(rounding));
  }
}

TEST_CASE("speedups that were published come out, although nothing was fitted to them") {
  const comp::op_graph layers = sizes::linear_layers(), llama = sizes::llama(), vgg = sizes::vgg16();
  const std::string all = "conv2d linear relu max_pool2d batch_norm";
  struct {
    const comp::op_graph& graph;
    const char* gpu;
    precision low, base;
    double times;
  } const recorded[] = {
      {layers, "B300", precision::fp8_e4m3, precision::bf16, 1.39},  // TransformerEngine#2863
      {layers, "B300", precision::mxfp8, precision::bf16, 1.42},
      {layers, "B300", precision::nvfp4, precision::bf16, 1.98},
      {llama, "H100", precision::fp8_e4m3, precision::bf16, 1.250},  // torchao's page on training
      {llama, "B200", precision::fp8_e4m3, precision::bf16, 1.254},
      {llama, "B200", precision::mxfp8, precision::bf16, 1.200},
      {vgg, "A100", precision::fp16, precision::tf32, 1.88},  // the CoMP paper; PyTorch's FP32 convolves in TF32
      {vgg, "RTX 4090", precision::fp16, precision::tf32, 1.70},
  };
  for (const auto& [graph, gpu, low, base, times] : recorded) {
    CAPTURE(gpu);
    CAPTURE(name(low));
    CHECK(speedup(graph, gpu, low, base, base == precision::tf32 ? all : "linear") ==
          doctest::Approx(times).epsilon(published));
  }
}

TEST_CASE("a small layer is slower in FP8 than in BF16, and a large one is faster") {  // torchao's table: 0.80 and 1.39
  const auto h100 = model_of("H100");
  const auto gain = [&](const comp::op_info& op) {
    return sum(h100(op, precision::bf16)) / sum(h100(op, precision::fp8_e4m3));
  };
  CHECK(gain(linear(1024, 2048, 1024)) < 1);
  CHECK(gain(linear(4096, 8192, 16384)) == doctest::Approx(1.39).epsilon(published));
}

TEST_CASE("a layer in three operators takes as long as in one") {
  const auto b200 = model_of("B200");
  for (const precision p : {precision::bf16, precision::nvfp4}) {
    CAPTURE(name(p));
    const comp::op_time whole = b200(linear(512, 1024, 4096), p),
                        forward = b200(linear(512, 1024, 4096, comp::product::forward), p),
                        input = b200(linear(512, 4096, 1024, comp::product::input_gradient), p),
                        weight = b200(linear(4096, 512, 1024, comp::product::weight_gradient), p);
    CHECK(forward.backward + input.forward + weight.forward == 0);
    CHECK(forward.forward == doctest::Approx(whole.forward));
    CHECK(input.backward + weight.backward == doctest::Approx(whole.backward));
  }
}

TEST_CASE("what memory bounds takes half as long in BF16, and a view nothing") {
  const auto h100 = model_of("H100");
  const comp::op_info relu{.name = "relu", .kind = "relu", .bytes = 1 << 30};
  CHECK(h100(relu, precision::fp32).forward / h100(relu, precision::bf16).forward == doctest::Approx(2).epsilon(0.02));
  comp::op_info softmax = relu;
  softmax.kind = "softmax";
  CHECK(h100(softmax, precision::fp32).backward / h100(softmax, precision::fp32).forward ==
        doctest::Approx(1.467).epsilon(0.02));  // this one names no result: the same bytes
  CHECK(sum(h100({.name = "view", .kind = "aten::view", .bytes = 1 << 20, .choosable = false}, precision::fp32)) == 0);
}

TEST_CASE("what cannot be modelled is refused in a sentence") {
  CHECK_THROWS_WITH_AS(
      comp::simulated::gpu_named("B20"),
      "\"B20\" is no GPU whose times can be modelled (they are A100, RTX 4090, H100, H200, B200, B300): did you mean \"B200\"?",
      comp::settings_error);
  CHECK_THROWS_WITH_AS(
      comp::simulated::gpu_named("gaudi"),
      "\"gaudi\" is no GPU whose times can be modelled (they are A100, RTX 4090, H100, H200, B200, B300): choose one of those",
      comp::settings_error);
  CHECK(comp::simulated::gpu_named("rtx-4090").name == "RTX 4090");
  CHECK_THROWS_WITH_AS(model_of("A100")(linear(8, 8, 8), precision::mxfp8),
                       "mxfp8 on the A100 (it has no unit for it): leave it out of the precisions",
                       comp::settings_error);
  CHECK_THROWS_WITH_AS(
      model_of("A100")({.name = "head", .kind = "aten::addmm", .bytes = 64}, precision::bf16),
      "operator \"head\" (aten::addmm) has no sizes (its time is modelled from them): give op_info its bytes, flops, m, n and k",
      comp::graph_error);
  CHECK_THROWS_WITH_AS(
      model_of("A100")({.name = "relu", .kind = "relu"}, precision::bf16),
      "operator \"relu\" (relu) has no sizes (its time is modelled from them): give op_info its bytes, flops, m, n and k",
      comp::graph_error);
  CHECK_THROWS_WITH_AS(
      model_of("A100")({.name = "stem", .kind = "conv2d", .bytes = 64, .flops = 64}, precision::bf16),
      "operator \"stem\" (conv2d) has no sizes (its time is modelled from them): give op_info its outputs, channels_in and channels_out",
      comp::graph_error);
}
