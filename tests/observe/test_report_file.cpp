// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/observe/report.hpp>

#include "made_up.hpp"
#include "scratch.hpp"

namespace {
comp::search_info about(const comp::outcome& o) {
  return {.graph = o.graph, .hardware = o.hardware, .signature = "", .tolerance = 0.01};
}
}  // namespace

TEST_CASE("a report that cannot be written is refused before the search") {
  const comp::outcome o = made_up::outcome(12);
  for (const char* path : {"/dev/full", "/nowhere/report.html"}) {
    CHECK_THROWS_AS(comp::html_report{path}.search_started(about(o)), comp::file_error);
  }
}

TEST_CASE_FIXTURE(with_folder, "the report of an earlier search stays until the search is done") {
  const comp::outcome o = made_up::outcome(12);
  comp::html_report report{folder / "report.html"};
  report.search_started(about(o));
  CHECK(text_of(folder / "report.html") == "The search is not done yet.\n");
  report.search_done(o);
  const std::string page = text_of(folder / "report.html");
  CHECK(has(page, "<h1>1.61 times as fast as FP32"));
  comp::html_report{folder / "report.html"}.search_started(about(o));
  CHECK(text_of(folder / "report.html") == page);
}

TEST_CASE_FIXTURE(with_folder,
                  "a report stays where it was to be when the working directory changes, and is no ledger") {
  const auto before = std::filesystem::current_path();
  std::filesystem::create_directory(folder / "elsewhere");
  std::filesystem::current_path(folder / "");
  comp::html_report report{"report.html"}, on_ledger{"search.jsonl"};
  write_text("search.jsonl", "{\"comp_ledger\":2}\n");
  std::filesystem::current_path(folder / "elsewhere");
  const comp::outcome o = made_up::outcome(12);
  report.search_started(about(o));
  report.search_done(o);
  CHECK_THROWS_AS(on_ledger.search_started(about(o)), comp::file_error);
  std::filesystem::current_path(before);
  CHECK(has(text_of(folder / "report.html"), "<h1>1.61"));
  CHECK(has(text_of(folder / "search.jsonl"), "comp_ledger"));
}
