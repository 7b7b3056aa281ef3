// SPDX-License-Identifier: Apache-2.0
// What the default search must find in worlds whose answer is known: a tenth of `./run bench truth`, with seeds of its
// own.
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <comp/strategy/beam.hpp>
#include <comp/strategy/delta_debugging.hpp>
#include <comp/strategy/genetic.hpp>
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <map>
#include <optional>
#include <search/truth/found.hpp>
#include <search/truth/late_worlds.hpp>
#include <search/truth/odd_worlds.hpp>
#include <search/truth/worlds.hpp>
#include <string>
#include <vector>

namespace {

/// Under sanitizers a search takes ten times as long, so some of the worlds will do.
const bool few = std::getenv("COMP_TEST_SMALL") != nullptr;

struct tally {
  double part = 0, worst_time = 0, mean_cost = 0;
  int harms = 0, threw = 0, slower = 0;
};

tally search_all(int most, std::uint64_t first_seed, auto make) {
  const int runs = few ? (most + 3) / 4 : most;
  tally all;
  for (int i = 0; i < runs; ++i) {
    const truth::world w = make(first_seed + static_cast<std::uint64_t>(i));
    const truth::found got = truth::search_in(w);
    const comp::plan best = truth::best_plan(w);
    all.part += truth::part_of_saving(w, got.plan, best) / runs;
    all.worst_time = std::max(all.worst_time, got.seconds / truth::true_seconds(w, best));
    all.mean_cost += got.cost / runs;
    all.harms += got.harms ? 1 : 0;
    all.threw += got.ended ? 0 : 1;
    all.slower += got.seconds > 1.01 * got.rule_based ? 1 : 0;
  }
  return all;
}

TEST_CASE("the found plan is hardly ever slower than the rule-based one, however noisy the times") {
  const tally got = search_all(30, 51000, [](std::uint64_t seed) { return truth::noisy_times(seed, 0.2); });
  CHECK(got.slower <= 1);
  CHECK(got.threw == 0);
}

TEST_CASE("on small graphs with costly casts the found plan is within 5% of the true optimum") {
  CHECK(search_all(20, 52000, truth::small_dag).worst_time <= 1.05);
}

TEST_CASE("one harmful operator costs its own saving and not everybody's") {
  const tally got = search_all(12, 53000, [](std::uint64_t seed) { return truth::one_of_a_kind(seed, 16); });
  CHECK(got.harms == 0);
  CHECK(got.part >= 0.95);
}

TEST_CASE("operators that harm only in pairs are found") {
  const tally got = search_all(12, 54000, truth::pairs);
  CHECK(got.harms <= 1);
  CHECK(got.part >= 0.95);
}

TEST_CASE("500 operators with 20% of the deny operators harmful: most of the saving, none of the harm" *
          doctest::skip(few)) {
  const tally got = search_all(3, 55000, [](std::uint64_t seed) { return truth::large(seed); });
  CHECK(got.harms == 0);
  CHECK(got.part >= 0.9);
}

TEST_CASE("losses that differ from run to run neither hide harm nor feign it") {
  CHECK(search_all(20, 56000, truth::noisy_losses).part >= 0.93);
  CHECK(search_all(20, 57000, truth::raises_by_5_percent).harms <= 3);
}

TEST_CASE("batches of different length: the faster plan is found, never FP32") {
  const tally got = search_all(12, 58000, truth::lengths);
  CHECK(got.part >= 0.95);
}

TEST_CASE("losses that are negative, cross zero, grow, or are several") {
  const tally got = search_all(12, 59000, truth::signs);
  CHECK(got.harms <= 1);
  CHECK(got.part >= 0.93);
}

TEST_CASE("profiles and scores that cannot be trusted end no search and lower nothing that harms") {
  const tally got = search_all(16, 60000, truth::bad_input);
  CHECK(got.threw == 0);
  CHECK(got.harms <= 1);
  CHECK(got.slower <= 1);
}

TEST_CASE("with epochs of 150 batches the search truly costs about 1% of 100 epochs") {
  CHECK(search_all(12, 61000, [](std::uint64_t seed) { return truth::usual(seed, 150); }).mean_cost <= 0.015);
}

/// Odd and usual worlds, a seed each.
std::vector<truth::world> all_worlds(std::uint64_t seed) {
  using truth::loss_of_batches;
  return {truth::usual(seed, 100),
          truth::noisy_times(seed, 0.2),
          truth::one_of_a_kind(seed, 16),
          truth::pairs(seed),
          truth::signs(seed),
          truth::lengths(seed),
          truth::chaotic(seed),
          truth::harms_apart(seed),
          truth::no_room(seed),
          truth::falling(seed, 6),
          truth::rises(seed, 0.01),
          truth::not_finite(seed, loss_of_batches::rare),
          truth::not_finite(seed, loss_of_batches::low),
          truth::surprising(seed, truth::surprise::together),
          truth::surprising(seed, truth::surprise::three_lows),
          truth::usual(seed, 1),
          truth::usual(seed, 3)};
}

void check_all_judged(const auto& strategy, std::uint64_t seed) {
  const comp::two_stage search{truth::lists{}, strategy, comp::strategy::greedy{}};
  const std::vector<truth::world> worlds = all_worlds(seed);
  for (std::size_t i = few ? seed % 6 : 0; i < worlds.size(); i += few ? 6 : 1) {
    const truth::world& w = worlds[i];
    CAPTURE(seed);
    CAPTURE(i);
    truth::full_trainer trainer{w};
    const truth::found got = truth::search_on(trainer, nullptr, search);
    CHECK(got.ended);
    CHECK(got.judged);
    truth::bare_trainer bare{w};
    if (w.device_bytes == 0) CHECK(truth::search_on(bare, nullptr, search).judged);
  }
}

}  // namespace

