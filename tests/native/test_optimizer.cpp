// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp_native/optimizer.hpp>
#include <comp_native/training.hpp>

#include "reference_device.hpp"
#include "support.hpp"

using namespace comp::native;

namespace {

/// The value after `steps` of `o` on the slope 2 of one weight that starts at 1, under `over`.
double after(int steps, const optimizer& o, const schedule& over = {}) {
  reference::device device;
  auto p = device.make_parameter(std::vector<float>{1.0F}, {1});
  reference::parameter* all[] = {&p};
  for (int i = 0; i < steps; ++i) {
    p.gradient = {2.0};
    update(device, std::span<reference::parameter* const>{all}, o, over, i);
  }
  return p.value[0];
}

std::string refusal(const training& t) {
  return testing::words_of<comp::settings_error>([&] { require_usable(t); });
}

}  // namespace

TEST_CASE("SGD takes the steps of its definition") {
  CHECK(after(1, sgd(0.1)) == doctest::Approx(0.8));
  CHECK(after(2, sgd(0.1)) == doctest::Approx(0.6));
  CHECK(after(2, sgd(0.1, 0.5)) == doctest::Approx(1 - 0.1 * 2 - 0.1 * 3));
  CHECK(after(2, sgd(0.1, 0.5, 0, true)) == doctest::Approx(1 - 0.1 * 3 - 0.1 * 3.5));
  CHECK(after(1, sgd(0.1, 0, 0.5)) == doctest::Approx(1 - 0.1 * 2.5));
}

TEST_CASE("Adam's steps on a constant slope are the learning rate, AdamW decays beside") {
  CHECK(after(1, adam(0.1)) == doctest::Approx(0.9));
  CHECK(after(3, adam(0.1)) == doctest::Approx(0.7));
  CHECK(after(1, adam(0.1, 0.5)) == doctest::Approx(0.9));  // L2 only changes the slope, which Adam normalises
  CHECK(after(1, adamw(0.1, 0.5)) == doctest::Approx(1 - 0.1 * 0.5 - 0.1));
}

TEST_CASE("the schedule warms up and falls along a cosine") {
  const schedule s{.warmup = 4, .total = 14, .floor = 0.1};
  CHECK(s.factor(0) == doctest::Approx(0.25));
  CHECK(s.factor(3) == doctest::Approx(1));
  CHECK(s.factor(4) == doctest::Approx(1));
  CHECK(s.factor(9) == doctest::Approx(0.55));
  CHECK(s.factor(14) == doctest::Approx(0.1));
  CHECK(s.factor(1000) == doctest::Approx(0.1));
  CHECK(schedule{}.factor(7) == 1);
  CHECK(schedule{.warmup = 2}.factor(50) == 1);
  CHECK(schedule{.warmup = 4, .total = 4}.factor(4) == 1);  // nothing is left to fall
  CHECK(after(1, sgd(0.1), s) == doctest::Approx(1 - 0.025 * 2));
}

TEST_CASE("settings that no training can use are refused by name") {
  CHECK(refusal({}) == "");
  CHECK(refusal({.optimizer = sgd(-1)}) ==
        "optimizer with learning rate = -1 (it must be finite and not negative): change it");
  CHECK(refusal({.optimizer = sgd(1, 1)}) == "optimizer with momentum = 1 (it must be in [0, 1)): change it");
  CHECK(refusal({.optimizer = sgd(1, 0, 0, true)}) ==
        "optimizer with nesterov and momentum = 0 (it must be positive for nesterov): change it");
  CHECK(refusal({.optimizer = adam_options{.beta1 = 1}}) ==
        "optimizer with beta1 = 1 (it must be in [0, 1)): change it");
  CHECK(refusal({.optimizer = adam_options{.beta2 = 1}}) ==
        "optimizer with beta2 = 1 (it must be in [0, 1)): change it");
  CHECK(refusal({.optimizer = adam_options{.eps = 0}}) == "optimizer with eps = 0 (it must be positive): change it");
  CHECK(refusal({.schedule = {.warmup = -1}}) ==
        "schedule of 0 steps with -1 of warm-up down to 0 (none may be negative): change it");
  CHECK(refusal({.clip_norm = -1}) == "clip_norm -1 (it must be finite and not negative): change it");
  CHECK(refusal({.clip_norm = HUGE_VAL}) == "clip_norm inf (it must be finite and not negative): change it");
  CHECK(refusal({.scaling = {.backoff = 1}}) ==
        "loss scale grows by 2 and backs off by 1 (at least 1, and between 0 and 1): change it");
  CHECK(refusal({.profile_steps = 0}) == "profile of 0 steps (at least one): change it");
  CHECK(refusal({.loading_threads = -1}) == "-1 threads to make batches (0 is the least): change it");
  const std::pair<training, const char*> refused[] = {
      {{.optimizer = adam(HUGE_VAL)}, "optimizer with learning rate = inf"},
      {{.optimizer_of = {{"a", sgd(0)}, {"b", adam(-1)}}}, "optimizer with learning rate = -1"},
      {{.optimizer = sgd(1, 0, -1)}, "optimizer with weight decay = -1 (it must be finite and not negative)"},
      {{.optimizer = adamw(1, HUGE_VAL)}, "optimizer with weight decay = inf"},
      {{.optimizer = sgd(1, -0.1)}, "optimizer with momentum = -0.1"},
      {{.optimizer = adam_options{.beta1 = -0.1}}, "optimizer with beta1 = -0.1"},
      {{.optimizer = adam_options{.beta2 = -0.1}}, "optimizer with beta2 = -0.1"},
      {{.schedule = {.total = -1}}, "schedule of -1 steps"},
      {{.schedule = {.floor = -0.5}}, "schedule of 0 steps with 0 of warm-up down to -0.5"}};
  for (const auto& [settings, why] : refused) CHECK(refusal(settings).starts_with(why));
  CHECK(refusal({.optimizer = sgd(0, 0.99, 0, true), .schedule = {1, 2, 0}, .loading_threads = 0}) == "");
  CHECK(refusal({.optimizer = adam_options{.learning_rate = 0, .beta1 = 0, .beta2 = 0}, .profile_steps = 1}) == "");
}

TEST_CASE("settings print what changes the course of a training") {
  CHECK(text(sgd(0.1, 0.9, 5e-4)) == "sgd lr 0.1 momentum 0.9 decay 0.0005");
  CHECK(text(sgd(0.1, 0.9, 0, true)) == "sgd lr 0.1 momentum 0.9 nesterov decay 0");
  CHECK(text(adam(1e-3)) == "adam lr 0.001 betas 0.9,0.999 eps 1e-08 decay 0");
  CHECK(text(adamw(1e-3)) == "adamw lr 0.001 betas 0.9,0.999 eps 1e-08 decay 0.01");
  CHECK(text(training{.seed = 1}) != text(training{.seed = 2}));
  CHECK(text(training{.clip_norm = 1}) != text(training{}));
  CHECK(text(comp::scaling::settings{.micro_batches = 4}) ==
        "65536 up 2 after 2000 down 0.5 after 1, 1.52587890625e-05 to 1.7014118346046923e+38, of 4 micro-batches");
  CHECK(text(comp::scaling::fixed(128)) == "128");
  for (const auto& other : {comp::scaling::keras(), comp::scaling::paddle_guide(), comp::scaling::off()}) {
    CHECK(text(training{.scaling = other}) != text(training{}));
  }
}
