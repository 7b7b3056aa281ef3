// SPDX-License-Identifier: Apache-2.0
// A search on several ranks decides as one, and leaves all of them in the same state.
#include <doctest/doctest.h>

#include <algorithm>
#include <comp/observe/ledger.hpp>
#include <filesystem>

#include "rank_search.hpp"

using thread_ranks::ended;
using thread_ranks::run_ranks;
using thread_ranks::search_in;
using thread_ranks::typical;
using thread_ranks::wires;

namespace {

bool warns(const comp::outcome& found, std::string_view of) {
  return std::ranges::any_of(found.warnings, [&](const auto& w) { return w.find(of) != std::string::npos; });
}

}  // namespace

TEST_CASE("1, 2 and 4 ranks find the same plan, with the same losses, and all have trained the same batches") {
  const ended alone = search_in({typical()});
  REQUIRE(alone.errors == std::vector<std::string>(1));
  REQUIRE(alone.found[0].plan.str() == "bb11");
  for (const std::size_t n : {2U, 4U}) {
    CAPTURE(n);
    const ended all = search_in(std::vector<fake::world>(n, typical()));
    CHECK(all.errors == std::vector<std::string>(n));
    for (std::size_t r = 0; r < n; ++r) {
      CAPTURE(r);
      CHECK(all.found[r].plan == alone.found[0].plan);
      CHECK(all.found[r].trained.curve == alone.found[0].trained.curve);
      CHECK(all.found[r].speedup == alone.found[0].speedup);
      CHECK(all.found[r].trials.size() == alone.found[0].trials.size());
      CHECK(all.found[r].graph.fingerprint() == alone.found[0].graph.fingerprint());
      CHECK(all.found[r].warnings == all.found[0].warnings);
      CHECK(all.weights[r] == alone.weights[0]);
      CHECK(all.plans[r] == alone.found[0].plan);
      CHECK(all.counts[r].batches == alone.counts[0].batches);
    }
  }
}

TEST_CASE("where ranks have opposite winners, the plan whose slowest rank is fastest is taken on all") {
  fake::world first = typical(), second = typical();
  first.harm = second.harm = [](const comp::plan&) { return 0.0; };
  // The first operator gains twice as much on rank 0 as it loses to rank 1; only the second gains on both.
  fake::timed_by(first, {{2, 3, 1, 1}, {1, 1.5, 1, 1}, 0});
  fake::timed_by(second, {{2, 3, 1, 1}, {2.5, 1.5, 1, 1}, 0});
  CHECK(search_in({first}).found[0].plan.str().substr(0, 2) == "bb");
  const ended all = search_in({first, second});
  CHECK(all.errors == std::vector<std::string>(2));
  CHECK(all.found[0].plan.str().substr(0, 2) == "1b");
  CHECK(all.found[1].plan == all.found[0].plan);
}

TEST_CASE("a rank that is three times slower gives the times") {
  fake::world slow = typical();
  fake::timed_by(slow, {{6, 9, 3, 3}, {3, 4.5, 1.5, 3}, 0.03});
  const ended all = search_in({typical(), slow});
  CHECK(all.errors == std::vector<std::string>(2));
  CHECK(all.found[0].batch_seconds == doctest::Approx(3 * search_in({typical()}).found[0].batch_seconds));
  CHECK(all.found[1].batch_seconds == all.found[0].batch_seconds);
}

TEST_CASE("a plan that harms the weights of one rank alone is rejected on all") {
  fake::world sound = typical();
  sound.harm = fake::harmed_by({3});
  CHECK(search_in({sound}).found[0].plan.str() == "bbb1");
  const ended all = search_in({sound, typical()});
  CHECK(all.errors == std::vector<std::string>(2));
  CHECK(all.found[1].plan.str() == "bb11");
  CHECK(all.plans == std::vector<comp::plan>(2, all.found[0].plan));
}

TEST_CASE("a precision that one rank lacks is searched on none, and that is said") {
  fake::world without = typical();
  without.precisions = {comp::precision::fp32};
  for (const auto& worlds : {std::vector{typical(), without}, std::vector{without, typical()}}) {
    const ended all = search_in(worlds);
    CHECK(all.errors == std::vector<std::string>(2));
    CHECK(all.found[1].plan.count_low() == 0);
    const int lacking = worlds[0].precisions.size() == 1 ? 0 : 1;
    CHECK(warns(all.found[1],
                fmt::format("rank {} (unknown) does not compute in bf16, which others do (a plan is for all "
                            "ranks): it was searched on none",
                            lacking)));
  }
}

