// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <comp_native/trainer.hpp>
#include <examples/models/native/models.hpp>
#include <thread>
#include <variant>

#include "reference_device.hpp"
#include "support.hpp"

using namespace comp::native;
using namespace comp::native::testing;
using comp::plan;
using comp::precision;
using comp::sample;
using reference_trainer = trainer<reference::device>;
using capable_trainer = trainer<reference::capable_device>;

static_assert(comp::Backend<reference_trainer>);
static_assert(comp::detail::saves<reference_trainer> && comp::detail::stops<reference_trainer>);
static_assert(comp::detail::profiles<reference_trainer> && comp::detail::validates<reference_trainer>);
static_assert(comp::detail::signs<reference_trainer> && comp::detail::knows_hardware<reference_trainer>);
static_assert(comp::detail::supports_some<capable_trainer>);

namespace {

model small_gpt(double dropout = 0.1) {
  return native_models::gpt(
      {.batch = 4, .vocabulary = 7, .context = 8, .layers = 1, .width = 16, .heads = 2, .dropout = dropout});
}
model small_images(bool norm = true) {
  model_builder net{"small", input_kind::values, {8, 1, 8, 8}};
  value x = net.input().conv2d("conv", 6, {.padding = 1});
  if (norm) x = x.batch_norm("norm");
  x.relu("relu")
      .max_pool2d("pool")
      .flatten("flatten")
      .dropout("dropout", 0.1)
      .linear("head", 4)
      .cross_entropy_loss("loss");
  return net.finish();
}
model regression() {
  return native_models::mlp({.batch = 8, .input = {6}, .hidden = {24}, .outputs = 2, .regression = true});
}

std::vector<double> weights(reference_trainer& t) {
  std::vector<double> all;
  for (const auto& p : t.network().parameters()) all.insert(all.end(), p.value.begin(), p.value.end());
  return all;
}

TEST_CASE("an MLP learns to predict values") {  // other families learn on each device: devices/test_networks.cpp
  reference::device device;
  reference_trainer t{device, regression(), regression_data{256}, regression_data{64}, {.optimizer = adam(0.01)}};
  const double before = t.validate();
  for (int i = 0; i < 12; ++i) t.run_epoch();
  CHECK(before < -0.3);
  CHECK(t.validate() > -0.03);
}

TEST_CASE_FIXTURE(on_reference, "a restored state gives the same losses, bit for bit") {
  const auto check = [](reference_trainer& t) {
    t.run_epoch();
    t.run_batch();
    const auto saved = t.save();
    const auto score = t.validate();
    const sample first = t.run_batch(), epoch = t.run_epoch();
    const auto after = weights(t);
    t.restore(saved);
    CHECK(t.validate() == score);
    CHECK(t.run_batch().loss == first.loss);
    CHECK(t.run_epoch().curve == epoch.curve);
    CHECK(weights(t) == after);
    t.restore(saved);
    CHECK(t.run_batch().loss == first.loss);
    return saved;
  };
  SUBCASE("momentum, running statistics and dropout") {
    reference_trainer t{
        device, small_images(), bars({1, 8, 8}, 4, 40, 1), bars({1, 8, 8}, 4, 16, 2), {.optimizer = sgd(0.05, 0.9)}};
    check(t);
  }
  SUBCASE("Adam's moments, schedule and loss scale") {
    const auto tokens = counting_tokens(7, 200, 8);
    reference_trainer t{
        device,
        small_gpt(),
        tokens,
        tokens,
        {.optimizer = adamw(0.01), .schedule = {.warmup = 3, .total = 30}, .scaling = {.growth_interval = 2}}};
    t.set_precision(plan{t.graph().size(), precision::fp16});
    const auto saved = check(t);
    CHECK(saved.updates[0].scale.steps == 7);
    CHECK(saved.updates[0].scale.scale == 65536 * 8);  // doubled after every second step
    CHECK(t.save().updates[0].scale.steps == 8);
    t.restore(saved);
    CHECK(t.save().updates == saved.updates);
  }
  SUBCASE("two phases with an optimizer each, and noise") {
    const auto images = bars({1, 2, 3}, 3, 40, 1);
    reference_trainer t{
        device, small_gan(8), images, images, {.optimizer = adam(0.01), .optimizer_of = {{"judge", sgd(0.1, 0.9)}}}};
    check(t);
    CHECK(t.run_batch().loss != t.run_batch().loss);
  }
}

TEST_CASE_FIXTURE(on_reference, "each phase has a loss and an optimizer of its own, and moves what it trains alone") {
  const auto images = bars({1, 2, 3}, 3, 40, 1);
  const auto values = [](reference_trainer& t, std::size_t phase) {
    std::vector<std::vector<double>> all;
    for (const auto* p : t.network().trained_by(phase)) all.push_back(p->value);
    return all;
  };
  for (const std::size_t still : {0, 1}) {
    CAPTURE(still);
    const std::map<std::string, optimizer, std::less<>> one_stands{{still == 0 ? "make" : "judge", sgd(0)}};
    reference_trainer t{device, small_gan(8), images, images, {.optimizer = sgd(0.1), .optimizer_of = one_stands}};
    const auto stays = values(t, still), moves = values(t, 1 - still);
    const sample got = t.run_epoch();
    CHECK(t.save().position == loader_position{1, 0});  // both phases of a step read one batch
    CHECK(values(t, still) == stays);
    CHECK(values(t, 1 - still) != moves);
    for (std::size_t i = 0; i < t.model().parameters.size(); ++i) {  // a phase's backward leaves others as they were
      CHECK(t.network().parameters()[i].trainable == t.model().parameters[i].trainable);
    }
    REQUIRE(got.losses.size() == 2);
    CHECK(got.loss == doctest::Approx(got.losses[0] + got.losses[1]).epsilon(1e-12));
    REQUIRE(got.curves.size() == 2);
    for (std::size_t i = 0; i < got.curve.size(); ++i) CHECK(got.curve[i] == got.curves[0][i] + got.curves[1][i]);
  }
}

TEST_CASE(
    "the score that was asked for is made of the outputs of all validation examples, with the same noise each time") {
  reference::device device;
  const auto images = bars({1, 2, 3}, 3, 40, 1), others = bars({1, 2, 3}, 3, 19, 2);
  std::vector<std::vector<float>> last_outputs;
  const scoring score{.reads = {"judge.out@real", "judge.out@made"}, .score = [&](auto outputs) {
                        last_outputs.assign(outputs.begin(), outputs.end());
                        return 0.25;
                      }};
  reference_trainer t{device, small_gan(8), images, others, {.optimizer = sgd(0), .score = score}};
  CHECK(t.validate() == 0.25);
  const auto first = last_outputs;
  REQUIRE(first.size() == 2);
  CHECK(first[0].size() == 19);
  CHECK(first[1].size() == 19);
  CHECK(first[1][0] != first[1][8]);  // noise of another batch
  CHECK(t.validate() == 0.25);
  CHECK(last_outputs == first);
}

TEST_CASE_FIXTURE(on_reference, "what a step of several phases cannot do is refused") {
  const auto images = bars({1, 2, 3}, 3, 40, 1);
  const auto refusal = [&](const training& chosen) {
    return words_of<comp::settings_error>([&] { reference_trainer{device, small_gan(8), images, images, chosen}; });
  };
  CHECK(
      refusal({.scaling = {.micro_batches = 2}}) ==
      "captured = measured, 2 micro-batches for a step of 2 phases (each reads what the one before it has made of the "
      "batch): leave them out");
  CHECK(refusal({.optimizer_of = {{"maker", sgd(1)}}}) ==
        "an optimizer of phase \"maker\" (model \"gan\" has none of that name): name one of its own");
  CHECK(refusal({.optimizer_of = {{"make", sgd(-1)}}}).find("learning rate = -1") != std::string::npos);
  CHECK(refusal({.score = {.reads = {"nothing"}}}) ==
        "a score of \"nothing\" (model \"gan\" has no such operator): name one of its own");
}

TEST_CASE("a run has the device's times and its peak without what saved states hold, and waits for each step") {
  struct counting : reference::capable_device {
    mutable double now = 0;
    int waits = 0, resets = 0;
    mutable std::int64_t live = 7;
    double seconds() const override { return ++now; }
    void synchronize() override { ++waits; }
    void reset_peak() override { ++resets; }
    std::int64_t live_bytes() const override { return live; }
    std::int64_t peak_bytes() const override { return 100; }
    parameter_state snapshot(const parameter& p) const override { return live += 5, reference::device::snapshot(p); }
  } device;
  capable_trainer t{device, regression(), regression_data{24}, regression_data{16}};
  {
    const auto held = t.save();  // of four parameters
    const sample epoch = t.run_epoch();
    CHECK(epoch.batch_seconds == std::vector<double>{1, 1, 1});
    CHECK(epoch.seconds == 9);  // the clock is read three times for each step
    CHECK(epoch.peak_bytes == 80);
    CHECK(device.waits == 3);
    CHECK(device.resets == 1);
  }
  CHECK(t.run_epoch([](const sample&) { return true; }).peak_bytes == 100);
  CHECK(device.waits == 5);  // for the step, and when it was stopped
}

TEST_CASE_FIXTURE(on_reference,
                  "an epoch ends when the predicate says so, asked after every batch with what it gave so far") {
  reference_trainer t{device, small_images(), bars({1, 8, 8}, 4, 40, 1), bars({1, 8, 8}, 4, 16, 2)};
  std::vector<std::int64_t> asked;
  const sample cut = t.run_epoch([&](const sample& so_far) {
    asked.push_back(so_far.batches);
    CHECK(so_far.curve.size() == static_cast<std::size_t>(so_far.batches));
    return so_far.batches == 3;
  });
  CHECK(asked == std::vector<std::int64_t>{1, 2, 3});
  CHECK(cut.status == comp::status::stopped_early);
  CHECK(cut.batches == 3);
  CHECK(t.run_batch().batches == 1);
  t.run_epoch();  // begins an epoch of its own
  CHECK(t.save().position == loader_position{2, 0});
}

TEST_CASE("losses that are not finite one after the other end the epoch and are reported; a restored state trains on") {
  reference::device device;
  reference_trainer t{device, regression(), regression_data{64}, regression_data{16}, {.optimizer = sgd(1e200)}};
  const auto saved = t.save();
  const sample blown = t.run_epoch();
  CHECK(blown.status == comp::status::not_finite);
  CHECK(blown.batches < 8);
  CHECK(blown.not_finite == 4);
  CHECK_FALSE(std::isfinite(blown.curve.back()));
  CHECK(blown.message.find("in step") != std::string::npos);
  t.restore(saved);
  CHECK(t.run_batch().ok());
}

/// Makes the gradient of the linear operator infinite if the loss is scaled by more than `most`, and of several losses
/// that of the one whose logits should say `of`.
struct overflowing : reference::device {
  double most = 1024, of = 0, last_scale = 0;
  double overflow(double scale) {
    return last_scale = scale, scale > most ? std::numeric_limits<double>::infinity() : scale;
  }
  tensor mse_loss_backward(const tensor& x, const tensor& target, double scale) override {
    return reference::device::mse_loss_backward(x, target, overflow(scale));
  }
  tensor binary_cross_entropy_backward(const tensor& x, double target, double scale) override {
    return reference::device::binary_cross_entropy_backward(x, target, target == of ? overflow(scale) : scale);
  }
};
TEST_CASE(
    "an overflow in one network's gradients skips its step and lowers its scale, and the other's stays as it is") {
  const auto images = bars({1, 2, 3}, 3, 40, 1);
  for (const std::size_t hit : {0, 1}) {
    CAPTURE(hit);
    overflowing device;
    device.of = hit == 0 ? 1 : 0;
    reference_trainer t{device, small_gan(8), images, images};
    plan p{t.graph().size()};
    p[1] = precision::fp16;
    t.set_precision(p);
    const auto value = [&](std::size_t phase) { return t.network().trained_by(phase)[0]->value; };
    const auto skipped = value(hit), moved = value(1 - hit);
    const sample got = t.run_batch();
    CHECK(got.ok());
    CHECK(got.message == (hit == 0 ? "1 steps skipped: FP16 gradients overflowed, loss scale now 32768 and 65536"
                                   : "1 steps skipped: FP16 gradients overflowed, loss scale now 65536 and 32768"));
    CHECK(value(hit) == skipped);
    CHECK(value(1 - hit) != moved);
    const auto updates = t.save().updates;
    CHECK(updates[hit].taken == 0);
    CHECK(updates[hit].scale.skipped == 1);
    CHECK(updates[1 - hit].taken == 1);
    CHECK(updates[1 - hit].scale.skipped == 0);
  }
}

TEST_CASE("an FP16 gradient that overflows skips the step, lowers the scale and is told") {
  overflowing device;
  reference_trainer t{device, regression(), regression_data{64}, regression_data{16}};
  plan p{t.graph().size()};
  p[0] = precision::fp16;
  t.set_precision(p);
  const auto before = t.network().trainable()[0]->value;
  sample got = t.run_batch();
  CHECK(got.ok());
  CHECK(got.message == "1 steps skipped: FP16 gradients overflowed, loss scale now 32768");
  CHECK(t.network().trainable()[0]->value == before);
  for (int i = 0; i < 6; ++i) got = t.run_batch();
  CHECK(got.message.empty());
  CHECK(device.last_scale == 1024);
  CHECK(t.network().trainable()[0]->value != before);
  SUBCASE("the scaled step is the step that FP32 takes") {
    const auto saved = t.save();
    t.run_batch();
    const auto scaled = t.network().trainable()[0]->value;
    t.restore(saved);
    t.set_precision(plan{t.graph().size()});
    t.run_batch();
    CHECK(device.last_scale == 1);
    for (std::size_t i = 0; i < scaled.size(); ++i) {
      CHECK(scaled[i] == doctest::Approx(t.network().trainable()[0]->value[i]).epsilon(1e-12));
    }
  }
  SUBCASE("an overflow at every scale is the end") {
    device.most = 0;
    sample last;
    int steps = 0;
    for (; steps < 99 && last.status != comp::status::not_finite; ++steps) last = t.run_batch();
    CHECK(steps == 27);  // 26 halvings from 2^10 to the floor, 2^-16, and the one that finds no other scale
    CHECK(last.message.find("gradients of layer0.linear.weight") == 0);
    CHECK(last.message.find(" not finite in step 1 at the lowest loss scale, 1.52587890625e-05 (they left the range of "
                            "their precision): use more FP32") != std::string::npos);
  }
}

TEST_CASE("a gradient that is not finite without FP16 is reported, and the weights stay") {
  overflowing device;
  device.most = 0;
  for (const double clip : {0.0, 1.0}) {
    reference_trainer t{device, regression(), regression_data{64}, regression_data{16}, {.clip_norm = clip}};
    const auto before = t.network().trainable()[0]->value;
    const sample got = t.run_batch();
    CHECK(got.status == comp::status::not_finite);
    CHECK(
        got.message ==
        "gradients of layer0.linear.weight, layer0.linear.bias, head.weight and 1 more not finite in step 0 (they left "
        "the range of their precision): use more FP32");
    CHECK(t.network().trainable()[0]->value == before);
    CHECK(std::isfinite(got.loss));
  }
}

TEST_CASE("of a step's gradients those are named that are not finite, of a later phase's those that are its own") {
  struct damaging : reference::device {
    std::int64_t outputs = 2;  // of the layer whose gradient it damages
    tensor linear_backward(const tensor& dy, const tensor& x, parameter& w, parameter* b, bool need_dx,
                           bool need_parameters) override {
      tensor dx = reference::device::linear_backward(dy, x, w, b, need_dx, need_parameters);
      if (w.extents[0] == outputs && w.trainable) w.gradient[0] = std::numeric_limits<double>::quiet_NaN();
      return dx;
    }
  } device;
  reference_trainer t{device, regression(), regression_data{64}, regression_data{16}};
  CHECK(t.run_batch().message.starts_with("gradients of head.weight not finite in step 0 "));
  const auto images = bars({1, 2, 3}, 3, 40, 1);
  device.outputs = 1;
  reference_trainer gan{device, small_gan(8), images, images};
  CHECK(gan.run_batch().message.starts_with("gradients of judge.out.weight not finite in step 0 "));
  const std::vector<std::string> names{"a", "b", "c", "d"};
  CHECK(first_names({names.data(), 3}) == "a, b, c");
  CHECK(first_names(names) == "a, b, c and 1 more");
}

TEST_CASE("a step of micro-batches, and a smaller last one, is the step of one batch as large, in FP32 and scaled") {
  reference::device device;
  const auto trained = [&](std::size_t examples, std::int64_t batch, std::int64_t micro_batches, precision p,
                           double clip) {
    reference_trainer t{
        device,
        native_models::mlp({.batch = batch, .input = {6}, .hidden = {24}, .outputs = 2, .regression = true}),
        regression_data{examples},
        regression_data{64},
        {.optimizer = adam(0.01), .clip_norm = clip, .scaling = {.micro_batches = micro_batches}}};
    t.set_precision(plan{t.graph().size(), p});
    const sample epoch = t.run_epoch();
    CHECK(epoch.batches == static_cast<std::int64_t>(t.batches_per_epoch()));
    CHECK(t.save().position == loader_position{1, 0});
    return std::pair{epoch.curve, weights(t)};
  };
  for (const std::size_t examples : {64, 24}) {  // two steps of four micro-batches, and one of three
    for (const auto& [p, clip] : {std::pair{precision::fp32, 0.0}, {precision::fp32, 0.1}, {precision::fp16, 0.1}}) {
      CAPTURE(examples);
      CAPTURE(name(p));
      CAPTURE(clip);
      const auto [curve, values] = trained(examples, 8, 4, p, clip);
      const auto [expected_curve, expected] = trained(examples, examples == 64 ? 32 : 24, 1, p, clip);
      CHECK(curve.size() == (examples == 64 ? 2 : 1));
      REQUIRE(curve.size() == expected_curve.size());
      const double near = p == precision::fp32 ? 1e-9 : tolerance::network(p);
      for (std::size_t i = 0; i < curve.size(); ++i)
        CHECK(curve[i] == doctest::Approx(expected_curve[i]).epsilon(near));
      REQUIRE(values.size() == expected.size());
      for (std::size_t i = 0; i < values.size(); ++i) CHECK(values[i] == doctest::Approx(expected[i]).epsilon(near));
    }
  }
}

TEST_CASE_FIXTURE(on_reference, "clipping limits the norm of all gradients together") {
  reference_trainer t{
      device, regression(), regression_data{64}, regression_data{16}, {.optimizer = sgd(1), .clip_norm = 1e-3}};
  const auto before = weights(t);
  t.run_batch();
  const auto after = weights(t);
  double squares = 0;
  for (std::size_t i = 0; i < after.size(); ++i) squares += (after[i] - before[i]) * (after[i] - before[i]);
  CHECK(std::sqrt(squares) == doctest::Approx(1e-3).epsilon(1e-2));
}

/// Values that take long to load, counted.
struct slow_data : regression_data {
  std::chrono::microseconds each{0};
  std::shared_ptr<std::atomic<int>> written = std::make_shared<std::atomic<int>>(0);
  void write(std::size_t i, const example_spans& to) const {
    std::this_thread::sleep_for(each);
    regression_data::write(i, to);
    ++*written;
  }
};
}  // namespace

