// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/search/decision/staged_search.hpp>
#include <comp/search/losses/loss_trials.hpp>
#include <comp/search/times/contest.hpp>
#include <comp/strategy/exhaustive.hpp>
#include <comp/strategy/greedy.hpp>

#include "fake_search.hpp"

using comp::contestant;
using comp::parse_plan;
using comp::racer;
using comp::stage;
using comp::status;

namespace {

struct track {
  explicit track(std::map<std::string, double> seconds, std::uint64_t seed = 1)
      : trainer{{.graph = fake::chain({"a", "b", "c"}),
                 .seconds = [=](const comp::plan& p) { return seconds.at(p.str()); }},
                seed} {}
  fake::trainer trainer;
  fake::watcher watcher = {};
  comp::observer_list<fake::watcher> observers{watcher};
  comp::outcome log{.graph = trainer.graph()};
  comp::trainer_of<fake::trainer> erased{trainer};
  comp::evaluator run{erased, observers, log};

  std::vector<racer> race(const std::vector<std::string>& plans, bool leave, std::size_t rounds = 20) {
    std::vector<racer> racers;
    for (const auto& p : plans) racers.push_back({.plan = parse_plan(p), .label = p});
    comp::race{run, leave ? stage::times : stage::contest, {}, rounds}.run(racers);
    return racers;
  }
};

// A contestant that was timed as given, against FP32's 1 second.
contestant timed(std::string plan, std::vector<double> seconds, double loss = 0, std::int64_t bytes = 0) {
  contestant c{.label = plan, .plan = parse_plan(plan), .seconds = std::move(seconds), .peak_bytes = bytes};
  c.over_fp32 = comp::compare_paired(std::vector(c.seconds.size(), 1.0), c.seconds);
  c.loss = comp::loss_verdict{.answer = comp::loss_answer::accepted, .difference = loss};
  return c;
}
std::vector<double> six(double seconds) { return std::vector(6, seconds); }

// The order of a contest of which nothing was predicted.
std::vector<std::size_t> ranked(std::vector<contestant> contest) {
  return comp::ranking(contest, [](const comp::plan&) { return fake::nan; });
}

comp::search_space one_choice() {
  return {comp::plan{3}, {{"a", {0}, {comp::precision::fp32, comp::precision::bf16}}}};
}

}  // namespace

TEST_CASE("a plan that is 3% faster wins under noise and a drift of 30%") {
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    CAPTURE(seed);
    track t{{{"111", 1.0}, {"b11", 0.97}}, seed};
    t.trainer.change().drift = 0.3 / 0.4;  // 40 batches are a race of two over 20 rounds
    t.trainer.change().noise = 0.02;
    const auto racers = t.race({"111", "b11"}, false);
    CHECK(comp::compare_paired(racers[0].seconds, racers[1].seconds).clearly_faster());
    // One after the other the drift would hide it: the second ten batches of the slow one against the first of the
    // fast.
    if (racers[0].seconds.size() == 20) CHECK(racers[0].seconds.front() < racers[1].seconds.back());
  }
}

TEST_CASE("two plans that are equally fast are told apart by noise in few races only") {
  int apart = 0;
  for (std::uint64_t seed = 0; seed < 100; ++seed) {
    track t{{{"111", 1.0}, {"b11", 1.0}}, seed};
    t.trainer.change().noise = 0.1;
    const auto racers = t.race({"111", "b11"}, false);
    const auto against = comp::compare_paired(racers[0].seconds, racers[1].seconds);
    apart += against.clearly_faster() || against.clearly_slower();
  }
  CHECK(apart <= 25);  // 5% each time that is looked, and it is looked after each of 15 rounds
}

TEST_CASE("a plan that is clearly slower leaves a race of stage 2, a hopeless one after two rounds") {
  track t{{{"111", 1.0}, {"b11", 1.1}, {"bb1", 2.0}, {"bbb", 0.999}}};
  const auto racers = t.race({"111", "b11", "bb1", "bbb"}, true);
  CHECK(racers[1].has_left);
  CHECK(racers[1].seconds.size() == 6);
  CHECK(racers[2].has_left);
  CHECK(racers[2].seconds.size() == 2);
  CHECK_FALSE(racers[3].has_left);
}