TEST_CASE("an operator that one rank does not run in BF16 stays in FP32 on all") {
  fake::world without = typical();
  without.runs = [](const comp::op_info& op, comp::precision p) {
    return p == comp::precision::fp32 || op.kind != "allow.conv";
  };
  const ended all = search_in({typical(), without});
  CHECK(all.errors == std::vector<std::string>(2));
  CHECK(all.found[0].plan.str() == "1b11");
}

TEST_CASE("an operator that one rank does not run in FP32 is in BF16 on all") {
  fake::world without = typical();
  without.runs = [](const comp::op_info& op, comp::precision p) {
    return p == comp::precision::bf16 || op.kind != "allow.head";
  };
  const ended all = search_in({typical(), without});
  CHECK(all.errors == std::vector<std::string>(2));
  for (const comp::outcome& found : all.found) CHECK(found.plan.str()[2] == 'b');
}

TEST_CASE("epochs end with the shortest of the ranks', and that is told once") {
  fake::world shorter = typical();
  shorter.batches = 8;
  const comp::search_settings by_epochs{.criterion = comp::criterion::epoch_losses};
  const ended all = search_in({typical(), shorter}, by_epochs);
  CHECK(all.errors == std::vector<std::string>(2));
  CHECK(all.found[0].batches_per_epoch == 8);
  CHECK(all.weights[0] == all.weights[1]);
  CHECK(all.counts[0].batches == all.counts[1].batches);
  CHECK(std::ranges::count_if(all.found[1].warnings,
                              [](const auto& w) { return w.starts_with("rank 1 has 8 batches"); }) == 1);
  CHECK(warns(all.found[0],
              "rank 1 has 8 batches in an epoch and rank 0 10 (all ranks train each batch together): an epoch "
              "ends with the shortest; give each rank as many"));
  for (const comp::trial& t : all.found[0].trials) CHECK(t.sample.status != comp::status::stopped_early);
}

TEST_CASE("a hopeless epoch is cut on all ranks after the same batch") {
  fake::world diverging = typical();
  diverging.harm = fake::harmed_by({0, 1, 2}, 1000);
  const comp::search_settings by_epochs{.criterion = comp::criterion::epoch_losses};
  const ended all = search_in({typical(), diverging}, by_epochs);
  CHECK(all.errors == std::vector<std::string>(2));
  CHECK(all.found[0].plan.count_low() == 0);
  CHECK(std::ranges::any_of(all.found[0].trials,
                            [](const auto& t) { return t.sample.status == comp::status::diverged; }));
  CHECK(all.counts[0].batches == all.counts[1].batches);
}

TEST_CASE("states live on their ranks only as long as the search needs them") {
  struct counted : fake::full_trainer {
    using state = std::shared_ptr<fake::state>;
    using full_trainer::full_trainer;
    state save() {
      state copy{new fake::state{fake::full_trainer::save()}, [this](const fake::state* s) {
                   --alive;
                   delete s;
                 }};
      most = std::max(most, ++alive);
      ++saved;
      return copy;
    }
    void restore(const state& from) { fake::full_trainer::restore(*from); }
    int alive = 0, most = 0, saved = 0;
  };
  int most[3] = {};
  const auto searched = [&](comp::ranks::team& team, int& to) {
    counted trainer{typical()};
    const auto found = comp::ranks::search(team, comp::two_stage{fake::lists{}}, trainer);
    (void)comp::ranks::train(team, comp::post_training{.epochs = 12}, trainer, found);
    to = trainer.most;
    CHECK(trainer.saved > 2 * trainer.most);
  };
  wires single{1}, two{2};
  CHECK(run_ranks(single, [&](int, auto& team) { searched(team, most[2]); }) == std::vector<std::string>(1));
  CHECK(run_ranks(two, [&](int rank, auto& team) { searched(team, most[rank]); }) == std::vector<std::string>(2));
  CHECK(most[0] == most[1]);
  CHECK(most[1] <= most[2] + 1);  // told with the next order
}

