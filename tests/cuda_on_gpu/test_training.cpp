// SPDX-License-Identifier: Apache-2.0
// What only a GPU can show of whole trainings: that captured steps are the plain ones there too, and that a search by
// real times ends with a plan that trains.
#include <doctest/doctest.h>

#include <comp/comp.hpp>
#include <comp_cuda/device.hpp>
#include <comp_native/trainer.hpp>
#include <examples/models/native/models.hpp>

#include "../native/support.hpp"

namespace comp::cuda::test {
namespace {

using namespace native::testing;
using cuda_trainer = native::trainer<device>;

native::model transformer() {
  return native_models::gpt(
      {.batch = 8, .vocabulary = 11, .context = 16, .layers = 2, .width = 64, .heads = 4, .dropout = 0.1});
}
std::vector<double> losses(precision p, native::capture_mode captured) {
  device d{{.measure_algorithms = false}};
  const auto tokens = counting_tokens(11, 2000, 16);
  cuda_trainer t{
      d, transformer(), tokens, tokens, {.optimizer = native::adamw(1e-3), .clip_norm = 1, .captured = captured}};
  t.set_precision(everywhere(t.graph(), p));
  std::vector<double> all;
  t.post_training(true);
  for (int epoch = 0; epoch < 4; ++epoch) {
    const sample ran = t.run_epoch();
    REQUIRE(ran.ok());
    all.insert(all.end(), ran.curve.begin(), ran.curve.end());
  }
  CHECK(t.capture_refused() == "");
  CHECK(t.captured_steps().decided == (captured == native::capture_mode::measured));
  MESSAGE(name(p), ": ", text(t.captured_steps()));
  return all;
}

}  // namespace

TEST_CASE("captured steps give the bits of plain ones, dropout included, in every precision of this GPU") {
  for (const precision p : probe().supported()) {
    if (is_fp8(p)) continue;
    CAPTURE(name(p));
    const auto plain = losses(p, native::capture_mode::off);
    CHECK(plain == losses(p, native::capture_mode::off));
    CHECK(plain == losses(p, native::capture_mode::on));
    CHECK(plain == losses(p, native::capture_mode::measured));
    CHECK(plain.back() < plain.front());
  }
}

TEST_CASE("a search by real times finds a plan that trains as well as FP32") {
  device d;
  const auto tokens = counting_tokens(11, 2000, 16);
  cuda_trainer t{d, transformer(), tokens, tokens, {.optimizer = native::adamw(1e-3)}};
  search_settings settings;
  settings.tolerance = 0.05;
  settings.precisions = {probe().has(precision::bf16) ? precision::bf16 : precision::fp16};
  const outcome found = two_stage{policy::pytorch{}, strategy::greedy{}, strategy::greedy{}, settings}.run(t);
  CHECK(found.plan.size() == t.graph().size());
  CHECK(found.contest.size() > 1);
  for (const contestant& c : found.contest) CHECK(c.status == status::ok);
  const sample epoch = t.run_epoch();
  CHECK(epoch.ok());
  CHECK(epoch.loss < found.baseline.loss * 1.05);
}

}  // namespace comp::cuda::test
