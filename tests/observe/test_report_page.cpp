// SPDX-License-Identifier: Apache-2.0
// What the page's script draws. Without a JavaScript engine (Debian's nodejs) nothing is drawn, and all cases pass.
#include <doctest/doctest.h>

#include <cmath>
#include <comp/observe/report.hpp>
#include <limits>

#include "drawn.hpp"
#include "made_up.hpp"

namespace {
std::string drawn_of(const comp::outcome& o, const comp::report_info& info = {}) {
  return drawn(comp::html_text(o, info));
}
/// The first screen: its three cards, without tags.
std::string first_screen(const comp::outcome& o, const comp::report_info& info = {}) {
  const std::string page = drawn_of(o, info);
  std::string text;
  bool inside = false;
  for (const char c : page.substr(0, page.find("<h2>[The plan]"))) {
    inside = c == '[' || (inside && c != ']');
    if (inside && c != '[') text += c;
  }
  return text;
}
}  // namespace

TEST_CASE("the first screen says what was found, how sure it is, and what to do next") {
  if (!can_draw) return;
  const std::string page = first_screen(made_up::outcome(12), {.model = "mlp", .use_command = "train --plan p.json"});
  CHECK(has(page, "The plan that comp found for this training: a precision for each operator"));
  CHECK(has(page, "(a layer, a sum, a loss): all but 2 layer_norm, 2 softmax and 2 add in bf16."));
  CHECK(has(page, "1.61xas fast as FP32: 31.9 ms a batch in place of 51.6 ms"));
  CHECK(has(page,
            "1.15xas fast as the best plan of fixed rules, such as autocast's: rule-based bf16 (95%: 1.14 to 1.16)"));
  CHECK(has(page, "118 MiBof memory at most, 62% of FP32's"));
  CHECK(has(page, "5.34 sis what the search cost: the time of 104 batches in FP32; 2.05% of a training of 100 epochs"));
  CHECK(has(page, "It is fasterwith 95% confidence 1.59 to 1.64 times as fast as FP32"));
  CHECK(has(page,
            "It trains as wellmean loss +0.49% ± 0.16% against FP32's on the same 40 batches; up to +1% is accepted"));
  CHECK(has(page, "1 warningno profile (the device has no timer)"));
  CHECK(has(page, "Train with the plan:train \\\n  --plan p.json"));
  CHECK(has(page, "trainer.set_precision(\n  comp::load_plan(\"plan.json\", trainer.graph()).plan);"));
  CHECK_FALSE(has(page, "Search again"));
}

TEST_CASE("the first screen has code for the language of the user") {
  if (!can_draw) return;
  comp::reader_language = comp::language::python;
  const std::string page = first_screen(made_up::outcome(12), {.plan_file = "p\"q.json"});
  comp::reader_language = comp::language::cpp;
  CHECK(has(page, "plan = comp.plan(\"p\\\"q.json\", net)"));
  CHECK_FALSE(has(page, "trainer"));
}

TEST_CASE("what a plan costs in speed or in its loss is said first") {
  if (!can_draw) return;
  comp::outcome o = made_up::outcome(12);
  o.contest[2].over_fp32 = {0.9, {0.88, 0.93}};
  CHECK(has(first_screen(o), "It is slowerwith 95% confidence 0.88 to 0.93"));
  o.contest[2].over_fp32.bounds = {-std::numeric_limits<double>::infinity(), std::numeric_limits<double>::infinity()};
  CHECK(has(first_screen(o), "It may not be fastertoo few batches were timed for an interval"));
}

TEST_CASE("where FP32 or the rules are best, or a tie is left, the first screen says so") {
  if (!can_draw) return;
  const std::string fp32 = first_screen(made_up::fp32_wins(20));
  CHECK(has(fp32, "FP32 is the fastest plan here that keeps the loss"));
  CHECK(has(fp32, "No plan is betterof 2 other plans timed, none was faster with a loss that is accepted"));
  CHECK(has(fp32,
            "The best plan of fixed rules, rule-based bf16, is 1.42x as fast (95%: 1.36 to 1.43); its loss was not"));
  CHECK(has(fp32, "Train on in FP32: there is no plan to use."));
  CHECK_FALSE(has(fp32, "load_plan"));
  CHECK(has(first_screen(made_up::with_tie(12)), "such as autocast's: rule-based bf16 (95%: 0."));
  CHECK(has(first_screen(made_up::with_tie(12)), ": a tie"));
  comp::outcome o = made_up::outcome(12);
  o.plan = o.contest[1].plan;
  CHECK(has(first_screen(o), "Fixed rules, such as autocast's, give the same plan: rule-based bf16."));
  o.contest[1].loss.reset();
  std::erase_if(o.trials,
                [&](const comp::trial& t) { return t.stage == comp::stage::losses && t.plan == o.contest[1].plan; });
  CHECK(has(first_screen(o),
            "It should train as wellmean loss of a plan that lowers more +0.49% against FP32's on the same 40"));
}

