// SPDX-License-Identifier: Apache-2.0
// What goes wrong on one rank is seen on all, by the name of that rank, and within the timeout.
#include <doctest/doctest.h>

#include <algorithm>
#include <comp/files/plan_file.hpp>

#include "rank_search.hpp"

using thread_ranks::ended;
using thread_ranks::killed;
using thread_ranks::run_ranks;
using thread_ranks::search_in;
using thread_ranks::typical;
using thread_ranks::wires;

namespace {

/// Does `what` before each batch under a plan that lowers operator 2, which harms no weights here.
template <class F>
fake::world failing_in_head(F what) {
  fake::world world = typical();
  world.harm = fake::harmed_by({3});
  world.before_batch = [what](const comp::plan& p, std::uint64_t) {
    if (comp::is_low(p[2])) what();
  };
  return world;
}
fake::world harmless() {
  return failing_in_head([] {});
}
bool has_trial(const comp::outcome& found, comp::status how, std::string_view message) {
  return std::ranges::any_of(
      found.trials, [&](const comp::trial& t) { return t.sample.status == how && t.sample.message == message; });
}

/// Has rank `which` do `what` before its batch `at`.
std::vector<fake::world> with_event(std::size_t ranks, std::size_t which, std::uint64_t at,
                                    std::function<void()> what) {
  std::vector<fake::world> worlds(ranks, typical());
  worlds[which].before_batch = [at, what = std::move(what)](const comp::plan&, std::uint64_t batch) {
    if (batch == at) what();
  };
  return worlds;
}

}  // namespace

TEST_CASE("a plan that fails on one rank alone has failed, and its trial names the rank") {
  REQUIRE(search_in({harmless(), harmless()}).found[0].plan.str() == "bbb1");
  for (const std::size_t which : {0U, 1U, 2U}) {
    CAPTURE(which);
    std::vector<fake::world> worlds(3, harmless());
    SUBCASE("an exception") {
      worlds[which] = failing_in_head([] { throw std::runtime_error{"the kernel is broken"}; });
      const ended all = search_in(worlds);
      CHECK(all.errors == std::vector<std::string>(3));
      CHECK(all.found[0].plan.str() == "bb11");
      CHECK(has_trial(all.found[2], comp::status::failed, fmt::format("rank {}: the kernel is broken", which)));
      CHECK(all.plans == std::vector<comp::plan>(3, all.found[0].plan));
    }
    SUBCASE("no memory") {
      worlds[which] = failing_in_head([] { throw comp::out_of_memory{"no 5 bytes"}; });
      const ended all = search_in(worlds);
      CHECK(all.errors == std::vector<std::string>(3));
      CHECK(all.found[0].plan.str() == "bb11");
      CHECK(has_trial(all.found[2], comp::status::out_of_memory, fmt::format("rank {}: no 5 bytes", which)));
    }
    SUBCASE("losses that are not finite") {
      worlds[which].harm = fake::harmed_by({2}, std::numeric_limits<double>::infinity());
      const ended all = search_in(worlds);
      CHECK(all.errors == std::vector<std::string>(3));
      CHECK(all.found[0].plan.str() == "bb11");
    }
  }
}

TEST_CASE("an epoch in which one rank fails ends on all, whatever the others' next batch is") {
  std::vector<fake::world> worlds(2, harmless());
  worlds[1] = failing_in_head([] { throw std::runtime_error{"broken in the middle"}; });
  const ended all = search_in(worlds, {.criterion = comp::criterion::epoch_losses});
  CHECK(all.errors == std::vector<std::string>(2));
  CHECK(all.found[1].plan.str() == "bb11");
  CHECK(has_trial(all.found[0], comp::status::failed, "rank 1: broken in the middle"));
}

TEST_CASE("where FP32 fails on one rank, all end with its words and its name") {
  const ended all =
      search_in(with_event(2, 1, 0, [] { throw std::runtime_error{"the disk is full"}; }), {.self_check = false});
  for (const std::string& message : all.errors) CHECK(message.find("rank 1: the disk is full") != std::string::npos);
}

TEST_CASE("what says that the training cannot run ends the search on all ranks, with its type") {
  wires all{2};
  std::vector<fake::world> worlds =
      with_event(2, 1, 20, [] { throw comp::settings_error{"the rate changed (it may not): leave it"}; });
  const auto errors = run_ranks(all, [&](int rank, comp::ranks::team& team) {
    fake::full_trainer trainer{worlds[static_cast<std::size_t>(rank)]};
    fake::watcher silent;
    CHECK_THROWS_WITH_AS(thread_ranks::search(team, trainer, silent), "rank 1: the rate changed (it may not): leave it",
                         comp::settings_error);
    CHECK(trainer.weights() == fake::state{});  // all are back at the start
  });
  CHECK(errors == std::vector<std::string>(2));
}

TEST_CASE("a rank that is interrupted is about to end: the others end with its words") {
  for (const auto& [which, words] : {std::pair{1U, "rank 1: Ctrl-C"}, std::pair{0U, "rank 0: Ctrl-C"}}) {
    const ended all = search_in(with_event(3, which, 20, [] { throw comp::interrupted{"Ctrl-C"}; }));
    CHECK(all.errors == std::vector<std::string>(3, words));
    CHECK(all.weights == std::vector<fake::state>(3));
  }
}

TEST_CASE("ranks that fail alike are all named") {
  std::vector<fake::world> worlds(3, harmless());
  worlds[0] = worlds[2] = failing_in_head([] { throw std::runtime_error{"no kernel"}; });
  CHECK(has_trial(search_in(worlds).found[1], comp::status::failed, "rank 0: no kernel; rank 2: no kernel"));
}