TEST_CASE("a single slow batch makes no plan hopeless") {
  track t{{{"111", 1.0}, {"b11", 0.9}}};
  t.trainer.change().seconds = [n = 0](const comp::plan& p) mutable {
    return p.count_low() == 0 ? 1.0 : ++n == 2 ? 30.0 : 0.9;
  };
  SUBCASE("where all have as many rounds") {
    const auto racers = t.race({"111", "b11"}, true, 10);
    CHECK_FALSE(racers[1].has_left);
    CHECK(racers[1].seconds.size() >= 6);
  }
  SUBCASE("where FP32 has a single one") {
    std::vector<racer> racers{
        {.plan = parse_plan("111"), .rounds_at_most = 1}, {.plan = parse_plan("b11")}, {.plan = parse_plan("bb1")}};
    comp::race{t.run, stage::contest, {}, 10}.run(racers);
    CHECK(racers[0].seconds.size() == 1);
    CHECK_FALSE(racers[1].has_left);
  }
}

TEST_CASE("the reference runs to the end even when it is the slowest") {
  track t{{{"111", 3.0}, {"b11", 1.0}, {"bb1", 1.0}}};
  const auto racers = t.race({"111", "b11", "bb1"}, false);
  CHECK_FALSE(racers[0].has_left);
  CHECK(racers[0].seconds.size() == racers[1].seconds.size());
}

TEST_CASE("in the contest a plan leaves only when it is hopeless against FP32, not against the best") {
  // The best may yet be refused for its loss: the second is then the outcome.
  track t{{{"111", 1.0}, {"b11", 0.7}, {"bbb", 0.4}, {"11b", 1.5}}};
  const auto contest = comp::time_contest(t.run, {},
                                          {{.plan = parse_plan("111"), .label = "fp32"},
                                           {.plan = parse_plan("b11"), .label = "rule-based"},
                                           {.plan = parse_plan("bbb"), .label = "comp"},
                                           {.plan = parse_plan("11b"), .label = "slow"}});
  CHECK(contest[1].over_fp32.clearly_faster());
  CHECK(contest[3].seconds.size() == 2);
  CHECK(ranked(contest) == std::vector<std::size_t>{2, 1, 0});
  CHECK(contest[1].over_fp32.ratio == doctest::Approx(1 / 0.7));
  CHECK(contest[2].peak_bytes == 970);
}

TEST_CASE("the contest goes on while the two fastest are too close to call") {
  track t{{{"111", 1.0}, {"b11", 0.70}, {"bbb", 0.69}}};
  t.trainer.change().noise = 0.1;
  CHECK(t.race({"111", "b11", "bbb"}, false, 20)[2].seconds.size() > 6);
}

TEST_CASE("every second round runs backwards") {
  track t{{{"111", 1.0}, {"b11", 1.0}}};
  (void)t.race({"111", "b11"}, false, 6);
  std::string order;
  for (const auto& done : t.watcher.done) order += done.plan.count_low() ? "b" : "1";
  CHECK(order == "1bb11bb11bb1");
}

TEST_CASE("a racer that fails is out, and the others run on from the start") {
  track t{{{"111", 1.0}, {"b11", 0.9}}};
  t.trainer.change().before_batch = [n = 0](const comp::plan& p, std::uint64_t) mutable {
    if (p.count_low() > 0 && ++n == 4) throw std::runtime_error{"no kernel"};
  };
  const auto racers = t.race({"111", "b11"}, false);
  CHECK(racers[1].has_left);
  CHECK(racers[1].status == status::failed);
  CHECK(racers[1].seconds.size() == 2);
  CHECK(racers[0].status == status::ok);
  const auto contest = comp::time_contest(t.run, {}, racers);
  CHECK(ranked(contest) == std::vector<std::size_t>{0});
}

TEST_CASE("a loss that another plan damaged is not attributed to FP32") {
  track t{{{"111", 1.0}, {"b11", 0.5}}};
  t.trainer.change().harm = [](const comp::plan& p) { return p.count_low() ? fake::nan : 0; };
  const auto racers = t.race({"111", "b11"}, false);
  CHECK(racers[0].status == status::ok);
  CHECK(racers[1].status == status::not_finite);
  CHECK(t.trainer.weights() == fake::state{});
  SUBCASE("batches that FP32 loses, too, are nobody's fault") {
    t.trainer.change().harm = [](const comp::plan&) { return 0.0; };
    t.trainer.change().swing = [](std::uint64_t batch) { return batch == 3 || batch == 4 ? fake::nan : 0.0; };
    for (const comp::racer& r : t.race({"111", "b11"}, false)) {
      CHECK(r.status == status::ok);
      CHECK(r.lost == 0);
      CHECK(r.seconds.size() >= 6);
    }
  }
  SUBCASE("a batch that FP32 does not lose is its racer's own") {
    t.trainer.change().harm = [](const comp::plan&) { return 0.0; };
    t.trainer.change().swing = [&](std::uint64_t batch) {
      return batch % 4 == 1 && t.trainer.now().count_low() > 0 ? fake::nan : 0.0;
    };
    const auto own = t.race({"111", "b11"}, false);
    CHECK(own[0].lost == 0);
    CHECK(own[1].lost > 0);
    CHECK(own[1].status == status::ok);
  }
}