TEST_CASE("no plan is chosen whose own losses were not accepted, in any world, by any strategy") {
  for (std::uint64_t seed = 71000; seed < (few ? 71002 : 71004); ++seed)
    check_all_judged(comp::strategy::guided{}, seed);
  check_all_judged(comp::strategy::greedy{}, 72000);
  check_all_judged(comp::strategy::delta_debugging{}, 72002);
  check_all_judged(comp::strategy::genetic{.trials = 12}, 72003);
  check_all_judged(comp::strategy::beam{}, 72004);
}

TEST_CASE(
    "harm that hides: in parts of an accepted plan, where FP32 has no room, where the loss falls, by lost batches") {
  CHECK(search_all(12, 73000, truth::harms_apart).harms == 0);
  CHECK(search_all(12, 73100, truth::no_room).harms <= 1);
  int harms = 0;
  for (std::uint64_t seed = 73200; seed < (few ? 73203 : 73212); ++seed)
    harms += truth::search_bare(truth::falling(seed, 4)).harms;
  CHECK(harms <= 1);
}

TEST_CASE("where losses scatter too much to decide, FP32 is kept and the faster plan is told") {
  int kept = 0, notices = 0;
  for (std::uint64_t seed = 0; seed < 60; ++seed) {
    truth::world w = truth::chaotic(seed);
    w.losses.wander = 2;
    truth::full_trainer trainer{w};
    const comp::outcome found = comp::two_stage{truth::lists{}}.run(trainer);
    if (found.plan.count_low() > 0) continue;
    ++kept;
    // That a training strays so far that its state looks damaged is told, too.
    notices += std::ranges::any_of(found.warnings, [](const auto& w) {
      return w.starts_with("FP32 is kept although") || w.find("damaged the training's weights") != std::string::npos;
    });
  }
  CHECK(kept >= 4);
  CHECK(notices >= kept - 1);  // among so many one is rejected by chance, of which its table tells
}

