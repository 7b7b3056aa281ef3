// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <algorithm>
#include <cmath>
#include <comp/scaling/grad_scaler.hpp>
#include <comp/scaling/state_dict.hpp>
#include <limits>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace {
using comp::settings_error;
using comp::scaling::grad_scaler;
using comp::scaling::Gradients;
using comp::scaling::settings;
using comp::scaling::state;
using comp::scaling::step_report;
constexpr float infinite = std::numeric_limits<float>::infinity();

struct tensor {
  std::string name;
  std::vector<float> values;
};
/// A handle of tensors that live elsewhere.
struct gradients {
  std::vector<tensor>* all;
  void each(auto f) const {
    for (tensor& t : *all) {
      for (float& v : t.values) f(v);
    }
  }
  bool unscale(double factor) {
    bool finite = true;
    each([&](float& v) {
      finite = std::isfinite(v) && finite;
      v = static_cast<float>(v * factor);
    });
    return finite;
  }
  double norm() {
    double sum = 0;
    each([&](float v) { sum += double{v} * v; });
    return std::sqrt(sum);
  }
  void multiply(double factor) {
    each([&](float& v) { v = static_cast<float>(v * factor); });
  }
  std::vector<std::string> not_finite() const {
    std::vector<std::string> names;
    for (const tensor& t : *all) {
      if (std::any_of(t.values.begin(), t.values.end(), [](float v) { return !std::isfinite(v); }))
        names.push_back(t.name);
    }
    return names;
  }
};
static_assert(Gradients<gradients>);
struct without_norm : gradients {
  double norm() = delete;
};
static_assert(!Gradients<without_norm>);

/// One step with these gradients, in one tensor.
step_report step(grad_scaler& scaler, float gradient, bool* stepped = nullptr) {
  std::vector<tensor> all{{"w", {gradient}}};
  while (!scaler.count_micro_batch()) continue;
  return scaler.unscale(gradients{&all}).apply([&] {
    if (stepped != nullptr) *stepped = true;
  });
}

TEST_CASE("presets are those of PyTorch, Paddle and Keras") {
  CHECK(comp::scaling::pytorch() == settings{.initial = 65536, .growth = 2, .backoff = 0.5, .growth_interval = 2000});
  CHECK(comp::scaling::paddle() == comp::scaling::pytorch());
  CHECK(comp::scaling::paddle(comp::precision::bf16) == comp::scaling::off());
  CHECK(comp::scaling::paddle_guide() ==
        settings{.initial = 32768, .growth = 2, .backoff = 0.5, .growth_interval = 1000, .backoff_interval = 2});
  CHECK(comp::scaling::keras() == settings{.initial = 32768, .growth = 2, .backoff = 0.5, .growth_interval = 2000});
}