TEST_CASE("the ranking offers what is faster than FP32, fastest first, and FP32 last") {
  CHECK(ranked({timed("111", six(1)), timed("b11", six(.9)), timed("bb1", six(.8)), timed("bbb", six(2))}) ==
        std::vector<std::size_t>{2, 1, 0});
  CHECK(ranked({timed("111", six(1)), timed("b11", six(1.2))}) == std::vector<std::size_t>{0});
  CHECK(ranked({timed("111", six(1))}) == std::vector<std::size_t>{0});
}

TEST_CASE("the ranking leaves out what failed and what was rejected for its losses") {
  auto failed = timed("b11", six(.5)), rejected = timed("bb1", six(.4));
  failed.status = status::failed;
  rejected.loss->answer = comp::loss_answer::rejected;
  CHECK(ranked({timed("111", six(1)), failed, rejected, timed("bbb", six(.9))}) == std::vector<std::size_t>{3, 0});
}

TEST_CASE("of plans that are as fast, FP32 wins, else the lower loss, else less memory") {
  const auto fp32 = timed("111", six(1));
  CHECK(ranked({fp32, timed("b11", six(.999))}) == std::vector<std::size_t>{0});
  CHECK(ranked({fp32, timed("b11", six(.8)), timed("bb1", six(.801), -0.01)}) == std::vector<std::size_t>{2, 1, 0});
  CHECK(ranked({fp32, timed("b11", six(.8)), timed("bb1", six(.81), -0.01)}) == std::vector<std::size_t>{1, 2, 0});
  CHECK(ranked({fp32, timed("b11", six(.8), 0, 500), timed("bb1", six(.801), 0, 400)}) ==
        std::vector<std::size_t>{2, 1, 0});
}

TEST_CASE("who is above the memory limit is left out where somebody fits who could win") {
  const auto within = [](std::vector<contestant> contest) {
    return comp::ranking(
        contest, [](const comp::plan&) { return fake::nan; }, 400);
  };
  const auto fp32 = timed("111", six(1), 0, 600), fast = timed("b11", six(.6), 0, 450);
  auto rejected = timed("bb1", six(.8), 0, 350), failed = timed("1b1", {});
  rejected.loss->answer = comp::loss_answer::rejected;
  failed.status = status::out_of_memory;
  const contestant never_run{.label = "11b", .plan = parse_plan("11b")};
  CHECK(within({fp32, fast, timed("bbb", six(.9), 0, 350)}) == std::vector<std::size_t>{2, 0});
  CHECK(within({fp32, fast, timed("bbb", six(1.1), 0, 350)}) == std::vector<std::size_t>{2, 0});
  for (const contestant& no_winner : {rejected, failed, never_run}) {
    CAPTURE(no_winner.label);
    CHECK(within({fp32, fast, no_winner}) == std::vector<std::size_t>{1, 0});
  }
}

TEST_CASE("what is within noise of the winner is called a tie, what is clearly slower is not") {
  std::vector contest{timed("111", six(1)), timed("b11", {.79, .81, .79, .81, .79, .81}),
                      timed("bb1", {.81, .79, .80, .78, .81, .80}), timed("bbb", six(.9))};
  const auto order = comp::ranking(contest, [](const comp::plan&) { return fake::nan; });
  const std::size_t first = order.front(), other = first == 1 ? 2 : 1;
  CHECK(contest[first].tie.empty());
  CHECK(contest[other].tie == contest[first].label);
  CHECK(contest[3].tie.empty());
  CHECK(contest[0].tie.empty());
}

TEST_CASE("beside FP32 a plan is as fast as all rounds of both say, and no faster where these leave it open") {
  const auto no_costs = [](const comp::plan&) { return fake::nan; };
  const auto same_costs = [](const comp::plan&) { return 1.0; };
  std::vector later_clear{timed("111", six(1)), timed("b11", {.7, 1.3, .8, 1.2, .7, 1.1})}, later_open = later_clear;
  later_clear[1].over_fp32 = {1.3, {1.2, 1.4}};
  later_open[1] = timed("b11", six(.9));
  later_open[1].over_fp32 = {1.05, {.95, 1.1}};
  CHECK(comp::ranking(later_clear, no_costs) == std::vector<std::size_t>{1, 0});
  CHECK(later_clear[1].tie.empty());
  CHECK(comp::ranking(later_clear, same_costs) == std::vector<std::size_t>{1, 0});
  CHECK(comp::ranking(later_open, no_costs) == std::vector<std::size_t>{0});
  CHECK(later_open[1].tie == "111");
  CHECK(comp::ranking(later_open, same_costs) == std::vector<std::size_t>{0});
}

