// SPDX-License-Identifier: Apache-2.0
// How a search behaves to those who watch, stop and resume it, and that it keeps its promises on random models.
#include <doctest/doctest.h>

#include <comp/autocast/rule_plan.hpp>
#include <comp/strategy/exhaustive.hpp>

#include "fake_search.hpp"

using comp::plan;
using comp::precision;
using comp::stage;
using comp::trial;
using fake::search_with;

namespace {

using exhaustive_search = comp::two_stage<fake::lists, comp::strategy::exhaustive, comp::strategy::exhaustive>;

comp::search_settings free_operators() {
  comp::search_settings settings;
  settings.losses_tie = settings.times_tie = comp::tie::none;
  return settings;
}

// A softmax whose harm is near the tolerance and comes and goes: FP32 is asked to go on within the candidate's run.
fake::world hard_to_tell() {
  fake::world world = fake::typical();
  world.harm = [n = 0](const plan& p) mutable { return !comp::is_low(p[0]) ? 0 : ++n % 2 ? 0.02 : -0.018; };
  return world;
}

// Removes the last trial if it checks the state that a search leaves: a search with strategies whose runs are recalled
// has none to check.
comp::outcome without_last_check(comp::outcome found, bool guided = false) {
  if (!guided && found.trials.back().purpose == comp::purpose::check) found.trials.pop_back();
  return found;
}

// What two runs of the same search must agree in.
void check_same(const comp::outcome& of_one, const comp::outcome& of_other) {
  const comp::outcome a = without_last_check(of_one), b = without_last_check(of_other);
  CHECK(a.plan == b.plan);
  CHECK(a.speedup == b.speedup);
  REQUIRE(a.trials.size() == b.trials.size());
  for (std::size_t i = 0; i < a.trials.size(); ++i) {
    CHECK(a.trials[i].plan == b.trials[i].plan);
    CHECK(a.trials[i].stage == b.trials[i].stage);
    CHECK(a.trials[i].repeat == b.trials[i].repeat);
    if (trains(a.trials[i].purpose)) CHECK(a.trials[i].seconds == b.trials[i].seconds);
    CHECK(a.trials[i].number == i);
    CHECK(a.trials[i].accepted == b.trials[i].accepted);
  }
}

TEST_CASE_FIXTURE(fake::in_typical, "the same trainer and settings give the same search again") {
  world.noise = 0.1;
  for (const bool guided : {false, true}) {
    fake::full_trainer first{world, 3}, second{world, 3};
    check_same(fake::search_by(guided, first), fake::search_by(guided, second));
  }
}

TEST_CASE("observers are called in the documented order, and runs of FP32 lie within a candidate's as a whole") {
  fake::trainer trainer{hard_to_tell()};
  fake::watcher watcher;
  std::vector<trial> running;  // innermost last
  std::string last;
  std::size_t recalls = 0, done = 0, batches = 0, nested = 0;
  const auto same = [](const trial& a, const trial& b) { return is_same_run(a, b); };
  watcher.sees = [&](const std::string& call, const trial& t) {
    CAPTURE(call);
    if (call == "recall") ++recalls;
    if (call == "trial_started") {
      CHECK(last == "recall");
      nested += !running.empty();
      running.push_back(t);
    }
    if (call == "batch_done" || call == "trial_done") {
      REQUIRE_FALSE(running.empty());
      CHECK(same(running.back(), t));
      batches += call == "batch_done";
    }
    if (call == "trial_done") {
      CHECK(t.number == done++);
      running.pop_back();
    }
    last = call;
  };
  const comp::outcome found = search_with(trainer, {}, watcher);
  CHECK(watcher.calls.front() == "search_started");
  CHECK(watcher.calls.back() == "search_done");
  CHECK(running.empty());
  CHECK(nested > 0);  // or the case shows nothing
  CHECK(done == found.trials.size());
  CHECK(recalls == done);
  std::size_t trained = 0;
  for (const trial& t : found.trials) trained += static_cast<std::size_t>(t.sample.batches);
  CHECK(batches >= trained);  // a plan's first batch, which is not timed, is told too
}

TEST_CASE("a search tells at its start how many plans it will judge at most, FP32 and the winner counted in") {
  fake::trainer trainer{fake::typical()};
  fake::watcher watcher;
  const auto found = search_with(trainer, {}, watcher);
  CHECK(watcher.epochs_at_most == 2 + 2 + 2);  // FP32 and the winner, both ends, two groups
  const auto judged = std::ranges::count_if(
      found.trials, [](const trial& t) { return t.stage == stage::losses && t.purpose == comp::purpose::judge; });
  CHECK(judged <= 5);
  fake::watcher again;
  fake::trainer other{fake::typical()};
  (void)exhaustive_search{.settings = free_operators()}.run(other, again);
  CHECK(again.epochs_at_most == 2 + 4);
}

TEST_CASE("a search that recalls its first k runs ends as if it had made them, and makes only the others") {
  for (const bool guided : {false, true}) {
    fake::full_trainer whole{fake::typical()};
    const comp::outcome expected = without_last_check(fake::search_by(guided, whole), guided);
    const std::size_t n = expected.trials.size();
    for (std::size_t k = 0; k <= n; ++k) {
      CAPTURE(guided);
      CAPTURE(k);
      fake::full_trainer trainer{fake::typical()};
      fake::watcher watcher;
      watcher.recalls_from.assign(expected.trials.begin(), expected.trials.begin() + static_cast<std::ptrdiff_t>(k));
      const comp::outcome found = fake::search_by(guided, trainer, {}, watcher);
      check_same(expected, found);
      CHECK(watcher.recalled == k);
      CHECK(found.recalled == k);
      const std::size_t last_check = found.trials.size() - without_last_check(found, guided).trials.size();
      CHECK(std::ranges::count(watcher.calls, "trial_started") == static_cast<std::ptrdiff_t>(n - k + last_check));
      if (k == n) CHECK(trainer.count().batches == 2);  // of the look at the start
      CHECK(trainer.weights().steps == found.trained_batches);
    }
  }
}

TEST_CASE("a space that is too large is refused before the first epoch") {
  fake::trainer trainer{{.graph = fake::sized_chain(std::vector<std::string>(11, "deny"))}};
  CHECK_THROWS_WITH_AS((void)exhaustive_search{.settings = free_operators()}.run(trainer),
                       doctest::Contains("search space has 2048 plans in 11 groups"), comp::space_error);
  CHECK(trainer.count().batches == 0);
  SUBCASE("without epochs too") {
    auto settings = free_operators();
    settings.stages = comp::stages::times_only;
    CHECK_THROWS_AS((void)exhaustive_search{.settings = settings}.run(trainer), comp::space_error);
    CHECK(trainer.count().batches == 0);
  }
}

TEST_CASE(
    "what stage 2 has to enumerate is too large for its strategy: greedy takes its place, what was judged stays") {
  fake::world world{.graph =
                        fake::sized_chain({"allow", "x", "x", "x", "x", "x", "x", "x", "x", "x", "x", "x", "deny"})};
  world.seconds = [](const plan& p) { return 20 - static_cast<double>(p.count_low()); };
  world.harm = fake::harmed_by({12});
  fake::trainer trainer{world};
  fake::watcher watching;
  const comp::outcome found = exhaustive_search{.settings = free_operators()}.run(trainer, watching);
  CHECK(found.plan.str() == "bbbbbbbbbbbb1");
  REQUIRE(found.warnings.size() == 1);
  CHECK(watching.warnings == found.warnings);
  CHECK(found.warnings.front().starts_with("stage 2 was searched by greedy: search space has 2048 plans in 11 groups"));
}

TEST_CASE("a search that is stopped at any run or batch leaves the trainer at its start and can be resumed") {
  for (const bool guided : {false, true}) {
    CAPTURE(guided);
    fake::full_trainer whole{fake::typical()};
    const comp::outcome expected = fake::search_by(guided, whole);
    const auto check_stopped = [&](fake::full_trainer& trainer, fake::watcher& watcher) {
      CHECK_THROWS_AS((void)fake::search_by(guided, trainer, {}, watcher), comp::interrupted);
      CHECK(trainer.weights() == fake::state{});
      CHECK(trainer.now() == plan{4});
      CHECK(std::ranges::find(watcher.calls, "search_done") == watcher.calls.end());
      fake::watcher resumed;
      resumed.recalls_from = watcher.done;
      fake::full_trainer again{fake::typical()};
      check_same(expected, fake::search_by(guided, again, {}, resumed));
      CHECK(resumed.recalled == std::min(watcher.done.size(), without_last_check(expected, guided).trials.size()));
    };
    for (std::size_t run = 0; run < expected.trials.size(); ++run) {
      CAPTURE(run);
      fake::full_trainer trainer{fake::typical()};
      fake::watcher watcher;
      watcher.stops_after = [run](const trial& t) { return t.number == run; };
      check_stopped(trainer, watcher);
      CHECK(watcher.done.size() == run + 1);
    }
    for (std::uint64_t batch = 1; batch < whole.count().batches; batch += 3) {
      CAPTURE(batch);
      fake::full_trainer trainer{fake::typical()};
      fake::watcher watcher;
      watcher.stops_now = [&] { return trainer.count().batches >= batch; };
      check_stopped(trainer, watcher);
    }
  }
}

TEST_CASE("batches of accepted plans are kept where the winner was not the last that was accepted") {
  fake::world world{.graph = fake::sized_chain({"deny", "deny"})};
  fake::timed_by(world, {{2, 2}, {1, 2.2}, 0});  // "b1" wins, "bb" is judged after it
  fake::trainer trainer{world};
  const comp::outcome found = exhaustive_search{.settings = free_operators()}.run(trainer);
  CHECK(found.plan.str() == "b1");
  CHECK(found.trained_batches >= 16);
}

TEST_CASE_FIXTURE(fake::in_typical, "plans are timed on weights that no rejected plan has touched") {
  world.harm = [](const plan& p) { return p.count_low() > 0 ? 0.03 : 0; };  // too little to be cut short
  fake::trainer trainer{world};
  const comp::outcome found = exhaustive_search{.settings = free_operators()}.run(trainer);
  CHECK(found.plan.count_low() == 0);
  const auto timed = std::ranges::find_if(found.trials, [](const trial& t) {
    return (t.stage == stage::times || t.stage == stage::contest) && t.plan.count_low() == 0;
  });
  REQUIRE(timed != found.trials.end());
  CHECK(timed->sample.loss <= 1);
}

TEST_CASE("a search that is stopped while FP32 runs within a candidate's run leaves the trainer at its start") {
  fake::trainer whole{hard_to_tell()};
  const std::uint64_t batches = (void(search_with(whole)), whole.count().batches);
  for (std::uint64_t batch = 1; batch < batches; batch += 2) {
    CAPTURE(batch);
    fake::trainer trainer{hard_to_tell()};
    fake::watcher watcher;
    watcher.stops_now = [&] { return trainer.count().batches >= batch; };
    CHECK_THROWS_AS((void)search_with(trainer, {}, watcher), comp::interrupted);
    CHECK(trainer.weights() == fake::state{});
  }
}

TEST_CASE("what an observer throws while FP32 runs within a candidate's run is no fault of the candidate") {
  for (const std::string call : {"trial_started", "batch_done", "trial_done"}) {
    for (int at = 1; at < 60; ++at) {
      CAPTURE(call);
      CAPTURE(at);
      fake::trainer trainer{hard_to_tell()};
      fake::watcher watcher;
      bool thrown = false;
      watcher.at = [&, n = 0](const std::string& now) mutable {
        if (now == call && ++n == at) {
          thrown = true;
          throw std::logic_error{"disk full"};
        }
      };
      std::string came;
      try {
        (void)search_with(trainer, {}, watcher);
      } catch (const std::logic_error& e) {
        came = e.what();
      }
      CHECK(came == (thrown ? "disk full" : ""));
      if (thrown) CHECK(trainer.weights() == fake::state{});
    }
  }
}

TEST_CASE("FP32 that ends badly while a candidate waits for it is an error, not the candidate's fault") {
  fake::world world = hard_to_tell();
  world.before_batch = [](const plan& p, std::uint64_t batch) {
    if (p.count_low() == 0 && batch > 30) throw std::runtime_error{"data set is gone"};
  };
  fake::trainer trainer{world};
  CHECK_THROWS_WITH_AS((void)search_with(trainer), "data set is gone", std::runtime_error);
}

TEST_CASE_FIXTURE(fake::in_typical, "a backend that throws now and then costs those trials only") {
  world.before_batch = [](const plan& p, std::uint64_t batch) {
    if (p.str() == "b1bb" && batch % 2) throw std::runtime_error{"no kernel"};
  };
  fake::trainer trainer{world};
  const comp::outcome found = search_with(trainer);
  CHECK(found.plan.str() == "1bbb");
  CHECK(std::ranges::any_of(found.trials, [](const trial& t) { return t.sample.message == "no kernel"; }));
}

struct random_model {
  fake::world world;
  std::vector<std::size_t> harmful;
};

random_model made_up(std::mt19937_64& random, double noise) {
  const auto share = [&] { return std::uniform_real_distribution<double>{0, 1}(random); };
  std::vector<comp::op_info> ops(2 + random() % 10);
  fake::costs times{.cast = share() / 4};
  random_model model;
  for (std::size_t i = 0; i < ops.size(); ++i) {
    ops[i] = {.name = std::to_string(i),
              .kind = std::vector{"allow", "allow.odd", "deny", "relu", "relu", "fix"}[random() % 6]};
    if (i > 0) ops[i].producers.push_back(random() % 3 ? i - 1 : random() % i);
    if (i > 1 && random() % 4 == 0) ops[i].producers.push_back(random() % i);
    ops[i].choosable = random() % 8 != 0;
    times.fp32.push_back(0.2 + share());
    times.low.push_back(times.fp32.back() * (0.3 + share()));
    if (random() % 6 == 0 && ops[i].kind != "fix") model.harmful.push_back(i);  // what is fixed is in every plan
  }
  model.world = {.graph = fake::sized(std::move(ops)), .batches = 8, .noise = noise};
  model.world.seconds = [graph = model.world.graph, times](const plan& p) { return times(graph, p); };
  model.world.harm = fake::harmed_by(model.harmful);
  return model;
}

bool harmless(const random_model& model, const plan& p) { return model.world.harm(p) == 0; }

}  // namespace

