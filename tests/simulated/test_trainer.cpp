// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <comp/observe/summary.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp/search/two_stage.hpp>
#include <comp/strategy/exhaustive.hpp>
#include <comp_simulated/trainer.hpp>
#include <memory>

#include "graphs.hpp"
#include "search/fake_trainer.hpp"

namespace {

using comp::plan;
using comp::precision;
using on_gpu = comp::simulated::trainer<fake::full_trainer>;
using minimal_on_gpu = comp::simulated::trainer<fake::minimal_trainer>;

static_assert(comp::Backend<on_gpu> && comp::Backend<minimal_on_gpu>);
static_assert(comp::detail::saves<on_gpu> && comp::detail::stops<on_gpu> && comp::detail::scores_operators<on_gpu> &&
              comp::detail::perturbs<on_gpu> && comp::detail::counts_batches<on_gpu> &&
              comp::detail::supports_some<on_gpu>);
static_assert(!comp::detail::saves<minimal_on_gpu> && !comp::detail::stops<minimal_on_gpu> &&
              !comp::detail::names_sensitivity<minimal_on_gpu> &&
              !comp::detail::names_batches_per_epoch<minimal_on_gpu>);

/// Four linear layers: a small one, which quantization slows down, and three large ones. Formats below 16 bits harm the
/// third, NVFP4 the fourth.
fake::world layers(std::int64_t tokens = 4096) {
  sizes::chain c{tokens};
  c.linear(256, 4096), c.linear(4096, 8192), c.linear(8192, 8192), c.linear(8192, 8192);
  fake::world w{.graph = c.graph()};
  w.precisions = {precision::fp32, precision::bf16, precision::mxfp8, precision::nvfp4};
  w.harm = [](const plan& p) { return 0.1 * comp::is_scaled(p[2]) + 0.1 * (p[3] == precision::nvfp4); };
  w.seconds = [](const plan&) { return 1e-3; };  // on this machine
  return w;
}

/// Returns the fastest of all plans that harm nothing.
plan fastest(on_gpu& of, const fake::world& in) {
  plan best{in.graph.size()}, p{in.graph.size()};
  for (std::size_t n = 0; n < 256; ++n) {
    for (std::size_t i = 0; i < 4; ++i) p[i] = in.precisions[n >> 2 * i & 3];
    if (in.harm(p) == 0 && of.batch_seconds(p) < of.batch_seconds(best)) best = p;
  }
  return best;
}

bool has_nvfp4(const plan& p) { return std::ranges::count(p, precision::nvfp4) > 0; }

/// NVFP4 raises the loss by 5 times `harm` in 16 batches, and by 100 times in the end. `noise`: of its losses.
fake::world of_growing_harm(double harm, double noise) {
  fake::world grows = layers(1 << 16);
  grows.batches = 1000;
  grows.loss_offset = 1;
  grows.harm = [harm](const plan& p) { return has_nvfp4(p) ? harm : 0; };
  const auto is_low = std::make_shared<bool>(false);
  grows.before_batch = [is_low](const plan& p, std::uint64_t) { *is_low = has_nvfp4(p); };
  grows.swing = [is_low, noise](std::uint64_t step) {
    return *is_low ? noise * std::sin(static_cast<double>(step * step)) : 0.0;
  };
  return grows;
}

bool is_of_few_batches(const std::string& warning) {
  return warning.find("batches alone (harm of formats below 16 bits grows with the training)") != std::string::npos;
}

}  // namespace

TEST_CASE("a search on a modelled GPU finds the plan that is fastest there of those that converge here") {
  fake::full_trainer inner{layers()};
  on_gpu trainer{inner, "B200"};
  comp::two_stage search{comp::policy::pytorch{}, comp::strategy::exhaustive{}, comp::strategy::exhaustive{}};
  search.settings.losses_tie = search.settings.times_tie = comp::tie::none;
  const comp::outcome found = search.run(trainer);
  CHECK(found.plan.str() == fastest(trainer, layers()).str());
  CHECK(found.plan.str() == "b8b8");  // the small layer is slower below 16 bits
  std::string labels;
  for (const comp::contestant& c : found.contest) labels += c.label + "; ";
  CHECK(labels == "fp32; rule-based bf16; comp: bf16, linear1 and linear3 in mxfp8; ");  // no rules are for less
  CHECK(found.speedup == doctest::Approx(trainer.batch_seconds(plan{4}) / trainer.batch_seconds(found.plan)));
}

