// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/systems/all_rules.hpp>
#include <map>
#include <set>

#include "autocast/model_graphs.hpp"

namespace all_rules_tests {
using comp::precision;
using comp::autocast::all_rules;

TEST_CASE("every system has a plan for every model, and each is the plan of its own pass") {
  for (const comp::op_graph& graph : {model_graphs::vgg16(), model_graphs::bert(2), model_graphs::gcn()}) {
    for (const precision low : {precision::fp16, precision::bf16}) {
      std::set<std::string> names;
      for (const auto& [name, types] : all_rules(graph, low)) {
        CAPTURE(name);
        CHECK(names.insert(name).second);
        CHECK_NOTHROW(comp::require_fits(types.plan, graph));
        CHECK(types.plan.count_low() > 0);
        for (const precision p : types.plan) CHECK((p == low || p == precision::fp32));
      }
      CHECK(names == std::set<std::string>{"pytorch", "tensorflow", "tvm", "paddle OD", "paddle O1", "paddle O2"});
    }
  }
}

TEST_CASE("the lists are those of the machine: softmax on a GPU is FP32 in BF16 too, on a CPU it follows") {
  const comp::op_graph graph{{{.name = "a", .kind = "matmul"}, {.name = "b", .kind = "softmax"}}};
  const comp::hardware gpu{.kind = comp::device_kind::cuda}, cpu{.kind = comp::device_kind::cpu};
  CHECK(all_rules(graph, precision::bf16, gpu)[0].types.plan.str() == "b1");
  CHECK(all_rules(graph, precision::fp16, cpu)[0].types.plan.str() == "00");
  CHECK(all_rules(graph, precision::bf16)[0].types.plan.str() == "bb");
  CHECK(all_rules(graph, precision::fp16)[0].types.plan.str() == "01");
}

TEST_CASE("each system makes of a perceptron what its lists, or Paddle's level, say") {
  const comp::op_graph perceptron{{{.name = "a", .kind = "linear"},
                                   {.name = "b", .kind = "relu", .producers = {0}},
                                   {.name = "c", .kind = "linear", .producers = {1}},
                                   {.name = "d", .kind = "softmax", .producers = {2}},
                                   {.name = "e", .kind = "gelu", .producers = {3}}}};
  std::string plans;
  for (const auto& [name, types] : all_rules(perceptron, precision::fp16))
    plans += name + " " + types.plan.str() + ", ";
  CHECK(plans == "pytorch 00011, tensorflow 00000, tvm 00011, paddle OD 01011, paddle O1 00011, paddle O2 00000, ");
}

TEST_CASE("a system that refuses a model is left out with its sentence, and all others have plans") {
  for (const precision stored : {precision::bf16, precision::fp16, precision::fp8_e4m3}) {
    const comp::op_graph frozen{{{.name = "base.linear",
                                  .kind = "linear",
                                  .inputs = {{.shape = {8, 8}}, {.shape = {8, 8}, .dtype = stored, .parameter = true}},
                                  .outputs = {{.shape = {8, 8}}}}}};
    std::map<std::string, std::string> refused;
    const auto plans =
        all_rules(frozen, precision::bf16, {}, [&](auto& system, auto& why) { refused.emplace(system, why); });
    REQUIRE(plans.size() == 5);
    CHECK(plans.front().name == "pytorch");
    CHECK(plans.back().name == "paddle O1");
    CHECK(refused ==
          std::map<std::string, std::string>{
              {"paddle O2", fmt::format("a parameter of operator 0 (\"base.linear\") is {} already (O2 casts "
                                        "parameters once, from FP32): decorate the FP32 model, and only once",
                                        name(stored))}});
    CHECK(all_rules(frozen, precision::bf16).size() == 5);
  }
  CHECK(all_rules({}, precision::bf16).size() == 6);
}

TEST_CASE("rules for a precision that the systems lack are refused") {
  CHECK_THROWS_WITH_AS(all_rules(model_graphs::gcn(), precision::tf32),
                       "rules for tf32 (every system has them for fp16 and bf16 only): choose one of these",
                       comp::settings_error);
}
}  // namespace all_rules_tests
