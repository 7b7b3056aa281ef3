// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/observe/report.hpp>
#include <moved_clock.hpp>

#include "made_up.hpp"
#include "scratch.hpp"

namespace {
const std::string reloads = "<meta http-equiv=\"refresh\" content=\"5\">";

comp::search_info about(const comp::outcome& o) {
  return {
      .graph = o.graph, .hardware = o.hardware, .signature = "", .tolerance = 0.01, .epochs_at_most = 0, .so_far = &o};
}
}  // namespace

TEST_CASE_FIXTURE(with_folder,
                  "the page of a running search reloads itself and shows what is known; the report does not reload") {
  comp::outcome o = made_up::outcome(12);
  const comp::outcome whole = o;
  o.contest.clear(), o.plan = {}, o.reasons.clear();
  comp::html_report report{folder / "report.html", {.model = "mlp <8>"}};
  report.search_started(about(o));
  const std::string page = text_of(folder / "report.html");
  CHECK(has(page, reloads));
  CHECK(has(page, "<h1>Searching: 73 runs so far</h1>"));
  CHECK(has(page, "\"model\":\"mlp \\u003c8>\""));
  CHECK(has(page, "<p>As of 2"));
  CHECK_FALSE(has(page, "<td>"));
  report.search_done(whole);
  CHECK_FALSE(has(text_of(folder / "report.html"), reloads));
  CHECK(has(text_of(folder / "report.html"), "<h1>1.61 times as fast as FP32"));
}

TEST_CASE("a search that has just begun has a page, too") {
  comp::outcome nothing;
  const std::string page = comp::html_text_so_far(nothing);
  CHECK(has(page, "<h1>Searching: 0 runs so far</h1>"));
  CHECK_FALSE(has(page.substr(0, page.find("<script")), "nan"));
}

TEST_CASE_FIXTURE(with_folder,
                  "the page is not written more often than anyone looks, and not for the training after the search") {
  comp::outcome o = made_up::outcome(12);
  comp::html_report report{folder / "report.html"};
  report.search_started(about(o));
  o.trials.push_back(o.trials[1]);
  report.trial_done(o.trials.back());
  CHECK(has(text_of(folder / "report.html"), "73 runs so far"));  // within two seconds of the last
  std::filesystem::remove(folder / "report.html");
  report.search_done(o);
  std::filesystem::remove(folder / "report.html");
  report.trial_done(comp::trial{.stage = comp::stage::training});
  CHECK(folder.files() == 0);
}

TEST_CASE("a report that cannot be written is refused before the search, and does not end a running one") {
  comp::outcome o = made_up::outcome(12);
  comp::html_report nowhere{"/dev/full"};
  CHECK_THROWS_AS(nowhere.search_started(about(o)), comp::file_error);

  const scratch folder;
  std::filesystem::create_directory(folder / "run");
  comp::html_report report{folder / "run/report.html"};
  report.search_started(about(o));
  o.trials.push_back(o.trials[1]);
  for (const bool late : {false, true}) {
    moved_clock::pass(late ? 0.2 : 1.9);
    report.trial_done(o.trials.back());
    CHECK(has(text_of(folder / "run/report.html"), "74 runs so far") == late);
  }
  std::filesystem::remove_all(folder / "run");
  moved_clock::pass(2.1);
  report.trial_done(o.trials.back());
  CHECK_THROWS_AS(report.search_done(o), comp::file_error);
}

TEST_CASE_FIXTURE(with_folder,
                  "a report stays where it was to be when the working directory changes, and is no ledger") {
  const auto before = std::filesystem::current_path();
  std::filesystem::create_directory(folder / "elsewhere");
  std::filesystem::current_path(folder / "");
  comp::html_report report{"report.html"}, on_ledger{"search.jsonl"};
  write_text("search.jsonl", "{\"comp_ledger\":2}\n");
  std::filesystem::current_path(folder / "elsewhere");
  comp::outcome o = made_up::outcome(12);
  report.search_started(about(o));
  CHECK_THROWS_AS(on_ledger.search_started(about(o)), comp::file_error);
  std::filesystem::current_path(before);
  CHECK(has(text_of(folder / "report.html"), "Searching"));
  CHECK(has(text_of(folder / "search.jsonl"), "comp_ledger"));
}

TEST_CASE_FIXTURE(with_folder, "who observes a search that tells nothing so far still gets a report at the end") {
  comp::outcome o = made_up::outcome(12);
  comp::html_report report{folder / "report.html"};
  auto info = about(o);
  info.so_far = nullptr;
  report.search_started(info);
  report.trial_done(o.trials[0]);
  CHECK(folder.files() == 0);
  report.search_done(o);
  CHECK(folder.files() == 1);
}
