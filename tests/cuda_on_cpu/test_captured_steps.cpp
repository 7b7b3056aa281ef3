// SPDX-License-Identifier: Apache-2.0
// Steps that are looked at once, and captured ones, beside steps that wait for each loss: the same bits, fewer calls.
#include <array>
#include <comp_cuda/comp_cuda.hpp>
#include <comp_native/trainer.hpp>
#include <examples/models/native/models.hpp>
#include <random>

#include "../native/support.hpp"
#include "course.hpp"
#include "fresh.hpp"

namespace comp::cuda::test {
namespace {

using namespace comp::native;
using namespace comp::native::testing;
using comp::plan;
using comp::precision;
using comp::sample;

/// Takes the same algorithms each time: what is measured depends on the clock, and another algorithm has other bits.
struct same_device : cuda::device {
  same_device() : cuda::device{{.measure_algorithms = false}} {}
};
struct relu_in_product : cuda::device {
  relu_in_product() : cuda::device{{.measure_algorithms = false, .fuse_relu = true}} {}
};
/// Waits for each loss, and looks at gradients on the host.
struct waiting_device : same_device {
  void defer_losses(bool) = delete;
};
static_assert(!Defers<waiting_device> && Captures<cuda::device>);

struct counts {
  std::uint64_t given, graphs, waits;
};
counts counted() { return {simt::device.counts.given, simt::device.counts.graphs, simt::device.counts.waits}; }

model mlp() { return native_models::mlp({.batch = 8, .input = {6}, .hidden = {24}, .outputs = 2, .regression = true}); }
model convolutional() {
  model_builder net{"small", input_kind::values, {4, 1, 8, 8}};
  small_convolutional(net, 6, 4).log_softmax("logp").nll_loss("loss");
  return net.finish();
}
model lenet() { return native_models::lenet5({.batch = 2}); }
model gpt() {
  return native_models::gpt(
      {.batch = 2, .vocabulary = 7, .context = 8, .layers = 1, .width = 16, .heads = 2, .dropout = 0.1});
}
model bert() {
  return native_models::bert({.batch = 2,
                              .length = 6,
                              .layers = 1,
                              .width = 16,
                              .heads = 2,
                              .vocabulary = 11,
                              .positions = 8,
                              .dropout = 0,
                              .attention_dropout = 0.1,
                              .one_attention = true});
}
/// Tokens with segments, of which each example has more or fewer, and where its answer begins and ends.
struct questions {
  std::size_t examples;
  std::size_t size() const { return examples; }
  example_layout layout() const { return {.input = input_kind::tokens, .input_shape = {2, 6}, .target_shape = {2}}; }
  void write(std::size_t i, const example_spans& to) const {
    const std::size_t length = 2 + i * 3 % 5;
    for (std::size_t t = 0; t < 6; ++t) {
      to.tokens[t] = static_cast<std::int32_t>((i * 5 + t * 7) % 11);
      to.tokens[6 + t] = t >= length ? -1 : t > i % length;
    }
    to.labels[0] = static_cast<std::int32_t>(i % length);
    to.labels[1] = static_cast<std::int32_t>(length - 1);
  }
  std::string signature() const { return "questions"; }
};
data_source data_of(const model& m, std::size_t batches) {
  const auto n = batches * static_cast<std::size_t>(m.batch());
  if (m.predicts_values()) return regression_data{n};
  if (m.reads_segments()) return questions{n};
  if (m.input == input_kind::tokens) return counting_tokens(7, n * 8 + 1, 8);
  return bars({m.input_shape[1], m.input_shape[2], m.input_shape[3]},
              static_cast<std::int32_t>(m.shape_of(m.output()).back()), n, 1);
}
template <class D>
trainer<D> trainer_on(D& device, const model& m, const training& settings, std::size_t batches = 6) {
  return {device, m, data_of(m, batches), data_of(m, 1), settings};
}

training captured_with(training settings, capture_mode mode = capture_mode::on) {
  settings.captured = mode;
  return settings;
}
/// Products in FP8, everything else in BF16.
plan with_fp8(const model& m) {
  const op_graph graph = graph_of(m);
  plan p = everywhere(m, precision::bf16);
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (graph[i].kind == "linear") p[i] = precision::fp8_e4m3;
  }
  return p;
}

constexpr comp::scaling::settings moving{.initial = 65536, .growth_interval = 3};

/// The three ways, of which the captured one has its ReLUs in products, and what they have in common.
course same(const model& m, const training& settings, const std::vector<plan>& plans) {
  const auto course_on = [&](auto device, const training& how) {
    auto t = trainer_on(device, m, how);
    const course got = trained(device, t, plans);
    CHECK(t.capture_refused() == "");
    CHECK((simt::device.counts.graphs > 0) == (how.captured == capture_mode::on));
    return got;
  };
  const course looked_at = course_on(waiting_device{}, settings), deferred = course_on(same_device{}, settings),
               captured = course_on(relu_in_product{}, captured_with(settings));
  CHECK(looked_at.curves == deferred.curves);
  CHECK(looked_at == deferred);
  CHECK(deferred.curves == captured.curves);
  CHECK(deferred.messages == captured.messages);
  CHECK(deferred == captured);
  return captured;
}

TEST_CASE_FIXTURE(fresh_for_training,
                  "steps that are looked at once, captured or not, give the bits of steps that wait") {
  SUBCASE("in FP32, then in BF16") {
    same(mlp(), {.optimizer = sgd(0.05, 0.9, 1e-4)},
         {everywhere(mlp(), precision::fp32), everywhere(mlp(), precision::bf16)});
  }
  SUBCASE("in TF32 and FP8 with clipping") {
    same(mlp(), {.optimizer = adamw(0.01), .clip_norm = 0.3}, {everywhere(mlp(), precision::tf32), with_fp8(mlp())});
  }
  SUBCASE("micro-batches in FP16 with a scale that moves, fewer in the last step of an epoch") {
    training settings{.optimizer = adam(0.01), .clip_norm = 0.5, .scaling = moving};
    settings.scaling.micro_batches = 4;
    const course got = same(mlp(), settings, {everywhere(mlp(), precision::fp16)});
    CHECK(got.scale.scale != moving.initial);
  }
  SUBCASE("an overflow in FP16") {
    const course got = same(mlp(), {.optimizer = adam(0.01), .scaling = {.initial = 0x1p30, .growth_interval = 2}},
                            {everywhere(mlp(), precision::fp16), everywhere(mlp(), precision::fp32)});
    CHECK(got.scale.skipped > 0);
    CHECK(got.messages[0].find("steps skipped") != std::string::npos);
  }
  SUBCASE("more micro-batches than there was room for, in FP16") {
    training settings{.optimizer = sgd(0.01), .scaling = {.initial = 256, .micro_batches = 70}};
    waiting_device waiting;
    same_device device;
    auto a = trainer_on(waiting, mlp(), settings, 140);
    settings.captured = capture_mode::on;
    auto b = trainer_on(device, mlp(), settings, 140);
    CHECK(trained(waiting, a, {everywhere(mlp(), precision::fp16)}) ==
          trained(device, b, {everywhere(mlp(), precision::fp16)}));
    CHECK(b.capture_refused() == "");
  }
  SUBCASE("tokens with segments and padding, of other lengths in each batch, and dropout in one attention") {
    same(bert(), {.optimizer = adam(0.01)}, {everywhere(bert(), precision::bf16)});
  }
}

TEST_CASE_FIXTURE(fresh_for_training,
                  "two trainers take turns on one device, one of them captured, as if each was alone") {
  for (const model& m : {lenet(), gpt()}) {
    CAPTURE(m.name);
    same_device device;
    auto plain = trainer_on(device, m, {}), captured = trainer_on(device, m, captured_with({}));
    std::vector<std::vector<double>> curves[2];
    for (int epoch = 0; epoch < 3; ++epoch) {
      curves[0].push_back(plain.run_epoch().curve);
      curves[1].push_back(captured.run_epoch().curve);
      plain.run_batch();
      captured.run_batch();
    }
    CHECK(captured.capture_refused() == "");
    CHECK(curves[0] == curves[1]);
    same_device own;
    auto alone = trainer_on(own, m, {});
    for (const auto& curve : curves[0]) {
      CHECK(alone.run_epoch().curve == curve);
      alone.run_batch();
    }
  }
}

TEST_CASE_FIXTURE(fresh_for_training, "algorithms are measured in the first step of a plan, which is not captured") {
  cuda::device device;
  auto t = trainer_on(device, convolutional(), {.optimizer = sgd(0.05), .captured = capture_mode::on});
  t.run_epoch();
  CHECK(simt::device.counts.graphs == 5);
  t.set_precision(everywhere(convolutional(), precision::bf16));
  t.run_epoch();
  CHECK(simt::device.counts.graphs == 10);
  CHECK(t.capture_refused() == "");
}

TEST_CASE_FIXTURE(fresh_for_training, "a step that is looked at once waits once, and a captured one is few calls") {
  const training settings{.optimizer = sgd(0.05), .clip_norm = 1};
  const auto calls = [](auto device, const training& how) {  // of the second epoch
    auto t = trainer_on(device, lenet(), how);
    t.run_epoch();
    const counts before = counted();
    t.run_epoch();
    const counts after = counted();
    return counts{after.given - before.given, after.graphs - before.graphs, after.waits - before.waits};
  };
  const counts waiting = calls(waiting_device{}, settings), deferred = calls(same_device{}, settings),
               captured = calls(same_device{}, captured_with(settings));
  CHECK(waiting.waits >= 3 * 6);  // loss, norm, end
  // The other is for the copy of its batch, given a step before: a GPU has made it. One is before the epoch's clock,
  // one for the last update.
  CHECK(deferred.waits <= 2 * 6 + 2);
  CHECK(captured.waits <= 2 * 6 + 2);
  CHECK(deferred.graphs == 0);
  CHECK(captured.graphs == 6);
  CHECK(captured.given < 21 * 6);
  CHECK(captured.given < deferred.given / 3);
  MESSAGE("calls in 6 steps of LeNet: ", waiting.given, " and ", waiting.waits, " waits; deferred ", deferred.given,
          " and ", deferred.waits, "; captured ", captured.given, ", ", captured.graphs, " graphs, ", captured.waits);
}

TEST_CASE_FIXTURE(fresh_for_training, "captured steps count the memory of their graph, and leave as much in use") {
  const auto peak = [](bool captures) {
    same_device device;
    auto t = trainer_on(device, gpt(),
                        {.optimizer = sgd(0.05), .captured = captures ? capture_mode::on : capture_mode::off});
    t.run_epoch();
    const sample second = t.run_epoch();
    return std::pair{second.peak_bytes, device.live_bytes()};
  };
  const auto plain = peak(false), captured = peak(true);
  CHECK(plain.first > plain.second);
  CHECK(captured.first >= plain.first);  // a batch's place stays
  CHECK(captured.first < plain.first + 4 * 1024);
}

TEST_CASE_FIXTURE(fresh_for_training,
                  "a graph is dropped where plan, state or place change, and the training goes on as without") {
  const training settings{.optimizer = adam(0.01)};
  const auto course_of = [&](auto& device, bool captures) {
    auto t = trainer_on(device, gpt(), captured_with(settings, captures ? capture_mode::on : capture_mode::off));
    const auto saved = t.save();
    std::vector<double> curve;
    const auto add = [&](const sample& s) { curve.insert(curve.end(), s.curve.begin(), s.curve.end()); };
    add(t.run_epoch());
    t.restore(saved);
    add(t.run_epoch());
    auto& w = t.network().parameters()[3];
    device.set_values(w, device.values(w));  // elsewhere from now on
    add(t.run_epoch());
    t.set_precision(everywhere(gpt(), precision::bf16));
    add(t.run_epoch());
    device.set_values(w, std::vector<float>(device.values(w).size(), 0.01F));  // its low copy has to follow
    add(t.run_epoch());
    t.profile();
    add(t.run_epoch());
    CHECK(t.capture_refused() == "");
    return curve;
  };
  waiting_device waiting;
  same_device device;
  CHECK(course_of(waiting, false) == course_of(device, true));
}

TEST_CASE_FIXTURE(fresh_for_training, "a batch that is not full is given call by call") {
  training settings{.optimizer = sgd(0.05), .keep_last = true};
  const auto curve = [&](auto& device) {
    trainer<std::remove_reference_t<decltype(device)>> t{device, mlp(), regression_data{21}, regression_data{8},
                                                         settings};
    auto all = t.run_epoch().curve;
    for (const double loss : t.run_epoch().curve) all.push_back(loss);
    return all;
  };
  waiting_device waiting;
  same_device device;
  const auto expected = curve(waiting);
  settings.captured = capture_mode::on;
  CHECK(curve(device) == expected);
  CHECK(simt::device.counts.graphs == 3);  // of six steps: not the first, nor the last of either epoch
}

TEST_CASE("where memory runs out for a capture, or anything else refuses it, the training goes on call by call") {
  const fresh_for_training gpu;
  training settings{.optimizer = sgd(0.05)};
  std::vector<double> expected;
  {
    waiting_device device;
    auto t = trainer_on(device, gpt(), settings);
    for (int i = 0; i < 2; ++i) {
      for (const double loss : t.run_epoch().curve) expected.push_back(loss);
    }
  }
  settings.captured = capture_mode::on;
  same_device device;
  auto t = trainer_on(device, gpt(), settings);
  const auto curve = [&](std::size_t at, auto order) {
    const auto saved = t.save();
    std::vector<double> curve;
    for (int i = 0; i < 2; ++i) {
      const sample s = t.run_epoch([&](const sample& so_far) {
        if (i == 0 && so_far.curve.size() == at) order();
        return false;
      });
      curve.insert(curve.end(), s.curve.begin(), s.curve.end());
    }
    const std::string why = t.capture_refused();
    t.restore(saved);
    CHECK(curve == expected);
    return why;
  };
  CHECK(curve(1, [] {}) == "");
  CHECK(curve(3, [&] {  // the graph's memory is gone, and there is no other at first
          const std::size_t before = simt::device.used;
          REQUIRE(cudaDeviceGraphMemTrim(0) == cudaSuccess);
          CHECK(simt::device.used < before);
          simt::device.fail_allocation = 1;
        }) == "");
  CHECK(simt::device.fail_allocation == 0);
  CHECK(curve(1, [] { simt::device.properties.totalGlobalMem = simt::device.used + 16 * 1024; }) ==
        "");  // what the pool keeps will do
  const auto all_of_it = std::exchange(simt::device.properties.totalGlobalMem, std::size_t{1} << 30);
  CHECK(all_of_it < std::size_t{1} << 20);
  const std::string refused = curve(1, [] { simt::device.fail_allocation = 5; });  // test_faults.cpp has any
  CHECK(refused.find("a step as a CUDA graph (allocating ") == 0);
  CHECK(refused.find("its work is given call by call instead") != std::string::npos);
  CHECK(curve(1, [] { simt::device.fail_launch = 20; }).find("a step as a CUDA graph (launching a kernel failed") == 0);
  CHECK(curve(1, [] { simt::device.fail_library = 3; }).find("a step as a CUDA graph (") == 0);
}

TEST_CASE_FIXTURE(fresh_for_training,
                  "a capture that waits for the device, or keeps what it allocates, is refused and changes nothing") {
  same_device device;
  const std::vector<float> ones(8, 1);
  parameter w = device.make_parameter(ones, {2, 4});
  const tensor x = device.upload(ones, {2, 4}, precision::fp32);
  std::vector<parameter*> all{&w};
  const auto refused = [&](auto work) {
    std::string why;
    try {
      device.capture(all, 0, work);
    } catch (const capture_refused& e) {
      why = e.what();
    }
    CHECK(device.download(device.linear(x, w, nullptr)) == std::vector<float>(4, 4));
    CHECK(w.fresh);
    return why;
  };
  CHECK(refused([&] { device.synchronize(); }).find("a step as a CUDA graph (waiting for a stream failed") == 0);
  CHECK(refused([&] { (void)device.download(x); }).find("a step as a CUDA graph (fetching values failed") == 0);
  tensor kept;
  CHECK(refused([&] { kept = device.linear(x, w, nullptr); }) ==
        "a step as a CUDA graph (1 blocks of memory that it allocates are in use after it): its work is given call by "
        "call instead");
  kept = {};
  const tensor dy = device.upload(std::vector<float>(4, 1), {2, 2}, precision::fp32);
  CHECK(refused([&] { (void)device.linear_backward(dy, x, w, nullptr, false); }).find("blocks of memory") !=
        std::string::npos);  // its gradient
  CHECK(refused([&] { (void)device.upload(ones, {8}, precision::bf16); }) != "");
}

/// A linear layer whose squared error is captured, beside the calls that the graph stands for.
struct captured_layer {
  explicit captured_layer(precision as) : x{device.upload(std::vector<float>(64, 1), {4, 16}, as)} {}
  double loss_of_calls() {
    double loss = 0;
    device.mse_loss(device.linear(x, w, &b), target, &loss);
    return loss;
  }
  /// Of calls, and of a gradient that a step can follow.
  void differentiate() {
    device.zero_gradient(w);
    device.zero_gradient(b);
    const tensor dy = device.upload(std::vector<float>(64, 0.25F), {4, 16}, x.precision());
    (void)device.linear_backward(dy, x, w, &b, false);
  }
  captured_step captured() {
    device.defer_losses(true);
    captured_step step = device.capture(all, 0, [&] { device.mse_loss(device.linear(x, w, &b), target, &unused); });
    device.defer_losses(false);
    return step;
  }
  double loss_of_graph(captured_step& work) {
    double loss = 0;
    device.defer_losses(true);
    device.replay(work, 0, &loss);
    device.end_step();
    device.defer_losses(false);
    return loss;
  }

