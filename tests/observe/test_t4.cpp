// SPDX-License-Identifier: Apache-2.0
// What results-schema.json 1.0.0 of T4 asks for, checked by hand: the schema itself is not in the tests.
#include <doctest/doctest.h>

#include <comp/observe/t4.hpp>
#include <map>
#include <set>

#include "made_up.hpp"
#include "scratch.hpp"

using comp::json;
using made_up::found;

namespace {

void check_result(const json& result) {
  for (const char* required : {"configuration", "times", "invalidity", "correctness"}) CHECK(result.contains(required));
  CHECK(result["timestamp"].is_string());
  CHECK(result["configuration"].is_object());
  CHECK(result["objectives"].is_array());
  CHECK(result["correctness"].is_number());
  for (const char* number : {"compilation_time", "framework", "search_algorithm", "validation"}) {
    CHECK(result["times"][number].is_number());
  }
  CHECK(result["times"]["runtimes"].is_array());
  const std::set<std::string> known{"timeout", "compile", "runtime", "correctness", "constraints", "correct"};
  CHECK(known.contains(result["invalidity"]));
  for (const json& m : result["measurements"]) {
    CHECK(m["name"].is_string());
    CHECK(m["unit"].is_string());
    CHECK((m["value"].is_number() || m["value"].is_string() || m["value"].is_array()));
  }
}
}  // namespace

TEST_CASE_FIXTURE(with_folder, "a T4 file has what the schema asks for") {
  comp::write_t4(found, folder / "t4.json");
  const json document = json::parse(text_of(folder / "t4.json"));
  CHECK(document["schema_version"] == "1.0.0");
  CHECK(document["results"].size() == 12);  // seven runs, two plans timed in turns and three of the contest
  for (const json& result : document["results"]) check_result(result);
}

TEST_CASE("a configuration gives each operator's precision, and how the run ended is T4's word for it") {
  const json results = comp::t4(found)["results"];
  CHECK(results[0]["configuration"]["block0.linear0"] == "fp32");
  CHECK(results[2]["configuration"]["block0.linear0"] == "bf16");
  CHECK(results[2]["configuration"].size() == 12);
  const char* ended[] = {"correct", "correct", "correct", "correctness", "correctness", "timeout", "runtime"};
  for (std::size_t i = 0; i < std::size(ended); ++i) {
    CAPTURE(i);
    CHECK(results[i]["invalidity"] == ended[i]);
    CHECK(results[i]["correctness"] == (results[i]["invalidity"] == "correct" ? 1 : 0));
  }
}

TEST_CASE("times are milliseconds: an epoch's batches, or each batch of a plan") {
  const json results = comp::t4(found)["results"];
  CHECK(results[0]["times"]["runtimes"].size() == 40);
  CHECK(results[0]["times"]["runtimes"][0] == doctest::Approx(50.0));
  CHECK(results[7]["times"]["runtimes"].size() == 3);
  CHECK(results[6]["times"]["runtimes"].empty());
  std::map<std::string, json> measured;
  for (const json& m : results[2]["measurements"]) measured[m["name"]] = m;
  CHECK(measured["time"]["value"] == doctest::Approx(32.24));
  CHECK(measured["time"]["unit"] == "ms");
  CHECK(measured["loss"]["value"] == found.trials[2].sample.loss);
  CHECK(measured["epochs"]["value"] == 0.5);
  CHECK(measured["peak_memory"]["value"] == 120 << 20);
  for (const json& m : results[4]["measurements"]) CHECK(m["name"] != "loss");  // it was not finite
}

TEST_CASE("a T4 file that cannot be written is named") {
  CHECK(has(message_of<comp::file_error>([] { comp::write_t4(found, "/dev/full"); }), "No space left on device"));
}