TEST_CASE("a profile times no operator while the loader is behind") {
  const slow_data data{{}, std::chrono::milliseconds{1}};
  struct watching : reference::device {
    std::shared_ptr<std::atomic<int>> written = {};
    std::vector<int> counts = {};  // how much was loaded when a linear layer began
    tensor linear(const tensor& x, parameter& w, parameter* b) override {
      counts.push_back(*written);
      return reference::device::linear(x, w, b);
    }
  } device;
  device.written = data.written;
  reference_trainer t{device, regression(), data, regression_data{16}, {.shuffle = false, .profile_steps = 3}};
  (void)t.profile();
  REQUIRE(device.counts.size() == 8);  // two layers of four steps
  for (int step = 0; step < 4; ++step) CHECK(device.counts[static_cast<std::size_t>(2 * step)] >= 8 * (step + 2));
}

TEST_CASE_FIXTURE(on_reference, "a validation loads each example once") {
  const slow_data data;
  reference_trainer t{device, regression(), regression_data{64}, data};
  for (int times = 1; times <= 3; ++times) {
    (void)t.validate();
    std::this_thread::sleep_for(std::chrono::milliseconds{20});  // a thread that goes on would have begun
    CHECK(*data.written == 64 * times);
  }
}

TEST_CASE_FIXTURE(on_reference, "the signature tells models apart whose graphs look the same") {
  const auto signature = [&](const model& m) {
    const auto images = bars({1, 8, 8}, 4, 40, 1);
    return reference_trainer{device, m, images, images}.signature();
  };
  const auto images = [](const auto& change) {
    model_builder net{"images", input_kind::values, {8, 1, 8, 8}};
    change(net, net.input()).linear("head", 4).cross_entropy_loss("loss");
    return net.finish();
  };
  std::vector<model> models;
  for (const convolution o : {convolution{4, 8}, convolution{4, 8, 1}, convolution{4, 8, 0, 2}}) {
    models.push_back(images([&](auto&, value x) { return x.conv2d("it", 2, o).flatten("flat"); }));
  }
  for (const op::batch_norm o : {op::batch_norm{}, op::batch_norm{.eps = 1e-3}, op::batch_norm{.momentum = 0.2}}) {
    models.push_back(images([&](auto&, value x) { return x.batch_norm("it", o).flatten("flat"); }));
  }
  for (const double eps : {1e-5, 1e-3}) {
    models.push_back(images([&](auto&, value x) { return x.flatten("flat").layer_norm("it", {eps}); }));
  }
  for (const activation of : {activation::gelu, activation::gelu_tanh}) {
    models.push_back(images([&](auto&, value x) { return x.activate("it", of).flatten("flat"); }));
  }
  for (const double p : {0.1, 0.2}) {
    models.push_back(images([&](auto&, value x) { return x.dropout("it", p).flatten("flat"); }));
  }
  for (const pool2d_options o : {pool2d_options{}, pool2d_options{.kernel = {1, 1}}, pool2d_options{{4, 4}, {4, 4}},
                                 pool2d_options{{4, 4}, {4, 4}, {1, 1}}}) {
    models.push_back(images([&](auto&, value x) { return x.max_pool2d("it", o).flatten("flat"); }));
    models.push_back(images([&](auto&, value x) { return x.avg_pool2d("it", o).flatten("flat"); }));
  }
  for (const op::softmax_mask mask : {op::softmax_mask::none, op::softmax_mask::causal}) {
    models.push_back(images([&](auto&, value x) { return x.softmax("it", mask).flatten("flat"); }));
  }
  for (const op::bmm o : {op::bmm{}, op::bmm{.transpose_b = true}, op::bmm{.alpha = 2}}) {
    models.push_back(images([&](auto&, value x) { return x.bmm("it", x, o).flatten("flat"); }));
  }
  for (const double deviation : {0.02, 0.03}) {
    models.push_back(images([&](auto& net, value x) { return net.normal_weights(deviation), x.flatten("flat"); }));
  }
  for (const bool decays : {true, false}) {
    models.push_back(images([&](auto& net, value x) { return net.decay(decays), x.flatten("flat"); }));
  }
  std::vector<std::string> signatures;
  for (const model& m : models) signatures.push_back(signature(m));
  CHECK(signature(models.front()) == signatures.front());
  for (std::size_t i = 0; i < signatures.size(); ++i) {
    CAPTURE(models[i].nodes.front().name);
    CAPTURE(i);
    CHECK(std::ranges::count(signatures, signatures[i]) == 1);
  }
  model gan = small_gan(8), soft = gan, other_phases = gan, held = gan, drawn = gan, cut = gan;
  for (node& n : soft.nodes) {
    if (auto* loss = std::get_if<op::binary_cross_entropy_loss>(&n.what)) loss->target *= 0.5;
  }
  other_phases.phases[0].trains[0] = !gan.phases[0].trains[0];
  held.parameters[0].trainable = false;
  drawn.parameters[0].initial.how = initial::kind::normal;
  --cut.phases[0].last;
  for (const model& m : {soft, other_phases, held, drawn, cut}) {
    CHECK(graph_of(m).fingerprint() == graph_of(gan).fingerprint());
    CHECK(hash_of_options(m) != hash_of_options(gan));
  }
  model crossed = gan, shared = gan;
  std::swap(crossed.nodes[1].inputs, crossed.nodes[2].inputs);
  std::swap(shared.nodes[1].parameters[0], shared.nodes[1].parameters[1]);
  for (const model& m : {crossed, shared}) CHECK(hash_of_options(m) != hash_of_options(gan));
  const auto attending = [](const attention_options& o, op::looked_up of = op::looked_up::tokens) {
    model_builder net{"attending", input_kind::tokens, {2, 4}};
    const value x = net.input().embedding("x", 7, 4, of);
    x.attention("it", x, x, o).linear("head", 7).cross_entropy_loss("loss");
    return hash_of_options(net.finish());
  };
  CHECK(attending({}) != attending({.heads = 2}));
  CHECK(attending({}) != attending({.mask = op::softmax_mask::causal}));
  CHECK(attending({}) != attending({.dropout = 0.1}));
  CHECK(attending({}) != attending({}, op::looked_up::positions));
  const auto on_graph = [](std::int32_t from, double slope, std::int32_t row = 1, std::vector<float> weights = {}) {
    model_builder net{"graph", input_kind::values, {1, 2}};
    const sparse matrix = model_builder::matrix({2, 2, {0, row, 2}, {0, from}, std::move(weights)});
    const value x = net.input().sparse_linear("x", matrix, 4);
    x.edge_scores("scores", matrix, 2, slope).cross_entropy_loss("loss");
    return hash_of_options(net.finish());
  };
  CHECK(on_graph(1, 0.2) == on_graph(1, 0.2));
  CHECK(on_graph(1, 0.2) != on_graph(0, 0.2));
  CHECK(on_graph(1, 0.2) != on_graph(1, 0.1));
  CHECK(on_graph(1, 0.2) != on_graph(1, 0.2, 2));
  CHECK(on_graph(1, 0.2) != on_graph(1, 0.2, 1, {1, 2}));
}

