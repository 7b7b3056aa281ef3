// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/observe/summary.hpp>

#include "made_up.hpp"
#include "scratch.hpp"

using comp::json;
using made_up::found;

TEST_CASE("the summary has every figure of each contestant") {
  const json s = comp::summary(found);
  REQUIRE(s["contest"].size() == 3);
  const json& comp = s["contest"][2];
  CHECK(comp["label"] == "comp");
  CHECK(comp["plan"] == "b1b1b1b1b1b1");
  CHECK(comp["loss_against_fp32"]["difference"] == found.contest[2].loss->difference);
  CHECK(comp["loss_against_fp32"]["difference"] == doctest::Approx(0.012 / 2.407).epsilon(0.01));
  CHECK(comp["loss_against_fp32"]["radius"] == found.contest[2].loss->radius);
  CHECK(comp["loss_against_fp32"]["batches"] == 40);
  CHECK(comp["loss_against_fp32"]["accepted"] == true);
  CHECK(comp["loss_against_fp32"]["limit"] == 0.01);
  CHECK(comp["epoch_loss"].is_null());  // no epoch was run for the comparison
  CHECK(comp["validation_score"].is_null());
  CHECK(comp["peak_bytes"] == 124'000'000);
  CHECK(comp["seconds_per_batch"]["median"] == comp::median(found.contest[2].seconds));
  CHECK(comp["seconds_per_batch"]["count"] == 20);
  CHECK(comp["seconds_per_batch"]["least"] == *std::ranges::min_element(found.contest[2].seconds));
  CHECK(comp["seconds_per_epoch"]["median"] == 80 * comp::median(found.contest[2].seconds));
  CHECK(comp["over_fp32"]["ratio"] == found.speedup);
  CHECK(comp["over_fp32"]["interval_95"][0] == found.speedup_bounds.low);
  CHECK(comp["raced"] == true);
  CHECK(comp["as_fast_as"].is_null());
  CHECK(s["contest"][0]["loss_against_fp32"].is_null());
  CHECK(s["batches_per_epoch"] == 80);
  CHECK(s["runs"] == 73);
  CHECK(s["runs_from_ledger"] == 0);
  CHECK(s["plan_name"] == ::comp::name(found.plan, found.graph));
}

TEST_CASE("an epoch that was run for the comparison has its loss, time and score") {
  comp::outcome o = found;
  o.contest[2].epoch = comp::sample{.loss = 2.25, .seconds = 3, .batches = 80, .score = 0.75};
  const json comp = comp::summary(o)["contest"][2];
  CHECK(comp["epoch_loss"] == 2.25);
  CHECK(comp["measured_epoch_seconds"] == 3.0);
  CHECK(comp["validation_score"] == 0.75);
  CHECK(has(comp::table(o), "epoch loss  score"));
  CHECK_FALSE(has(comp::table(found), "epoch loss"));
}

TEST_CASE("where it is not known how long an epoch is nothing is said of epochs") {
  const comp::outcome o = made_up::fp32_wins(12);
  const json s = comp::summary(o);
  CHECK(s["batches_per_epoch"].is_null());
  CHECK(s["contest"][2]["seconds_per_epoch"].is_null());
  CHECK(s["overhead"]["share_of_100_epochs"] == "nan");
  CHECK(s["overhead"]["seconds"] == doctest::Approx(9.1));
  CHECK(has(comp::table(o), "cost of the search  9.10 s (the length of an epoch is not known)\n"));
}

TEST_CASE("ties and runs from a ledger are told") {
  comp::outcome o = made_up::with_tie(12);
  o.recalled = 3;
  CHECK(comp::summary(o)["contest"][1]["as_fast_as"] == "comp");
  CHECK(comp::summary(o)["runs_from_ledger"] == 3);
  CHECK(has(comp::table(o), "\nrule-based bf16 is as fast as comp within noise.\n"));
  CHECK(has(comp::table(o), "3 of 73 runs came from the ledger"));
  CHECK_FALSE(has(comp::table(found), "noise"));
  CHECK_FALSE(has(comp::table(found), "ledger"));
}

TEST_CASE("a loss that the search took from whole epochs, or judged through another plan, is told as that") {
  comp::outcome o = found;
  o.contest[1].loss.reset();  // its run is still there, with its losses
  CHECK(has(comp::table(o), "+0.15% of 40 batches "));
  CHECK(comp::summary(o)["contest"][1]["loss_against_fp32"]["radius"].is_null());
  std::erase_if(o.trials,
                [&](const comp::trial& t) { return t.stage == comp::stage::losses && t.plan == o.contest[1].plan; });
  CHECK(has(comp::table(o), "part of an accepted plan"));
  CHECK(comp::summary(o)["contest"][1]["loss_against_fp32"].is_null());
  o.contest[2].loss->answer = comp::loss_answer::rejected;
  CHECK(has(comp::table(o), "+0.49% +- 0.16% of 40 batches, undecided"));
  o.contest[2].loss->difference = 0.0149;
  CHECK(has(comp::table(o), "+1.49% +- 0.16% of 40 batches, rejected"));
}

