// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/search/space/spaces.hpp>
#include <set>

#include "fake_trainer.hpp"

using comp::op_role;
using comp::segment_kind;
using comp::tie;

namespace {

// d: decided, u: undecided, v: view.
std::vector<op_role> roles(std::string_view letters) {
  std::vector<op_role> all;
  for (const char c : letters)
    all.push_back(c == 'd' ? op_role::searched : c == 'u' ? op_role::undecided : op_role::view);
  return all;
}

comp::op_graph chain_of(std::size_t n) { return fake::chain(std::vector<std::string>(n, "op")); }

comp::segment_space cut(const comp::op_graph& graph, std::string_view letters, std::string_view plan,
                        tie how = tie::none) {
  return comp::make_segment_space(graph, roles(letters), comp::parse_plan(plan), how);
}

std::vector<std::uint32_t> searched(const comp::search_space& space) {
  std::vector<std::uint32_t> all;
  for (const auto& group : space.groups()) all.insert(all.end(), group.operators.begin(), group.operators.end());
  std::ranges::sort(all);
  return all;
}

}  // namespace

TEST_CASE("the paper's chain: between equal neighbours operators follow, between different ones they are enumerated") {
  // Figure 4: 0, 3, 4, 5 and 7 decided as 0 1 . . low: 1 and 2 lie between 0 (FP16) and 3 (FP16), 6 between 5 and 7.
  const auto segments = cut(chain_of(8),
                            "duuddd"
                            "ud",
                            "01100"
                            "011");
  CHECK(segments.space.base().str() == "00000011");  // 1 and 2 follow in FP16
  CHECK(searched(segments.space) == std::vector<std::uint32_t>{6});
  CHECK(segments.space.groups()[0].levels == std::vector{comp::precision::fp32, comp::precision::fp16});
  CHECK(segments.kinds[1] == segment_kind::follows);
  CHECK(segments.kinds[6] == segment_kind::enumerated);
  CHECK(segments.kinds[0] == segment_kind::decided);
}

TEST_CASE("where all decided operators agree nothing is enumerated") {
  CHECK(cut(chain_of(5), "duudu", "11111").space.groups().empty());
  CHECK(cut(chain_of(5), "duudu", "b11b1").space.base().str() == "bbbbb");
}

TEST_CASE("a run at an end of the graph follows its one neighbour; a graph without any stays in FP32") {
  const auto segments = cut(chain_of(5), "uuduu", "11b11");
  CHECK(segments.space.base().str() == "bbbbb");
  CHECK(segments.space.groups().empty());
  const auto alone = cut(chain_of(3), "uuu", "111");
  CHECK(alone.space.base().str() == "111");
  CHECK(alone.kinds == std::vector(3, segment_kind::alone));
}

TEST_CASE("a view carries its neighbours through but keeps FP32 in the plan") {
  const auto segments = cut(chain_of(5), "duvud", "b1111");
  CHECK(searched(segments.space) == std::vector<std::uint32_t>{1, 3});
  CHECK(segments.space.base()[2] == comp::precision::fp32);
  const auto follows = cut(chain_of(5), "duvud", "b111b");
  CHECK(follows.space.base().str() == "bb1bb");
}

TEST_CASE("on a DAG a segment's neighbours are those along its edges, not those beside it in the order") {
  // conv(b) -> relu -> conv(b) -> add <- relu, and a softmax in FP32 that stands between them in execution order but
  // reads the last add alone.
  const comp::op_graph graph{{{.name = "conv1", .kind = "c"},
                              {.name = "relu", .kind = "r", .producers = {0}},
                              {.name = "side", .kind = "s"},  // FP32, reads the input
                              {.name = "conv2", .kind = "c", .producers = {1}},
                              {.name = "add", .kind = "a", .producers = {3, 1}},
                              {.name = "softmax", .kind = "s", .producers = {4}}}};
  const auto segments = cut(graph, "duddud", "b11b11");
  CHECK(segments.kinds[1] == segment_kind::enumerated);  // joined to add through the residual edge, which softmax reads
  CHECK(searched(segments.space) == std::vector<std::uint32_t>{1, 4});
  const auto agreed = cut(graph, "duddud", "b11b1b");
  CHECK(agreed.kinds[1] == segment_kind::follows);  // side is FP32 but no edge touches it
  CHECK(agreed.space.base().str() == "bb1bbb");
}