TEST_CASE_FIXTURE(on_reference,
                  "each label that counts has the same weight in a score, however the batches divide them") {
  const auto tokens = counting_tokens(7, 65, 8);
  const partly_labelled held_out{tokens, [](std::size_t i) { return i < 4 ? 1U : 8U; }};
  REQUIRE(held_out.size() == 8);
  const auto score = [&](std::int64_t batch) {
    const model m = native_models::gpt(
        {.batch = batch, .vocabulary = 7, .context = 8, .layers = 1, .width = 16, .heads = 2, .dropout = 0});
    return reference_trainer{device, m, tokens, held_out}.validate();
  };
  CHECK(score(4) == doctest::Approx(score(8)).epsilon(1e-9));
}

struct partly_drawn : regression_data {
  void write(std::size_t i, const example_spans& to) const {
    regression_data::write(i, to);
    to.values[0] = static_cast<float>(to.draw % 1000) / 1000;
  }
};

TEST_CASE_FIXTURE(on_reference, "a validation on data that is drawn draws the same each time") {
  reference_trainer t{device, regression(), partly_drawn{}, partly_drawn{}};
  const double score = t.validate();
  CHECK(t.validate() == score);
}

TEST_CASE_FIXTURE(on_reference, "weight decay holds for what a model names, behind running statistics, too") {
  model m = small_images();
  for (parameter_info& p : m.parameters) p.decays = p.name.ends_with("weight");
  network<reference::device> net{device, m, 1};
  std::vector<reference::parameter*> wanted;
  for (std::size_t i = 0; i < m.parameters.size(); ++i) {
    if (m.parameters[i].decays) wanted.push_back(net.all()[i]);
  }
  CHECK(std::ranges::equal(net.decaying(0), wanted));
  CHECK(net.not_decaying(0).size() == 3);  // the biases
  const auto images = bars({1, 8, 8}, 4, 40, 1);
  reference_trainer decayed{device, m, images, images, {.optimizer = sgd(0.1, 0, 0.3)}},
      plain{device, m, images, images, {.optimizer = sgd(0.1)}};
  decayed.run_batch(), plain.run_batch();
  for (std::size_t i = 0; i < m.parameters.size(); ++i) {
    if (m.parameters[i].trainable)
      CHECK((decayed.network().parameters()[i].value != plain.network().parameters()[i].value) ==
            m.parameters[i].decays);
  }
}

