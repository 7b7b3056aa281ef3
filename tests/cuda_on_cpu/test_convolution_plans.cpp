// SPDX-License-Identifier: Apache-2.0
// Which convolutions are graphs of cuDNN, which of its plans is kept, and what runs if it has none. The graphs are
// the stand-in's (convolutions_on_cpu.cpp); cuDNN's own are planned in test_convolution_graphs.cpp. That graphs compute
// what FP64 does is in test_dnn.cpp.
#include <comp_cuda/device.hpp>

#include "dnn_test.hpp"

namespace comp::cuda::test {
namespace {

const shape x_sizes{2, 3, 7, 7}, w_sizes{4, 3, 3, 3};
const native::conv2d_options padded{.padding = {1, 1}};

/// A convolution with a bias, its values, and gradients after a backward.
struct layer_of_images {
  device& d;
  precision p = precision::bf16;
  tensor x = in_order(d.shared(), d.upload(coarse(elements(x_sizes), 1), x_sizes, p), order::channels_last);
  parameter w = d.make_parameter(coarse(elements(w_sizes), 2), w_sizes), b = d.make_parameter(coarse(4, 3), {4});

  tensor forward() { return d.conv2d(x, w, &b, padded); }
  tensor backward(const tensor& dy) { return d.conv2d_backward(dy, x, w, &b, padded, true); }
  /// Returns: everything that a forward and a backward compute.
  std::vector<std::vector<float>> step() {
    d.zero_gradient(w);
    d.zero_gradient(b);
    const tensor y = forward(), dx = backward(y);
    return {d.download(y), d.download(dx), d.gradient(w), d.gradient(b)};
  }
};
std::vector<int> passes(const auto& runs) {
  std::vector<int> all;
  for (const auto& run : runs) all.push_back(run.pass);
  return all;
}
void forget_runs() {
  simt::dnn.runs.clear();
  simt::dnn.graph_runs.clear();
}
using numbers = std::vector<int>;

}  // namespace

TEST_CASE("the passes of a convolution in low precision and TF32 are graphs, those in FP32 and by settings are not") {
  const fresh_dnn machine;
  device d, by_calls{{.graph_convolutions = false}};
  for (const precision p : precisions) {
    CAPTURE(name(p));
    layer_of_images of{d, p}, called{by_calls, p};
    (void)of.step();  // plans are chosen
    forget_runs();
    (void)of.step();
    CHECK(passes(simt::dnn.graph_runs) == (p == precision::fp32 ? numbers{} : numbers{0, 2, 1}));
    CHECK(passes(simt::dnn.runs) == (p == precision::fp32 ? numbers{0, 2, 1} : numbers{}));
    simt::dnn.graph_runs.clear();
    (void)called.step();
    CHECK(simt::dnn.graph_runs.empty());
  }
}

TEST_CASE("the fastest plan of a case is kept, and without measurements the first that runs") {
  for (const bool measures : {true, false}) {
    CAPTURE(measures);
    const auto kept = [&](std::vector<std::int64_t> unmade, std::vector<std::int64_t> failing, std::int64_t limit) {
      const fresh_dnn machine;
      simt::dnn.plans_unmade = std::move(unmade);
      simt::dnn.plans_failing = std::move(failing);
      device d{{.workspace_limit = limit, .measure_algorithms = measures}};
      layer_of_images of{d};
      (void)of.step();
      const int plans = simt::dnn.plans_made;
      forget_runs();
      (void)of.step();
      CHECK(simt::dnn.plans_made == plans);
      REQUIRE(simt::dnn.graph_runs.size() == 3);
      for (const auto& run : simt::dnn.graph_runs) CHECK(run.plan == simt::dnn.graph_runs[0].plan);
      return simt::dnn.graph_runs[0].plan;
    };
    const std::int64_t much = 1 << 20;
    CHECK(kept({}, {}, much) == (measures ? 1 : 0));
    CHECK(kept({0}, {}, much) == 1);
    CHECK(kept({}, {0}, much) == 1);
    CHECK(kept({1}, {}, much) == 0);
    CHECK(kept({}, {0, 1}, much) == 2);
    CHECK(kept({}, {}, 0) == 2);
  }
}

TEST_CASE("a pass that has no graph, or none that runs, is a call from then on, with the same values") {
  for (const int without : {0, 1, 2, 3, 4}) {  // a pass; 3: no plan can be made; 4: none runs
    CAPTURE(without);
    const fresh_dnn machine;
    device d, by_calls{{.graph_convolutions = false}};
    layer_of_images of{d}, called{by_calls};
    if (without < 3) simt::dnn.graphs[static_cast<std::size_t>(without)] = false;
    (without == 3 ? simt::dnn.plans_unmade : simt::dnn.plans_failing) =
        without < 3 ? std::vector<std::int64_t>{} : std::vector<std::int64_t>{0, 1, 2};
    const auto first = of.step();
    const int plans = simt::dnn.plans_made;
    forget_runs();
    const auto again = of.step();
    CHECK(simt::dnn.plans_made == plans);
    CHECK(passes(simt::dnn.runs) == (without < 3 ? numbers{without} : numbers{0, 2, 1}));
    CHECK(again == first);
    const auto why = d.convolutions_by_calls();
    REQUIRE(why.size() == (without < 3 ? 1 : 3));
    if (without == 0)
      CHECK(
          why[0] ==
          "the forward of x (2,3,7,7) with weights (4,3,3,3) in bf16 is no graph of cuDNN (cuDNN: no valid engine configs)");
    if (without == 3)
      CHECK(
          why[1] ==
          "the gradient of data of x (2,3,7,7) with weights (4,3,3,3) in bf16 is no graph of cuDNN (none of its plans can be made)");
    if (without == 4)
      CHECK(
          why[2] ==
          "the gradient of weights of x (2,3,7,7) with weights (4,3,3,3) in bf16 is no graph of cuDNN (cuDNN: asked to fail)");
    const auto want = called.step();
    for (std::size_t i = 0; i < want.size(); ++i) {
      check_near(again[i], {want[i].begin(), want[i].end()}, precision::bf16, 2);  // a bias is rounded once or twice
    }
  }
}

TEST_CASE("a bias is added in the graph where that is as fast as without, and behind it where not") {
  for (const int hours : {0, 1}) {
    CAPTURE(hours);
    const fresh_dnn machine;
    simt::dnn.bias_takes = hours;
    device d;
    layer_of_images of{d};
    (void)of.forward().materialize();
    forget_runs();
    const std::uint64_t given = simt::device.launches;
    (void)of.forward().materialize();
    REQUIRE(simt::dnn.graph_runs.size() == 1);
    CHECK(simt::dnn.graph_runs[0].bias == (hours == 0));
    CHECK(simt::device.launches == given + (hours == 0 ? 0 : 1));
  }
}

TEST_CASE("a graph computes the ReLU behind it where fuse_relu asks for it and cuDNN has it, with the bits of two") {
  for (const bool there : {true, false}) {
    CAPTURE(there);
    const fresh_dnn machine;
    simt::dnn.relu_graphs = there;
    device fused{{.fuse_relu = true}}, plain;
    layer_of_images one{fused}, two{plain};
    const auto relu = [](layer_of_images& of) { return of.d.activate(activation::relu, of.forward()); };
    const auto want = plain.download(relu(two));
    CHECK_FALSE(simt::dnn.graph_runs.back().relu);
    CHECK(fused.download(relu(one)) == want);
    forget_runs();
    const std::uint64_t given = simt::device.launches;
    (void)relu(one).materialize();
    CHECK(simt::device.launches == given + (there ? 0 : 1));
    REQUIRE(simt::dnn.graph_runs.size() == 1);
    CHECK(simt::dnn.graph_runs[0].relu == there);
    CHECK(fused.download(one.forward()) == plain.download(two.forward()));
  }
}

TEST_CASE_FIXTURE(fresh_dnn, "a convolution that waits reads the weights and the bias of when it was asked for") {
  device d{{.fuse_relu = true}};
  layer_of_images of{d};
  const auto want = d.download(of.forward());
  const tensor waits = of.forward();
  CHECK(waits.held()->pending());
  (void)of.backward(waits.viewed(precision::bf16));
  const tensor later = of.forward();
  d.sgd_step(std::array{&of.w, &of.b}, {.learning_rate = 1});
  CHECK(d.download(later) == want);
  CHECK(d.download(of.forward()) != want);
}

TEST_CASE_FIXTURE(fresh_dnn, "a case that is first met in a capture is a call, and a graph when it comes outside") {
  device d;
  context& c = d.shared();
  layer_of_images of{d};
  settle(c, of.w, order::channels_last);
  (void)weights(c, of.w, of.p);
  (void)c.part<dnn>();
  (void)c.scratch(1 << 20);
  cudaGraph_t graph = nullptr;
  check(cudaStreamBeginCapture(c.stream().get(), cudaStreamCaptureModeThreadLocal), "beginning");
  (void)of.forward().materialize();
  check(cudaStreamEndCapture(c.stream().get(), &graph), "ending");
  CHECK(passes(simt::dnn.runs) == numbers{0});
  CHECK(simt::dnn.plans_made == 0);
  (void)of.forward().materialize();
  CHECK(passes(simt::dnn.runs) == numbers{0});
  CHECK_FALSE(simt::dnn.graph_runs.empty());
  check(cudaGraphDestroy(graph), "destroying");
}

TEST_CASE_FIXTURE(fresh_dnn,
                  "where memory is too short to try a plan it is looked for again, and tried when there is more") {
  simt::dnn.plans_unmade = {2};  // the one without a workspace
  device d;
  layer_of_images of{d};
  d.set_trainable(of.w, false);
  d.set_trainable(of.b, false);
  const tensor y = of.forward();
  (void)y.materialize();
  d.shared().drop_scratch();
  d.synchronize();
  d.shared().pool().give_back();
  simt::dnn.graph_runs.clear();
  const std::size_t all = std::exchange(simt::device.properties.totalGlobalMem, simt::device.used + 1100);  // dx: 1024
  CHECK_THROWS_AS((void)of.backward(y), out_of_memory);
  simt::device.properties.totalGlobalMem = all;
  CHECK(simt::dnn.graph_runs.empty());
  CHECK(of.backward(y).shape() == x_sizes);
  CHECK_FALSE(simt::dnn.graph_runs.empty());
}

TEST_CASE_FIXTURE(fresh_dnn, "what plans are tried in does not count in the peak, and what the kept one runs in does") {
  device d;
  context& c = d.shared();
  auto w = d.make_parameter(coarse(4 * 3, 1), {4, 3, 1, 1});
  const tensor x = in_order(c, d.upload(coarse(6 * 64 * 64, 2), {2, 3, 64, 64}, precision::bf16), order::channels_last);
  settle(c, w, order::channels_last);
  (void)weights(c, w, precision::bf16);
  const std::int64_t before = c.pool().live_bytes();
  c.pool().reset_peak();
  const tensor y = d.conv2d(x, w, nullptr, {});
  CHECK(c.pool().peak_bytes() == before + 2 * 4 * 64 * 64 * 2 + 64 * 64 * 4);  // y and the workspace of plan 1
}

TEST_CASE_FIXTURE(fresh_dnn, "a graph that fails after it has run is an error") {
  device d;
  layer_of_images of{d};
  (void)of.step();
  simt::dnn.plans_failing = {0, 1, 2};
  CHECK(refused_with<library_error>([&] { (void)of.forward(); }) ==
        "a convolution as a graph failed (cuDNN says cuDNN: asked to fail): look up the status in the library's "
        "documentation");
}

}  // namespace comp::cuda::test
