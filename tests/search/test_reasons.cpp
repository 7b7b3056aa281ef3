// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/search/reasons.hpp>

#include "fake_trainer.hpp"

TEST_CASE("each operator's reason names what decided it") {
  const comp::precision lows[] = {comp::precision::bf16};
  std::vector<comp::op_info> ops;
  for (const std::string kind :
       {"allow", "allow", "allow.odd", "allow.odd", "deny", "deny", "relu", "relu", "relu", "fix", "x"}) {
    ops.push_back({.name = std::to_string(ops.size()), .kind = kind});
  }
  ops.back().choosable = false;
  comp::outcome found;
  found.graph = fake::sized(std::move(ops));
  found.plan = comp::parse_plan("b1b1b1b11b1");
  found.precisions = {comp::precision::fp32, comp::precision::bf16};
  const auto candidates = comp::make_candidate_space(fake::lists{}, found.graph, {}, lows, comp::tie::none);
  std::vector<comp::segment_kind> segments(11, comp::segment_kind::decided);
  segments[6] = comp::segment_kind::enumerated;
  segments[7] = comp::segment_kind::follows;
  segments[8] = comp::segment_kind::alone;
  const auto reasons = comp::explain(found, candidates, segments, "comp", true);
  const std::string expected[] = {"its sizes suit the hardware: bf16",
                                  "lowering it did not pay or did not converge",
                                  "an epoch in bf16 kept the loss and was fastest",
                                  "FP32 was as fast",
                                  "on the deny list, but an epoch in bf16 kept the loss",
                                  "on the deny list: lowering it by epochs was not accepted",
                                  "differ: batches were fastest with bf16",
                                  "agree: follows them in fp32",
                                  "no decided operator is near: FP32",
                                  "the policy fixes it at bf16",
                                  "has its producer's precision"};
  REQUIRE(reasons.size() == 11);
  for (std::size_t i = 0; i < 11; ++i) {
    CAPTURE(i);
    CHECK(reasons[i].text.find(expected[i]) != std::string::npos);
    CHECK(reasons[i].decided_by_epochs == (i < 6));
  }
  CHECK(reasons[4].category == comp::category::deny);
  SUBCASE("a whole plan that won the head-to-head is the reason of all but views") {
    const auto won = comp::explain(found, candidates, segments, "rule-based bf16", false);
    CHECK(won[4].text == "the whole plan \"rule-based bf16\" won the head-to-head: bf16");
    CHECK(won[10].text == reasons[10].text);
  }
  SUBCASE("what stage 2 lowered and the winner did not is said to be no faster") {
    comp::plan stage_two = found.plan;
    stage_two[7] = comp::precision::bf16;
    const auto won = comp::explain(found, candidates, segments, "comp stage 1", true, stage_two);
    CHECK(won[7].text == "batches were not clearly faster with it in bf16: fp32");
    CHECK(won[6].text == reasons[6].text);
  }
}
