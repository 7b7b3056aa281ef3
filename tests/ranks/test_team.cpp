// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include "rank_search.hpp"

using thread_ranks::run_ranks;
using thread_ranks::wires;

namespace {

struct whole {
  int rank();
  int size();
  std::string broadcast(std::string bytes);
  std::vector<std::string> gather(std::string bytes);
};
struct without_rank : whole {
  void rank() = delete;
};
struct size_in_words : whole {
  std::string size();
};
struct broadcasts_nothing : whole {
  void broadcast(const std::string& bytes);
};
struct gathers_one : whole {
  std::string gather(std::string bytes);
};
using comp::ranks::Communicator;
static_assert(Communicator<whole> && !Communicator<without_rank> && !Communicator<size_in_words> &&
              !Communicator<broadcasts_nothing> && !Communicator<gathers_one>);

}  // namespace

TEST_CASE("ranks agree on the greatest, element by element") {
  wires all{3};
  std::vector<std::vector<double>> got(3);
  const auto errors = run_ranks(all, [&](int rank, comp::ranks::team& team) {
    got[static_cast<std::size_t>(rank)] = team.maximum({static_cast<double>(rank), static_cast<double>(-rank)});
  });
  CHECK(errors == std::vector<std::string>(3));
  CHECK(got == std::vector<std::vector<double>>(3, {2, 0}));
}

TEST_CASE("all ranks hear what each says, also where some still agree on a number") {
  wires all{3};
  std::vector<std::vector<std::string>> heard(3);
  const auto errors = run_ranks(all, [&](int rank, comp::ranks::team& team) {
    if (rank != 1) CHECK_THROWS_AS(team.maximum({}), comp::ranks::detail::abandoned);
    heard[static_cast<std::size_t>(rank)] = team.exchange(std::to_string(rank));
  });
  CHECK(errors == std::vector<std::string>(3));
  CHECK(heard == std::vector<std::vector<std::string>>(3, {"0", "1", "2"}));
}

TEST_CASE("one rank agrees with itself") {
  wires all{1};
  CHECK(run_ranks(all, [](int, comp::ranks::team& team) {
          CHECK(team.maximum({1, 2}) == std::vector<double>{1, 2});
        }) == std::vector<std::string>(1));
}

TEST_CASE("once a rank is gone, nothing waits for it again") {
  wires all{2};
  const auto errors = run_ranks(all, [&](int rank, comp::ranks::team& team) {
    if (rank == 1) return all.fall_silent(1);
    for (int i = 0; i < 100; ++i) CHECK_THROWS_AS(team.maximum({}), comp::rank_error);
    CHECK(team.broken());
  });
  CHECK(errors == std::vector<std::string>(2));
  CHECK(all.timeouts == 1);
}

TEST_CASE("a rank that waits for a number is told which rank is gone") {
  wires all{3};
  const auto errors = run_ranks(all, [&](int rank, comp::ranks::team& team) {
    if (rank == 2) return all.kill(2);
    CHECK_THROWS_WITH_AS(team.maximum({}), "rank 2 is gone", comp::rank_error);
    if (rank == 0) team.dismiss({});
  });
  CHECK(errors == std::vector<std::string>(3));
}

TEST_CASE("what a communicator throws ends the speaking, whatever it is") {
  struct faulty {
    int rank() const { return 0; }
    int size() const { return 2; }
    std::string broadcast(const std::string&) { throw std::runtime_error{"the wire is cut"}; }
    std::vector<std::string> gather(const std::string&) { throw std::runtime_error{"the wire is cut"}; }
  } cut;
  comp::ranks::team team{cut};
  CHECK_THROWS_WITH_AS(team.maximum({}), "the wire is cut", comp::rank_error);
  CHECK(team.broken());
}