TEST_CASE("what costs predict counts where the race is noisy, and next to nothing where it is clear") {
  const auto by_costs = [](const comp::plan& p) { return p.str() == "b11" ? 0.70 : p.str() == "bb1" ? 0.75 : 1.0; };
  const std::vector<double> noisy{.5, 1.1, .6, .9, .7, .8, .72, .74}, level(8, .74);
  std::vector contest{timed("111", std::vector(8, 1.0)), timed("b11", level), timed("bb1", noisy)};
  CHECK(comp::ranking(contest, by_costs).front() == 1);
  std::vector clear{timed("111", std::vector(8, 1.0)), timed("b11", std::vector(8, .8)),
                    timed("bb1", std::vector(8, .7))};
  CHECK(comp::ranking(clear, by_costs).front() == 2);
}

TEST_CASE("batches of plans that are known to train are kept, others are undone") {
  for (const bool trains : {true, false}) {
    CAPTURE(trains);
    track t{{{"111", 1.0}, {"b11", 0.9}}};
    std::vector<racer> racers{{.plan = parse_plan("111")}, {.plan = parse_plan("b11")}};
    comp::race{t.run, stage::contest, {}, 6, {.trains = trains}}.run(racers);
    CHECK(t.trainer.weights().steps == (trains ? t.trainer.count().batches : 0));
    CHECK(t.run.trained().batches == static_cast<std::int64_t>(t.trainer.weights().steps));
    CHECK(t.trainer.count().batches == 2 * 6 + 2);  // each plan's first is not timed
  }
}

TEST_CASE("where batches differ in length all plans of a round run the same one, and one of them is kept") {
  const auto lengths = [](std::uint64_t k) { return k % 3 == 0 ? 5.0 : k % 3 == 1 ? 1.0 : 0.2; };
  track t{{{"111", 1.0}, {"b11", 0.97}, {"bb1", 0.95}}};
  t.trainer.change().length = lengths;
  std::vector<racer> racers{{.plan = parse_plan("111")}, {.plan = parse_plan("b11")}, {.plan = parse_plan("bb1")}};
  comp::race{t.run, stage::contest, {}, 8, {.trains = true, .same_batches = true}}.run(racers);
  for (std::size_t round = 0; round < racers[0].seconds.size(); ++round) {
    CHECK(racers[1].seconds[round] == doctest::Approx(0.97 * racers[0].seconds[round]));
    CHECK(racers[2].seconds[round] == doctest::Approx(0.95 * racers[0].seconds[round]));
  }
  CHECK(t.trainer.weights().steps >= racers[0].seconds.size());
  CHECK(t.trainer.weights().steps <= racers[0].seconds.size() + 1);  // the very first, not timed
  CHECK(t.run.trained().batches == static_cast<std::int64_t>(t.trainer.weights().steps));
}

TEST_CASE("batches of other lengths are told from a noisy machine by eight of them") {
  const auto differ = [](const std::vector<double>& lengths, double noise, std::uint64_t seed) {
    std::mt19937_64 random{seed};
    std::normal_distribution<double> drawn;
    comp::sample fp32{.batches = 8};
    comp::trial t{.sample = {.batches = 8}};
    for (std::size_t i = 0; i < 8; ++i) {
      const double length = lengths[i % lengths.size()];
      fp32.batch_seconds.push_back(length * std::exp(noise * drawn(random)));
      t.sample.batch_seconds.push_back(0.7 * length * std::exp(noise * drawn(random)));
    }
    return comp::detail::pair_times(t, fp32, 1, {});
  };
  int padded = 0, same = 0;
  for (std::uint64_t seed = 0; seed < 200; ++seed) {
    padded += differ({1, 0.87, 0.75, 0.62}, 0.02, seed);
    same += differ({1}, 0.1, seed);
  }
  CHECK(padded >= 180);
  CHECK(same <= 4);
}

