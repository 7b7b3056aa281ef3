// SPDX-License-Identifier: Apache-2.0
// What the default search must find in worlds whose answer is known: a tenth of `./run bench truth`, with seeds of its
// own.
#include <doctest/doctest.h>

#include <algorithm>
#include <cstdint>
#include <map>
#include <optional>
#include <search/truth/found.hpp>
#include <search/truth/late_worlds.hpp>
#include <search/truth/worlds.hpp>
#include <vector>

namespace {

struct tally {
  double part = 0, worst_time = 0, mean_cost = 0;
  int harms = 0, threw = 0, slower = 0;
};

template <class World>
tally search_all(int runs, std::uint64_t first_seed, World make) {
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

}  // namespace

TEST_CASE("the found plan is hardly ever slower than the rule-based one, however noisy the times") {
  const tally got = search_all(30, 51000, [](std::uint64_t seed) { return truth::noisy_times(seed, 0.2); });
  CHECK(got.slower <= 1);
  CHECK(got.threw == 0);
}

TEST_CASE("on small graphs with dear casts the found plan is within 5% of the true optimum") {
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

TEST_CASE("500 operators with 20% of the deny operators harmful: most of the saving, none of the harm") {
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
      if (t.stage != comp::stage::epochs) continue;
      if (t.repeat >= comp::perturbed_repeats) {
        batches += t.sample.batches;
        continue;
      }
      again += judged.contains(t.plan) ? 1 : 0;
      judged[t.plan] = std::max(judged[t.plan], t.sample.batches);
      CHECK(t.sample.curve.size() == static_cast<std::size_t>(t.sample.batches));
    }
    for (const auto& [plan, most] : judged) batches += most;
    CHECK(found->cost(comp::stage::epochs).batches == static_cast<std::size_t>(batches));
  }
  CHECK(again >= 5);
}

TEST_CASE("a search that is recalled whole runs nothing more, also where batches differ in length") {
  struct recalling {
    std::vector<comp::trial> known = {}, done = {};
    std::optional<comp::trial> recall(const comp::trial& t) {
      const auto at = std::ranges::find_if(
          known, [&](const comp::trial& k) { return k.stage == t.stage && k.plan == t.plan && k.repeat == t.repeat; });
      return at == known.end() ? std::nullopt : std::optional{*at};
    }
    void trial_done(const comp::trial& t) { done.push_back(t); }
  };
  for (std::uint64_t seed = 0; seed < 12; ++seed) {
    CAPTURE(seed);
    const truth::world w = truth::lengths(seed);
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