TEST_CASE("all that shows modelled times says so, and comp's clock does not contradict them") {
  fake::full_trainer inner{layers()};
  on_gpu trainer{inner, "B200"};
  const comp::outcome found = comp::two_stage<comp::policy::pytorch>{}.run(trainer);
  const std::string sentence =
      "all times are modelled for B200, and none was measured on one: time the plan there before its speedup is relied on";
  CHECK(found.plan == fastest(trainer, layers()));  // the guided search finds it, too
  CHECK(found.hardware.name == "modelled for B200");
  CHECK(found.hardware.compute_capability == 100);
  REQUIRE(found.warnings.size() == 2);
  CHECK(found.warnings.front() == sentence);
  CHECK(is_of_few_batches(found.warnings.back()));
  CHECK(comp::table(found).find("Times are modelled for B200; none was measured on one.\n") != std::string::npos);
}

TEST_CASE("a sensitivity that takes this machine long leaves a budget of modelled batches alone") {
  fake::world slow = layers(512);
  slow.harm = [](const plan& p) { return 0.1 * comp::is_low(p[2]); };
  slow.sensitivity = [](precision) {
    moved_clock::pass(1);  // more than the whole budget
    return std::vector<comp::op_error>(4);
  };
  fake::full_trainer inner{slow};
  on_gpu trainer{inner, "B200"};
  const comp::outcome found = comp::two_stage<comp::policy::pytorch>{}.run(trainer);
  CHECK(inner.scored > 0);
  CHECK(found.plan.str() == fastest(trainer, slow).str());
  CHECK(found.overhead_seconds() > 1);  // nothing modelled is subtracted from what the clock says
  CHECK(std::isnan(found.overhead_share()));
  CHECK(comp::table(found).find("(by this machine's clock)") != std::string::npos);
}

TEST_CASE("FP32's batches, which take long on a modelled GPU, leave a budget of batches for the losses of plans") {
  fake::world slow = layers();
  slow.batches = 80;
  slow.harm = [](const plan&) { return 0.0; };
  // Losses to and fro by 8%, of which few batches say little.
  bool lowered = false;
  slow.before_batch = [&](const plan& p, std::uint64_t) { lowered = comp::is_low(p[1]); };
  slow.swing = [&](std::uint64_t step) { return lowered ? 0.08 * std::sin(static_cast<double>(step * step)) : 0.0; };
  fake::full_trainer inner{slow};
  on_gpu trainer{inner, "B200"};
  REQUIRE(trainer.batch_seconds(plan{4}) > 8 * trainer.batch_seconds(fastest(trainer, slow)));
  const comp::outcome found = comp::two_stage<comp::policy::pytorch>{}.run(trainer);
  std::int64_t batches = 0;
  for (const comp::trial& t : found.trials) {
    if (t.stage == comp::stage::losses) batches = std::max(batches, t.sample.batches);
  }
  CHECK(batches > 50);
  CHECK(std::ranges::count_if(found.warnings, is_of_few_batches) == 1);
}

