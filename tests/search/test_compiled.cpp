// SPDX-License-Identifier: Apache-2.0
// Searches on trainers whose steps a compiler may run: losses come from steps that are not compiled, times from
// compiled ones.
#include <doctest/doctest.h>

#include <algorithm>
#include <comp/search/decision/budget.hpp>
#include <functional>
#include <random>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "fake_search.hpp"

using comp::outcome;
using comp::parse_plan;
using comp::plan;
using comp::stage;
using fake::warns;

namespace {

/// Has other times when its steps run compiled, and notes who asked for those.
class compiling_trainer : public fake::full_trainer {
 public:
  using full_trainer::full_trainer;
  bool run_compiled(bool on) {
    compiled = on && compiles;
    return compiles;
  }
  comp::sample run_batch() {
    return in_its_way([&] { return full_trainer::run_batch(); });
  }
  comp::sample run_epoch() {
    return run_epoch([](const comp::sample&) { return false; });
  }
  comp::sample run_epoch(const comp::stop_predicate& stop) {
    return in_its_way([&] { return full_trainer::run_epoch(stop); });
  }

  std::function<double(const plan&)> compiled_seconds = {};
  std::function<void(const plan&)> compile = [](const plan&) {};  // before a plan's first compiled batch; may throw
  bool compiles = true, compiled = false;
  std::set<plan> was_compiled = {};

 private:
  comp::sample in_its_way(auto run) {
    if (!compiled) return run();
    if (!was_compiled.contains(now())) compile(now());
    was_compiled.insert(now());
    const auto before = std::exchange(change().seconds, compiled_seconds);
    const comp::sample got = run();
    change().seconds = before;
    return got;
  }
};

// Two operators that the rules lower and one that they do not. Uncompiled it pays to lower all three, compiled to lower
// what the rules do: 1bb takes 0.4 of FP32's time, bbb 0.5.
compiling_trainer new_trainer() {
  fake::world w{.graph = fake::sized_chain({"deny.norm", "allow.linear", "allow.linear"}), .batches = 150};
  fake::timed_by(w, {{1, 1, 1}, {0.3, 0.5, 0.5}, 0});
  compiling_trainer t{std::move(w)};
  t.compiled_seconds = [](const plan& p) {
    return 0.1 * (10 - 3.0 * static_cast<double>(p.count_low())) + (comp::is_low(p[0]) ? 0.4 : 0);
  };
  return t;
}

outcome search_on(compiling_trainer& on, const comp::search_settings& settings = {}) {
  return comp::two_stage<fake::lists>{.settings = settings}.run(on);
}

}  // namespace

TEST_CASE("the plan whose compiled steps are fastest wins, and losses are judged uncompiled") {
  compiling_trainer t = new_trainer();
  fake::watcher watching;
  watching.sees = [&](const std::string& call, const comp::trial& done) {
    if (call == "trial_done" && t.compiled) CHECK((done.stage == stage::contest || done.label == "compiling"));
    if (call == "batch_done" && done.stage != stage::contest) CHECK_FALSE(t.compiled);
  };
  const outcome found = comp::two_stage<fake::lists>{}.run(t, watching);
  CHECK(found.compiled);
  CHECK(found.plan == parse_plan("1bb"));
  CHECK(found.speedup == doctest::Approx(2.5));
  CHECK_FALSE(t.compiled);
  CHECK_FALSE(warns(found, "not compiled"));
  CHECK(found.trained_batches == t.weights().steps);

  compiling_trainer uncompiled = new_trainer();
  uncompiled.compiles = false;
  const outcome other = search_on(uncompiled);
  CHECK_FALSE(other.compiled);
  CHECK(other.plan == parse_plan("bbb"));
}

TEST_CASE("compiled steps that are slower than uncompiled ones are told of") {
  compiling_trainer t = new_trainer();
  t.compiled_seconds = [](const plan& p) { return 5.6 - static_cast<double>(p.count_low()); };
  const outcome found = search_on(t);
  CHECK(found.plan == parse_plan("bbb"));
  CHECK(warns(found, "steps that are not compiled are 2.00 times as fast"));
  CHECK(warns(found, "fast under \"all in bf16\" as compiled ones under \"comp: all in bf16\""));
}

namespace {
void shorten(compiling_trainer& t) {
  for (auto* const times : {&t.change().seconds, &t.compiled_seconds})
    *times = [seconds = *times](const plan& p) { return 1e-3 * seconds(p); };
}
}  // namespace