namespace {

/// Runs FP32 twice as fast if it is tuned. `wrong`: by how much its losses are then too high, as a part.
struct tuned_trainer : truth::full_trainer {
  tuned_trainer(truth::world of, double wrong) : truth::full_trainer{std::move(of)}, wrong_{wrong} {}
  comp::plan tuned_fp32() const { return comp::plan{graph().size()}.as_tuned(); }
  comp::sample run_batch() { return tuned(truth::full_trainer::run_batch()); }
  comp::sample run_epoch() { return tuned(truth::full_trainer::run_epoch()); }
  comp::sample run_epoch(const comp::stop_predicate& stop) { return tuned(truth::full_trainer::run_epoch(stop)); }

 private:
  comp::sample tuned(comp::sample got) const {
    if (!now().is_tuned()) return got;
    for (double& loss : got.curve) loss *= 1 + wrong_;
    for (double& seconds : got.batch_seconds) seconds /= 2;
    got.loss *= 1 + wrong_;
    got.seconds /= 2;
    return got;
  }
  double wrong_;
};

}  // namespace

TEST_CASE("tuned FP32 is taken where roundings drive trainings apart, and refused where its kernels are wrong") {
  const auto taken = [](double wrong, double wander) {
    int all = 0;
    for (std::uint64_t seed = 0; seed < 40; ++seed) {
      truth::world w = truth::chaotic(seed);
      w.precisions = {comp::precision::fp32};
      w.losses.wander = wander;
      tuned_trainer trainer{w, wrong};
      all += comp::two_stage{truth::lists{}}.run(trainer).plan.is_tuned() ? 1 : 0;
    }
    return all;
  };
  for (const double wander : {0.0, 0.007, 0.05}) {
    CAPTURE(wander);
    CHECK(taken(0, wander) >= 39);
    CHECK(taken(0.02, wander) == 0);
  }
}

TEST_CASE("a batch whose loss is not finite under FP32, too, ends no search") {
  for (const auto which : {truth::loss_of_batches::early, truth::loss_of_batches::rare}) {
    const tally got = search_all(12, 74000, [which](std::uint64_t seed) { return truth::not_finite(seed, which); });
    CHECK(got.threw == 0);
    CHECK(got.part >= 0.95);
  }
}

TEST_CASE("a rise above the tolerance is hardly ever accepted, and none is hardly ever refused") {
  CHECK(search_all(30, 75000, [](std::uint64_t seed) { return truth::rises(seed, 0.013); }).harms <= 2);
  CHECK(search_all(30, 75100, [](std::uint64_t seed) { return truth::rises(seed, 0); }).part >= 0.97);
}

TEST_CASE("a training that is too short to search in costs one look, and the reason is said") {
  for (const std::size_t batches : {1U, 3U}) {
    truth::full_trainer trainer{truth::usual(76000, batches)};
    std::optional<comp::outcome> out;
    const truth::found got = truth::search_on(trainer, &out);
    CHECK_FALSE(got.harms);
    CHECK(trainer.billed().batches <= 30);
    CHECK(std::any_of(out->warnings.begin(), out->warnings.end(),
                      [](const std::string& w) { return w.starts_with("the training is too short to search in ("); }));
  }
}

TEST_CASE("a trainer that cannot restore gets a plan where its epochs are short, and is told how much faster it is") {
  for (const std::size_t batches : {2, 5}) {  // 200 batches are one look at the rule-based plan, 500 a search
    int lowered = 0, speedups = 0;
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      truth::draw random{seed};
      truth::world w = truth::harmless(random, {.operators = 10, .allow = 0.5},
                                       {.deny = {0.4, 0.6}, .other = {0.4, 0.6}, .cast = 0.02});
      w.batches = batches;
      w.losses.noise = 0.01;
      w.losses.curve = [](double) { return 1.0; };
      truth::counting<truth::bare_trainer> trainer{w};
      const comp::outcome out = comp::two_stage<truth::lists>{}.run(trainer);
      lowered += out.plan.count_low() > 0 ? 1 : 0;
      speedups += std::isfinite(out.speedup) ? 1 : 0;
    }
    CAPTURE(batches);
    CHECK(lowered >= 6);
    CHECK(speedups == 8);
  }
}

