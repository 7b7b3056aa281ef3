// SPDX-License-Identifier: Apache-2.0
// Trainers that break, or say what is not so: a search tells of it.
#include <doctest/doctest.h>

#include <comp/policy/advice.hpp>
#include <comp/search/trainer/findings.hpp>
#include <stdexcept>

#include "fake_search.hpp"

using comp::plan;

namespace {

fake::world sound() {
  fake::world w{.graph = fake::sized_chain({"linear", "relu", "softmax"})};
  fake::timed_by(w, {{3, 1, 1}, {1.5, 0.5, 0.7}, 0});
  w.harm = fake::harmed_by({2}, 1e-5);
  w.batches = 100;
  return w;
}

// Changes what a batch says of itself; `before` comes before it.
struct says : fake::trainer {
  std::function<void(comp::sample&)> change = [](comp::sample&) {};
  std::function<void(const plan&)> before = [](const plan&) {};
  comp::hardware machine = {};
  comp::hardware hardware() const { return machine; }
  using fake::trainer::run_epoch;
  using fake::trainer::trainer;
  comp::sample run_batch() {
    before(now());
    comp::sample got = fake::trainer::run_batch();
    change(got);
    return got;
  }
};

std::string warnings_of(says& trainer, comp::search_settings settings = {}) {
  fake::watcher watching;
  const comp::outcome out =
      comp::two_stage<comp::policy::pytorch>{.settings = std::move(settings)}.run(trainer, watching);
  CHECK(comp::joined(out.warnings, "\n") == comp::joined(watching.warnings, "\n"));
  return comp::joined(out.warnings, "\n");
}
bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("a machine that computes in no precision faster than in FP32 is told of, in the words of its advice") {
  using comp::device_kind;
  const auto advice = [](comp::hardware machine, std::vector<comp::precision> named) {
    says trainer{sound()};
    trainer.machine = std::move(machine);
    return warnings_of(trainer, {.precisions = std::move(named)});
  };
  const comp::hardware old{.name = "Tesla K40m", .kind = device_kind::cuda, .compute_capability = 35};
  CHECK(advice(old, {comp::precision::bf16}) == comp::policy::machine_advice(old, comp::precision::bf16).front());
  CHECK(advice({.name = "an old CPU", .kind = device_kind::cpu, .isa = {"avx2"}}, {comp::precision::bf16}) == "");
  CHECK(advice({.name = "V100", .kind = device_kind::cuda, .compute_capability = 70}, {comp::precision::bf16}) == "");
  CHECK(advice({.name = "a CPU", .kind = device_kind::cpu, .isa = {"amx_bf16"}}, {}) == "");
  CHECK(advice({.name = "a GPU", .kind = device_kind::cuda}, {}) == "");
}

TEST_CASE("a trainer that breaks ends its search with its own words, whatever runs when it does") {
  for (const std::uint64_t good : {1U, 20U, 25U, 40U, 60U}) {
    for (const bool standard : {true, false}) {
      CAPTURE(good);
      fake::world w = sound();
      w.before_batch = [=](const plan&, std::uint64_t batch) {
        if (batch >= good && standard) throw std::runtime_error{"device lost"};
        if (batch >= good) throw 42;  // comes out as an error, because nobody catches numbers
      };
      says trainer{w};
      try {
        (void)warnings_of(trainer);
        FAIL("no error");
      } catch (const std::exception& e) {
        CHECK(has(e.what(), standard ? "device lost" : "an exception that is no std::exception"));
      }
      CHECK(trainer.now().count_low() == 0);
    }
  }
}

TEST_CASE("runs that fail are told with their words, and the search goes on") {
  fake::world w = sound();
  w.before_batch = [](const plan& p, std::uint64_t) {
    if (comp::is_low(p[1])) throw std::runtime_error{"no kernel for relu"};
  };
  says trainer{w};
  const std::string warnings = warnings_of(trainer);
  CHECK(has(warnings, "runs failed with \"no kernel for relu\""));
  CHECK(trainer.now().count_low() > 0);
  CHECK_FALSE(comp::is_low(trainer.now()[1]));
}

TEST_CASE("milliseconds for seconds are told, seconds and none are not") {
  const auto searched = [](double unit) {
    says trainer{sound()};
    double began = 0;
    trainer.before = [&](const plan&) { began = comp::detail::clock_seconds(); };
    trainer.change = [&](comp::sample& got) {
      got.seconds = unit * (comp::detail::clock_seconds() - began);
      got.batch_seconds.clear();
    };
    return warnings_of(trainer);
  };
  CHECK(has(searched(1000), "as the seconds of a batch that takes "));
  CHECK_FALSE(has(searched(1), "clock"));
  CHECK_FALSE(has(searched(0), "clock"));
}

TEST_CASE("seconds are held against the clock's over batches of a plan in a row") {
  const plan fp32 = comp::parse_plan("111"), low = comp::parse_plan("b1b");
  const auto contradiction = [&](auto told_of, auto seen_of) {
    comp::batch_clock clock;
    double before = seen_of(fp32);
    for (int i = 0; i < 40; ++i) {
      const plan& p = i / 10 % 2 == 0 ? fp32 : low;
      clock.add(p, told_of(p, before), seen_of(p));
      before = seen_of(p);
    }
    return clock.find_contradiction(fp32).value_or("");
  };
  const auto half = [&](const plan& p) { return p == low ? 2e-3 : 4e-3; };
  const auto same = [](const plan&) { return 4e-3; };
  CHECK(contradiction([&](const plan& p, double) { return half(p); }, half) == "");
  CHECK(contradiction([&](const plan& p, double) { return 0.9 * half(p); }, half) == "");  // without the call around it
  CHECK(contradiction([&](const plan&, double) { return 0.0; }, half) == "");
  CHECK(contradiction([&](const plan& p, double) { return half(p); }, [&](const plan& p) { return half(p) / 100; }) ==
        "");  // too short
  CHECK(has(contradiction([&](const plan& p, double) { return half(p); }, same),
            "2.00 times as fast as FP32 by the seconds of run_batch(), 1.00 times by comp's clock"));
  CHECK(
      has(contradiction([&](const plan&, double) { return 4e-3; }, half), "1.00 times as fast as FP32 by the seconds"));
  CHECK(
      has(contradiction([&](const plan&, double before) { return before; }, half), "the seconds of the batch before"));
}

TEST_CASE("a model that does not learn is told of, whatever its losses look like") {
  says constant{sound()};
  constant.change = [](comp::sample& got) { got.loss = 2.5, got.curve.clear(); };
  CHECK(has(warnings_of(constant), "the loss is 2.5 in each of "));
  fake::world w = sound();
  w.swing = [](std::uint64_t k) { return 1 - std::pow(0.99, static_cast<double>(k)) + (k % 2 == 0 ? 0.001 : -0.001); };
  says frozen{w};
  CHECK(has(warnings_of(frozen), "the loss did not get better in "));
  std::vector<double> spread;  // of batches that differ by a twentieth
  std::mt19937_64 drawn{1};
  for (int i = 0; i < 600; ++i) spread.push_back(2 + 0.1 * std::normal_distribution<double>{}(drawn));
  comp::outcome outcome;
  outcome.baseline.curve = spread;
  CHECK(comp::detail::problem_of_learning(outcome).has_value());
  for (std::size_t i = 0; i < spread.size(); ++i) outcome.baseline.curve[i] *= std::exp(-static_cast<double>(i) / 4500);
  CHECK_FALSE(comp::detail::problem_of_learning(outcome).has_value());
  for (const double share : {0.1, 0.2, 0.5}) {  // no warning of slow learning, however few batches show it
    outcome.baseline.curve.resize(static_cast<std::size_t>(600 * share));
    CHECK_FALSE(comp::detail::problem_of_learning(outcome).has_value());
  }
}

TEST_CASE("a direction that is not the loss's is told") {
  comp::search_settings settings;
  settings.direction = comp::loss_direction::higher_is_better;
  says trainer{sound()};
  CHECK(has(warnings_of(trainer, settings), "the loss gets worse: from 0.9"));
}

TEST_CASE("a memory limit that cannot be kept is told") {
  comp::search_settings settings;
  settings.memory_limit = 1 << 20;
  says trainer{sound()};
  CHECK(warnings_of(trainer, settings) == "");
  says silent{sound()};
  silent.change = [](comp::sample& got) { got.peak_bytes = 0; };
  CHECK(has(warnings_of(silent, settings), "the memory limit of 1048576 bytes is not kept"));
}
