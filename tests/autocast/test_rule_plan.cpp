// SPDX-License-Identifier: Apache-2.0
// The expected plans are derived by hand from PyTorch's lists and its rule of type promotion.
#include <doctest/doctest.h>

#include <comp/autocast/casts.hpp>
#include <comp/autocast/rule_plan.hpp>
#include <comp/policy/all_fp32.hpp>
#include <comp/policy/custom.hpp>
#include <comp/policy/pytorch.hpp>
#include <string>

namespace rule_plan_tests {
using comp::precision;
using comp::autocast::rule_plan;
using comp::policy::by_kind;
using comp::policy::by_name;
using comp::policy::by_scope;
using comp::policy::pytorch;
using comp::policy::pytorch_list;

const pytorch cuda{.list = pytorch_list::cuda, .low = precision::fp16};
const pytorch cpu{.list = pytorch_list::cpu, .low = precision::bf16};
constexpr comp::tensor_info integers{.floating = false};

comp::op_info op(std::string kind, std::vector<std::size_t> producers) {
  return {.name = kind, .kind = kind, .producers = std::move(producers)};
}
comp::op_info view(std::string kind, std::vector<std::size_t> producers) {
  comp::op_info info = op(std::move(kind), std::move(producers));
  info.choosable = false;
  return info;
}

// A VGG16 in small: two convolutions with batch norm, pooling, flatten, two linear layers, the loss.
const comp::op_graph vgg{{op("conv2d", {}), op("batch_norm", {0}), op("relu", {1}), op("max_pool2d", {2}),
                          op("conv2d", {3}), op("batch_norm", {4}), op("relu", {5}), op("max_pool2d", {6}),
                          view("flatten", {7}), op("linear", {8}), op("relu", {9}), op("dropout", {10}),
                          op("linear", {11}), op("cross_entropy_loss", {12})}};

TEST_CASE("an operator that reads only integers, or only the graph's inputs, counts as FP32") {
  comp::op_info argmax = op("argmax", {0});
  argmax.outputs = {integers};
  const comp::op_graph graph{
      {op("linear", {}), argmax, op("embedding", {1}), op("add", {2, 0}), op("mul", {0, 1}), op("relu", {})}};
  CHECK(rule_plan(cuda, graph, precision::fp16).str() == "001101");
}

TEST_CASE("FP16 and BF16 meet in FP32, as PyTorch promotes them") {
  const comp::op_graph graph{{op("linear", {}), op("conv2d", {}), op("add", {0, 1}), op("add", {1, 1})}};
  const comp::policy::custom listed{.over = cuda, .rules = {by_kind("conv2d", comp::policy::fixed(precision::bf16))}};
  CHECK(rule_plan(listed, graph, precision::fp16).str() == "0b1b");
}

TEST_CASE("a fixed decision holds, whatever the category or the low precision") {
  CHECK(rule_plan(comp::policy::all_fp32{}, vgg, precision::fp16) == comp::plan{vgg.size()});
  const comp::policy::custom listed{
      .over = cuda,
      .rules = {by_scope("linear", comp::policy::deny()), by_name("linear", comp::policy::fixed(precision::bf16))}};
  CHECK(rule_plan(listed, comp::op_graph{{op("linear", {}), op("relu", {0})}}, precision::fp16).str() == "bb");
}

TEST_CASE("an allowed operator never goes to a smaller format than the policy computes in") {
  const comp::op_graph graph{{op("linear", {})}};
  CHECK(rule_plan(cuda, graph, precision::fp8_e4m3).str() == "0");
  CHECK(rule_plan(cuda, graph, precision::bf16).str() == "b");
  CHECK(rule_plan(cuda, graph, precision::tf32).str() == "t");
  CHECK(rule_plan(cuda, graph, precision::fp32).str() == "1");
}

TEST_CASE("what is written in FP64 is lowered to no 16 bits, as autocast leaves it") {
  comp::op_info wide = op("linear", {});
  wide.as_written = precision::fp64;
  const comp::op_graph graph{{wide, op("relu", {0}), op("linear", {})}};
  CHECK(rule_plan(cpu, graph, precision::bf16).str() == "d1b");
  CHECK(rule_plan(cuda, graph, precision::fp32).str() == "111");
}

TEST_CASE("TF32 lives inside an operator: what follows reads FP32") {
  CHECK(
      rule_plan(cuda, comp::op_graph{{op("linear", {}), op("relu", {0}), op("linear", {1})}}, precision::tf32).str() ==
      "t1t");
}

/// An input by the operator that made it; -1: a parameter.
comp::tensor_info from(std::int32_t source, std::vector<std::int64_t> shape = {8, 8}) {
  return {.shape = std::move(shape), .parameter = source < 0, .source = source};
}
comp::op_info reads(std::string kind, std::vector<comp::tensor_info> inputs, bool choosable = true) {
  comp::op_info info = op(std::move(kind), {});
  for (const comp::tensor_info& input : inputs) {
    if (input.source >= 0) info.producers.push_back(static_cast<std::size_t>(input.source));
  }
  info.inputs = std::move(inputs);
  info.outputs = {{.shape = {8, 8}}};
  info.choosable = choosable;
  return info;
}

TEST_CASE("where inputs promote, a parameter counts as FP32: a product in BF16 plus a bias is FP32") {
  const comp::op_graph graph{{reads("aten::mm", {from(-1), from(-1)}), reads("aten::add.Tensor", {from(0), from(-1)}),
                              reads("aten::batch_norm", {from(0), from(-1, {8}), from(-1, {8})}),
                              reads("aten::mul.Tensor", {from(0), from(-1, {})}), reads("aten::relu", {from(1)})}};
  CHECK(rule_plan(cpu, graph, precision::bf16).str() == "b1bb1");  // a scale without dimensions does not count
}

TEST_CASE("an empty tensor made from nothing, as a cache begins, does not keep what is added to it in FP32") {
  const comp::op_graph graph{{reads("linear", {from(-1), from(-1)}), reads("cat", {from(-1, {0}), from(0)}),
                              reads("cat", {from(-1, {1}), from(0)})}};
  CHECK(rule_plan(cpu, graph, precision::bf16).str() == "bb1");
}

TEST_CASE("what is made from nothing takes the format of what it is used with, but for operators that promote") {
  const comp::op_graph graph{{reads("linear", {from(-1), from(-1)}), reads("zeros", {}, false),
                              reads("index_add", {from(1), from(0)}), reads("add.Tensor", {from(1), from(0)}),
                              reads("view", {from(1)}, false), reads("index_add", {from(4), from(0)})}};
  CHECK(rule_plan(cpu, graph, precision::bf16).str() == "b1b11b");
}

TEST_CASE("an in-place operator leaves its tensor in the format that it has") {
  const comp::op_graph graph{{reads("linear", {from(-1), from(-1)}), reads("mse_loss", {from(0), from(-1)}),
                              reads("add_.Tensor", {from(0), from(1)}, false), reads("relu", {from(2)}),
                              reads("add_.Tensor", {from(1), from(0)}, false), reads("relu", {from(4)})}};
  CHECK(rule_plan(cpu, graph, precision::bf16).str() == "b11b11");
}

TEST_CASE("what the model's author fixed is FP32 and hands on FP32, where a view hands on what it reads") {
  for (const bool fixed : {false, true}) {
    comp::op_info middle = view("softmax", {0});
    if (fixed) middle.author = comp::author_choice::autocast_off;
    const comp::op_graph graph{{op("linear", {}), middle, op("relu", {1})}};
    const comp::plan plan = comp::autocast::rule_plan(cpu, graph, precision::bf16);
    CHECK(plan.str() == (fixed ? "b11" : "b1b"));
    const comp::plan low{precision::bf16, precision::fp32, precision::bf16};
    const auto placed = comp::autocast::casts(graph, comp::autocast::typed(graph, low));
    CHECK(placed.forward.size() == (fixed ? 2 : 0));
  }
}
}  // namespace rule_plan_tests