TEST_CASE("no more plans are compiled than there is time for, and those are the ones that matter") {
  compiling_trainer t = new_trainer();
  shorten(t);
  t.compile = [](const plan&) { moved_clock::pass(50e-3); };
  comp::search_settings settings;
  settings.planned_epochs = 4;  // 600 batches of 3 ms, of which a twentieth is 90 ms
  settings.budget = 0.2;
  settings.rivals = [](const comp::op_graph&, std::span<const comp::precision>) {
    return std::vector<comp::rival>{{"b11", parse_plan("b11")}, {"11b", parse_plan("11b")}, {"1b1", parse_plan("1b1")}};
  };
  const outcome found = search_on(t, settings);
  CHECK(t.was_compiled == std::set{parse_plan("111"), parse_plan("1bb"), parse_plan("bbb")});
  CHECK(std::ranges::count_if(found.contest, [](const auto& c) { return !c.seconds.empty(); }) == 3);
  CHECK(found.plan == parse_plan("1bb"));
  compiling_trainer quick = new_trainer();
  shorten(quick);
  (void)search_on(quick, settings);
  CHECK(quick.was_compiled.size() == 6);
}

TEST_CASE("a compiler's budget is a twentieth of the training, and three plans at least") {
  comp::search_settings settings;
  settings.planned_epochs = 10;
  const comp::search_budget budget{settings, 100, true};  // 1000 batches
  CHECK(budget.plans_to_compile(1, 0.1) == 5);
  CHECK(budget.plans_to_compile(1, 0.01) == 3);
  CHECK(budget.plans_to_compile(0, 0.01) == 100);
  CHECK(comp::search_budget{settings, 0, true}.plans_to_compile(1000, 0.01) == 100);
}

TEST_CASE("a search ends where FP32's compiled step fails; a plan whose compiled step fails leaves") {
  compiling_trainer t = new_trainer();
  t.compile = [](const plan&) { throw comp::error{"no C++ compiler"}; };
  CHECK_THROWS_WITH_AS((void)search_on(t), "no C++ compiler", comp::error);
  CHECK_FALSE(t.compiled);
  CHECK(t.weights() == fake::state{});

  compiling_trainer some = new_trainer();
  some.compile = [](const plan& p) { comp::require<comp::error>(p != parse_plan("1bb"), "no kernel"); };
  const outcome other = search_on(some);
  CHECK(other.compiled);
  CHECK(other.plan == parse_plan("bbb"));
}

TEST_CASE("compiled batches of different lengths are compared on the same ones, and the state is kept") {
  compiling_trainer t = new_trainer();
  t.change().length = [](std::uint64_t step) { return step % 3 == 0 ? 2.0 : 1.0; };
  const outcome found = search_on(t);
  CHECK(found.plan == parse_plan("1bb"));
  CHECK(found.speedup == doctest::Approx(2.5).epsilon(0.01));
}

TEST_CASE("rules that are slower than FP32 are not kept, however noisy the found plan's compiled steps are") {
  for (std::uint64_t seed = 1; seed <= 20; ++seed) {
    CAPTURE(seed);
    compiling_trainer t = new_trainer();
    std::mt19937_64 random{seed};
    t.compiled_seconds = [&](const plan& p) {
      if (p == parse_plan("1bb")) return 4.0;
      if (p != parse_plan("bbb")) return 2.0;
      return random() % 5 < 2 ? 6.0 : 1.0;
    };
    CHECK(search_on(t).plan != parse_plan("1bb"));
  }
}

TEST_CASE("lengths of batches are no reason to leave the compiler out") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    compiling_trainer t = new_trainer();
    t.change().length = [seed](std::uint64_t step) {
      return (step / 8 + seed) % 5 == 0 ? 8.0 : 1.0 + static_cast<double>(step * 7 % 3);
    };
    t.compiled_seconds = [seconds = t.change().seconds](const plan& p) { return seconds(p); };
    CHECK_FALSE(warns(search_on(t), "not compiled"));
  }
}

TEST_CASE("where no plan was found but FP32, nothing is compiled and FP32's batches are kept") {
  compiling_trainer t = new_trainer();
  t.change().harm = [](const plan& p) { return p.count_low() > 0 ? 1.0 : 0.0; };
  const outcome found = search_on(t);
  CHECK(found.plan == parse_plan("111"));
  CHECK(t.was_compiled.empty());
  CHECK(found.trained_batches >= 8);
  CHECK(found.trained_batches == t.weights().steps);
}

TEST_CASE("a ledger of compiled steps is not one of uncompiled ones") {
  std::vector<std::string> signatures;
  for (const bool compiles : {true, false}) {
    compiling_trainer t = new_trainer();
    t.compiles = compiles;
    struct listener {
      std::vector<std::string>* all;
      void search_started(const comp::search_info& info) { all->push_back(info.signature); }
    } listening{&signatures};
    (void)comp::two_stage<fake::lists>{}.run(t, listening);
  }
  CHECK(signatures.at(0) != signatures.at(1));
}

TEST_CASE("strategies of the user's hold their contest compiled, too") {
  compiling_trainer t = new_trainer();
  const outcome found = comp::two_stage<fake::lists, comp::strategy::greedy, comp::strategy::greedy>{}.run(t);
  CHECK(found.compiled);
  CHECK(found.plan == parse_plan("1bb"));
  CHECK_FALSE(t.compiled);
}
