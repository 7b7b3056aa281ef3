// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <comp/search/decision/learned_costs.hpp>
#include <comp/search/decision/reasons.hpp>

#include "fake_trainer.hpp"

namespace {

// A search over every role that an operator can have.
struct role_search {
  comp::outcome found = {};
  comp::candidate_space candidates = {};
  std::vector<comp::segment_kind> segments = std::vector(11, comp::segment_kind::decided);

  role_search() {
    const comp::precision lows[] = {comp::precision::bf16};
    std::vector<comp::op_info> ops;
    for (const std::string kind :
         {"allow", "allow", "allow.odd", "allow.odd", "deny", "deny", "relu", "relu", "relu", "fix", "x"}) {
      ops.push_back({.name = std::to_string(ops.size()), .kind = kind});
    }
    ops.back().choosable = false;
    found.graph = fake::sized(std::move(ops));
    found.plan = comp::parse_plan("b1b1b1b11b1");
    found.precisions = {comp::precision::fp32, comp::precision::bf16};
    candidates = comp::make_candidate_space(fake::lists{}, found.graph, {}, lows, comp::tie::none);
    segments[6] = comp::segment_kind::enumerated;
    segments[7] = comp::segment_kind::follows;
    segments[8] = comp::segment_kind::alone;
    judged("b1b1b1111b1", true);
    judged("bbb1b1111b1", true);
    judged("b1b1bb111b1", false);
    found.cost(comp::stage::times).runs = 10;
  }
  void judged(const char* letters, bool accepted, comp::purpose what = comp::purpose::judge) {
    comp::trial t{.stage = comp::stage::losses, .plan = comp::parse_plan(letters), .purpose = what};
    t.accepted = accepted;
    found.trials.push_back(t);
  }
  std::vector<std::string> reasons(const std::string& winner = "comp", bool searched = true,
                                   const comp::plan& stage_two = {}) const {
    std::vector<std::string> texts;
    for (auto& r : comp::explain(found, candidates, segments, winner, searched, stage_two)) texts.push_back(r.text);
    return texts;
  }
};

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

comp::op_evidence evidence(comp::op_evidence::kind what, double saves = std::nan(""), double casts = std::nan("")) {
  return {.what = what, .low = comp::precision::bf16, .saves = saves, .casts = casts};
}

}  // namespace

TEST_CASE("of a two-stage search each operator's reason names what decided it") {
  const role_search search;
  const std::string expected[] = {"its sizes suit the hardware: bf16",
                                  "suit the hardware: plans with it low kept the loss, but the fastest has it not",
                                  "on the allow list: the fastest plan that kept the loss has it in bf16",
                                  "no plan with it low was tried",
                                  "on the deny list, but the fastest plan that kept the loss has it in bf16",
                                  "on the deny list: no plan with it low was accepted",
                                  "differ: batches were fastest with bf16",
                                  "agree: follows them in fp32",
                                  "no decided operator is near: FP32",
                                  "the policy fixes it at bf16",
                                  "has its producer's precision"};
  const auto reasons = search.reasons();
  REQUIRE(reasons.size() == 11);
  for (std::size_t i = 0; i < 11; ++i) {
    CAPTURE(i);
    CAPTURE(reasons[i]);
    CHECK(has(reasons[i], expected[i]));
  }
  const auto explained = comp::explain(search.found, search.candidates, search.segments, "comp", true);
  for (std::size_t i = 0; i < 11; ++i) CHECK(explained[i].decided_by_losses == (i < 6));
  CHECK(explained[4].category == comp::category::deny);
}

TEST_CASE("what the model's author fixed says so, whoever won") {
  role_search search;
  std::vector<comp::op_info> ops{search.found.graph.begin(), search.found.graph.end()};
  ops[10].author = comp::author_choice::autocast_off;
  search.found.graph = std::move(ops);
  CHECK(search.reasons()[10] == "the model's author switched autocast off there");
  CHECK(search.reasons("rule-based bf16", false)[10] == search.reasons()[10]);
  search.found.evidence.resize(11);
  CHECK(search.reasons()[10] == "the model's author switched autocast off there");
}

TEST_CASE("a first look at a precision is no acceptance") {
  role_search search;
  search.judged("bbbbbbbbbb1", true, comp::purpose::first_look);
  CHECK(has(search.reasons()[5], "no plan with it low was accepted"));
}

TEST_CASE("a search that looked at no loss claims nothing of losses, and one without races nothing of batches") {
  role_search search;
  search.found.trials.clear();
  CHECK(search.reasons()[2] == "on the allow list: batches were fastest with it in bf16; no loss was looked at");
  CHECK(has(search.reasons()[5], "batches with it low were not faster"));
  search.found.cost(comp::stage::times).runs = 0;
  search.segments[6] = comp::segment_kind::decided;
  CHECK(search.reasons()[6] == "no list names it, and no plans were timed in turns: bf16");
}

TEST_CASE("a plan that the search did not make is the reason where it won, but of what was not accepted") {
  const role_search search;
  const auto won = search.reasons("rule-based bf16", false);
  CHECK(won[4] == "\"rule-based bf16\" has it in bf16, and was fastest");
  CHECK(won[1] == "\"rule-based bf16\" has it in fp32, and was fastest");
  CHECK(won[5] == "no plan with it low was accepted: fp32");
  CHECK(won[10] == search.reasons()[10]);
}

TEST_CASE("what stage 2 lowered and the winner did not is said to be no faster") {
  const role_search search;
  comp::plan stage_two = search.found.plan;
  stage_two[7] = comp::precision::bf16;
  const auto won = search.reasons("comp stage 1", true, stage_two);
  CHECK(won[7] == "batches were not clearly faster with it in bf16: fp32");
  CHECK(won[6] == search.reasons()[6]);
}