  same_device device;
  parameter w = device.make_parameter(std::vector<float>(256, 0.5F), {16, 16});
  parameter b = device.make_parameter(std::vector<float>(16, 1), {16});
  std::vector<parameter*> all{&w, &b};
  tensor x, target = device.upload(std::vector<float>(64, 0), {4, 16}, precision::bf16);
  double unused = 0;
};

}  // namespace

TEST_CASE_FIXTURE(fresh_for_training, "a graph keeps the scratch memory that it uses") {
  captured_layer layer{precision::bf16};
  layer.differentiate();
  const auto expected = layer.device.gradient(layer.b);
  const tensor dy = layer.device.upload(std::vector<float>(64, 0.25F), {4, 16}, precision::bf16);
  auto work = layer.device.capture(layer.all, 0, [&] {
    layer.device.zero_gradient(layer.b);
    (void)layer.device.linear_backward(dy, layer.x, layer.w, &layer.b, false);
  });
  (void)layer.device.shared().scratch(std::int64_t{1} << 20);  // what was there is too small by now
  layer.device.synchronize();
  REQUIRE(layer.device.usable(work));
  layer.device.replay(work, 0, nullptr);
  CHECK(layer.device.gradient(layer.b) == expected);
}

TEST_CASE_FIXTURE(fresh_for_training, "a graph is of no use when a low copy that it reads has moved") {
  captured_layer layer{precision::bf16};
  const double loss = layer.loss_of_calls();
  auto work = layer.captured();
  REQUIRE(layer.device.usable(work));
  CHECK(layer.loss_of_graph(work) == loss);
  const tensor fp16 = layer.device.upload(std::vector<float>(16, 1), {1, 16}, precision::fp16);
  (void)layer.device.linear(fp16, layer.w, nullptr);
  CHECK_FALSE(layer.device.usable(work));
}

