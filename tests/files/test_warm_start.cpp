// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/files/warm_start.hpp>

#include "observe/made_up.hpp"
#include "scratch.hpp"

namespace {

const comp::op_graph model = made_up::graph(12);
const comp::plan chosen = made_up::low_where(model, [](auto& op) { return op.k > 0; });

comp::op_graph changed(auto change) {
  std::vector<comp::op_info> operators{model.begin(), model.end()};
  change(operators);
  return {std::move(operators)};
}
comp::loaded_plan started(const comp::op_graph& graph) {
  const scratch folder;
  comp::save(chosen, model, made_up::machine(), folder / "plan.json");
  return comp::warm_start(folder / "plan.json", graph);
}

}  // namespace

TEST_CASE("a plan of the same model at another batch size is taken as it is") {
  const auto larger = changed([](auto& ops) {
    for (auto& op : ops) op.outputs[0].shape[0] = 16;
  });
  CHECK(started(larger).plan == chosen);
  CHECK(started(larger).warnings.empty());
}

TEST_CASE("operators that are new, renamed or of another kind start in FP32, and a warning counts them") {
  const auto other = changed([](auto& ops) {
    ops[0].name = "stem";
    ops[4].kind = "conv2d";
    ops.insert(ops.begin(), comp::op_info{.name = "new", .kind = "linear"});
    for (std::size_t i = 1; i < ops.size(); ++i) ops[i].producers = {i - 1};
  });
  const auto got = started(other);
  comp::plan expected{13};
  for (std::size_t i = 0; i < 12; ++i) expected[i + 1] = i == 0 || i == 4 ? comp::precision::fp32 : chosen[i];
  CHECK(got.plan == expected);
  REQUIRE(got.warnings.size() == 1);
  CHECK(has(got.warnings[0], "knows 10 of 13 operators by name and kind: the search starts from FP32 for the others"));
}

TEST_CASE("a layer's products start as the whole layer where the file does not have them") {
  const auto apart = changed([](auto& ops) {
    const auto layer = std::find(chosen.begin(), chosen.end(), comp::precision::bf16) - chosen.begin();
    comp::op_info gradient = ops[static_cast<std::size_t>(layer)];
    gradient.product = comp::product::weight_gradient;
    gradient.name += suffix(gradient.product);
    gradient.producers = {static_cast<std::size_t>(layer)};
    ops.push_back(std::move(gradient));
  });
  CHECK(started(apart).plan[12] == comp::precision::bf16);
  CHECK(started(apart).warnings.empty());
}

TEST_CASE("an operator without a choice is left alone") {
  const auto fixed = changed([](auto& ops) { ops[0].choosable = false; });
  CHECK(started(fixed).plan[0] == comp::precision::fp32);
  CHECK(started(fixed).plan[4] == comp::precision::bf16);
}

TEST_CASE_FIXTURE(with_folder, "a plan string alone is taken where it has as many operators, and else nothing of it") {
  comp::save(chosen, folder / "plan.json");
  CHECK(comp::warm_start(folder / "plan.json", model).plan == chosen);
  const auto got = comp::warm_start(folder / "plan.json", made_up::graph(13));
  CHECK(got.plan == comp::plan{13});
  CHECK(has(got.warnings.at(0), "knows 0 of 13 operators"));
}