TEST_CASE("a preset has a name; a number is a static scale; anything else is refused with what there is") {
  using namespace comp::scaling;
  CHECK(preset("pytorch") == pytorch());
  CHECK(preset("paddle") == paddle());
  CHECK(preset("paddle-guide") == paddle_guide());
  CHECK(preset("keras") == keras());
  CHECK(preset("off") == off());
  CHECK(preset("1024") == fixed(1024));
  CHECK_THROWS_WITH_AS(preset("tensorflow"),
                       "loss scaling \"tensorflow\" (it is pytorch, paddle, paddle-guide, keras, off, or a number, "
                       "which is a static scale): choose one of those",
                       settings_error);
  for (const char* wrong : {"", "0", "-8", "inf", "nan", "128x", "1000", "1e-310"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(preset(wrong), settings_error);
  }
}

TEST_CASE("gradients are divided by the scale before the optimizer sees them") {
  grad_scaler scaler{{.initial = 1024}};
  std::vector<tensor> all{{"w", {1024.0F, -512.0F}}};
  scaler.count_micro_batch();
  const auto report = scaler.unscale(gradients{&all}).apply([&] {
    CHECK(all[0].values == std::vector<float>{1, -0.5F});
  });
  CHECK_FALSE(report.skipped);
  CHECK(report.scale == 1024);
}

TEST_CASE("a step whose gradients are not finite is skipped, named, and halves the scale") {
  grad_scaler scaler;
  std::vector<tensor> all{{"stem.weight", {1}}, {"head.weight", {infinite}}, {"head.bias", {std::nanf("")}}};
  scaler.count_micro_batch();
  bool stepped = false;
  const auto report = scaler.unscale(gradients{&all}).apply([&] { stepped = true; });
  CHECK_FALSE(stepped);
  CHECK(report.skipped);
  CHECK(report.not_finite == std::vector<std::string>{"head.weight", "head.bias"});
  CHECK(report.diagnosis.empty());
  CHECK(scaler.scale() == 32768);
  CHECK(scaler.now().skipped == 1);
}

TEST_CASE("the scale follows the documented algorithm over random sequences of overflows") {
  CHECK(rc::check("scale", [] {
    settings s{.initial = std::exp2(*rc::gen::inRange(-4, 20)), .floor = 0x1p-6, .ceiling = 0x1p18};
    s.initial = std::min(s.initial, s.ceiling);
    s.growth_interval = *rc::gen::inRange(1, 5);
    s.backoff_interval = *rc::gen::inRange(1, 4);
    grad_scaler scaler{s};
    double scale = s.initial;
    int good = 0, bad = 0, skipped = 0;
    for (const bool overflow : *rc::gen::container<std::vector<bool>>(rc::gen::arbitrary<bool>())) {
      RC_ASSERT(step(scaler, overflow ? infinite : 1.0F).skipped == overflow);
      good = overflow ? 0 : good + 1;
      bad = overflow ? bad + 1 : 0;
      if (bad == s.backoff_interval) scale = std::max(scale / 2, s.floor), bad = 0;
      if (good == s.growth_interval) scale = std::min(scale * 2, s.ceiling), good = 0;
      RC_ASSERT(scaler.scale() == scale);
      RC_ASSERT(scaler.now().skipped == (skipped += overflow));
    }
  }));
}

TEST_CASE("a static scale stays, and skips all the same") {
  grad_scaler scaler{comp::scaling::fixed(128)};
  CHECK(step(scaler, infinite).skipped);
  for (int i = 0; i < 3000; ++i) step(scaler, 1);
  CHECK(scaler.scale() == 128);
  CHECK(grad_scaler{comp::scaling::off()}.loss_factor() == 1);
}

TEST_CASE("clipping is of unscaled gradients: there is nothing else to clip") {
  grad_scaler scaler{{.initial = 1024}};
  std::vector<tensor> all{{"w", {3 * 1024.0F}}, {"b", {4 * 1024.0F}}};
  scaler.count_micro_batch();
  auto unscaled = scaler.unscale(gradients{&all});
  CHECK(unscaled.clip_norm(1) == doctest::Approx(5));
  CHECK(all[0].values[0] == doctest::Approx(0.6));
  CHECK(all[1].values[0] == doctest::Approx(0.8));
  CHECK(std::move(unscaled).apply([] {}).norm == doctest::Approx(5));
}

TEST_CASE("a norm below the limit changes nothing, one that is not positive is refused") {
  grad_scaler scaler{comp::scaling::off()};
  std::vector<tensor> all{{"w", {0.5F}}};
  scaler.count_micro_batch();
  auto unscaled = scaler.unscale(gradients{&all});
  unscaled.clip_norm(1);
  CHECK(all[0].values[0] == 0.5F);
  CHECK_THROWS_WITH_AS(unscaled.clip_norm(0), "clip_norm(0) (gradients are kept below it): make it positive",
                       settings_error);
}

TEST_CASE("nothing is clipped in a step that will be skipped") {
  grad_scaler scaler{{.initial = 64}};
  std::vector<tensor> all{{"w", {infinite}}, {"b", {64}}};
  scaler.count_micro_batch();
  auto unscaled = scaler.unscale(gradients{&all});
  CHECK(unscaled.clip_norm(0.5) == double{infinite});
  CHECK(all[0].values[0] == infinite);
  CHECK(all[1].values[0] == 1);
  CHECK(std::move(unscaled).apply([] { FAIL("the step was made"); }).skipped);
}

TEST_CASE("gradients that are unscaled are not unscaled again before their step") {
  grad_scaler scaler{{.initial = 64}};
  std::vector<tensor> all{{"w", {1}}};
  scaler.count_micro_batch();
  auto first = scaler.unscale(gradients{&all});
  CHECK_THROWS_WITH_AS(
      static_cast<void>(scaler.unscale(gradients{&all})),
      "unscale() of gradients that are unscaled (they would be divided by 64 twice): apply() the step, or step() and "
      "update(), first",
      comp::error);
  std::move(first).apply([] {});
  scaler.count_micro_batch();
  CHECK_NOTHROW(static_cast<void>(scaler.unscale(gradients{&all})));
}

TEST_CASE("accumulation: the loss is divided by the micro-batches, and only all of them make a step") {
  grad_scaler scaler{{.initial = 1024, .micro_batches = 4}};
  CHECK(scaler.loss_factor() == 256);
  std::vector<tensor> all{{"w", {1}}};
  CHECK_FALSE(scaler.count_micro_batch());
  CHECK_FALSE(scaler.count_micro_batch());
  CHECK_THROWS_WITH_AS(
      static_cast<void>(scaler.unscale(gradients{&all})),
      "unscale() after 2 of 4 micro-batches (the gradients are not complete): call count_micro_batch() "
      "after each backward, and unscale() when it returns true",
      comp::error);
  CHECK_FALSE(scaler.count_micro_batch());
  CHECK(scaler.count_micro_batch());
  CHECK_THROWS_WITH_AS(
      scaler.count_micro_batch(),
      "backward number 5 of 4 (gradients of so many are accumulated): call unscale() and apply() before "
      "the next",
      comp::error);
  scaler.unscale(gradients{&all}).apply([] {});
  CHECK(scaler.now().micro_batches == 0);
  CHECK(scaler.now().steps == 1);
}

TEST_CASE("the last micro-batches of an epoch, fewer than the others, make a step of their mean") {
  grad_scaler scaler{{.initial = 1024, .micro_batches = 4}};
  CHECK_FALSE(scaler.end_accumulation());
  std::vector<tensor> all{{"w", {0}}};
  for (int i = 0; i < 3; ++i) {
    all[0].values[0] += static_cast<float>(scaler.loss_factor() * 5);  // each has the gradient 5
    CHECK_FALSE(scaler.count_micro_batch());
  }
  CHECK(scaler.end_accumulation());
  scaler.unscale(gradients{&all}).apply([&] { CHECK(all[0].values[0] == doctest::Approx(5)); });
  CHECK(scaler.now().steps == 1);
  CHECK_FALSE(scaler.count_micro_batch());
  CHECK_THROWS_AS(static_cast<void>(scaler.unscale(gradients{&all})), comp::error);  // not ended anew
}

TEST_CASE("several optimizers: each is skipped for its own gradients, the scale is judged once by all, as in PyTorch") {
  grad_scaler scaler{{.initial = 1024, .growth_interval = 1}};
  std::vector<tensor> generator{{"g", {1024}}}, critic{{"c", {infinite}}};
  const auto stepped = [&](bool critic_overflows) {
    critic[0].values[0] = critic_overflows ? infinite : 1024;
    scaler.count_micro_batch();
    auto g = scaler.unscale(gradients{&generator}, "generator");
    auto c = scaler.unscale(gradients{&critic}, "critic");
    CHECK_FALSE(std::move(g).step([] {}).skipped);
    CHECK(std::move(c).step([] {}).skipped == critic_overflows);
  };
  const double before = scaler.scale();
  stepped(true);
  CHECK(scaler.scale() == before);
  scaler.update();
  CHECK(scaler.scale() == before / 2);
  CHECK(scaler.now().steps == 1);
  stepped(false);
  scaler.update();
  CHECK(scaler.scale() == before);
}

TEST_CASE("two losses in turns: the second's backward is counted anew, and apply() of the last updates") {
  grad_scaler scaler{{.micro_batches = 2}};
  std::vector<tensor> all{{"w", {1}}};
  for (int turn = 0; turn < 2; ++turn) {
    CHECK_FALSE(scaler.count_micro_batch());
    CHECK(scaler.count_micro_batch());
    auto unscaled = scaler.unscale(gradients{&all}, turn == 0 ? "critic" : "generator");
    if (turn == 0)
      std::move(unscaled).step([] {});
    else
      std::move(unscaled).apply([] {});
  }
  CHECK(scaler.now().steps == 1);
  CHECK(scaler.now().micro_batches == 0);
}

TEST_CASE(
    "update() without a step, or before an optimizer's, is refused; so are gradients of steps that were given up") {
  grad_scaler scaler;
  std::vector<tensor> all{{"w", {1}}};
  CHECK_THROWS_WITH_AS(
      scaler.update(),
      "update() with no step since the last one (the scale is judged by whole steps): call step() first", comp::error);
  scaler.count_micro_batch();
  auto first = scaler.unscale(gradients{&all}, "a");
  auto second = scaler.unscale(gradients{&all}, "b");
  std::move(first).step([] {});
  CHECK_THROWS_WITH_AS(scaler.update(),
                       "update() before an optimizer's step (the scale is judged by whole steps): call step() first",
                       comp::error);
  CHECK_THROWS_AS(static_cast<void>(scaler.unscale(gradients{&all}, "a")), comp::error);
  scaler.give_up();
  CHECK_THROWS_WITH_AS(std::move(second).step([] {}),
                       "step() with gradients of a step that was given up (they are to be made again): unscale() the "
                       "new ones",
                       comp::error);
  CHECK(scaler.now() == state{});
}

TEST_CASE("two losses in turns at the end of an epoch: each has its own shorter accumulation, and no more backwards") {
  grad_scaler scaler{{.micro_batches = 3}};
  std::vector<tensor> all{{"w", {1}}};
  for (const char* turn : {"critic", "generator"}) {
    CHECK_FALSE(scaler.count_micro_batch());
    CHECK_FALSE(scaler.count_micro_batch());
    CHECK_THROWS_AS(static_cast<void>(scaler.unscale(gradients{&all}, turn)), comp::error);
    CHECK(scaler.end_accumulation());
    scaler.unscale(gradients{&all}, turn).step([] {});
  }
  for (int i = 0; i < 3; ++i) scaler.count_micro_batch();
  CHECK_THROWS_AS(scaler.count_micro_batch(), comp::error);
  scaler.update();
  CHECK(scaler.now().steps == 1);
}

TEST_CASE("PyTorch's state_dict is written as PyTorch writes it, and read with its constants") {
  grad_scaler scaler{{.initial = 32, .growth = 4, .backoff = 0.25, .growth_interval = 10}};
  for (int i = 0; i < 3; ++i) step(scaler, 1);
  const auto written = comp::scaling::state_dict<nlohmann::json>(scaler);
  // torch.amp.GradScaler(init_scale=32., growth_factor=4., backoff_factor=.25, growth_interval=10), three steps on
  CHECK(written == nlohmann::json::parse(R"({"scale": 32.0, "growth_factor": 4.0, "backoff_factor": 0.25,
    "growth_interval": 10, "_growth_tracker": 3})"));
  grad_scaler other;
  comp::scaling::load_state_dict(other, written);
  CHECK(other.constants().growth_interval == 10);
  for (int i = 0; i < 7; ++i) step(other, 1);
  CHECK(other.scale() == 128);
  const state before = other.now();
  for (const char* wrong : {"{}", "[]", R"({"scale": "high"})",
                            R"({"scale": -1, "growth_factor": 2, "backoff_factor": 0.5, "growth_interval": 1,
                                "_growth_tracker": 0})",
                            R"({"scale": 1, "growth_factor": 2, "backoff_factor": 5, "growth_interval": 1,
                                "_growth_tracker": 0})"}) {
    CAPTURE(wrong);
    CHECK_THROWS_AS(comp::scaling::load_state_dict(other, nlohmann::json::parse(wrong)), settings_error);
    CHECK(other.now() == before);
    CHECK(other.constants().growth_interval == 10);
  }
}

