// SPDX-License-Identifier: Apache-2.0
// Loops of several ranks that search while they run: all change their plan at the same batch.
#include <doctest/doctest.h>

#include <string>
#include <vector>

#include "rank_search.hpp"

namespace {

/// What the ranks' loops did.
struct looped {
  std::vector<std::string> errors;
  std::vector<std::vector<std::string>> plans = std::vector<std::vector<std::string>>(2);  // of each batch
  std::vector<std::string> found = std::vector<std::string>(2);
  std::vector<std::uint64_t> undone = std::vector<std::uint64_t>(2);
};

/// Trains batches in a loop of its own on each rank. `known`: the plan if it is known; nothing searches then.
looped loop_in(const std::vector<fake::world>& worlds, std::size_t batches, const comp::plan& known = {}) {
  thread_ranks::wires all{static_cast<int>(worlds.size())};
  looped got;
  got.errors = thread_ranks::run_ranks(all, [&](int rank, comp::ranks::team& team) {
    const auto r = static_cast<std::size_t>(rank);
    fake::trainer trainer{worlds[r]};
    fake::state kept;
    comp::loop_info about{.precisions = {comp::precision::fp32, comp::precision::bf16}, .batches_per_epoch = 40};
    about.save = [&] { kept = trainer.save(); };
    about.restore = [&] {
      got.undone[r] += trainer.weights().steps - kept.steps;
      trainer.restore(kept);
    };
    comp::online search = known.empty() ? comp::ranks::search_online(team, fake::lists{}, trainer.graph(), about)
                                        : comp::ranks::train_online(team, {.plan = known}, trainer.graph(), about);
    for (std::size_t k = 0; k < batches; ++k) {
      trainer.set_precision(search.plan());
      got.plans[r].push_back(trainer.now().str());
      search.tell(trainer.run_batch());
    }
    if (search.found() != nullptr) got.found[r] = search.found()->plan.str();
  });
  return got;
}

}  // namespace

TEST_CASE("loops on ranks find one plan, that of the slowest rank, and change theirs at the same batch") {
  fake::world first = thread_ranks::typical(), second = first;
  first.harm = second.harm = [](const comp::plan&) { return 0.0; };
  // The first operator gains twice as much on rank 0 as it loses to rank 1; only the second gains on both.
  fake::timed_by(first, {{2, 3, 1, 1}, {1, 1.5, 1, 1}, 0});
  fake::timed_by(second, {{2, 3, 1, 1}, {2.5, 1.5, 1, 1}, 0});
  const looped got = loop_in({first, second}, 3000);
  CHECK(got.errors == std::vector<std::string>(2));
  CHECK(got.plans[0] == got.plans[1]);
  CHECK(got.found[0].substr(0, 2) == "1b");
  CHECK(got.found[1] == got.found[0]);
}

TEST_CASE("all ranks go back if the plan harms one of them, a block at most") {
  const fake::world sound = [] {
    fake::world world = thread_ranks::typical();
    world.harm = [](const comp::plan&) { return 0.0; };
    return world;
  }();
  fake::world harmed = sound;
  harmed.harm = fake::harmed_by({1}, fake::nan);
  const looped got = loop_in({sound, harmed}, 4000);
  CHECK(got.errors == std::vector<std::string>(2));
  CHECK(got.plans[0] == got.plans[1]);
  REQUIRE(got.found[0].size() == 4);
  CHECK(got.found[0][1] == '1');
  CHECK(got.undone[0] > 0);
  CHECK(got.undone[0] <= 40);
  CHECK(got.undone[1] == got.undone[0]);
}

TEST_CASE("a loop may end on all ranks at any batch, and one whose rank has other operators says so") {
  for (const std::size_t batches : {0U, 1U, 39U, 100U}) {
    const looped got = loop_in({thread_ranks::typical(), thread_ranks::typical()}, batches);
    CHECK(got.errors == std::vector<std::string>(2));
  }
  fake::world other = thread_ranks::typical();
  other.graph = fake::sized_chain({"allow.conv", "allow.linear", "allow.head"});
  const looped got = loop_in({thread_ranks::typical(), other}, 10);
  for (const std::string& error : got.errors) CHECK(error.find("rank 1 has 3 operators and rank 0 4") == 0);
}

TEST_CASE("ranks train under a plan that is known, and all leave it if it harms one of them") {
  for (const double harm : {0.0, fake::nan}) {
    CAPTURE(harm);
    fake::world sound = thread_ranks::typical();
    sound.harm = [](const comp::plan&) { return 0.0; };
    fake::world harmed = sound;
    harmed.harm = fake::harmed_by({1}, harm);
    const looped got = loop_in({sound, harmed}, 1000, comp::parse_plan("bb11"));
    CHECK(got.errors == std::vector<std::string>(2));
    CHECK(got.plans[0] == got.plans[1]);
    CHECK(got.plans[0][39] == "1111");
    CHECK(got.plans[0][40] == "bb11");
    CHECK(got.found[0] == (harm == 0 ? "bb11" : "1111"));
    CHECK(got.found[1] == got.found[0]);
  }
}