TEST_CASE_FIXTURE(made_up::of_twelve,
                  "the first screen says what keeps the plan from going lower, and what another search could tell") {
  if (!can_draw) return;
  o.contest[2].over_fp32 = {1.01, {0.98, 1.03}};
  o.evidence.resize(12);
  for (const std::size_t i : {1, 3, 5, 7}) {
    o.evidence[i] = {
        comp::op_evidence::kind::harmful, comp::precision::bf16, 2, 0.013, 1e-6 * static_cast<double>(i), 0};
  }
  o.evidence[9] = {.what = comp::op_evidence::kind::undecided, .low = comp::precision::bf16};
  o.batches_per_epoch = 0;
  o.memory_limit = 1;
  const std::string page = first_screen(o, {.command = "train --budget 1"});
  CHECK(has(page, "The loss keeps 4 operators in FP32; those that would save most:block0.layer_norm7 (layer_norm): "));
  CHECK_FALSE(has(page, "layer_norm1 "));
  CHECK(has(page, "noise hides whether \"comp\" is faster than FP32"));
  CHECK(has(page, "It may not be fasterwith 95% confidence 0.98 to 1.03 times as fast as FP32: noise hides which"));
  CHECK(page.find("Search again") < page.find("load_plan"));
  CHECK(has(page, "with the same command:train \\\n  --budget 1"));
  CHECK(has(page, "1 operator low in rejected plans"));
  CHECK(has(page, "with batches_per_epoch() in the trainer"));
  CHECK(has(page, "with a higher memory limit or a smaller batch"));
}

TEST_CASE_FIXTURE(made_up::of_twelve, "each fate has its shape in the chart of time and loss") {
  if (!can_draw) return;
  comp::trial again = o.trials[2];  // is no plan that was judged
  again.purpose = comp::purpose::perturbed;
  o.trials.push_back(again);
  const std::string chart = section_of(drawn_of(o), "Each candidate");
  for (const char* kind : {"base", "rejected", "stopped_early", "failed", "accepted", "undecided"}) {
    const std::string_view of{kind};
    CAPTURE(of);
    CHECK(count(chart, "mk " + std::string{of} + "\"") == (of == "accepted"    ? 3
                                                           : of == "undecided" ? 1
                                                                               : 2));  // and the legend's
  }
  CHECK(count(chart, "class=\"ring\"") == 1);
  CHECK(has(chart, "accepted below FP32 + 1%"));
  CHECK(has(chart, " in bf16: 32.2 ms per batch, loss +0.49% ± 0.16% of ][40 batches, accepted]"));
  CHECK(has(chart, "[Not drawn: 1 run without a time"));
}

TEST_CASE("of a loss that is to be high its change is shown, and the chart has worse above") {
  if (!can_draw) return;
  comp::outcome o = made_up::outcome(12);
  o.higher_is_better = true;
  for (comp::contestant& c : o.contest) {
    if (c.loss) c.loss->difference = -c.loss->difference;  // it is higher, and so better
  }
  CHECK(has(first_screen(o),
            "It trains as wellmean loss +0.49% ± 0.16% against FP32's on the same 40 batches; up to -1% is accepted"));
  CHECK(has(section_of(drawn_of(o), "Each candidate"), "[accepted above FP32 - 1%]"));
  o.criterion = comp::criterion::scores;
  CHECK(has(first_screen(o), "It trains as wellscore +0.49% ± 0.16% below FP32's"));
}

TEST_CASE("tables are filtered by words or a range of operators, and sorted by a click") {
  if (!can_draw) return;
  const std::string html = comp::html_text(made_up::outcome(60));
  const auto operators = [&](const char* filter, const char* head = "") {
    return section_of(drawn(html, filter, head), "Why each operator");
  };
  CHECK(count(operators(""), "<tr>") == 61);
  CHECK(count(operators("20-22"), "<tr>") == 4);
  CHECK(count(operators("softmax block1."), "<tr>") == 3);
  CHECK(has(operators("softmax block1."), "[2 of 60 are shown]"));
  const std::string sorted = operators("0-5", "Operator");
  CHECK(sorted.find("[block0.add5]") < sorted.find("[block0.gelu2]"));
  CHECK(count(section_of(drawn_of(made_up::outcome(3000)), "Why each operator"), "<tr>") == 1001);
}

TEST_CASE("operators are labelled by their part of the model only where that groups them") {
  if (!can_draw) return;
  CHECK(count(drawn_of(made_up::outcome(60)), "<em ") == 5);
  CHECK(count(drawn_of(made_up::outcome(12)), "<em ") == 0);
  CHECK(count(drawn_of(made_up::outcome(60)), "<span class=\"c f") == 60);
  CHECK(count(drawn_of(made_up::outcome(2'001)), "<span class=\"c f") == 0);
}

TEST_CASE("a search that still runs is drawn as far as it is known") {
  if (!can_draw) return;
  comp::outcome o = made_up::outcome(12);
  o.contest.clear(), o.plan = {}, o.reasons.clear();
  const std::string page = drawn(comp::html_text_so_far(o));
  CHECK(has(page, "<h1>[Searching: 73 runs so far]</h1>"));
  CHECK(has(page, "<li>[no profile"));
  CHECK(count(section_of(page, "Every run"), "<tr>") == 13);
  CHECK_FALSE(has(page, "What was found"));
  CHECK(has(drawn(comp::html_text_so_far({})), "No plan was judged by its losses."));
}

TEST_CASE("numbers at the edge of sense are drawn inside the charts") {
  if (!can_draw) return;
  for (const double loss : {0.0, -2.3, 1e300, 1e-300, std::nan(""), std::numeric_limits<double>::infinity()}) {
    for (const bool fp32 : {true, false}) {
      CAPTURE(loss);
      CAPTURE(fp32);
      comp::outcome o = made_up::outcome(12);
      for (double& each : fp32 ? o.baseline.curve : o.trials[2].sample.curve) each = loss;
      o.trials[1].seconds = 1e-9;
      const std::string page = drawn_of(o);
      CHECK(has(page, "What it holds for"));
      for (const char* wrong : {"NaN", "Infinity", "undefined"}) CHECK_FALSE(has(page, wrong));
    }
  }
}