TEST_CASE_FIXTURE(fresh_for_training, "a graph is of no use when a gradient that it writes has moved") {
  captured_layer layer{precision::fp32};
  (void)layer.loss_of_calls();  // makes the scratch memory, which a capture may not
  layer.differentiate();
  auto work = layer.captured();
  REQUIRE(layer.device.usable(work));
  layer.w.gradient = layer.device.upload(std::vector<float>(256, 0), {16, 16}, precision::fp32);
  CHECK_FALSE(layer.device.usable(work));
}

TEST_CASE_FIXTURE(fresh_for_training,
                  "a graph that finds no memory for its launch is refused, and what is given next runs") {
  captured_layer layer{precision::fp32};
  const double loss = layer.loss_of_calls();
  auto work = layer.captured();
  CHECK(layer.loss_of_graph(work) == loss);
  REQUIRE(cudaDeviceGraphMemTrim(0) == cudaSuccess);
  const std::size_t there_was = std::exchange(simt::device.properties.totalGlobalMem, std::size_t{0});
  CHECK_THROWS_AS(layer.loss_of_graph(work), capture_refused);
  simt::device.properties.totalGlobalMem = there_was;
  layer.device.defer_losses(false);
  CHECK(layer.loss_of_calls() == loss);
  CHECK(layer.loss_of_graph(work) == loss);
}

