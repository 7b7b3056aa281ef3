// SPDX-License-Identifier: Apache-2.0
// When a trainer asks a Device to capture its steps, and how often it looks at them. That deferred and captured steps
// have the bits of steps that wait is tested where a Device has them: cuda_on_cpu/test_captured_steps.cpp.
#include <doctest/doctest.h>

#include <comp_native/trainer.hpp>
#include <examples/models/native/models.hpp>

#include "reference_device.hpp"
#include "support.hpp"

using namespace comp::native;
using namespace comp::native::testing;
using comp::plan;
using comp::precision;
using comp::sample;

namespace {

/// Offers to capture, and never does. Tells losses at once.
struct refusing_device : reference::device {
  struct captured_work {};
  int asked = 0, looks = 0, waits = 0;
  void synchronize() override { ++waits; }
  void defer_losses(bool) {}
  void guard_update(std::span<parameter* const>, const update_guard&) {}
  step_gradients end_step() { return ++looks, step_gradients{true, 0}; }
  template <class F>
  captured_work capture(std::span<parameter* const>, std::uint64_t, F) {
    ++asked;
    throw capture_refused{"a step (it is too long): train on"};
  }
  bool usable(const captured_work&) const { return true; }
  void replay(captured_work&, std::uint64_t, double*) {}
  void refill(tensor&, const tensor&) {}
  void refill(indices&, const indices&) {}
};
static_assert(Captures<refusing_device> && !Defers<reference::device>);

template <class D>
trainer<D> regression_on(D& device, const training& settings) {
  return {device, native_models::mlp({.batch = 8, .input = {6}, .hidden = {24}, .outputs = 2, .regression = true}),
          regression_data{64}, regression_data{16}, settings};
}
}  // namespace

TEST_CASE("a step is looked at once, whatever its micro-batches") {
  refusing_device device;
  auto t = regression_on(device, {.clip_norm = 1, .scaling = {.micro_batches = 4}});
  t.run_epoch();
  CHECK(device.looks == 2);
  CHECK(device.waits == 1);  // for the last update
}

TEST_CASE("a refused capture is asked for once, until the plan changes or a state is restored") {
  refusing_device device;
  auto t = regression_on(device, {.captured = capture_mode::on});
  t.run_epoch();
  CHECK(device.asked == 1);
  t.run_epoch();
  CHECK(device.asked == 1);
  t.set_precision(plan{t.graph().size()});  // the same
  t.run_epoch();
  CHECK(device.asked == 1);
  t.set_precision(plan{t.graph().size(), precision::bf16});
  CHECK(t.capture_refused().empty());
  t.run_epoch();
  CHECK(device.asked == 2);
  t.restore(t.save());
  for (int i = 0; i < 3; ++i) t.run_batch();  // one by one they are not captured
  CHECK(device.asked == 2);
  t.run_epoch();
  CHECK(device.asked == 3);
}

TEST_CASE("measured capturing begins after the search, and ends for a plan where it is refused") {
  refusing_device device;
  auto t = regression_on(device, {});
  const auto epochs = [&](int n) {
    for (int i = 0; i < n; ++i) t.run_epoch();
  };
  epochs(4);
  CHECK(device.asked == 0);
  CHECK(text(t.captured_steps()) == "");
  t.post_training(true);
  for (int i = 0; i < 60; ++i) t.run_batch();  // one by one they are not captured
  CHECK(device.asked == 0);
  epochs(8);
  CHECK(device.asked == 1);
  CHECK(t.captured_steps().decided);
  CHECK_FALSE(t.captured_steps().captured);
  CHECK(t.capture_refused() == "a step (it is too long): train on");
  CHECK(text(t.captured_steps()) == "steps are not captured: a step (it is too long): train on");
  t.restore(t.save());  // the same plan
  epochs(8);
  CHECK(device.asked == 1);
  t.set_precision(plan{t.graph().size(), precision::bf16});
  CHECK(text(t.captured_steps()) == "");
  epochs(8);
  CHECK(device.asked == 2);
  t.set_precision(plan{t.graph().size()});
  t.post_training(false);
  epochs(8);
  CHECK(device.asked == 2);
}

TEST_CASE("steps of several phases are never measured") {
  refusing_device device;
  const auto images = bars({1, 2, 3}, 3, 40, 1);
  trainer<refusing_device> t{device, small_gan(8), images, images};
  t.post_training(true);
  for (int i = 0; i < 8; ++i) t.run_epoch();
  CHECK(device.asked == 0);
  CHECK_FALSE(t.captured_steps().decided);
}

TEST_CASE_FIXTURE(on_reference, "captured steps are refused by a Device that has none") {
  CHECK_THROWS_WITH_AS(regression_on(device, {.captured = capture_mode::on}),
                       "captured = on (this device gives work call by call only): leave it out", comp::settings_error);
  refusing_device other;
  CHECK(regression_on(other, {.captured = capture_mode::on}).signature() ==
        regression_on(other, {}).signature() + " captured");
}