TEST_CASE_FIXTURE(on_reference, "a batch that does not fit the model is still the next one when it has been refused") {
  const model m = small_images();  // has 4 classes, the data 8
  batch_feed<reference::device> feed{device, m, bars({1, 8, 8}, 8, 40, 1), {.batch = 8}};
  for (int times = 0; times < 2; ++times) {
    CHECK_THROWS_AS(feed.next(), comp::error);
    CHECK(feed.at() == loader_position{});
  }
}

TEST_CASE_FIXTURE(on_reference, "model and data that do not fit are refused with both") {
  const auto refusal = [&](const model& m, const data_source& data, const plan& p = {}) {
    return words_of<comp::error>([&] {
      reference_trainer t{device, m, data, data};
      if (!p.empty()) t.set_precision(p);
      t.run_batch();
    });
  };
  const auto build = [&](const data_source& train, const data_source& held) {
    reference_trainer{device, regression(), train, held};
  };
  CHECK_THROWS_AS(build(regression_data{}, counting_tokens(7, 60, 6)), comp::error);
  CHECK_THROWS_AS(build(counting_tokens(7, 60, 6), regression_data{}), comp::error);
  CHECK_THROWS_AS(build(regression_data{}, regression_data{0}), comp::error);
  CHECK(refusal(small_images(), bars({1, 8, 9}, 4, 40, 1)) ==
        "model \"small\" reads (8,1,8,8) and the data has (1,8,9) in an example (they must agree): change one of them");
  CHECK(refusal(small_images(), bars({8, 8, 1}, 4, 40, 1)) ==  // as many values, in another order
        "model \"small\" reads (8,1,8,8) and the data has (8,8,1) in an example (they must agree): change one of them");
  CHECK(
      refusal(small_gpt(), bars({1, 8, 8}, 4, 40, 1)) ==
      "model \"gpt\" reads tokens (4,8) and the data has (1,8,8) in an example (they must agree): change one of them");
  CHECK(
      refusal(native_models::mlp({.batch = 8, .input = {6}}), regression_data{}) ==
      "model \"mlp\" gives (8,10) and the data has target values (2) for an example (the loss compares them): change one "
      "of them");
  CHECK(refusal(regression(), counting_tokens(7, 60, 6)) ==
        "model \"mlp\" reads (8,6) and the data has tokens (6) in an example (they must agree): change one of them");
  CHECK(refusal(native_models::mlp({.batch = 8, .input = {1, 2, 3}, .outputs = 1, .regression = true}),
                bars({1, 2, 3}, 3, 40, 1)) ==
        "model \"mlp\" gives (8,1) and the data has labels (1) for an example (the loss compares them): change one of "
        "them");
  CHECK(refusal(regression(), regression_data{}, plan{4, precision::fp8_e4m3}) ==
        "plan gives operator 0 fp8_e4m3 (this device computes in fp32, bf16, fp16): choose one of those");
  plan one{4};
  one[1] = precision::fp8_e4m3;
  CHECK(refusal(regression(), regression_data{}, one) ==
        "plan gives operator 1 fp8_e4m3 (this device computes in fp32, bf16, fp16): choose one of those");
  for (const std::size_t size : {3, 5}) {
    CHECK(refusal(regression(), regression_data{}, plan{size}) ==
          fmt::format("plan has {} operators, the model 4 (they must agree): use a plan that was made for this model",
                      size));
  }
}

TEST_CASE("a plan is refused that gives an operator a precision which the Device runs others in") {
  struct fp8_for_linear : reference::capable_device {
    bool supports(const comp::op_info& op, precision p) const override {
      return op.choosable && (p != precision::fp8_e4m3 || op.kind == "linear");
    }
  } device;
  const auto images = bars({1, 8, 8}, 4, 40, 1);
  CHECK_NOTHROW(capable_trainer(device, small_images(), images, images).set_precision(plan{8}));
  capable_trainer t{device, regression(), regression_data{}, regression_data{}};
  plan p{t.graph().size()};
  p[0] = precision::fp8_e4m3;
  CHECK_NOTHROW(t.set_precision(p));
  CHECK(t.supports(t.graph()[0], precision::fp8_e4m3));
  p[1] = precision::fp8_e4m3;
  CHECK_THROWS_WITH_AS(t.set_precision(p),
                       ("plan gives operator 1 (\"" + t.graph()[1].name +
                        "\") fp8_e4m3 (this device does not run relu in it): choose another")
                           .c_str(),
                       comp::plan_error);
}
