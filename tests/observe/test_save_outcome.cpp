// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <comp/files/json.hpp>
#include <comp/files/plan_file.hpp>
#include <comp/observe/report.hpp>

#include "made_up.hpp"
#include "scratch.hpp"

using comp::json;

TEST_CASE_FIXTURE(with_folder, "the plan of an outcome is saved with its speed-up and the precisions searched") {
  const comp::outcome found = made_up::outcome(12);
  comp::save(found, folder / "plan.json");
  CHECK(comp::load_plan(folder / "plan.json", found.graph).plan == found.plan);
  const json text = json::parse(text_of(folder / "plan.json"));
  CHECK(text["speedup"] == found.speedup);
  CHECK(text["precisions"] == json{"fp32", "bf16", "fp16"});
}

TEST_CASE_FIXTURE(with_folder, "a plan file carries how the backend ran the plan, whatever its choices are called") {
  comp::outcome found = made_up::outcome(12);
  comp::save(found, folder / "plan.json");
  CHECK_FALSE(json::parse(text_of(folder / "plan.json")).contains("execution"));
  found.execution = {{"images", "channels_last", {1.125, {1.0625, comp::interval{}.high}}}, {"later", "another", {}}};
  comp::save(found, folder / "plan.json");
  const comp::execution read = comp::load_plan(folder / "plan.json", found.graph).execution;
  REQUIRE(read.size() == 2);
  CHECK(read[0].name == "images");
  CHECK(read[0].value == "channels_last");
  CHECK(read[0].gain.ratio == 1.125);
  CHECK(read[0].gain.bounds.low == 1.0625);
  CHECK(read[0].gain.bounds.high == comp::interval{}.high);
  CHECK(read[1].value == "another");
  CHECK(std::isnan(read[1].gain.ratio));
}
