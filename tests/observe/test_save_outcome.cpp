// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/observe/save_outcome.hpp>

#include "made_up.hpp"
#include "scratch.hpp"

using comp::json;

TEST_CASE("the plan of an outcome is saved with its speed-up and the precisions searched") {
  const scratch folder;
  const comp::outcome found = made_up::outcome(12);
  comp::save(found, folder / "plan.json");
  CHECK(comp::load_plan(folder / "plan.json", found.graph).plan == found.plan);
  const json text = json::parse(text_of(folder / "plan.json"));
  CHECK(text["speedup"] == found.speedup);
  CHECK(text["precisions"] == json{"fp32", "bf16", "fp16"});
}