TEST_CASE("at the floor the report says which tensors overflow without the scale's help") {
  grad_scaler scaler{{.initial = 4, .floor = 1}};
  CHECK(step(scaler, infinite).diagnosis.empty());
  CHECK(step(scaler, infinite).diagnosis.empty());
  const auto report = step(scaler, infinite);
  CHECK(scaler.scale() == 1);
  CHECK(
      report.diagnosis ==
      "gradients of w are not finite at the lowest loss scale, 1 (it is the model that overflows, not the scale): give "
      "those operators FP32, or train with a smaller learning rate");
}

TEST_CASE("an optimizer that throws, or a step that is dropped, leaves the scale as it was") {
  grad_scaler scaler{{.initial = 8, .growth_interval = 1}};
  std::vector<tensor> all{{"w", {1}}};
  scaler.count_micro_batch();
  CHECK_THROWS_AS(scaler.unscale(gradients{&all}).apply([] { throw std::runtime_error{"no memory"}; }),
                  std::runtime_error);
  CHECK(scaler.now() == state{.scale = 8});
  scaler.count_micro_batch();
  { const auto dropped = scaler.unscale(gradients{&all}); }
  CHECK(scaler.now() == state{.scale = 8});
  CHECK_FALSE(step(scaler, 1).skipped);
}