TEST_CASE("where no candidate of a strategy is accepted its fastest one is bisected") {
  int harms = 0;
  double part = 0;
  for (std::uint64_t seed = 77000; seed < 77006; ++seed) {
    const truth::world w = truth::one_of_a_kind(seed, 16);
    const truth::found got =
        truth::search_in(w, comp::two_stage{truth::lists{}, comp::strategy::greedy{}, comp::strategy::greedy{}});
    harms += got.harms;
    part += truth::part_of_saving(w, got.plan, truth::best_plan(w)) / 6;
  }
  CHECK(harms == 0);
  CHECK(part >= 0.9);
}

TEST_CASE("harm that takes hundreds of batches is out of the model after 100 epochs") {
  int chosen = 0, in_the_model[2] = {};
  for (std::uint64_t seed = 79000; seed < 79016; ++seed) {
    const truth::followed got = truth::train_in(truth::slow_harm(seed, seed % 2 == 0 ? 100 : 300), 100);
    CHECK(got.finished);
    chosen += got.search.harms ? 1 : 0;
    in_the_model[seed % 2] += got.damage > 0.01 ? 1 : 0;
  }
  CHECK(chosen >= 8);
  CHECK(in_the_model[0] == 0);
  CHECK(in_the_model[1] <= 2);  // in epochs of fewer than 50 batches those that are paid for may not suffice
}

TEST_CASE("a moment whose harm takes hundreds of batches is refused, and harmless moments are lowered") {
  const auto lowered = [](const truth::world& w) {
    const comp::plan found = truth::search_in(w).plan;
    return std::pair{comp::is_low(found[found.size() - 2]), comp::is_low(found[found.size() - 1])};
  };
  int first = 0, harmful = 0, both = 0;
  constexpr std::uint64_t runs = 16;
  for (std::uint64_t seed = 82000; seed < 82000 + runs; ++seed) {
    const auto [one, two] = lowered(truth::moments(seed, seed % 2 == 0 ? 100 : 300));
    first += one ? 1 : 0;
    harmful += two ? 1 : 0;
    const auto [m, v] = lowered(truth::moments(seed, 0));
    both += m && v ? 1 : 0;
  }
  CHECK(harmful == 0);
  CHECK(first >= 3);  // the other one's gain is kept if the harm shows soon enough to be told apart
  CHECK(both >= 13);
}

TEST_CASE("a moment that FP8 alone harms is kept in BF16 or FP32, and FP8 is taken if it does no harm and is wanted") {
  const auto second_of = [](std::uint64_t seed, double harm, double slowdown) {
    truth::keeping_trainer trainer{truth::moments_in_fp8(seed, harm)};
    comp::two_stage search{truth::lists{}};
    search.settings.slowdown = slowdown;
    return truth::search_on(trainer, nullptr, search).plan.str().back();
  };
  const int worlds = few ? 6 : 12;
  int harmful = 0, other = 0, harmless = 0;
  for (std::uint64_t seed = 84000; seed < 84000 + static_cast<std::uint64_t>(worlds); ++seed) {
    const char found = second_of(seed, seed % 2 == 0 ? 100 : 300, seed % 3 == 0 ? 0.3 : 0);
    harmful += found == 'e' ? 1 : 0;
    other += found == 'b' ? 1 : 0;
    harmless += second_of(seed, 0, 0.3) == 'e' ? 1 : 0;
  }
  CHECK(harmful == 0);
  // The long test at the end refuses FP8, and seldom leaves a plan with BF16 to ask about.
  CHECK(other >= (few ? 1 : 3));
  CHECK(harmless >= (few ? 4 : 9));
}

