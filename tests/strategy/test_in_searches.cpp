// SPDX-License-Identifier: Apache-2.0
// Each strategy in each stage: they are the only type arguments of a search that say how plans are found.
#include <doctest/doctest.h>

#include <comp/search/two_stage.hpp>
#include <comp/strategy/beam.hpp>
#include <comp/strategy/delta_debugging.hpp>
#include <comp/strategy/exhaustive.hpp>
#include <comp/strategy/genetic.hpp>
#include <comp/strategy/greedy.hpp>

#include "fake_search.hpp"

namespace strategy = comp::strategy;

namespace {

template <class Stage1, class Stage2>
struct pair_of {
  using first = Stage1;
  using second = Stage2;
};

// Two deny-operators harm, all others pay in low precision, one way or the other.
fake::world small_world() {
  fake::world world{.graph = fake::sized_chain({"deny", "deny2", "allow", "pays", "deny3", "pays", "allow.odd"})};
  world.seconds = [graph = world.graph, times = fake::costs{{1, 1, 4, 1, 1, 1, 2}, {0.9, 0.5, 2, 0.5, 0.9, 0.5, 1}}](
                      const comp::plan& p) { return times(graph, p); };
  world.harm = fake::harmed_by({0, 4});
  world.batches = 64;
  return world;
}

}  // namespace

TEST_CASE_TEMPLATE("each strategy finds the best plan of a small space, in a stage of a search", Pair,
                   pair_of<strategy::delta_debugging, strategy::genetic>, pair_of<strategy::beam, strategy::exhaustive>,
                   pair_of<strategy::genetic, strategy::beam>, pair_of<strategy::exhaustive, strategy::greedy>,
                   pair_of<strategy::greedy, strategy::exhaustive>) {
  fake::trainer trainer{small_world()};
  const comp::two_stage search{fake::lists{}, typename Pair::first{}, typename Pair::second{}};
  const comp::outcome found = search.run(trainer);
  CHECK(found.plan.str() == "1bbb1bb");
  CHECK(found.speedup == doctest::Approx(11 / 6.5));
  CHECK(trainer.weights().steps == found.trained_batches);
  CHECK(trainer.now() == found.plan);
}

TEST_CASE("a strategy is told losses of which lower is better, whatever is asked for") {
  fake::world world = small_world();
  world.losses = 1;
  std::vector<comp::trial> trials;
  comp::search_settings settings;
  SUBCASE("the lower ones") {}
  SUBCASE("the higher ones") {
    world.loss_sign = -1;
    settings.direction = comp::loss_direction::higher_is_better;
  }
  fake::trainer trainer{world};
  const auto found =
      comp::two_stage{fake::lists{}, fake::listening{&trials}, strategy::greedy{}, settings}.run(trainer);
  REQUIRE(trials.size() > 2);
  for (const comp::trial& t : trials) {
    CHECK(t.sample.loss > 0);
    CHECK(t.sample.losses.front() > 0);
    CHECK(std::ranges::all_of(t.sample.curve, [](double loss) { return loss > 0; }));
    CHECK(std::ranges::all_of(t.sample.curves.front(), [](double loss) { return loss > 0; }));
  }
  for (const comp::trial& t : found.trials) CHECK(t.sample.loss * world.loss_sign > 0);
}
