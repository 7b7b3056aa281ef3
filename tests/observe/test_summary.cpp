// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/observe/summary.hpp>

#include "made_up.hpp"
#include "scratch.hpp"

using comp::json;

namespace {
const comp::outcome found = made_up::outcome(12);
}

TEST_CASE("the summary has every figure of each contestant") {
  const json s = comp::summary(found);
  REQUIRE(s["contest"].size() == 3);
  const json& comp = s["contest"][2];
  CHECK(comp["label"] == "comp");
  CHECK(comp["plan"] == "b1b1b1b1b1b1");
  CHECK(comp["loss"] == 2.312);
  CHECK(comp["validation_score"].is_null());
  CHECK(comp["peak_bytes"] == 124'000'000);
  CHECK(comp["seconds_per_batch"]["median"] == comp::median(found.contest[2].seconds));
  CHECK(comp["seconds_per_batch"]["count"] == 20);
  CHECK(comp["seconds_per_batch"]["least"] == *std::ranges::min_element(found.contest[2].seconds));
  CHECK(comp["seconds_per_epoch"]["median"] == 40 * comp::median(found.contest[2].seconds));
  CHECK(comp["over_fp32"]["ratio"] == found.speedup);
  CHECK(comp["over_fp32"]["interval_95"][0] == found.speedup_bounds.low);
  CHECK(s["contest"][1]["loss"].is_null());  // no epoch of the rule-based plan was run
}

TEST_CASE("the summary names the winner and gives its ratios") {
  const json s = comp::summary(found);
  CHECK(s["comp"] == "comp");
  CHECK(s["fp32"] == "fp32");
  CHECK(s["rule_based"] == "rule-based bf16");
  const json& ratios = s["ratios"];
  CHECK(ratios["comp_over_fp32"]["ratio"] == found.speedup);
  CHECK(ratios["comp_over_rule_based"]["ratio"] ==
        comp::compare_paired(found.contest[1].seconds, found.contest[2].seconds).ratio);
  CHECK(ratios["comp_over_rule_based"]["ratio"] > 1.1);
  CHECK(ratios["rule_based_over_fp32"]["ratio"] == found.contest[1].over_fp32.ratio);
}

TEST_CASE("the overhead by stage adds up to the whole") {
  const json overhead = comp::summary(found)["overhead"];
  double seconds = 0, share = 0;
  for (const json& stage : overhead["stages"]) {
    seconds += stage["seconds"].get<double>();
    share += stage["share_of_100_epochs"].get<double>();
  }
  CHECK(overhead["stages"].size() == 4);
  CHECK(seconds == doctest::Approx(found.overhead_seconds()));
  CHECK(overhead["seconds"] == doctest::Approx(12.1));
  CHECK(share == doctest::Approx(overhead["share_of_100_epochs"].get<double>()));
  CHECK(share == doctest::Approx(12.1 / (12.1 + 124)));
}

TEST_CASE("a rule-based plan that left the contest is no peer") {
  comp::outcome o = found;
  o.contest[1].status = comp::status::out_of_memory;
  const json s = comp::summary(o);
  CHECK(s["rule_based"].is_null());
  CHECK(s["ratios"]["comp_over_rule_based"].is_null());
  CHECK(has(comp::table(o), "out_of_memory"));
}

TEST_CASE("the winner may be FP32 or the rule-based plan itself") {
  CHECK(comp::summary(made_up::fp32_wins(12))["comp"] == "fp32");
  comp::outcome o = found;
  o.plan = o.contest[1].plan;
  const json s = comp::summary(o);
  CHECK(s["comp"] == "rule-based bf16");
  CHECK(s["ratios"]["comp_over_rule_based"]["ratio"] == 1);
}

TEST_CASE("the table says the same, aligned, and marks the found plan") {
  CHECK(comp::table(found) ==
        "                   per batch  per epoch  vs FP32           95%    loss  score  peak memory\n"
        "  fp32               51.6 ms     2.00 s    1.00x  1.00 to 1.00  2.3000      -      191 MiB\n"
        "  rule-based bf16    36.5 ms     1.46 s    1.42x  1.36 to 1.43       -      -      137 MiB\n"
        "* comp               31.9 ms     1.24 s    1.61x  1.59 to 1.64  2.3120      -      118 MiB\n"
        "\n"
        "                      time  runs  of 100 epochs\n"
        "  FP32 baseline     2.00 s     1          1.47%\n"
        "  stage 1, epochs   7.10 s     6          5.22%\n"
        "  stage 2, batches  400 ms     6         0.294%\n"
        "  contest           2.60 s    60          1.91%\n"
        "  whole search      12.1 s                8.89%\n");
}

TEST_CASE("an outcome with nothing in it has a summary and a table") {
  CHECK(comp::summary({})["comp"].is_null());
  CHECK(has(comp::table({}), "whole search"));
}

TEST_CASE("the summary is written whole, or the path is named") {
  const scratch folder;
  comp::write_summary(found, folder / "summary.json");
  CHECK(json::parse(text_of(folder / "summary.json")) == json::parse(comp::summary(found).dump()));
  CHECK_THROWS_AS(comp::write_summary(found, "/dev/full"), comp::file_error);
}

TEST_CASE("times, bytes and losses are said as people read them") {
  using namespace comp::detail;
  CHECK(time_text(0.0000123) == "12.3 us");
  CHECK(time_text(0.00123) == "1.23 ms");
  CHECK(time_text(0.0523) == "52.3 ms");
  CHECK(time_text(0.523) == "523 ms");
  CHECK(time_text(5.234) == "5.23 s");
  CHECK(time_text(523.4) == "523 s");
  CHECK(time_text(std::nan("")) == "-");
  CHECK(bytes_text(0) == "-");
  CHECK(bytes_text(1) == "1 KiB");
  CHECK(bytes_text(5'400'000) == "5.1 MiB");
  CHECK(bytes_text(std::int64_t{140} << 30) == "140.00 GiB");
  CHECK(loss_text(2.3) == "2.3000");
  CHECK(loss_text(12345.6) == "12346");
  CHECK(loss_text(-0.012345678) == "-0.012346");
  CHECK(loss_text(0) == "0.0000");
  CHECK(loss_text(1e-9) == "1.0000e-09");
  CHECK(loss_text(std::nan("")) == "not a number");
}