TEST_CASE("an observer that stops the search on rank 0 stops it on all, back at the start") {
  fake::watcher watching{.stops_after = [](const comp::trial& t) { return t.number == 3; }};
  const ended all = search_in({typical(), typical()}, {}, watching);
  CHECK(all.errors[0] == all.errors[1]);
  CHECK(all.errors[0].starts_with("search stopped after 4 runs"));
  CHECK(all.weights == std::vector<fake::state>(2));
}

TEST_CASE("a worker that is killed ends the search on all that are left, at once") {
  for (const std::size_t which : {1U, 2U}) {
    CAPTURE(which);
    wires all{3};
    const auto worlds = with_event(3, which, 25, [&] {
      all.kill(static_cast<int>(which));
      throw killed{};
    });
    const ended got = search_in(worlds, all);
    CHECK(got.errors[0] == fmt::format("rank {} is gone", which));
    CHECK(got.errors[which] == "killed");
    CHECK(got.errors[3 - which].ends_with(" is gone"));  // by rank 0's last word, or because rank 0 has ended
    CHECK(got.weights[0] == fake::state{});              // rank 0's own part is back at the start
    CHECK(got.plans[0].count_low() == 0);
  }
}

TEST_CASE("where rank 0 is killed, the others say so") {
  wires all{3};
  fake::watcher watching{.at = [&](const std::string& call) {
    if (call != "trial_done") return;
    all.kill(0);
    throw killed{};
  }};
  const ended got = search_in(std::vector<fake::world>(3, typical()), all, {}, watching);
  CHECK(got.errors == std::vector<std::string>{"killed", "rank 0 is gone", "rank 0 is gone"});
}

TEST_CASE("a worker that stops is given up after the timeout, by its name") {
  wires all{2};
  const auto worlds = with_event(2, 1, 25, [&] { all.fall_silent(1, 0); });
  const ended got = search_in(worlds, all);
  CHECK(got.errors[0] == "rank 1 has not answered");
  CHECK(got.errors[1] == "rank 0 is gone");  // when it wakes up
}

TEST_CASE("another model on one rank is refused before a batch is trained, with what differs") {
  std::vector<fake::world> worlds(2, typical());
  SUBCASE("another operator") {
    worlds[1].graph = fake::sized_chain({"allow.conv", "allow.gemm", "allow.head", "deny.softmax"});
    const ended all = search_in(worlds);
    CHECK(all.errors ==
          std::vector<std::string>(
              2,
              "rank 1 has 4 operators and rank 0 4, and operator 1 is \"1\" (allow.gemm) there and \"1\" "
              "(allow.linear) here (a plan gives each operator of one model its precision): build the same "
              "model on all ranks"));
    CHECK(all.counts[0].batches + all.counts[1].batches == 0);
  }
  SUBCASE("an operator less") {
    worlds[1].graph = fake::sized_chain({"allow.conv", "allow.linear", "allow.head"});
    for (const std::string& message : search_in(worlds).errors)
      CHECK(message.starts_with(
          "rank 1 has 3 operators and rank 0 4, and operator 3 is none there and \"3\" (deny.softmax) here"));
  }
}

TEST_CASE("another version of comp on one rank is refused on both") {
  wires all{2};
  std::string answer;
  const auto errors = run_ranks(all, [&](int rank, comp::ranks::team& team) {
    if (rank == 0) {
      fake::full_trainer trainer{typical()};
      fake::watcher silent;
      (void)thread_ranks::search(team, trainer, silent);
    } else {
      answer = comp::ranks::detail::unpacked<comp::ranks::detail::order>(team.finish("0.0.1")).text;
    }
  });
  const std::string sentence = fmt::format(
      "rank 1 has comp 0.0.1 and rank 0 {} (they speak to each other as of one version): install the same on all ranks",
      comp::detail::comp_version);
  CHECK(errors[0] == sentence);
  CHECK(answer == sentence);
}

TEST_CASE("a rank that trains on another kind of device, or has a trainer of another type, is refused") {
  using comp::ranks::detail::difference_of;
  using comp::ranks::detail::introduction;
  introduction here{.hardware = {.name = "a CPU", .kind = comp::device_kind::cpu}}, there = here;
  CHECK_FALSE(difference_of({here, there}));
  there.hardware = {.name = "a GPU", .kind = comp::device_kind::cuda};
  CHECK(
      difference_of({here, there}).value() ==
      "rank 1 trains on cuda (a GPU) and rank 0 on cpu (a CPU) (a batch's time is that of the slowest): put all ranks on "
      "the same kind of device");
  there = here;
  there.has.validate = true;
  CHECK(
      difference_of({here, here, there}).value() ==
      "rank 2's trainer has other members than rank 0's (all carry out the same orders): give all ranks a trainer of one "
      "type, with a score or without");
}

TEST_CASE("other CPUs are searched as what all of them have") {
  using comp::ranks::detail::introduction;
  const introduction one{.hardware = {"A", comp::device_kind::cpu, 0, {"avx2", "amx_bf16"}, 8}};
  const introduction other{.hardware = {"B", comp::device_kind::cpu, 0, {"avx2"}, 4}};
  CHECK(comp::ranks::detail::common_hardware({one, other, one}) ==
        comp::hardware{"A + B", comp::device_kind::cpu, 0, {"avx2"}, 4});
}