TEST_CASE("a format below 16 bits wins by the losses of many batches, in which harm that grows shows") {
  for (const double noise : {0.0, 0.005}) {
    for (const double harm : {0.0, 1.1e-4, 2e-4}) {
      const bool is_slow = harm == 1.1e-4;  // so slow that it has to be told from its growth
      CAPTURE(noise);
      CAPTURE(harm);
      const fake::world grows = of_growing_harm(harm, noise);
      fake::full_trainer inner{grows};
      on_gpu trainer{inner, "B200"};
      const comp::outcome found = comp::two_stage<comp::policy::pytorch>{}.run(trainer);
      CHECK(trainer.batch_seconds(found.plan) <= 1.01 * trainer.batch_seconds(fastest(trainer, grows)));
      CHECK(has_nvfp4(found.plan) == (harm == 0));
      bool shown = false, in_contest = false;
      for (const comp::trial& t : found.trials)
        shown = shown || (has_nvfp4(t.plan) && t.sample.batches > 100 && !t.accepted);
      for (const comp::contestant& c : found.contest)
        in_contest = in_contest || (has_nvfp4(c.plan) && c.loss_batches > 100);
      CHECK(shown == (harm > 0));
      CHECK(in_contest == (harm == 0 || is_slow || noise > 0));  // few batches accept it
      const auto winner = std::ranges::find(found.contest, found.plan, &comp::contestant::plan);
      REQUIRE(winner != found.contest.end());
      CHECK(winner->loss_batches > 200);
      CHECK(std::ranges::count_if(found.warnings, is_of_few_batches) == 0);
      const auto tells_of_growth = [](const std::string& w) {
        return w.find("above FP32's after 4") != std::string::npos &&
               w.find("batches and grows, by") != std::string::npos;
      };
      CHECK(std::ranges::any_of(found.warnings, tells_of_growth) == is_slow);
    }
  }
}

TEST_CASE("where all formats below 16 bits harm more and more, 16 bits win") {
  fake::world grows = of_growing_harm(0, 0);
  const auto is_low = std::make_shared<bool>(false);
  grows.before_batch = [is_low](const plan& p, std::uint64_t) { *is_low = p.has_scaled(); };
  grows.swing = [is_low](std::uint64_t step) {
    const auto n = static_cast<double>(step);
    return *is_low ? 1e-4 * n + 0.005 * std::sin(n * n) : 0.0;
  };
  fake::full_trainer inner{grows};
  on_gpu trainer{inner, "B200"};
  const comp::outcome found = comp::two_stage<comp::policy::pytorch>{}.run(trainer);
  CHECK(found.plan.str() == "bbbb");
}

TEST_CASE("strategies of one's own do not let a format win by few batches either") {
  fake::full_trainer inner{of_growing_harm(2e-4, 0.005)};
  on_gpu trainer{inner, "B200"};
  comp::two_stage search{comp::policy::pytorch{}, comp::strategy::exhaustive{}, comp::strategy::exhaustive{}};
  const comp::outcome found = search.run(trainer);
  CHECK(!has_nvfp4(found.plan));
  CHECK(found.plan.count_low() > 0);
}

TEST_CASE("losses are the wrapped trainer's, and each batch takes the modelled time") {
  fake::full_trainer inner{layers()}, alone{layers()};
  on_gpu trainer{inner, "H100"};
  const plan low{std::vector(4, precision::bf16)};
  const double fp32 = trainer.run_batch().seconds;
  trainer.set_precision(low);
  (void)alone.run_batch();
  alone.set_precision(low);
  const comp::sample epoch = trainer.run_epoch(), same = alone.run_epoch();
  CHECK(fp32 == trainer.batch_seconds(plan{4}));
  CHECK(epoch.curve == same.curve);
  CHECK(epoch.batch_seconds == std::vector(10, trainer.batch_seconds(low)));
  CHECK(epoch.seconds == doctest::Approx(10 * trainer.batch_seconds(low)));

  double operators = 0;
  for (const comp::op_time& t : trainer.profile()) operators += t.forward + t.backward;
  CHECK(operators < trainer.batch_seconds(low));  // the rest is casts of the weights, and the optimizer
  CHECK(operators > 0.5 * trainer.batch_seconds(low));
}

TEST_CASE("a modelled GPU has the precisions that the trainer and the GPU have") {
  fake::full_trainer inner{layers()};
  CHECK(on_gpu{inner, "B200"}.supported_precisions() == layers().precisions);
  CHECK(on_gpu{inner, "H100"}.supported_precisions() == std::vector{precision::fp32, precision::bf16});
}

TEST_CASE("the signature of a training on a modelled GPU names the GPU") {
  struct signing : fake::minimal_trainer {
    using minimal_trainer::minimal_trainer;
    std::string signature() const { return "text 1"; }
  } inner{layers()};
  CHECK(comp::simulated::trainer{inner, "H200"}.signature() == "text 1; modelled for H200");
}

