// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/search/observers.hpp>

using comp::observer_list;
using comp::trial;

namespace {

struct silent {
  void search_started(const comp::search_info&) {}
};
struct counting {
  int done = 0;
  void trial_done(const trial&) { ++done; }
};
struct stopping {
  bool now = false;
  bool trial_done(const trial& t) { return t.number == 2; }
  bool stop_requested() { return now; }
};
struct remembering {
  double loss = 0;
  std::optional<trial> recall(const trial& wanted) {
    return wanted.number == 1 ? std::optional{trial{.sample = {.loss = loss}}} : std::nullopt;
  }
};

static_assert(comp::Observer<silent> && comp::Observer<counting> && comp::Observer<stopping&> &&
              comp::Observer<remembering>);
struct stops_by_number {
  int trial_done(const trial&) { return 0; }
};
static_assert(!comp::Observer<stops_by_number> && !comp::Observer<stops_by_number&>);
struct misspelt {
  void trial_finished(const trial&) {}
};
static_assert(!comp::Observer<misspelt>);

}  // namespace

TEST_CASE("a list calls what each observer has, all of them, even after one asked to stop") {
  stopping first;
  counting second;
  silent third;
  observer_list list{first, second, third};
  CHECK_FALSE(list.trial_done({.number = 1}));
  CHECK(list.trial_done({.number = 2}));
  CHECK(second.done == 2);
  CHECK_FALSE(list.stop_requested());
  first.now = true;
  CHECK(list.stop_requested());
}

TEST_CASE("the first observer that recalls a run answers") {
  silent none;
  remembering one{3}, two{4};
  observer_list list{none, one, two};
  CHECK(list.recall({.number = 1})->sample.loss == 3);
  CHECK_FALSE(list.recall({.number = 0}).has_value());
}

TEST_CASE("a list of no observers is silent and never stops") {
  observer_list<> list;
  CHECK_FALSE(list.trial_done({}));
  CHECK_FALSE(list.stop_requested());
  CHECK_FALSE(list.recall({}).has_value());
}