TEST_CASE_FIXTURE(fresh_for_training, "values that changed where they lie reach the low copy that a graph reads") {
  captured_layer layer{precision::bf16};
  const double before = layer.loss_of_calls();
  auto work = layer.captured();
  CHECK(layer.loss_of_graph(work) == before);
  layer.device.refill(layer.w.value, layer.device.upload(std::vector<float>(256, 2), {16, 16}, precision::fp32));
  layer.w.changed();
  REQUIRE(layer.device.usable(work));
  const double now = layer.loss_of_graph(work);
  CHECK(now > before);
  CHECK(now == layer.loss_of_calls());
}

TEST_CASE_FIXTURE(fresh_for_training, "a captured forward in FP8 or BF16 takes the weights of its run") {
  for (const precision p : {precision::fp8_e4m3, precision::bf16}) {
    CAPTURE(p);
    captured_layer layer{p};
    const double before = layer.loss_of_calls();  // quantised, and not changed since
    layer.differentiate();
    auto work = layer.captured();
    CHECK(layer.loss_of_graph(work) == before);
    double last = before;
    for (int step = 0; step < 2; ++step) {  // the graph keeps what it reads in use: its address stays
      layer.device.sgd_step(layer.all, {.learning_rate = 1});
      REQUIRE(layer.device.usable(work));
      const double now = layer.loss_of_graph(work);
      CHECK(now != std::exchange(last, now));
    }
    CHECK(last == layer.loss_of_calls());
  }
}