TEST_CASE("a scaler's state comes back, in the middle of an accumulation too, and through JSON") {
  grad_scaler scaler{{.initial = 64, .growth_interval = 5, .micro_batches = 2}};
  step(scaler, infinite);
  for (int i = 0; i < 3; ++i) step(scaler, 1);
  scaler.count_micro_batch();
  const nlohmann::json saved = scaler.now();
  grad_scaler other{{.initial = 64, .growth_interval = 5, .micro_batches = 2}};
  other.load(saved.get<state>());
  CHECK(other.now() == scaler.now());
  CHECK(other.now().scale == 32);
  CHECK(other.count_micro_batch());
  for (grad_scaler* s : {&scaler, &other}) {
    std::vector<tensor> all{{"w", {1}}};
    if (s == &scaler) s->count_micro_batch();
    s->unscale(gradients{&all}).apply([] {});
    step(*s, 1);
    CHECK(s->scale() == 64);
  }
}

TEST_CASE("a state that cannot be is refused") {
  grad_scaler scaler;
  for (const state& bad : {state{.scale = std::nan("")}, state{.scale = 0}, state{.scale = 0x1p128},
                           state{.finite_steps = -1}, state{.skipped = 2, .steps = 1}, state{.micro_batches = 2}})
    CHECK_THROWS_AS(scaler.load(bad), settings_error);
  CHECK_THROWS_WITH_AS(scaler.load({.scale = 0}),
                       "a scaler's state with scale 0, 0 of 0 steps skipped, 0 micro-batches (out of range for these "
                       "settings): save it again, or load it with the settings that it was saved with",
                       settings_error);
}