TEST_CASE("of a guided search each operator's reason is what was learned of it") {
  using enum comp::op_evidence::kind;
  role_search search;
  search.found.plan = comp::parse_plan("bb111111111");
  search.found.evidence = {evidence(accepted, 12e-6, 3e-6),
                           evidence(accepted),
                           evidence(accepted, 12e-6, 30e-6),
                           evidence(accepted, 0, -1e-6),
                           evidence(accepted),
                           evidence(harmful, 2e-6, 0),
                           evidence(harmful),
                           evidence(undecided),
                           evidence(dropped),
                           evidence(fixed),
                           evidence(none)};
  search.found.evidence[5].difference = 0.052;
  search.found.evidence[6].others_low = 12;
  const std::string expected[] = {
      "bf16 saves 12 us of a batch and adds 3 us of casts, fp32 would take 9 us longer; plans with it kept the loss",
      "plans with it kept the loss",
      "bf16 would save 12 us of a batch and add 30 us of casts; bf16 kept the loss, but plans with it were not faster",
      "bf16 would save nothing itself and spare 1 us of casts; bf16 kept the loss, but plans with it were not faster",
      "bf16 kept the loss, but plans with it were not faster",
      "bf16 would save 2 us of a batch; bf16 alone was not accepted, the loss 5.2% worse",
      "bf16 beside 12 accepted operators was not accepted",
      "plans with it in bf16 were not accepted, and it was not tried alone (too little to gain, or the budget spent)",
      "bf16 was not searched: a batch with all operators in it was too slow",
      "the policy fixes it at fp32",
      "moves no data of its own: has its producer's precision"};
  const auto reasons = search.reasons();
  for (std::size_t i = 0; i < 11; ++i) {
    CAPTURE(i);
    CHECK(reasons[i] == expected[i]);
  }
  search.found.evidence[7] = evidence(unasked, 1e-6, 5e-6);
  search.found.evidence[4] = evidence(unasked);
  CHECK(search.reasons()[7] ==
        "bf16 would save 1 us of a batch and add 5 us of casts; no plan with it in bf16 was worth a try");
  CHECK(search.reasons()[4] == "no plan with it in bf16 was worth a try");
  search.found.evidence[8] = evidence(unsupported);
  CHECK(search.reasons()[8] == "the backend runs it in no precision that was searched");
  search.found.evidence[0] = evidence(accepted, -4e-6, -1e-6);
  CHECK(
      search.reasons()[0] ==
      "bf16 takes 4 us longer itself and spares 1 us of casts, fp32 would take 3 us less; plans with it kept the loss");
  search.found.evidence[0].low = comp::precision::fp16;  // of another precision than the plan's: its costs say nothing
  CHECK(search.reasons()[0] == "plans with it kept the loss");
}

TEST_CASE("where a rule-based plan or FP32 wins a guided search, operators still say what they gain and what harmed") {
  using enum comp::op_evidence::kind;
  role_search search;
  search.found.plan = comp::parse_plan("b1111111111");
  search.found.evidence.assign(11, evidence(accepted, 1e-6, 0));
  search.found.evidence[2] = evidence(harmful);
  const auto rules = search.reasons("rule-based bf16", false);
  CHECK(rules[0] ==
        "bf16 saves 1 us of a batch, fp32 would take 1 us longer; \"rule-based bf16\" has it in bf16, and was fastest");
  CHECK(rules[1] == "bf16 would save 1 us of a batch; \"rule-based bf16\" has it in fp32, and was fastest");
  CHECK(rules[2] == "bf16 alone was not accepted");
  CHECK(search.reasons("comp: all but 1 in bf16", false)[0] ==
        "bf16 saves 1 us of a batch, fp32 would take 1 us longer; plans with it kept the loss");
  search.found.plan = comp::plan{11};
  const auto fp32 = search.reasons("fp32", false);
  CHECK(fp32[0] == "bf16 would save 1 us of a batch; bf16 kept the loss, but plans with it were not faster");
  CHECK(fp32[2] == "bf16 alone was not accepted");
}

TEST_CASE("what an operator saves and adds in casts is what the costs of the two plans differ by") {
  CHECK(rc::check([] {
    const auto n = *rc::gen::inRange<std::size_t>(1, 12);
    comp::plan_costs costs{.seconds = std::vector<comp::per_precision>(n)};
    comp::plan found{n}, base{n};
    std::vector<comp::op_evidence> evidence(n);
    const auto any = [] { return comp::all_precisions[*rc::gen::inRange<std::size_t>(0, 4)]; };
    const auto some = [] { return static_cast<double>(*rc::gen::inRange(1, 100)); };
    for (std::size_t i = 0; i < n; ++i) {
      found[i] = any();
      evidence[i].low = any();
      for (double& s : costs.seconds[i]) s = some();
      auto& t = costs.tensors.emplace_back();
      t.producer = static_cast<std::uint32_t>(i);
      t.cast_seconds = some();
      for (auto reader = static_cast<std::uint32_t>(i + 1); reader < n; ++reader) {
        for (int reads = *rc::gen::inRange(0, 3); reads > 0; --reads) t.readers.push_back(reader);
      }
    }
    evidence = comp::add_gains(std::move(evidence), costs, found, base);
    for (std::size_t i = 0; i < n; ++i) {
      if (evidence[i].low == base[i]) {
        RC_ASSERT(std::isnan(evidence[i].saves));
        continue;
      }
      comp::plan with = found, without = found;
      with[i] = evidence[i].low, without[i] = base[i];
      RC_ASSERT(std::abs(costs.seconds_of(without) - costs.seconds_of(with) - (evidence[i].saves - evidence[i].casts)) <
                1e-9);
    }
  }));
}