TEST_CASE("a captured forward in FP8 quantises its input when the graph runs, whoever has quantised it before") {
  const fresh_for_training gpu;
  for (const bool read_before : {false, true}) {
    CAPTURE(read_before);
    captured_layer layer{precision::fp8_e4m3};
    const tensor later = layer.device.upload(std::vector<float>(64, 3), {4, 16}, precision::fp8_e4m3);
    const tensor x = std::exchange(layer.x, later);
    const double of_later = layer.loss_of_calls();  // also makes the scratch memory, which a capture may not
    layer.x = x;
    if (read_before) CHECK(layer.loss_of_calls() != of_later);
    auto work = layer.captured();
    cuda::detail::copy_within(layer.device.shared(), x.materialize(), later.materialize(), 64 * 2);
    CHECK(layer.loss_of_graph(work) == of_later);
  }
}

TEST_CASE_FIXTURE(fresh_for_training,
                  "what captured work reads is refilled in the order of the stream, by what is like it") {
  cuda::device device;
  tensor x = device.upload(std::vector<float>(8, 1), {8}, precision::fp32);
  const tensor before = device.activate(activation::relu, x);  // waits for somebody to ask
  device.refill(x, device.upload(std::vector<float>(8, 2), {8}, precision::fp32));
  CHECK(device.download(x) == std::vector<float>(8, 2));
  CHECK(device.download(before) == std::vector<float>(8, 1));
  CHECK_THROWS_WITH_AS(device.refill(x, device.upload(std::vector<float>(7, 2), {7}, precision::fp32)),
                       "refill of (8) in fp32 with (7) in fp32 (values go where they lie, as FP32): give as many",
                       comp::error);
  CHECK_THROWS_AS(device.refill(x, device.upload(std::vector<float>(8, 2), {8}, precision::bf16)), comp::error);
}