TEST_CASE("a contestant of few batches in the contest is timed by all that was run of it, and no tie is claimed") {
  comp::outcome o = made_up::with_tie(12);
  o.contest[1].seconds = {9.0};  // seconds
  std::erase_if(o.trials, [](const comp::trial& t) { return t.stage == comp::stage::contest; });
  const json rules = comp::summary(o)["contest"][1];
  CHECK(rules["seconds_per_batch"]["count"] == 39 + 3);
  CHECK(rules["seconds_per_batch"]["most"] < 0.04);
  CHECK(rules["as_fast_as"].is_null());
  CHECK_FALSE(has(comp::table(o), "within noise"));
}

TEST_CASE("a limit of memory is told, and who is above it") {
  comp::outcome o = found;
  o.memory_limit = std::int64_t{150} << 20;
  CHECK(has(comp::table(o), "191 MiB (too much)\n"));
  CHECK_FALSE(has(comp::table(o), "137 MiB (too much)"));
  CHECK(has(comp::table(o), "The limit of memory is 150 MiB."));
  CHECK(comp::summary(o)["memory_limit"] == 150 << 20);
  CHECK(comp::summary(found)["memory_limit"].is_null());
}

TEST_CASE("a contestant whose memory was not measured in the contest has that of its other runs") {
  comp::outcome o = found;
  o.contest[0].peak_bytes = 0;
  CHECK(comp::summary(o)["contest"][0]["peak_bytes"] == 120 << 20);
  for (comp::trial& t : o.trials) t.sample.peak_bytes = 0;
  CHECK(comp::summary(o)["contest"][0]["peak_bytes"].is_null());
}

TEST_CASE("a contestant that nothing was run of says so") {
  comp::outcome o = found;
  std::erase_if(o.trials, [&](const comp::trial& t) { return t.plan == o.contest[1].plan; });
  o.contest[1].seconds.clear();
  o.contest[1].over_fp32 = {};
  o.contest[1].loss.reset();
  CHECK(has(comp::table(o), "rule-based bf16    not run          -        -             -"));
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

TEST_CASE("the overhead is the time of all stages less what the kept batches take under the found plan") {
  const json overhead = comp::summary(found)["overhead"];
  double seconds = 0;
  for (const json& stage : overhead["stages"]) seconds += stage["seconds"].get<double>();
  CHECK(overhead["stages"].size() == 4);
  CHECK(overhead["stages"]["losses"]["batches"] == 108);
  CHECK(seconds == doctest::Approx(overhead["search_seconds"].get<double>()));
  CHECK(overhead["kept_batches"] == 118);
  const double kept = 118 * comp::median(found.contest[2].seconds), all = 9.1 - kept;
  CHECK(overhead["kept_seconds"] == doctest::Approx(kept));
  CHECK(overhead["seconds"] == doctest::Approx(all));
  CHECK(overhead["share_of_100_epochs"] ==
        doctest::Approx(all / (all + 8000 * comp::median(found.contest[2].seconds))));
}

TEST_CASE("a rule-based plan that left the contest is no peer") {
  comp::outcome o = found;
  o.contest[1].status = comp::status::out_of_memory;
  const json s = comp::summary(o);
  CHECK(s["rule_based"].is_null());
  CHECK(s["ratios"]["comp_over_rule_based"].is_null());
  CHECK(has(comp::table(o), "out_of_memory"));
}

TEST_CASE("who is rule-based is said by the contestant, not by its label") {
  comp::outcome o = found;
  o.contest[1].label = "theirs";
  CHECK(comp::summary(o)["rule_based"] == "theirs");
  o.contest[1].label = "rule-based, says its author";
  o.contest[1].rule_based = false;
  CHECK(comp::summary(o)["rule_based"].is_null());
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
        "                   per batch  per epoch  vs FP32           95%            loss against FP32's  peak memory\n"
        "  fp32               51.6 ms     4.13 s    1.00x  1.00 to 1.00                              -      191 MiB\n"
        "  rule-based bf16    36.5 ms     2.92 s    1.42x  1.36 to 1.43  +0.15% +- 0.16% of 40 batches      137 MiB\n"
        "* comp               31.9 ms     2.55 s    1.61x  1.59 to 1.64  +0.49% +- 0.16% of 40 batches      118 MiB\n"
        "In time, memory and loss taken together no other plan beats these: comp; rule-based bf16.\n"
        "\n"
        "                        time  runs  batches\n"
        "  Preparation, FP32   2.00 s     1       40\n"
        "  Judged by losses    4.10 s     6      108\n"
        "  Timed in turns      400 ms     6        6\n"
        "  Final contest       2.60 s    60       60\n"
        "  whole search        9.10 s\n"
        "  kept as training    3.76 s            118\n"
        "  cost of the search  5.34 s (2.05% of 100 epochs)\n");
}

TEST_CASE("an outcome with nothing in it has a summary and a table") {
  CHECK(comp::summary({})["comp"].is_null());
  CHECK(has(comp::table({}), "whole search"));
}

TEST_CASE_FIXTURE(with_folder, "the summary is written whole, or the path is named") {
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
  CHECK(bytes_text(1) == "1 B");
  CHECK(bytes_text(1025) == "2 KiB");
  CHECK(bytes_text(5'400'000) == "5.1 MiB");
  CHECK(bytes_text(std::int64_t{140} << 30) == "140.00 GiB");
  CHECK(loss_text(2.3) == "2.3000");
  CHECK(loss_text(12345.6) == "12346");
  CHECK(loss_text(-0.012345678) == "-0.012346");
  CHECK(loss_text(0) == "0.0000");
  CHECK(loss_text(1e-9) == "1.0000e-09");
  CHECK(loss_text(std::nan("")) == "not a number");
}