TEST_CASE("a training after the search is one, too, and all ranks are told its result") {
  std::vector<comp::training_result> got(2);
  std::vector<fake::state> weights(2);
  wires all{2};
  const auto errors = run_ranks(all, [&](int rank, comp::ranks::team& team) {
    const auto r = static_cast<std::size_t>(rank);
    fake::full_trainer trainer{typical()};
    fake::watcher silent;
    const comp::outcome found = thread_ranks::search(team, trainer, silent);
    got[r] = comp::ranks::train(team, comp::post_training{.epochs = 8}, trainer, found);
    weights[r] = trainer.weights();
  });
  CHECK(errors == std::vector<std::string>(2));
  CHECK(got[0].epochs.size() == 8);
  CHECK(got[1].epochs.size() == 8);
  CHECK(got[1].epochs.back().loss == got[0].epochs.back().loss);
  CHECK(got[1].plan == got[0].plan);
  CHECK(weights[0] == weights[1]);
  CHECK(weights[0].steps == 80);
}

TEST_CASE("epochs of a training end with the shortest of the ranks', too") {
  wires all{2};
  std::vector<fake::state> weights(2);
  const auto errors = run_ranks(all, [&](int rank, comp::ranks::team& team) {
    fake::world world = typical();
    world.batches = rank == 0 ? 10 : 8;
    fake::full_trainer trainer{world};
    const comp::outcome found{.plan = comp::plan{4}, .graph = trainer.graph(), .batches_per_epoch = 8};
    const auto got = comp::ranks::train(team, comp::post_training{.epochs = 3}, trainer, found);
    for (const comp::sample& epoch : got.epochs) CHECK(epoch.batches == 8);
    CHECK(got.warnings.size() == 1);
    weights[static_cast<std::size_t>(rank)] = trainer.weights();
  });
  CHECK(errors == std::vector<std::string>(2));
  CHECK(weights[0] == weights[1]);
  CHECK(weights[0].steps == 24);
}

TEST_CASE("a search that was killed goes on from rank 0's ledger") {
  const std::string path = std::filesystem::temp_directory_path() / "comp_ranks_ledger.jsonl";
  std::filesystem::remove(path);
  const auto searched = [&](int& runs, int kill_after, std::vector<comp::outcome>& found) {
    wires all{2};
    return run_ranks(all, [&](int rank, comp::ranks::team& team) {
      fake::world world = typical();
      world.before_batch = [&, rank](const comp::plan&, std::uint64_t batch) {
        if (rank != 1) return;
        ++runs;
        if (kill_after > 0 && batch >= static_cast<std::uint64_t>(kill_after)) {
          all.kill(1);
          throw thread_ranks::killed{};
        }
      };
      fake::full_trainer trainer{world};
      comp::ledger kept{path};
      found[static_cast<std::size_t>(rank)] = comp::ranks::search(team, comp::two_stage{fake::lists{}}, trainer, kept);
    });
  };
  std::vector<comp::outcome> before(2), found(2);
  int first = 0, second = 0, whole = 0;
  const auto ends = searched(first, 30, before);
  CHECK(ends[0] == "rank 1 is gone");
  CHECK(ends[1] == "killed");
  CHECK(searched(second, 0, found) == std::vector<std::string>(2));
  CHECK(found[1].recalled > 0);
  CHECK(found[1].plan.str() == "bb11");
  std::filesystem::remove(path);
  CHECK(searched(whole, 0, found) == std::vector<std::string>(2));
  CHECK(second < whole);
  std::filesystem::remove(path);
}

TEST_CASE("rank 0 has all ranks do what is no trainer's part, while they train, and hears from each") {
  struct caller {
    comp::ranks::detail::leading_trainer* all = nullptr;
    std::vector<std::string> heard = {};
    void training_progressed(const comp::training_progress&) { heard = all->call("keep "); }
  };
  wires two{2};
  std::vector<std::string> heard;
  const auto errors = run_ranks(two, [&](int rank, comp::ranks::team& team) {
    team.called = [rank](const std::string& text) { return text + std::to_string(rank); };
    fake::full_trainer trainer{typical()};
    comp::trainer_of<fake::full_trainer> own{trainer};
    (void)comp::ranks::detail::together<comp::training_result>(own, team, [&](auto& all) {
      caller calls{&all};
      comp::detail::training_observers<caller> observers{calls};
      const comp::outcome found{.plan = comp::plan{4}, .graph = trainer.graph(), .batches_per_epoch = 10};
      auto result = comp::detail::train_after(comp::post_training{.epochs = 2}, all, observers, found);
      heard = calls.heard;
      return result;
    });
  });
  CHECK(errors == std::vector<std::string>(2));
  CHECK(heard == std::vector<std::string>{"keep 0", "keep 1"});
}