TEST_CASE_FIXTURE(fresh_for_training,
                  "what is put where captured work reads it is what each call was given, however many of them wait") {
  for (const std::int64_t pinned : {0, 1 << 20}) {
    cuda::device device{{.pinned_limit = pinned}};
    context& c = device.shared();
    std::vector<tensor> all;
    for (int i = 0; i < 30; ++i) {  // more than there are blocks of pinned memory
      all.push_back(c.make({4}, precision::fp32));
      const std::vector<float> given(4, static_cast<float>(i));
      c.part<refills>().put(all.back().materialize(), std::as_bytes(std::span{given}));
    }
    for (std::size_t i = 0; i < all.size(); ++i) {
      CHECK(device.download(all[i]) == std::vector<float>(4, static_cast<float>(i)));
    }
  }
}

TEST_CASE_FIXTURE(fresh_for_training,
                  "refilled indices are taken and refused by their own range, as uploaded ones are") {
  cuda::device device;
  parameter table = device.make_parameter(std::vector<float>(5 * 4, 0.5F), {5, 4});
  const tensor scores = device.upload(std::vector<float>(6 * 5, 1), {6, 5}, precision::fp32);
  const auto taken = [](const auto& f) {
    try {
      f();
    } catch (const comp::error&) {
      return false;
    }
    return true;
  };
  std::mt19937 draw{7};
  indices at = device.upload(std::vector<std::int32_t>(6, 0), {6});
  for (int round = 0; round < 60; ++round) {
    const auto least = static_cast<std::int32_t>(draw() % 5) - 2, most = least + static_cast<std::int32_t>(draw() % 5);
    std::vector<std::int32_t> drawn(6, most);
    drawn[draw() % 6] = least;
    CAPTURE(least);
    CAPTURE(most);
    const indices from = device.upload(drawn, {6});
    device.refill(at, from);
    for (const indices* of : {&std::as_const(at), &from}) {
      double loss = 0;
      CHECK(taken([&] { (void)device.embedding(*of, table, precision::fp32); }) == (least >= 0 && most < 5));
      CHECK(taken([&] { (void)device.cross_entropy(scores, *of, &loss); }) == (most >= 0 && most < 5));
      CHECK((loss > 1) == (most >= 0 && most < 5));  // log 5
    }
  }
  CHECK_THROWS_WITH_AS(device.refill(at, device.upload(std::vector<std::int32_t>(5, 0), {5})),
                       "refill of 6 indices with 5 (they go where they lie): give as many", comp::error);
}

