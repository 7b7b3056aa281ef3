// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/search/space/spaces.hpp>

#include "fake_trainer.hpp"

using comp::op_role;
using comp::precision;
using comp::tie;

namespace {

constexpr std::array only_bf16{precision::bf16};
constexpr std::array two_lows{precision::bf16, precision::fp16};

comp::candidate_space space_of(const comp::op_graph& graph, std::span<const precision> lows = only_bf16,
                               tie how = tie::none) {
  return comp::make_candidate_space(fake::lists{}, graph, {}, lows, how);
}

TEST_CASE("the paper's figure 4: operators 0, 4 and 7 are searched, 3 and 5 fixed low, 1, 2 and 6 left to stage 2") {
  const auto graph = fake::sized_chain({"allow.odd", "relu", "dropout", "allow", "deny", "allow", "relu", "allow.odd"});
  const auto candidates = space_of(graph);
  REQUIRE(candidates.space.groups().size() == 3);
  for (const auto& [group, op] : {std::pair{0, 0U}, {1, 4U}, {2, 7U}}) {
    const auto& got = candidates.space.groups()[static_cast<std::size_t>(group)];
    CHECK(got.operators == std::vector{op});
    CHECK(got.levels == std::vector{precision::fp32, precision::bf16});
  }
  CHECK(candidates.space.conservative().str() == "111b1b11");
  CHECK(*candidates.space.size() == 8);
  using enum op_role;
  CHECK(candidates.roles ==
        std::vector{searched, undecided, undecided, lowered, searched, lowered, undecided, searched});
}

TEST_CASE("operators are tied by kind, by outermost scope, or not at all") {
  const auto graph = fake::sized({{.name = "a", .kind = "deny.x", .scopes = {"block1", "attention"}},
                                  {.name = "b", .kind = "deny.y", .scopes = {"block1"}},
                                  {.name = "c", .kind = "deny.x", .scopes = {"block2"}},
                                  {.name = "d", .kind = "deny.y"}});
  const auto groups = [&](tie how) {
    std::vector<std::string> names;
    const auto candidates = space_of(graph, only_bf16, how);
    for (const auto& group : candidates.space.groups()) {
      names.push_back(group.name + ":" + std::to_string(group.operators.size()));
    }
    return names;
  };
  CHECK(groups(tie::kind) == std::vector<std::string>{"deny.x:2", "deny.y:2"});
  CHECK(groups(tie::scope) == std::vector<std::string>{"block1:2", "block2:1", "d:1"});
  CHECK(groups(tie::none) == std::vector<std::string>{"a:1", "b:1", "c:1", "d:1"});
}

TEST_CASE("operators of one kind whose levels differ are not tied") {
  const auto graph = fake::sized({{.name = "a", .kind = "allow.x"}, {.name = "b", .kind = "allow.x"}});
  const comp::op_graph mixed = [&] {
    std::vector<comp::op_info> ops{graph.begin(), graph.end()};
    ops[1].n = 7;
    ops[1].producers = {0};
    return comp::op_graph{ops};
  }();
  const auto candidates = space_of(mixed, two_lows, tie::kind);
  REQUIRE(candidates.space.groups().size() == 2);
  CHECK(candidates.space.groups()[0].levels == std::vector{precision::bf16, precision::fp16});
  CHECK(candidates.space.groups()[1].levels == std::vector{precision::fp32, precision::bf16, precision::fp16});
}

TEST_CASE("groups come with the most work first") {
  const auto graph = fake::sized({{.name = "a", .kind = "deny", .flops = 10},
                                  {.name = "b", .kind = "deny", .flops = 1000},
                                  {.name = "c", .kind = "deny", .bytes = 10},
                                  {.name = "d", .kind = "deny"},
                                  {.name = "e", .kind = "deny"}});
  const auto candidates = space_of(graph);
  std::string order;
  for (const auto& group : candidates.space.groups()) order += group.name;
  CHECK(order == "bcade");
}

TEST_CASE("with no low precision to search everything stays in FP32") {
  const auto candidates = space_of(fake::sized_chain({"allow", "deny", "relu", "allow.odd"}), {});
  CHECK(candidates.space.groups().empty());
  CHECK(candidates.space.conservative().str() == "1111");
}

TEST_CASE("a pinned operator has its precision and is not searched; a view is never chosen") {
  const auto graph = fake::sized({{.name = "a", .kind = "fix"}, {.name = "b", .kind = "allow", .choosable = false}});
  const auto candidates = space_of(graph);
  CHECK(candidates.roles == std::vector{op_role::pinned, op_role::view});
  CHECK(candidates.space.base().str() == "b1");
  SUBCASE("a precision that the backend lacks is refused") {
    CHECK_NOTHROW(require_supported(candidates, graph, only_bf16));
    CHECK_THROWS_WITH_AS(require_supported(candidates, graph, std::array{precision::fp32, precision::fp16}),
                         "policy fixes operator 0 (\"a\") at bf16 (the backend supports fp32, fp16): change the rule",
                         comp::settings_error);
  }
}

TEST_CASE("without losses every operator that a list denies, or that no list names, may be low") {
  const auto graph = fake::sized_chain({"allow", "relu", "deny", "allow.odd", "fix"});
  const auto candidates = space_of(graph, two_lows);
  const auto space = space_without_losses(candidates, graph, two_lows, tie::none);
  CHECK(*space.size() == 3 * 3 * 3 * 3);  // allow with two lows, relu, deny, allow.odd
  CHECK(space.conservative().str() == "1111b");
  CHECK(space_without_losses(space_of(graph), graph, only_bf16, tie::none).conservative().str() == "b111b");
}

/// FP8 for operators whose kind ends in "8".
struct partly {
  comp::op_graph operators;
  const comp::op_graph& graph() const { return operators; }
  void set_precision(const comp::plan&) {}
  comp::sample run_epoch() { return {}; }
  comp::sample run_batch() { return {}; }
  bool supports(const comp::op_info& op, precision p) const {
    return p != precision::fp8_e4m3 || op.kind.ends_with("8");
  }
};
constexpr std::array bf16_and_fp8{precision::bf16, precision::fp8_e4m3};
constexpr std::array only_fp8{precision::fp8_e4m3};

}  // namespace

