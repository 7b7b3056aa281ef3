// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp/autocast/casts.hpp>
#include <comp/autocast/own_casts.hpp>
#include <comp/autocast/rule_plan.hpp>
#include <comp/systems/paddle_pass.hpp>
#include <comp/systems/tensorflow_pass.hpp>
#include <comp/systems/tvm_pass.hpp>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace own_casts_tests {
using comp::op_graph;
using comp::op_info;
using comp::precision;
using comp::autocast::cast_target;
using comp::autocast::casts;
using comp::autocast::rule_plan;

op_info op(std::string kind, std::vector<std::size_t> producers, precision gives = precision::fp32,
           precision reads = precision::fp32) {
  op_info info{.name = kind, .kind = kind, .producers = std::move(producers)};
  for (const std::size_t from : info.producers) {
    info.inputs.push_back({.shape = {4, 4}, .dtype = reads, .source = static_cast<std::int32_t>(from)});
  }
  if (info.inputs.empty()) info.inputs = {{.shape = {4, 4}}};
  info.outputs = {{.shape = {4, 4}, .dtype = gives}};
  return info;
}
op_info fixed_op(op_info of) {
  of.choosable = false;
  return of;
}

TEST_CASE("a cast of the model's own is known by its name, and where that can mean less, by what it changes") {
  constexpr std::optional<precision> none;
  CHECK(cast_target(op("aten::to.dtype", {})) == precision::fp32);
  CHECK(cast_target(op("Cast", {}, precision::fp16)) == precision::fp16);
  CHECK(cast_target(op("cast", {}, precision::bf16)) == precision::bf16);
  CHECK(cast_target({.kind = "half"}) == precision::fp16);
  CHECK(cast_target({.kind = "cast"}) == none);  // to what?
  CHECK(cast_target(op("aten::to.device", {})) == none);
  CHECK(cast_target(op("aten::_to_copy", {}, precision::fp16)) == precision::fp16);
  CHECK(cast_target(op("aten::relu", {}, precision::fp16)) == none);
  op_info to_integers = op("aten::to.dtype", {});
  to_integers.outputs[0].floating = false;
  CHECK(cast_target(to_integers) == none);
}

TEST_CASE("an operator with an argument for the format of its result gives its readers that format") {
  op_info softmax = fixed_op(op("aten::softmax.int", {0}));
  CHECK(cast_target(softmax) == std::nullopt);
  softmax.asks_format = true;
  CHECK(cast_target(softmax) == precision::fp32);
  const op_graph graph{{op("aten::matmul", {}), softmax, op("aten::square", {1})}};
  CHECK(rule_plan(comp::policy::pytorch{.list = comp::policy::pytorch_list::cpu}, graph, precision::bf16).str() ==
        "b11");
}

// matmul, x.float(), an operator on no list: FP32 behind the cast in every system.
op_graph float_behind(const std::string& product, const std::string& cast, const std::string& unlisted) {
  return {{op(product, {}), fixed_op(op(cast, {0})), op(unlisted, {1})}};
}

TEST_CASE("x.float() keeps what follows it in FP32 under every system") {
  using namespace comp::policy;
  using namespace comp::autocast;
  CHECK(rule_plan(pytorch{}, float_behind("matmul", "aten::to.dtype", "gelu"), precision::fp16).str() == "011");
  CHECK(rule_plan(pytorch{.list = pytorch_list::cpu}, float_behind("matmul", "float", "gelu"), precision::bf16).str() ==
        "b11");
  CHECK(paddle_pass({}, float_behind("matmul_v2", "cast", "relu")).plan.str() == "011");
  CHECK(tvm_pass({}, float_behind("nn.dense", "cast", "nn.relu")).plan.str() == "011");
  CHECK(tensorflow_pass(tensorflow{}, float_behind("MatMul", "Cast", "Tanh")).str() == "011");
}

TEST_CASE("x.half() lets what follows it run low without an operator that was lowered") {
  using namespace comp::policy;
  using namespace comp::autocast;
  const op_graph graph{{fixed_op(op("half", {}, precision::fp16)), op("relu", {0}, precision::fp16, precision::fp16)}};
  CHECK(rule_plan(pytorch{}, graph, precision::fp16).str() == "10");
  CHECK(paddle_pass({}, graph).plan.str() == "10");
  CHECK(tvm_pass({.missing = missing_rule::silent}, graph).plan.str() == "10");
  CHECK(tensorflow_pass(tensorflow{}, graph).str() == "10");
  // TensorFlow does not repaint what is half already, not even for BF16.
  CHECK(tensorflow_pass(tensorflow{.list = tensorflow_list::onednn_bf16}, graph).str() == "10");
}

TEST_CASE("x.type_as(y) gives what y is in, whatever x is in") {
  op_info as = fixed_op(op("aten::type_as", {0, 1}));
  const op_graph graph{{op("matmul", {}), op("softmax", {0}), as, op("gelu", {2})}};
  CHECK(rule_plan(comp::policy::pytorch{}, graph, precision::fp16).str() == "0111");
  as.inputs = {as.inputs[1], as.inputs[0]};
  CHECK(rule_plan(comp::policy::pytorch{}, op_graph{{graph[0], graph[1], as, graph[3]}}, precision::fp16).str() ==
        "0110");
}

TEST_CASE("a cast of the model's own is none that a plan pays for, and its result is cast for who wants it low") {
  const op_graph graph{{op("matmul", {}), fixed_op(op("aten::to.dtype", {0})), op("gelu", {1}), op("matmul", {1})}};
  const auto list = casts(graph, comp::parse_plan("0110")).forward;
  REQUIRE(list.size() == 2);  // the matmul's datum, and the cast's FP32 for the second matmul
  CHECK(list[1].op == 1);
  CHECK(list[1].from == precision::fp32);
  CHECK(list[1].to == precision::fp16);
  CHECK(list[1].readers == std::vector<std::uint32_t>{3});
}

TEST_CASE("a choosable cast stays what it is in every plan but one that has it give low at once") {
  const op_graph graph{{op("Cast", {}), op("MatMul", {0})}};
  // TensorFlow's BoolFusedWithCast: only an allow reads it, so that it gives FP16.
  const comp::plan painted = comp::autocast::tensorflow_pass(comp::policy::tensorflow{}, graph);
  CHECK(painted.str() == "00");
  CHECK(casts(graph, painted).forward.empty());
  CHECK(casts(graph, comp::parse_plan("10")).forward.size() == 1);
  const op_graph half{{op("Cast", {}, precision::fp16), op("Relu", {0}, precision::fp16, precision::fp16)}};
  CHECK(casts(half, comp::parse_plan("10")).forward.empty());
  CHECK(rule_plan(comp::policy::pytorch{}, half, precision::fp16).str() == "00");
}
}  // namespace own_casts_tests
