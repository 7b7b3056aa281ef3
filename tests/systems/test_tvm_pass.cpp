// SPDX-License-Identifier: Apache-2.0
// Expected plans are derived by hand from the RFC's rules for ALLOW, FOLLOW and DENY and from TVM's default registry.
#include <doctest/doctest.h>

#include <comp/autocast/casts.hpp>
#include <comp/systems/tvm_pass.hpp>

#include "autocast/model_graphs.hpp"

namespace tvm_pass_tests {
using comp::category;
using comp::precision;
using comp::autocast::casts;
using comp::autocast::tvm_pass;
using comp::autocast::tvm_pass_settings;
using comp::policy::conversion;
using comp::policy::tvm;
using model_graphs::spaced;

comp::op_info op(std::string kind, std::vector<std::size_t> producers, bool choosable = true) {
  return {.name = kind,
          .kind = kind,
          .outputs = {{.shape = {10}}},
          .producers = std::move(producers),
          .choosable = choosable};
}
const tvm_pass_settings quiet{.warn = {}};
std::string plan_of(const comp::op_graph& graph, const tvm& amp = {}, const tvm_pass_settings& settings = quiet) {
  return tvm_pass(amp, graph, settings).plan.str();
}
tvm sums_in_fp32() {
  tvm amp;
  amp.registry.add(
      "nn.conv2d",
      [](const comp::op_info&, precision low) {
        return conversion{category::allow, precision::fp32, low};
      },
      11);
  return amp;
}

TEST_CASE("ALLOW casts its inputs to the low precision, DENY back to FP32") {
  CHECK(plan_of(comp::op_graph{{op("nn.softmax", {}), op("nn.dense", {0}), op("nn.softmax", {1})}}) == "101");
}

TEST_CASE("FOLLOW runs low only when all its floating inputs already are, else all go back to FP32") {
  const comp::op_graph graph{
      {op("nn.dense", {}), op("nn.softmax", {0}), op("add", {0, 0}), op("add", {0, 1}), op("tanh", {3})}};
  const auto types = tvm_pass({}, graph, quiet);
  CHECK(types.plan.str() == "01011");
  const auto placed = casts(graph, types);
  REQUIRE(placed.forward.size() == 1);  // softmax and the mixed add share one FP32 copy of the product
  CHECK(placed.forward[0].readers == std::vector<std::uint32_t>{1, 3});
}

TEST_CASE("inputs that are stored in FP16 count as FP16 where leaves do not adapt") {
  const auto reads = [](std::string kind, precision data, precision weight) {
    comp::op_info info = op(std::move(kind), {});
    info.inputs = {{.shape = {10}, .dtype = data}, {.shape = {10}, .dtype = weight, .parameter = true}};
    return comp::op_graph{{info}};
  };
  const tvm_pass_settings letter{.leaves_adapt = false, .warn = {}};
  CHECK(plan_of(reads("add", precision::fp16, precision::fp16), {}, letter) == "0");
  CHECK(plan_of(reads("add", precision::fp16, precision::fp32), {}, letter) == "1");
  CHECK(plan_of(reads("add", precision::fp32, precision::fp16), {}, letter) == "1");
  CHECK(plan_of(reads("add", precision::fp16, precision::fp16), {.low = precision::bf16}, letter) == "1");
}

TEST_CASE("Relax: norms and exponentials follow, what is not registered stays in FP32, and products sum in FP32") {
  const comp::op_graph graph{{op("relax.matmul", {}), op("nn.gelu", {0}), op("aten::layer_norm", {1}), op("exp", {2}),
                              op("nn.softmax", {3}), op("my.own", {0}), op("nn.relu", {5})}};
  const auto types = comp::autocast::relax_pass(graph);
  CHECK(types.plan.str() == "0000111");
  CHECK(types.written[0] == precision::fp32);
  CHECK(types.handed_on[0] == precision::fp16);
  CHECK(types.handed_on[6] == precision::fp32);  // handed out
  CHECK(comp::autocast::relax_pass(graph, comp::policy::relax(precision::fp16)).written[0] == precision::fp16);
}

TEST_CASE("Relax: the model's data and integers hold an operator that follows in FP32, parameters and numbers do not") {
  const comp::tensor_info weight{.shape = {10}, .parameter = true}, data{.shape = {10}},
      integers{.shape = {10}, .floating = false}, number{.floating = false, .number = true};
  const auto behind_product = [&](const comp::tensor_info& other) {
    comp::op_info add = op("add", {0});
    add.inputs = {{.shape = {10}, .source = 0}, other};
    return comp::autocast::relax_pass(comp::op_graph{{op("linear", {}), add}}).plan.str();
  };
  CHECK(behind_product(weight) == "00");
  CHECK(behind_product(data) == "01");
  CHECK(behind_product({.shape = {10}, .dtype = precision::fp16}) == "00");
  CHECK(behind_product(integers) == "01");
  CHECK(behind_product(number) == "00");
}

TEST_CASE("integers do not count for FOLLOW") {
  comp::op_info indices = op("argmax", {0});
  indices.outputs[0].floating = false;
  CHECK(plan_of(comp::op_graph{{op("nn.dense", {}), indices, op("take", {0, 1})}}) == "000");
}

TEST_CASE("a view hands on what it reads, and parameters behind a view adapt") {
  CHECK(plan_of(comp::op_graph{{op("nn.dense", {}), op("view", {0}, false), op("tanh", {1})}}) == "010");
  const comp::op_graph weights{{op("t", {}, false), op("nn.dense", {0}), op("multiply", {1, 0})}};
  CHECK(plan_of(weights) == "100");
}

TEST_CASE("parameters adapt as in TVM, or hold FOLLOW in FP32 as in the RFC's letter") {
  model_graphs::builder net;
  const std::size_t at =
      net.add("conv", "nn.conv2d", {}, {1, 8, 4, 4}, {{.shape = {1, 3, 4, 4}}, model_graphs::weight({8, 3, 1, 1})});
  net.add("bias", "nn.bias_add", {at}, {1, 8, 4, 4}, {model_graphs::weight({8})});
  const comp::op_graph graph = std::move(net).finish();
  CHECK(plan_of(graph) == "00");
  CHECK(plan_of(graph, {}, {.leaves_adapt = false, .warn = {}}) == "01");
}

TEST_CASE("unregistered operators are warned of once per kind, not at all, or refused") {
  const comp::op_graph graph{{op("nn.dense", {}), op("my.op", {0}), op("my.op", {1}), op("your.op", {2})}};
  std::vector<std::string> warnings;
  const tvm_pass_settings listening{.warn = [&](const std::string& text) { warnings.push_back(text); }};
  tvm_pass({}, graph, listening);
  CHECK(warnings.size() == 2);
  warnings.clear();
  tvm_pass({.missing = comp::policy::missing_rule::silent}, graph, listening);
  CHECK(warnings.empty());
  CHECK_THROWS_AS(tvm_pass({.missing = comp::policy::missing_rule::error}, graph, listening), comp::settings_error);
}

TEST_CASE(
    "an FP32 accumulator with an FP16 output is a cast behind the operator, unless the backend does both at once") {
  const comp::op_graph graph{{op("nn.conv2d", {}), op("nn.relu", {0}), op("nn.conv2d", {1})}};
  const auto apart = tvm_pass(sums_in_fp32(), graph, quiet);
  CHECK(apart.plan.str() == "000");
  CHECK(apart.written[0] == precision::fp32);
  CHECK(apart.handed_on[0] == precision::fp16);
  const auto placed = casts(graph, apart);
  REQUIRE(placed.forward.size() == 2);  // behind each convolution
  CHECK(placed.forward[0].op == 0);
  CHECK(placed.forward[1].op == 2);
  const auto at_once = tvm_pass(sums_in_fp32(), graph, {.rounds_at_once = true, .warn = {}});
  CHECK(casts(graph, at_once).forward.empty());
}

TEST_CASE("a DENY behind an FP32 accumulator reads it uncast, as TVM's reversed cast cache does") {
  const comp::op_graph graph{{op("nn.conv2d", {}), op("nn.softmax", {0})}};
  CHECK(casts(graph, tvm_pass(sums_in_fp32(), graph, quiet)).forward.empty());
}

TEST_CASE("a rule may give FP32, and what follows then runs in FP32") {
  tvm amp;
  amp.registry.add(
      "nn.dense",
      [](const comp::op_info&, precision) {
        return conversion{category::allow, precision::fp32, precision::fp32};
      },
      11);
  CHECK(plan_of(comp::op_graph{{op("nn.dense", {}), op("nn.relu", {0}), op("nn.dense", {1})}}, amp) == "010");
}

TEST_CASE("any pair of precisions: FP8 under BF16") {
  const tvm amp{.low = precision::fp8_e4m3, .full = precision::bf16};
  CHECK(plan_of(comp::op_graph{{op("nn.dense", {}), op("nn.softmax", {0}), op("nn.relu", {0})}}, amp) == "ebe");
}

TEST_CASE("keep_orig_output_dtype casts what the model hands out to FP32") {
  const comp::op_graph graph{{op("nn.dense", {})}};
  const auto kept = tvm_pass({}, graph, {.keep_output_dtype = true, .warn = {}});
  const auto placed = casts(graph, kept);
  REQUIRE(placed.forward.size() == 1);
  CHECK(placed.forward[0].to == precision::fp32);
  CHECK(casts(graph, tvm_pass({}, graph, quiet)).forward.empty());
}

TEST_CASE("VGG16 under TVM: all but the adaptive average and the loss") {
  const std::string blocks(31, '0');
  CHECK(plan_of(model_graphs::vgg16()) == blocks + spaced("1 1 000 000 0 1"));
}

TEST_CASE("BERT under TVM: softmax, layer norm, GELU's erf and residuals in FP32, embeddings low") {
  // take reads integers and a table that adapts, add follows it; layer norm is NEVER, so its dropout is FP32. The
  // residual add reads a low dropout and an FP32 norm. GELU is erf: NEVER.
  const std::string heads = spaced("011 011 011 1");
  const std::string attention = spaced("0 0 1 1 0 11 0");
  const std::string layer = heads + attention + spaced("0 1 1 0 1 0 0 1 1");
  CHECK(plan_of(model_graphs::bert(2)) == spaced("000 00 1 1") + layer + layer + spaced("0 1"));
}

}  // namespace tvm_pass_tests