TEST_CASE("on random models the outcome is accepted, and never slower than FP32 or the rule-based plan") {
  std::mt19937_64 random{2024};
  int faster = 0;
  for (const double noise : {0.0, 0.02}) {
    for (int round = 0; round < 150; ++round) {
      const random_model model = made_up(random, noise);
      plan fp32{model.world.graph.size()};
      for (std::size_t i = 0; i < fp32.size(); ++i) {  // the most conservative plan that runs
        if (model.world.graph[i].choosable && model.world.graph[i].kind == "fix") fp32[i] = precision::bf16;
      }
      const plan rules = comp::autocast::rule_plan(fake::lists{}, model.world.graph, comp::precision::bf16);
      fake::trainer trainer{model.world, random()};
      const comp::outcome found = search_with(trainer);
      CAPTURE(noise);
      CAPTURE(round);
      CAPTURE(found.plan.str());
      CAPTURE(rules.str());
      const double margin = 1 + 1e-9 + noise;
      CHECK(harmless(model, found.plan));
      CHECK_NOTHROW(comp::require_fits(found.plan, model.world.graph));
      CHECK(model.world.seconds(found.plan) <= margin * model.world.seconds(fp32));
      if (harmless(model, rules)) CHECK(model.world.seconds(found.plan) <= margin * model.world.seconds(rules));
      CHECK(trainer.now() == found.plan);
      CHECK(trainer.weights().steps == found.trained_batches);
      CHECK(trainer.weights().error == doctest::Approx(std::pow(0.99, found.trained_batches)));
      faster +=
          model.world.seconds(found.plan) < 0.99 * std::min(model.world.seconds(rules), model.world.seconds(fp32));
    }
  }
  CHECK(faster > 75);  // of 300, and it does find something: 95 when this was written
}