TEST_CASE("an epoch that does not say how many batches it has is refused") {
  fake::world silent = layers();
  silent.batches = 0;
  fake::minimal_trainer inner{silent};
  minimal_on_gpu trainer{inner, "B200"};
  CHECK_THROWS_WITH_AS(
      trainer.run_epoch(),
      "an epoch does not say how many batches it has (their times are modelled): set sample.batches, or give "
      "the trainer batches_per_epoch()",
      comp::error);
}

TEST_CASE("a step takes as long with a layer's products in three operators as in one") {
  sizes::chain c{2048};
  c.linear(1024, 4096);
  const comp::op_graph one = c.graph();
  comp::op_info forward = one[0], input = forward, weight = forward;
  forward.product = comp::product::forward;
  input.product = comp::product::input_gradient, weight.product = comp::product::weight_gradient;
  input.name = "x", weight.name = "w";
  input.inputs = {{.shape = {2048, 4096}, .source = 0}, {.shape = {4096, 1024}, .parameter = true}};
  input.outputs = {{.shape = {2048, 1024}}};
  input.k = 4096, input.n = 1024;
  weight.inputs = {{.shape = {2048, 4096}, .source = 0}, {.shape = {2048, 1024}}};
  weight.outputs = {{.shape = {4096, 1024}}};
  weight.m = 4096, weight.n = 1024, weight.k = 2048;
  input.producers = weight.producers = {0};
  fake::full_trainer whole{{.graph = one}}, parts{{.graph = comp::op_graph{{forward, input, weight}}}};
  on_gpu of_one{whole, "B200"}, of_three{parts, "B200"};
  for (const precision p : {precision::fp32, precision::bf16, precision::mxfp8, precision::nvfp4}) {
    CAPTURE(name(p));
    CHECK(of_three.batch_seconds(plan{std::vector(3, p)}) == doctest::Approx(of_one.batch_seconds(plan{{p}})));
  }
}

TEST_CASE("a step of several micro-batches takes as many times as long, but for the optimizer") {
  fake::full_trainer inner{layers()};
  on_gpu one{inner, "B200"}, four{inner, "B200", {.micro_batches = 4}};
  on_gpu alone{inner, "B200", {.optimizer_bytes = 0}};
  const plan low{std::vector(4, precision::mxfp8)};
  const double optimizer = one.batch_seconds(low) - alone.batch_seconds(low);
  CHECK(four.batch_seconds(low) - optimizer == doctest::Approx(4 * alone.batch_seconds(low)).epsilon(0.01));
  one.set_precision(low), four.set_precision(low);
  CHECK(four.profile()[2].backward == doctest::Approx(4 * one.profile()[2].backward));
}

TEST_CASE("a small model is timed as a large one of the same operators") {
  sizes::chain large{1 << 16}, longer{4096};
  large.linear(1024, 1024), large.linear(1024, 4096), large.linear(4096, 4096), large.linear(4096, 4096);
  longer.linear(64, 64);
  fake::full_trainer inner{layers()}, other{{.graph = large.graph()}};
  on_gpu trainer{inner, "B200", {.timed_as = large.graph()}}, itself{other, "B200"};
  const plan low{std::vector(4, precision::bf16)};
  CHECK(trainer.batch_seconds(low) == itself.batch_seconds(low));
  on_gpu shorter{inner, "B200", {.timed_as = longer.graph()}};
  CHECK_THROWS_WITH_AS(
      shorter.batch_seconds(low),
      "timed_as has 1 operators, the trainer 4 (each one's time stands for one of the trainer's): build "
      "both models alike, with other sizes",
      comp::settings_error);
  longer.elementwise("relu", 64), longer.linear(64, 64), longer.linear(64, 64);
  on_gpu different{inner, "B200", {.timed_as = longer.graph()}};
  CHECK_THROWS_WITH_AS(different.batch_seconds(low),
                       "operator 1 of timed_as is relu, the trainer's is linear (each one's time stands for one of the "
                       "trainer's): build both models alike, with other sizes",
                       comp::settings_error);
}