TEST_CASE("constants that cannot work are refused") {
  CHECK_THROWS_WITH_AS(
      grad_scaler{{.initial = 0}},
      "loss scale 0 between floor 1.52587890625e-05 and ceiling 1.7014118346046923e+38 (0 < floor <= scale "
      "<= ceiling, all finite): change it",
      settings_error);
  CHECK_THROWS_WITH_AS(grad_scaler{{.growth = 0.5}},
                       "loss scale grows by 0.5 and backs off by 0.5 (at least 1, and between 0 and 1): change it",
                       settings_error);
  CHECK_THROWS_WITH_AS(
      grad_scaler{{.micro_batches = 0}},
      "loss scale grows after 2000 steps, backs off after 1, over 0 micro-batches (all at least 1): change it",
      settings_error);
  for (const double bad : {0.0, 1.0, 2.0}) CHECK_THROWS_AS(grad_scaler{{.backoff = bad}}, settings_error);
}

/// The nearest FP16 value: 11 bits, nothing between 0 and 2^-24, infinite above 65504.
float fp16(double value) {
  if (value == 0 || !std::isfinite(value)) return static_cast<float>(value);
  int exponent = 0;
  std::frexp(value, &exponent);
  const int last_bit = std::max(exponent - 11, -24);
  const double rounded = std::ldexp(std::nearbyint(std::ldexp(value, -last_bit)), last_bit);
  return static_cast<float>(std::abs(rounded) > 65504 ? std::copysign(double{infinite}, value) : rounded);
}

/// The distance from the optimum after training y = w x on targets 3 x. Each example's gradient passes FP16: its
/// share of a mean over 2^20 of them, so below FP16's smallest number.
double distance_after_training(const settings& chosen) {
  constexpr double batch = 0x1p20;
  grad_scaler scaler{chosen};
  double w = 0;
  for (int i = 0; i < 200; ++i) {
    std::vector<tensor> all{{"w", {0}}};
    for (const double x : {0.01, 0.02, 0.03}) {
      const float error = fp16(scaler.loss_factor() * 2 * (w - 3) * x / batch);  // gradient of the output
      all[0].values[0] += static_cast<float>(fp16(error * x) * batch / 3);
    }
    scaler.count_micro_batch();
    scaler.unscale(gradients{&all}).apply([&] { w -= 100 * double{all[0].values[0]}; });
  }
  return std::abs(w - 3);
}

TEST_CASE("gradients that vanish in FP16 train nothing unscaled, and converge scaled, from any start") {
  CHECK(distance_after_training(comp::scaling::off()) == 3);
  CHECK(distance_after_training(comp::scaling::pytorch()) < 0.05);
  CHECK(distance_after_training(comp::scaling::fixed(0x1p20)) < 0.05);
  CHECK(distance_after_training({.initial = 0x1p60}) < 0.05);  // overflows at first: backs off until it fits
}
}  // namespace