TEST_CASE("states stay in FP32, and it is said why, if no long test can judge them") {
  const auto check = [](auto& trainer) {
    std::optional<comp::outcome> out;
    const truth::found got = truth::search_on(trainer, &out);
    REQUIRE(out);
    CHECK(got.plan.str().ends_with("11"));
    CHECK(std::any_of(out->warnings.begin(), out->warnings.end(), [](const std::string& w) {
      return w.starts_with("\"optimizer.moment1\" and all else that the training keeps from step to step stay in FP32");
    }));
    for (const comp::trial& t : out->trials) CHECK(t.plan.str().ends_with("11"));
  };
  truth::world w = truth::moments(83000, 0);
  truth::counting<truth::bare_trainer> bare{w};
  check(bare);
  w.batches = 100;
  truth::full_trainer brief{w};
  check(brief);
}

TEST_CASE("one operator that turns bad late costs its own saving, not everybody's") {
  double time = 0;
  for (std::uint64_t seed = 80000; seed < 80008; ++seed) {
    const truth::world w = truth::one_turns_bad(seed);
    const truth::followed got = truth::train_in(w, 60);
    CHECK(got.finished);
    CHECK_FALSE(truth::does_harm(w, got.plan));
    time += truth::true_seconds(w, got.plan) / truth::true_seconds(w, truth::best_plan(w)) / 8;
  }
  CHECK(time <= 1.03);
}

TEST_CASE("evidence after the search costs a harmless plan about a hundredth of the training at most") {
  double cost = 0;
  for (std::uint64_t seed = 81000; seed < 81012; ++seed) {
    const truth::followed got = truth::train_in(truth::rises(seed, 0), 100);
    CHECK(got.fallbacks == 0);
    cost += got.cost / 12;
  }
  CHECK(cost <= 0.01);
}

TEST_CASE("a plan that is asked about first and judged at the level later trains its batches once") {
  int again = 0;
  for (std::uint64_t seed = 4000; seed < 4030; ++seed) {
    truth::full_trainer trainer{truth::usual(seed, 10)};
    std::optional<comp::outcome> found;
    (void)truth::search_on(trainer, &found);
    REQUIRE(found);
    std::map<comp::plan, std::int64_t> judged;
    std::int64_t batches = 0;
    for (const comp::trial& t : found->trials) {
      if (t.stage != comp::stage::losses) continue;
      if (t.purpose != comp::purpose::judge) {
        batches += t.sample.batches;
        continue;
      }
      again += judged.contains(t.plan) ? 1 : 0;
      judged[t.plan] = std::max(judged[t.plan], t.sample.batches);
      CHECK(t.sample.curve.size() == static_cast<std::size_t>(t.sample.batches));
    }
    for (const auto& [plan, most] : judged) batches += most;
    CHECK(found->cost(comp::stage::losses).batches == static_cast<std::size_t>(batches));
  }
  CHECK(again >= 5);
}

TEST_CASE("a search that is recalled whole runs nothing more, also where batches differ in length") {
  struct recalling {
    std::vector<comp::trial> known = {}, done = {};
    std::optional<comp::trial> recall(const comp::trial& t) {
      const auto at = std::ranges::find_if(known, [&](const comp::trial& k) { return is_same_run(k, t); });
      return at == known.end() ? std::nullopt : std::optional{*at};
    }
    void trial_done(const comp::trial& t) { done.push_back(t); }
  };
  for (std::uint64_t seed = 0; seed < 24; ++seed) {
    CAPTURE(seed);
    truth::world w = seed % 2 == 0 ? truth::lengths(seed) : truth::usual(seed, 5);
    if (seed % 2 == 1) w.noise = 0.3;  // a short training, and many questions
    recalling first, again;
    truth::full_trainer trainer{w}, other{w};
    comp::two_stage search{truth::lists{}};
    const comp::outcome found = search.run(trainer, first);
    again.known = first.done;
    const comp::outcome same = search.run(other, again);
    CHECK(same.plan == found.plan);
    CHECK(same.recalled == same.trials.size());
  }
}