TEST_CASE("three precisions that meet are all enumerated, FP32 first; without FP32 around it is no level") {
  const comp::op_graph graph{{{.name = "a", .kind = "x"},
                              {.name = "b", .kind = "x"},
                              {.name = "c", .kind = "x"},
                              {.name = "sum", .kind = "add", .producers = {0, 1, 2}}}};
  using enum comp::precision;
  CHECK(cut(graph, "dddu", "01b1").space.groups()[0].levels == std::vector{fp32, bf16, fp16});
  CHECK(cut(graph, "dddu", "0bb1").space.groups()[0].levels == std::vector{bf16, fp16});
}

TEST_CASE("operators of one kind are tied across segments with the same precisions around them, else not") {
  const auto graph = chain_of(9);
  CHECK(cut(graph,
            "dududud"
            "ud",
            "b111b111b", tie::kind)
            .space.groups()
            .size() == 1);
  CHECK(cut(graph,
            "dududud"
            "ud",
            "b111b1011", tie::kind)
            .space.groups()
            .size() == 3);
}

TEST_CASE("the segments of a random DAG are those that a search from each operator finds") {
  std::mt19937 random{7};
  for (int round = 0; round < 200; ++round) {
    std::vector<comp::op_info> ops(2 + random() % 20);
    std::string letters, plan;
    for (std::size_t i = 0; i < ops.size(); ++i) {
      ops[i] = {.name = std::to_string(i), .kind = "op"};
      for (std::size_t j = 0; j < i; ++j) {
        if (random() % 4 == 0) ops[i].producers.push_back(j);
      }
      letters += "duuv"[random() % 4];
      plan += letters.back() == 'd' && random() % 2 ? 'b' : '1';
    }
    const comp::op_graph graph{ops};
    const auto segments = cut(graph, letters, plan);
    CAPTURE(letters);
    CAPTURE(plan);
    for (std::size_t start = 0; start < graph.size(); ++start) {
      if (letters[start] == 'd') continue;
      std::set<std::size_t> reached{start};
      std::set<char> around;
      for (std::vector<std::size_t> open{start}; !open.empty();) {
        const auto at = open.back();
        open.pop_back();
        std::vector<std::size_t> near{graph[at].producers};
        for (const auto reader : graph.consumers(at)) near.push_back(reader);
        for (const auto other : near) {
          if (letters[other] == 'd')
            around.insert(plan[other]);
          else if (reached.insert(other).second)
            open.push_back(other);
        }
      }
      const auto expected = around.empty()       ? segment_kind::alone
                            : around.size() == 1 ? segment_kind::follows
                                                 : segment_kind::enumerated;
      CHECK(segments.kinds[start] == expected);
      if (letters[start] == 'u' && around.size() == 1)
        CHECK(comp::letter(segments.space.base()[start]) == *around.begin());
    }
  }
}

TEST_CASE("a plan of the segments' space keeps every decided operator") {
  const auto segments = cut(chain_of(7), "duduudu", "b1b1111");
  for (const auto& group : segments.space.groups()) {
    for (const auto op : group.operators) CHECK(std::string_view{"duduudu"}[op] == 'u');
  }
}

TEST_CASE("a segment follows its neighbours only in what its operators run in") {
  struct only_decided_in_fp8 {
    comp::op_graph operators;
    const comp::op_graph& graph() const { return operators; }
    void set_precision(const comp::plan&) {}
    comp::sample run_epoch() { return {}; }
    comp::sample run_batch() { return {}; }
    bool supports(const comp::op_info& op, comp::precision p) const {
      return p != comp::precision::fp8_e4m3 || op.kind == "linear";
    }
  } some{fake::chain({"linear", "relu", "linear", "relu", "linear", "linear"})};
  const std::vector lows{comp::precision::bf16, comp::precision::fp8_e4m3};
  const comp::op_support runs{comp::trainer_of{some}, some.operators, lows};
  const auto segments =
      comp::make_segment_space(some.operators, roles("dududu"), comp::parse_plan("e1e111"), tie::none, runs);
  CHECK(segments.kinds[1] == segment_kind::follows);  // between FP8: BF16
  CHECK(segments.space.conservative().str() == "ebe111");
  REQUIRE(segments.space.groups().size() == 1);  // between FP8 and FP32
  CHECK(segments.space.groups().front().levels == std::vector{comp::precision::fp32, comp::precision::bf16});
  CHECK(segments.kinds[5] == segment_kind::follows);
}