TEST_CASE("an update that is guarded is left out for each thing that is not finite, and scaled as two passes scale") {
  const fresh_for_training gpu;
  same_device device;
  const float infinity = std::numeric_limits<float>::infinity();
  for (const float bad : {0.0F, infinity, std::nanf("")}) {
    CAPTURE(bad);
    parameter w = device.make_parameter(std::vector<float>{0, 0}, {1, 2});
    std::vector<parameter*> all{&w};
    const tensor x = device.upload(std::vector<float>{3 + bad, 4}, {1, 2}, precision::fp32);
    const tensor dy = device.upload(std::vector<float>{1}, {1, 1}, precision::fp32);
    (void)device.linear_backward(dy, x, w, nullptr, false);
    device.defer_losses(true);
    device.guard_update(all, {.unscale = 0.7, .clip_norm = 0.3});
    device.sgd_step(all, {.learning_rate = 1});
    const step_gradients gradients = device.end_step();
    const auto& work = *device.shared().stream().get();
    CHECK(work.done < work.given);  // the update runs beside what the host does next
    device.defer_losses(false);
    CHECK(gradients.finite == (bad == 0));
    CHECK(device.gradient(w)[1] == 4);  // in memory it stays
    if (bad == 0) {
      CHECK(gradients.norm == 5 * 0.7);
      const auto clip = static_cast<float>(0.3 / (5 * 0.7));  // of these, two roundings and one give other bits
      CHECK(device.values(w) == std::vector<float>{-(3 * 0.7F * clip), -(4 * 0.7F * clip)});
    } else {
      CHECK(device.values(w) == std::vector<float>{0, 0});
    }
    device.sgd_step(all, {.learning_rate = 0});  // the guard was for one update
  }
}

