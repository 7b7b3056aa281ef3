// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>
#include <rapidcheck.h>

#include <comp/policy/plan_name.hpp>
#include <string>
#include <vector>

namespace {

comp::op_graph network(const std::vector<const char*>& kinds, const std::string& where = "") {
  std::vector<comp::op_info> ops;
  for (const char* kind : kinds)
    ops.push_back({.name = where + kind + std::to_string(ops.size()), .kind = std::string{"aten::"} + kind});
  ops.push_back({.name = "flat", .kind = "view", .choosable = false});
  return ops;
}

std::string named(const char* letters, const comp::op_graph& graph) { return name(comp::parse_plan(letters), graph); }

}  // namespace

TEST_CASE("a plan is named by what differs from the precision that most operators have, views not counted") {
  const auto graph = network({"conv2d", "conv2d", "conv2d.default", "linear", "linear", "linear", "softmax"});
  CHECK(named("bbbbbbb1", graph) == "all in bf16");
  CHECK(named("11111111", graph) == "all in fp32");
  CHECK(named("bbbbbb11", graph) == "all but softmax6 in bf16");
  CHECK(named("b1bbbb11", graph) == "all but conv2d1 and softmax6 in bf16");
  CHECK(named("111bbbb1", graph) == "all but 3 conv2d in bf16");
  CHECK(named("b11bbb11", graph) == "all but 2 conv2d and softmax6 in bf16");
  CHECK(named("111bb111", graph) == "fp32 but linear3 and linear4 in bf16");
  CHECK(named("0bbbbbb1", graph) == "bf16, conv2d0 in fp16");
  CHECK(named("0bbbb111", graph) == "bf16, linear5 and softmax6 in fp32, conv2d0 in fp16");
  CHECK(name(comp::parse_plan("bbbbbbb1").as_autocast(), graph) == "all in bf16, by autocast");
  CHECK(name(comp::parse_plan("11111111@tuned"), graph) == "all in fp32, tuned");
}

TEST_CASE("where as many operators are low as high, the low ones name it") {
  CHECK(named("b1", {}) == "all but 1 in bf16");
  CHECK(named("b01", {}) == "bf16, 1 in fp16, 1 in fp32");
}

TEST_CASE("a name that would be long gives kinds instead of names, and numbers instead of kinds") {
  const auto deep =
      network({"matmul", "linear", "linear", "linear", "linear", "softmax"}, "encoder.layer.11.attention.self.");
  CHECK(named("1bbbb11", deep) == "all but 1 matmul and 1 softmax in bf16");
  CHECK(named("1b11111", deep) == "fp32 but encoder.layer.11.attention.self.linear1 in bf16");
  const auto many =
      network({"convolution_overrideable", "native_layer_norm", "scaled_dot_product_attention", "a", "a", "a", "a"});
  CHECK(named("111bbbb1", many) == "all but 3 in bf16");
}

TEST_CASE("a plan is named without its graph, and an operator without a name or kind") {
  CHECK(named("bb1b", {}) == "all but 1 in bf16");
  CHECK(name(comp::plan{}, {}) == "all in fp32");
  const comp::op_graph unnamed{std::vector<comp::op_info>(4)};
  CHECK(named("bb1b", unnamed) == "all but #2 in bf16");
  CHECK(named("b111", unnamed) == "fp32 but #0 in bf16");
}

TEST_CASE("no name is longer than a line, and plans of different shares have different names") {
  CHECK(rc::check([] {
    const auto n = *rc::gen::inRange<std::size_t>(1, 40);
    std::vector<comp::op_info> ops(n);
    for (std::size_t i = 0; i < n; ++i)
      ops[i] = {.name = std::string(*rc::gen::inRange<std::size_t>(0, 50), 'n') + std::to_string(i),
                .kind = std::string(*rc::gen::inRange<std::size_t>(0, 30), 'k')};
    const comp::op_graph graph = ops;
    const auto any = [&] {
      comp::plan p{n};
      for (std::size_t i = 0; i < n; ++i) p[i] = comp::all_precisions[*rc::gen::inRange<std::size_t>(0, 4)];
      return p;
    };
    const comp::plan a = any(), b = any();
    RC_ASSERT(name(a, graph).size() <= 80);
    for (const comp::precision p : comp::all_precisions) {
      if (std::count(a.begin(), a.end(), p) != std::count(b.begin(), b.end(), p)) RC_ASSERT(name(a, {}) != name(b, {}));
    }
  }));
}
