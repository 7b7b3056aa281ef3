// SPDX-License-Identifier: Apache-2.0
// Strategies with a mistake, and times that say nothing: what a search makes of them.
#include <doctest/doctest.h>

#include <comp/search/decision/staged_search.hpp>
#include <comp/search/times/contest.hpp>

#include "fake_search.hpp"

using comp::plan;
using comp::precision;
using fake::warns;

namespace {

// Asks for what a test wants.
struct scripted {
  std::function<std::vector<plan>(const comp::search_space&, std::size_t call)> asks = {};
  struct run {
    decltype(scripted::asks) asks;
    comp::search_space space;
    std::size_t calls = 0;
    std::vector<comp::trial> trials = {};
    std::vector<plan> ask(std::size_t) { return asks(space, calls++); }
    void tell(const comp::trial& t) { trials.push_back(t); }
  };
  run start(comp::search_space over) const { return {asks, std::move(over)}; }
};
const scripted nothing{[](const auto&, std::size_t) { return std::vector<plan>{}; }};

comp::outcome searched(const scripted& stage1, const scripted& stage2 = nothing, fake::world w = fake::typical()) {
  fake::trainer trainer{std::move(w)};
  return comp::two_stage{fake::lists{}, stage1, stage2}.run(trainer);
}
std::string refusal(const scripted& stage1, const scripted& stage2 = nothing) {
  try {
    (void)searched(stage1, stage2);
  } catch (const comp::plan_error& e) {
    return e.what();
  }
  return {};
}
scripted always(std::function<plan(const comp::search_space&)> one) {
  return {[one](const comp::search_space& space, std::size_t) { return std::vector{one(space)}; }};
}
plan changed(plan p, std::size_t at, precision to) {
  p[at] = to;
  return p;
}

}  // namespace

TEST_CASE("a strategy that never ends gets the known answer, is ended, and told so") {
  const scripted same = always([](const comp::search_space& space) { return space.conservative(); });
  SUBCASE("of stage 1") {
    const comp::outcome got = searched(same);
    CHECK(warns(
        got, "the strategy was ended: it asked 1000 times in a row for plans that it had asked for before (1 in all;"));
    CHECK(got.plan.count_low() > 0);
  }
  SUBCASE("of stage 2") { CHECK(warns(searched(nothing, same), "the strategy was ended")); }
}

TEST_CASE("a strategy that asks twice is told the same twice, and the plan is run once") {
  std::size_t calls = 0;
  const scripted twice{[&](const comp::search_space& space, std::size_t call) {
    ++calls;
    return call < 2 ? std::vector{space.conservative()} : std::vector<plan>{};
  }};
  const comp::outcome got = searched(twice);
  CHECK(calls == 3);
  CHECK(std::count_if(got.trials.begin(), got.trials.end(), [](const comp::trial& t) {
          return t.stage == comp::stage::losses && t.plan.str() == "11b1";
        }) == 1);
  CHECK_FALSE(warns(got, "was ended"));
}

TEST_CASE("a plan that is none of the space is refused, naming strategy, operator and what there is") {
  using comp::search_space;
  const auto with = [](std::size_t at, precision to) {
    return always([=](const search_space& space) { return changed(space.conservative(), at, to); });
  };
  const scripted shorter = always([](const search_space&) { return plan{2}; });
  const std::string length =
      "the strategy asked for a plan of 2 operators (the model has 4): give plans that are made of";
  CHECK(refusal(shorter).find(length) == 0);
  CHECK(refusal(nothing, shorter).find(length) == 0);
  CHECK(
      refusal(with(0, precision::fp16))
          .find(
              "the strategy asked for operator 0 (\"0\") in fp16 (the space has fp32, bf16 there, for all operators of group ") ==
      0);
  CHECK(refusal(with(2, precision::fp32))
            .find("the strategy asked for operator 2 (\"2\") in fp32 (the space has bf16 there):") == 0);
  CHECK(refusal(nothing, with(0, precision::bf16)).find("the strategy asked for operator 0") == 0);
  const comp::search_space tied{plan{2}, {{"g", {0, 1}, {precision::fp32, precision::bf16}}}};
  CHECK_THROWS_AS(comp::require_in_space({precision::bf16, precision::fp32}, tied, fake::chain({"a", "b"})),
                  comp::plan_error);
  CHECK_NOTHROW(comp::require_in_space({precision::bf16, precision::bf16}, tied, fake::chain({"a", "b"})));
  const comp::search_space none{plan{1}, {}, [](const plan&) { return false; }};
  CHECK_THROWS_WITH_AS(comp::require_in_space(plan{1}, none, fake::chain({"a"})),
                       doctest::Contains("the space refuses"), comp::plan_error);
}

TEST_CASE("where times are too noisy to tell FP32 is kept, with what to do, after more rounds than else") {
  const scripted one = always([](const comp::search_space& space) { return space.conservative(); });
  const scripted once{[one](const comp::search_space& space, std::size_t call) {
    return call == 0 ? one.asks(space, call) : std::vector<plan>{};
  }};
  const auto batches = [](const comp::outcome& got, const char* plan) {
    return std::count_if(got.trials.begin(), got.trials.end(),
                         [&](const comp::trial& t) { return t.stage == comp::stage::contest && t.plan.str() == plan; });
  };
  fake::world noisy = fake::typical();
  const auto seconds = noisy.seconds;
  const auto turn = std::make_shared<std::size_t>(0);
  noisy.seconds = [=](const plan& p) {  // every third batch under the plan takes twice as long as FP32
    if (p.count_low() == 0) return 6.0;
    return ++*turn % 5 < 2 ? 12.0 : 4.0;
  };
  const comp::outcome got = searched(once, nothing, noisy);
  CHECK(got.plan.count_low() == 0);
  CHECK(got.speedup == 1);
  CHECK(warns(got, "too noisy to tell: FP32 kept (\"comp: fp32 but 2 in bf16\" is 0.50 to 1.50 times as fast, 95%): "));
  CHECK(warns(got, "search again when nothing else runs on the machine"));
  const comp::outcome quiet = searched(once);
  CHECK(quiet.plan.count_low() > 0);
  CHECK_FALSE(warns(quiet, "too noisy"));
  CHECK(batches(got, "1111") > 2 * batches(quiet, "1111"));
}

TEST_CASE("an interval is too wide to tell only where it holds 1, is wide, and the plan looks faster") {
  const auto noisy = [](double ratio, double low, double high) {
    return comp::is_too_noisy({.over_fp32 = {ratio, {low, high}}});
  };
  constexpr double infinity = std::numeric_limits<double>::infinity();
  CHECK(noisy(1.4, 0.99, 1.81));
  CHECK_FALSE(noisy(1.4, 1.01, 1.81));
  CHECK_FALSE(noisy(1.01, 0.98, 1.03));
  CHECK_FALSE(noisy(0.9, 0.5, 1.5));
  CHECK_FALSE(noisy(1.4, -infinity, infinity));
}