TEST_CASE_FIXTURE(fresh_for_training,
                  "an update is left out where any one loss of its step is not finite, though all gradients are") {
  same_device device;
  parameter w = device.make_parameter(std::vector<float>{0}, {1, 1});
  std::vector<parameter*> all{&w};
  const tensor one = device.upload(std::vector<float>{1}, {1, 1}, precision::fp32);
  const tensor far = device.upload(std::vector<float>{1e30F}, {1, 1}, precision::fp32);
  (void)device.linear_backward(one, one, w, nullptr, false);
  for (std::size_t bad = 0; bad < 4; ++bad) {  // 3: none
    std::array<double, 3> losses{};
    device.defer_losses(true);
    for (double& loss : losses) device.mse_loss(&loss == losses.data() + bad ? far : one, one, &loss);
    device.guard_update(all, {});
    device.sgd_step(all, {.learning_rate = 1});
    CHECK(device.end_step().finite);
    device.defer_losses(false);
    for (std::size_t i = 0; i < 3; ++i) CHECK(std::isfinite(losses[i]) == (i != bad));
    CHECK(device.values(w) == std::vector<float>{bad == 3 ? -1.0F : 0.0F});
  }
}

TEST_CASE_FIXTURE(fresh_for_training, "a loss that is not finite is told as without deferring, captured or not") {
  for (const bool captures : {false, true}) {
    waiting_device waiting;
    same_device device;
    training settings{.optimizer = sgd(1e18), .scaling = {.micro_batches = 2}};
    model_builder net{"small", input_kind::values, {8, 6}};
    net.input().linear("hidden", 24).dropout("dropout", 0.2).linear("head", 2).mse_loss("loss");
    const model m = net.finish();
    auto a = trainer_on(waiting, m, settings, 24);
    settings.captured = captures ? capture_mode::on : capture_mode::off;
    auto b = trainer_on(device, m, settings, 24);
    const sample x = a.run_epoch(), y = b.run_epoch();
    CHECK(x.status == comp::status::not_finite);
    CHECK(y.status == comp::status::not_finite);
    CHECK(x.message == y.message);
    CHECK(x.curve.size() == y.curve.size());
    CHECK(x.not_finite == y.not_finite);
    for (std::size_t i = 0; i + 4 < x.curve.size(); ++i) CHECK(x.curve[i] == y.curve[i]);
    CHECK(values(waiting, a) == values(device, b));
    CHECK(a.save().position == b.save().position);
    CHECK(a.save().draws == b.save().draws);
  }
}

}  // namespace comp::cuda::test
