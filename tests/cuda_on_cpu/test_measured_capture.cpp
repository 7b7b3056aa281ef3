// SPDX-License-Identifier: Apache-2.0
// The training after a search keeps captured steps if they are faster, by a clock that is made up: whatever it
// decides, and while it measures, the bits are those of plain steps.
#include <comp/comp.hpp>
#include <comp_cuda/comp_cuda.hpp>
#include <comp_native/model_builder.hpp>
#include <comp_native/trainer.hpp>

#include "../native/support.hpp"
#include "course.hpp"
#include "fresh.hpp"

namespace comp::cuda::test {
namespace {

using namespace native::testing;
using native::capture_mode;
using native::training;

/// A microsecond for each call, and for a graph what is given.
struct timed_device : cuda::device {
  double graph_seconds;
  explicit timed_device(double of_a_graph) : cuda::device{{.measure_algorithms = false}}, graph_seconds{of_a_graph} {}
  double seconds() const {
    return 1e-6 * static_cast<double>(simt::device.counts.given) +
           graph_seconds * static_cast<double>(simt::device.counts.graphs);
  }
};
using timed_trainer = native::trainer<timed_device>;
static_assert(Backend<timed_trainer>);

constexpr double fast = 1e-6, slow = 1;
constexpr int epochs = 9;  // of six steps or more: as many as a decision takes
static_assert(6 * epochs >= native::capture_choice::all_steps);

native::model small() {
  native::model_builder net{"small", native::input_kind::values, {2, 6}};
  net.input().linear("hidden", 8).relu("relu").dropout("dropout", 0.2).linear("head", 2).mse_loss("loss");
  return net.finish();
}
timed_trainer trainer_on(timed_device& device, const training& settings) {
  const auto examples = static_cast<std::size_t>(settings.scaling.micro_batches) * 6 * 2;
  return {device, small(), regression_data{examples}, regression_data{2}, settings};
}

/// Until the decision and at least two epochs after it.
course train_past_decision(timed_device& device, timed_trainer& t, precision p) {
  t.post_training(true);
  return trained(device, t, std::vector<plan>(epochs / 2 + 2, everywhere(t.graph(), p)));
}
/// The training with its steps call by call, and by what is measured: the same bits.
native::capture_report same(training settings, precision p, double graph_seconds) {
  settings.captured = capture_mode::off;
  timed_device plain_device{slow}, device{graph_seconds};
  auto plain = trainer_on(plain_device, settings);
  settings.captured = capture_mode::measured;
  auto t = trainer_on(device, settings);
  const course expected = train_past_decision(plain_device, plain, p);
  CHECK(simt::device.counts.graphs == 0);
  CHECK(train_past_decision(device, t, p) == expected);
  CHECK(simt::device.counts.graphs > 20);
  CHECK(t.capture_refused() == "");
  return t.captured_steps();
}

}  // namespace

TEST_CASE_FIXTURE(fresh_for_training,
                  "captured steps are kept where they are faster, plain ones where those are, with the same bits") {
  const auto report = same({.optimizer = native::adamw(1e-2), .clip_norm = 1}, precision::bf16, fast);
  CHECK(report.decided);
  CHECK(report.captured);
  CHECK(report.captured_seconds < report.plain_seconds);
  CHECK(simt::device.counts.graphs > 20 + 12);  // the epochs after the decision too
  simt::device.counts.graphs = 0;
  const auto other = same({.optimizer = native::adamw(1e-2), .clip_norm = 1}, precision::bf16, slow);
  CHECK(other.decided);
  CHECK_FALSE(other.captured);
  CHECK(other.captured_seconds > 1);
  CHECK(other.plain_seconds < 0.01);
  CHECK(simt::device.counts.graphs < 5 * 5 + 2 * 3);  // none after it
}

TEST_CASE_FIXTURE(fresh_for_training, "micro-batches and a loss scale that moves are measured with the same bits") {
  const scaling::settings moving{.initial = 1024, .growth_interval = 7, .micro_batches = 2};
  CHECK(same({.optimizer = native::sgd(0.05, 0.9), .scaling = moving}, precision::fp16, fast).captured);
}

TEST_CASE_FIXTURE(fresh_for_training,
                  "what was decided for holds until the plan changes, and no graph is kept for plain steps") {
  timed_device device{slow};
  auto t = trainer_on(device, {.optimizer = native::sgd(0.05)});
  (void)train_past_decision(device, t, precision::bf16);
  CHECK(t.captured_steps().decided);
  CHECK(simt::device.executables.empty());
  CHECK(simt::device.graph_bytes == 0);
  const auto graphs = simt::device.counts.graphs;
  t.restore(t.save());
  t.run_epoch();
  CHECK(simt::device.counts.graphs == graphs);
  device.graph_seconds = fast;
  (void)train_past_decision(device, t, precision::tf32);
  CHECK(t.captured_steps().captured);
  CHECK_FALSE(simt::device.executables.empty());
  CHECK(simt::device.graph_bytes > 0);
  device.synchronize();
  t.post_training(false);
  CHECK(simt::device.executables.empty());
  CHECK(simt::device.graph_bytes == 0);
}

}  // namespace comp::cuda::test
