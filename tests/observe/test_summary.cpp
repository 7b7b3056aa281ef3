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

TEST_CASE("a contestant has its bytes by kind if the trainer says them") {
  comp::outcome o = found;
  CHECK(comp::summary(o)["contest"][1]["bytes"].is_null());
  for (comp::trial& t : o.trials) {
    if (t.plan == o.contest[1].plan)
      t.sample.held = comp::held_bytes{.weights = 40 << 20, .copies = 20 << 20, .moments = 30 << 20, .gradients = 5};
  }
  const std::int64_t peak = comp::summary(o)["contest"][1]["peak_bytes"], lasting = 90 << 20;
  CHECK(comp::summary(o)["contest"][1]["bytes"] == comp::json{{"weights", 40 << 20},
                                                              {"copies", 20 << 20},
                                                              {"moments", 30 << 20},
                                                              {"gradients", 5},
                                                              {"rest", peak - lasting},
                                                              {"saved_state", 70 << 20}});
  CHECK(comp::summary(o)["contest"][0]["bytes"].is_null());
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

TEST_CASE("of two rule-based plans the faster is the peer only if its loss was accepted") {
  comp::outcome o = found;
  comp::contestant slower = o.contest[1];
  slower.label = "slower rules";
  slower.over_fp32.ratio -= 0.01;
  o.contest.push_back(slower);
  CHECK(comp::summary(o)["rule_based"] == "rule-based bf16");
  for (comp::contestant& c : o.contest) {
    if (c.rule_based) c.loss.emplace();
  }
  o.contest[1].loss->answer = comp::loss_answer::rejected;
  CHECK(comp::summary(o)["rule_based"] == "slower rules");
  o.contest.back().loss->answer = comp::loss_answer::rejected;
  CHECK(comp::summary(o)["rule_based"] == "rule-based bf16");
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

TEST_CASE("the title is the gain over FP32, or says that there is none") {
  const auto title = [](const comp::outcome& o) { return comp::summary(o)["title"].get<std::string>(); };
  CHECK(title(found) == "1.61 times as fast as FP32 (95%: 1.59 to 1.64)");
  CHECK(title(made_up::fp32_wins(12)) == "FP32 is the fastest plan here that keeps the loss");
  CHECK(title({}) == "FP32 is the fastest plan here that keeps the loss");
  comp::outcome o = found;
  o.speedup_bounds = {0.9, 1.8};
  CHECK(title(o) == "As fast as FP32 within noise (95%: 0.90 to 1.80)");
  o.plan = o.contest[0].plan;
  o.contest[1].over_fp32 = {1.2, {0.9, 1.8}};
  CHECK(title(o) == "FP32 is kept: noise hides whether a plan is faster");
}

TEST_CASE("each run is listed once, the batches of a plan in turns as one, with how it ended") {
  const json trials = comp::summary(found, {})["trials"];
  REQUIRE(trials.size() == 12);
  const json expected = {{"number", 2},
                         {"stage", "losses"},
                         {"label", ""},
                         {"plan", "b1b1b1b1b1b1"},
                         {"plan_name", "all but 2 layer_norm, 2 softmax and 2 add in bf16"},
                         {"runs", 1},
                         {"batches", 40},
                         {"seconds_per_batch", found.trials[2].seconds},
                         {"loss", found.trials[2].sample.loss},
                         {"loss_against_fp32",
                          {{"difference", comp::detail::change_of(found.trials[2], found)->difference},
                           {"radius", found.contest[2].loss->radius},
                           {"batches", 40}}},
                         {"judged", true},
                         {"ended", "accepted"},
                         {"message", ""}};
  CHECK(trials[2] == expected);
  std::vector<std::string> ends;
  for (const json& t : trials) ends.push_back(t["ended"]);
  CHECK(ends == std::vector<std::string>{"ok", "accepted", "accepted", "rejected", "not_finite", "stopped_early",
                                         "failed", "ok", "ok", "ok", "ok", "ok"});
  CHECK(trials[0]["loss_against_fp32"].is_null());
  CHECK(trials[5]["seconds_per_batch"] == comp::median(found.trials[5].sample.batch_seconds));  // of a run that was cut
  CHECK(trials[6]["message"] == "kernel <b>exploded</b>");
  CHECK(trials[6]["loss"].is_null());
  CHECK(trials[9]["runs"] == 20);  // of the contest
  CHECK(trials[9]["loss"].is_null());
}

TEST_CASE("a first look and FP32 with its roundings perturbed are listed as that") {
  const json trials = comp::summary(made_up::with_side_runs(12))["trials"];
  CHECK(trials[1]["ended"] == "a first look");
  CHECK(trials[1]["judged"] == false);
  CHECK(trials[3]["label"] == "fp32, roundings perturbed");
  CHECK(trials[3]["loss_against_fp32"]["batches"] == 16);
  CHECK(trials[3]["loss_against_fp32"]["radius"].is_null());
}

TEST_CASE_FIXTURE(made_up::of_twelve, "what was neither accepted nor shown to be worse is undecided") {
  o.trials[3].sample = made_up::batches(16, 0, 0.029);
  for (std::size_t i = 0; i < 16; ++i) o.trials[3].sample.curve[i] += i % 2 == 0 ? 0.25 : -0.19;  // +1.2% on average
  o.trials[3].accepted = false;
  CHECK(comp::summary(o)["trials"][3]["ended"] == "undecided");
  for (double& loss : o.trials[3].sample.curve) loss += 1;
  CHECK(comp::summary(o)["trials"][3]["ended"] == "rejected");
  CHECK(comp::summary(o)["contest"][2]["loss_against_fp32"]["undecided"] == false);
  o.contest[2].loss->answer = comp::loss_answer::rejected;
  CHECK(comp::summary(o)["contest"][2]["loss_against_fp32"]["undecided"] == true);
}

TEST_CASE_FIXTURE(made_up::of_twelve, "each operator has its reason, and what was measured of operators is there") {
  o.evidence.resize(12);
  o.evidence[1] = {comp::op_evidence::kind::harmful, comp::precision::bf16, 2, 0.013, 3e-6, 1e-6};
  const json first = {{"name", "block0.linear0"}, {"kind", "linear"},
                      {"part", "block0"},         {"sizes", "512 x 256 x 256"},
                      {"policy", "allow"},        {"why", "bf16 kept the loss, saves 12 us of a batch"},
                      {"evidence", "none"},       {"saves", "nan"}};
  CHECK(comp::summary(o)["operator_list"][0] == first);
  CHECK(comp::summary(o)["operator_list"][1]["sizes"] == "8 x 64 x 256");
  CHECK(comp::summary(o)["operator_list"][1]["evidence"] == "harmful");
  CHECK(comp::summary(o)["operator_list"][1]["saves"] == doctest::Approx(2e-6));
  CHECK(comp::summary(o)["measured"] == json{{"profiles", json::array()}, {"low_errors", json::object()}});
  const auto numbers = [&](const comp::plan& p, comp::purpose what, std::size_t count) {
    made_up::run(o, comp::stage::baseline, p, {.loss = 0, .batches = 1, .curve = std::vector<double>(count, 0.5)});
    o.trials.back().purpose = what;
    if (what == comp::purpose::sensitivity) o.trials.back().repeat = static_cast<std::size_t>(comp::precision::bf16);
  };
  numbers(o.plan, comp::purpose::profile, 24);
  numbers(o.plan, comp::purpose::profile, 23);  // of another model
  numbers(o.plan, comp::purpose::sensitivity, 12);
  numbers(o.plan, comp::purpose::compile, 1);
  const json measured = comp::summary(o)["measured"];
  CHECK(measured["profiles"] == json::array({{{"plan", o.plan.str()}, {"seconds", std::vector<double>(24, 0.5)}}}));
  CHECK(measured["low_errors"] == json{{"bf16", std::vector<double>(12, 0.5)}});
  CHECK(comp::summary(o)["trials"].size() == 12);  // none of these is a run of the training
}

TEST_CASE("the casts of the found plan are counted, the ten largest one by one") {
  const json casts = comp::summary(made_up::outcome(60))["casts"];
  CHECK(casts["forward"] == 59);
  CHECK(casts["backward"] == 59);
  CHECK(comp::detail::bytes_text(casts["bytes"]) == "88.5 MiB");
  CHECK(casts["largest"].size() == 10);
  CHECK(casts["largest"][0] ==
        json{{"where", "after block0.linear0"}, {"from", "bf16"}, {"to", "fp32"}, {"bytes", 786432}, {"readers", 1}});
  CHECK(comp::summary(made_up::fp32_wins(12))["casts"].is_null());
  comp::outcome o = found;
  o.plan = o.plan.as_autocast();
  CHECK(comp::summary(o)["casts"].is_null());
}

TEST_CASE_FIXTURE(made_up::of_twelve,
                  "losses of FP32 and of the found plan are on the same batches, with the mean of their differences") {
  const auto curves = [&] { return comp::summary(o)["curves"]; };
  CHECK(curves()["of"] == "the found plan");
  CHECK(curves()["batches"].size() == 40);
  CHECK(curves()["fp32"] == json(o.baseline.curve));
  CHECK(curves()["plan"] == json(o.trials[2].sample.curve));
  CHECK(curves()["difference"].back() == doctest::Approx(o.contest[2].loss->difference));
  o.trials[2].sample.curve.resize(25);
  o.trials[2].sample.curve[7] = std::nan("");
  CHECK(curves()["batches"].back() == 25);
  CHECK(curves()["plan"][7] == "nan");
  o.baseline = made_up::batches(50'000, 0, 0.05);
  o.trials[2].sample = made_up::batches(50'000, 0.012, 0.03);
  CHECK(curves()["batches"].size() == 500);
  CHECK(curves()["batches"][0] == 100);
  CHECK(curves()["batches"].back() == 50'000);
  o.plan[1] = comp::precision::fp16;
  CHECK(curves().is_null());  // no run of it, and none that lowers more
  o.plan = o.trials[1].plan;
  o.trials[1].plan = comp::plan{12};
  CHECK(curves()["of"] == "a plan that lowers more");
  o.criterion = comp::criterion::scores;
  CHECK(curves().is_null());
  CHECK(comp::summary(made_up::fp32_wins(12))["curves"].is_null());
}

TEST_CASE("the summary of a large model is no larger than its operators make it") {
  const json s = comp::summary(made_up::outcome(30'000));
  CHECK(s["operator_list"].size() == 20'000);
  CHECK(s["trials"][2]["plan"].is_null());
  CHECK(s["trials"][2]["plan_name"] == "all but 5000 layer_norm, 5000 softmax and 5000 add in bf16");
  CHECK(s.dump().size() < 5'000'000);
}

TEST_CASE("an outcome with nothing in it has a summary and a table") {
  CHECK(comp::summary({})["comp"].is_null());
  CHECK(has(comp::table(comp::outcome{}), "whole search"));
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
}