TEST_CASE_FIXTURE(fake::in_typical, "no plan asks an operator for an FP32 that it lacks") {
  std::size_t alone = 4;  // if it is low, no other may be
  const auto search_without = [&](std::size_t op) {
    const std::string name = std::to_string(op);
    world.runs = [=](const comp::op_info& o, precision p) { return o.name != name || p != precision::fp32; };
    fake::trainer trainer{world};
    const comp::outcome found = search_with(trainer);
    std::size_t judged = 0;
    for (const trial& t : found.trials) {
      CHECK(comp::is_low(t.plan[op]));
      judged += t.stage == stage::losses && t.plan != found.contest.front().plan;
    }
    CHECK(judged > 0);
    for (const plan& p : found.fallbacks) CHECK(comp::is_low(p[op]));
    CHECK(comp::is_low(found.plan[op]));
    if (op != alone) CHECK(found.plan.count_low() > 1);
  };
  SUBCASE("with one low precision") {}
  SUBCASE("with two") { world.precisions = {precision::fp32, precision::bf16, precision::fp16}; }
  SUBCASE("where the allow-operators are put in question") {
    world.harm = [](const plan& p) { return comp::is_low(p[2]) && comp::is_low(p[3]) ? 0.1 : 0; };
    alone = 3;
  }
  for (std::size_t op = 0; op < 4; ++op) {
    CAPTURE(op);
    search_without(op);
  }
}

TEST_CASE_FIXTURE(fake::in_typical, "no plan asks an operator for a precision that the backend does not run it in") {
  world.precisions = {precision::fp32, precision::bf16, precision::fp8_e4m3};
  world.runs = [](const comp::op_info& op, precision p) {
    if (p == precision::bf16) return op.kind != "allow.conv";  // which a rule would lower to it
    return p != precision::fp8_e4m3 || op.kind.starts_with("allow");
  };
  std::size_t in_fp8 = 0;
  world.seconds = [](const plan& p) { return 2.0 - 0.01 * static_cast<double>(p.count_low()); };
  fake::trainer trainer{world};
  const comp::outcome found = search_with(trainer);
  const auto check_plan = [&](const plan& p) {
    for (std::size_t i = 0; i < p.size(); ++i) {
      in_fp8 += p[i] == precision::fp8_e4m3;
      CHECK(world.runs(world.graph[i], p[i]));
    }
  };
  for (const trial& t : found.trials) check_plan(t.plan);
  for (const comp::contestant& c : found.contest) check_plan(c.plan);
  check_plan(found.plan);
  CHECK(in_fp8 > 0);  // or it shows nothing
}