TEST_CASE("operators are searched in the precisions that the backend runs them in, and in no other") {
  partly some{fake::sized_chain({"deny", "deny8", "allow", "allow8", "relu", "relu8"})};
  const auto levels = [&](const comp::search_space& space) {
    std::vector<std::string> all(some.operators.size(), "-");
    for (const auto& group : space.groups()) {
      for (const auto op : group.operators) {
        all[op].clear();
        for (const precision p : group.levels) all[op] += letter(p);
      }
    }
    return all;
  };
  using list = std::vector<std::string>;
  const auto candidates_of = [&](std::span<const precision> lows) {
    const comp::op_support runs{comp::trainer_of{some}, some.operators, lows};
    return comp::make_candidate_space(fake::lists{}, some.operators,
                                      {.kind = comp::device_kind::cuda, .compute_capability = 90}, lows, tie::none,
                                      runs);
  };
  const comp::op_support runs{comp::trainer_of{some}, some.operators, bf16_and_fp8};
  const auto both = candidates_of(bf16_and_fp8);
  CHECK(levels(both.space) == list{"1b", "1be", "-", "be", "-", "-"});
  CHECK(both.space.conservative().str() == "11bb11");
  CHECK(levels(space_without_losses(both, some.operators, bf16_and_fp8, tie::none, runs)) ==
        list{"1b", "1be", "-", "1be", "1b", "1be"});
  const auto alone = candidates_of(only_fp8);
  CHECK(levels(alone.space) == list{"-", "1e", "-", "-", "-", "-"});
  CHECK(alone.space.conservative().str() == "111e11");
  using enum op_role;
  CHECK(alone.roles == std::vector{pinned, searched, pinned, lowered, undecided, undecided});
}

TEST_CASE("what stands in for a precision that an operator lacks is the first searched one that it has") {
  partly some{fake::chain({"a", "a8"})};
  const comp::op_support with_bf16{comp::trainer_of{some}, some.operators, bf16_and_fp8},
      without{comp::trainer_of{some}, some.operators, only_fp8}, all;
  const comp::plan fp8{{precision::fp8_e4m3, precision::fp8_e4m3}};
  CHECK(with_bf16.with_substitutes(fp8).str() == "be");
  CHECK(without.with_substitutes(fp8).str() == "1e");
  CHECK(all.with_substitutes(fp8).str() == "ee");
  CHECK(with_bf16.supports(0, precision::fp32));
  CHECK_FALSE(with_bf16.supports(0, precision::fp8_e4m3));
}

TEST_CASE("a policy that pins an operator where the backend does not run it is refused") {
  const auto graph = fake::sized_chain({"fix.conv"});
  struct never : partly {
    bool supports(const comp::op_info&, precision p) const { return p != precision::bf16; }
  } none{{graph}};
  const comp::op_support runs{comp::trainer_of{none}, graph, only_bf16};
  const auto candidates = comp::make_candidate_space(fake::lists{}, graph, {}, only_bf16, tie::none, runs);
  CHECK_THROWS_WITH_AS(
      require_supported(candidates, graph, std::array{precision::fp32, precision::bf16}, runs),
      "policy fixes operator 0 (\"0\") at bf16 (the backend does not run fix.conv in it): change the rule",
      comp::settings_error);
}
