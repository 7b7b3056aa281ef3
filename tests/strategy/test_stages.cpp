// SPDX-License-Identifier: Apache-2.0
// Each strategy in each stage: they are the only type arguments of a search that say how plans are found.
#include <doctest/doctest.h>

#include <comp/search/two_stage.hpp>
#include <comp/strategy/exhaustive.hpp>
#include <comp/strategy/greedy.hpp>
#include <comp/strategy/random.hpp>

#include "fake_trainer.hpp"

using comp::strategy::exhaustive;
using comp::strategy::greedy;
using draws = comp::strategy::random;

namespace {

template <class Stage1, class Stage2>
struct pair_of {
  using first = Stage1;
  using second = Stage2;
};

// allow.odd pays, deny harms; of the operators between, "pays" does and "loses" does not, each beside a low operator
// and one that stays.
fake::world small_world() {
  fake::world world{.graph = fake::sized_chain({"deny", "loses", "allow", "pays", "deny", "pays", "allow.odd"})};
  world.seconds = [graph = world.graph, times = fake::costs{{1, 1, 4, 1, 1, 1, 2}, {0.9, 1.5, 2, 0.5, 0.9, 0.5, 1}}](
                      const comp::plan& p) { return times(graph, p); };
  world.harm = fake::harmed_by({0, 4});
  return world;
}

}  // namespace

TEST_CASE_TEMPLATE("each strategy finds the best plan of a small space, in either stage", Pair,
                   pair_of<exhaustive, exhaustive>, pair_of<exhaustive, greedy>, pair_of<exhaustive, draws>,
                   pair_of<greedy, exhaustive>, pair_of<greedy, greedy>, pair_of<greedy, draws>,
                   pair_of<draws, exhaustive>, pair_of<draws, greedy>, pair_of<draws, draws>) {
  fake::trainer trainer{small_world()};
  const comp::two_stage search{fake::lists{}, typename Pair::first{}, typename Pair::second{}};
  const comp::outcome found = search.run(trainer);
  CHECK(found.plan.str() == "11bb1bb");
  CHECK(found.speedup == doctest::Approx(11 / 7.0));
  CHECK(trainer.weights().steps == found.trained_batches);
  CHECK(found.trained_batches >= 16);
  CHECK(trainer.now() == found.plan);
}
