// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <comp/core/search_space.hpp>
#include <map>
#include <set>

using comp::op_group;
using comp::plan;
using comp::precision;
using comp::search_space;

namespace {

const std::vector<precision> two_levels{precision::fp32, precision::fp16};

// Five operators: 0 and 3 tied, 2 with three levels, 1 and 4 fixed.
search_space small_space() {
  return {comp::parse_plan("11110"),
          {{.name = "ends", .operators = {0, 3}, .levels = two_levels},
           {.name = "middle", .operators = {2}, .levels = {precision::fp32, precision::bf16, precision::fp16}}}};
}

search_space free_space(std::size_t groups) {
  std::vector<op_group> each;
  for (std::uint32_t i = 0; i < groups; ++i) each.push_back({.name = "g", .operators = {i}, .levels = two_levels});
  return {plan{groups}, std::move(each)};
}

}  // namespace

TEST_CASE("tied operators change together and fixed ones never") {
  const search_space space = small_space();
  plan p = space.base();
  space.set(p, 0, 1);
  CHECK(p.str() == "01100");
  space.set(p, 1, 1);
  CHECK(p.str() == "01b00");
  CHECK(space.level(p, 0) == 1);
  CHECK(space.level(p, 1) == 1);
}

TEST_CASE("the size is the product of the levels") {
  CHECK(small_space().size() == 6);
  CHECK(small_space().size_text() == "6");
  CHECK(search_space{}.size() == 1);
}

TEST_CASE("a space too large for 63 bits says so and is still described") {
  CHECK(free_space(62).size() == std::uint64_t{1} << 62);
  CHECK_FALSE(free_space(64).size().has_value());
  CHECK(free_space(100).size_text() == "2^100.0");
  CHECK(free_space(30).size_text() == "2^30.0");
}

TEST_CASE("the conservative plan has every group on its first level") {
  CHECK(small_space().conservative().str() == "11110");
  const search_space lowered{comp::parse_plan("00"), {{.name = "g", .operators = {0}, .levels = two_levels}}};
  CHECK(lowered.conservative().str() == "10");
}

TEST_CASE("the space's own rule says which plans may be tried") {
  const search_space even{plan{2}, {{.name = "a", .operators = {0}, .levels = two_levels}}, [](const plan& p) {
                            return p[1] == precision::fp32;
                          }};
  CHECK(even.valid(comp::parse_plan("01")));
  CHECK_FALSE(even.valid(comp::parse_plan("10")));
}

TEST_CASE("a plan from elsewhere is projected: groups keep their level, the rest is the base's") {
  CHECK(small_space().project(comp::parse_plan("00b01")).str() == "01b00");
  CHECK(small_space().project(comp::parse_plan("e1111")).str() == "11110");  // no level of the group: the first
}

TEST_CASE("projection leaves the plans of the space as they are") {
  CHECK(rc::check([](std::uint64_t seed) {
    std::mt19937_64 generator{seed};
    const search_space space = small_space();
    const plan drawn = space.random(generator);
    RC_ASSERT(space.project(drawn) == drawn);
  }));
}

TEST_CASE("random plans are drawn evenly and the same for the same seed") {
  const search_space space = small_space();
  std::mt19937_64 generator{7}, again{7};
  std::map<std::string, int> drawn;
  for (int i = 0; i < 6000; ++i) {
    const plan p = space.random(generator);
    REQUIRE(p == space.random(again));
    ++drawn[p.str()];
  }
  CHECK(drawn.size() == 6);
  for (const auto& [text, times] : drawn) {
    CAPTURE(text);
    CHECK(times > 850);  // 1000 expected, standard deviation 29
    CHECK(times < 1150);
  }
}

TEST_CASE("below() stays below and reaches every value") {
  std::mt19937_64 generator{1};
  for (const std::size_t bound : {1, 2, 3, 7, 1000}) {
    std::set<std::size_t> values;
    for (std::size_t i = 0; i < 20 * bound; ++i) values.insert(search_space::below(generator, bound));
    CAPTURE(bound);
    CHECK(*values.rbegin() < bound);
    CHECK(values.size() > bound * 99 / 100);
  }
}

TEST_CASE("a group without operators or levels is refused") {
  CHECK_THROWS_WITH_AS(search_space(plan{2}, {{.name = "none", .operators = {}, .levels = two_levels}}),
                       "group \"none\" has 0 operators and 2 levels (each needs at least one): drop the group",
                       comp::space_error);
  CHECK_THROWS_WITH_AS(search_space(plan{2}, {{.name = "flat", .operators = {1}, .levels = {}}}),
                       "group \"flat\" has 1 operators and 0 levels (each needs at least one): drop the group",
                       comp::space_error);
}

TEST_CASE("an operator out of range or in two groups is refused") {
  CHECK_THROWS_WITH_AS(search_space(plan{2}, {{.name = "far", .operators = {2}, .levels = two_levels}}),
                       "operator 2 of group \"far\" is out of range or in two groups (the plan has 2 operators): "
                       "give each operator to one group",
                       comp::space_error);
  CHECK_THROWS_WITH_AS(search_space(plan{2}, {{.name = "one", .operators = {0}, .levels = two_levels},
                                              {.name = "two", .operators = {0}, .levels = two_levels}}),
                       "operator 0 of group \"two\" is out of range or in two groups (the plan has 2 operators): "
                       "give each operator to one group",
                       comp::space_error);
}