TEST_CASE("stage 2 keeps the conservative plan when another is faster by noise alone") {
  int moved = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    track t{{{"111", 1.0}, {"b11", 1.0}}, seed};
    t.trainer.change().noise = 0.2;
    moved += comp::stage_two{t.run, {}}.run(comp::strategy::greedy{}, one_choice()).count_low() > 0;
  }
  CHECK(moved <= 8);  // by the medians alone it would be 20
}

TEST_CASE("a strategy is told that a plan is clearly faster only when the interval says so") {
  int clearly = 0;
  for (std::uint64_t seed = 0; seed < 40; ++seed) {
    track t{{{"111", 1.0}, {"b11", 1.0}}, seed};
    t.trainer.change().noise = 0.2;
    std::vector<comp::trial> trials;
    (void)comp::stage_two{t.run, {}}.run(fake::listening{&trials}, one_choice());
    REQUIRE(trials.size() == 2);
    clearly += clearly_faster(trials[1], trials[0]);
  }
  CHECK(clearly <= 8);  // by the medians alone it would be 20
}

TEST_CASE("stage 2 compares plans of different races although the machine drifts") {
  std::map<std::string, double> seconds;
  std::vector<comp::op_group> groups;
  for (std::uint32_t i = 0; i < 3; ++i) {
    groups.push_back({std::to_string(i), {i}, {comp::precision::fp32, comp::precision::bf16, comp::precision::fp16}});
  }
  const comp::search_space space{comp::plan{3}, groups};
  auto all = comp::strategy::exhaustive{}.start(space);
  for (const auto& p : all.ask(27))
    seconds[p.str()] = 1 - 0.02 * static_cast<double>(p.count_low()) - (p.str() == "0b0" ? 0.05 : 0);
  for (const double drift : {-0.1, 0.0, 0.4}) {  // per hundred of some 600 batches
    CAPTURE(drift);
    track t{seconds};
    t.trainer.change().drift = drift;
    CHECK(comp::stage_two{t.run, {}}.run(comp::strategy::exhaustive{}, space).str() == "0b0");
  }
}

TEST_CASE("stage 2 leaves a conservative plan that fails for one that runs") {
  track t{{{"111", 1.0}, {"b11", 3.0}}};
  t.trainer.change().before_batch = [](const comp::plan& p, std::uint64_t) {
    if (p.count_low() == 0) throw comp::out_of_memory{"FP32 does not fit"};
  };
  CHECK(comp::stage_two{t.run, {}}.run(comp::strategy::greedy{}, one_choice()).str() == "b11");
}

TEST_CASE("stage 2 of a space without groups runs nothing") {
  track t{{}};
  CHECK(comp::stage_two{t.run, {}}.run(comp::strategy::greedy{}, {parse_plan("b1b"), {}}).str() == "b1b");
  CHECK(t.trainer.count().batches == 0);
}

TEST_CASE("of a fastest plan that is not taken it is told whether its losses show harm or leave that open") {
  contestant fastest{.label = "comp: all in bf16"};
  fastest.loss = comp::loss_verdict{comp::loss_answer::rejected, 0.0058, 0.0054, 0.01};
  CHECK(
      comp::why_not_taken(fastest, 0.01, true) ==
      "\"comp: all in bf16\" was fastest and is not taken (its loss is +0.58% +- 0.54% above FP32's, which leaves open "
      "whether it is within the tolerance, although a plan that lowers more was accepted): raise settings.tolerance to "
      "take it, or settings.budget to judge it by more batches");
  fastest.loss->difference = 0.02;
  CHECK(comp::why_not_taken(fastest, 0.01, true)
            .find("+2.00% +- 0.54% above FP32's, which is more than the tolerance, ") != std::string::npos);
  fastest.loss->radius = std::numeric_limits<double>::infinity();
  CHECK(comp::why_not_taken(fastest, 0.01, true).find("not taken (its loss was not accepted, although") !=
        std::string::npos);
}

TEST_CASE("where FP32 is kept for losses that decide nothing it is told what is faster, and what would decide") {
  contestant faster{.label = "rule-based bf16", .over_fp32 = {1.26, {1.1, 1.4}}};
  faster.loss = comp::loss_verdict{comp::loss_answer::rejected, 0.0576, 4.4857, 0.01};
  CHECK(
      comp::why_fp32_is_kept("FP32", faster, 0.01) ==
      "FP32 is kept although \"rule-based bf16\" is 1.10 to 1.40 times as fast (95%; its loss is +5.76% +- 448.57% above "
      "FP32's, which leaves open whether it is within the tolerance): search again when losses fall evenly, later in the "
      "training or with more data, or raise settings.budget to judge it by more batches, or settings.tolerance");
}
