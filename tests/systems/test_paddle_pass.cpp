// SPDX-License-Identifier: Apache-2.0
// Expected plans are derived by hand from the guide's rules for O1 and O2 and from Paddle's lists: white runs low,
// black runs in FP32, the rest runs low when all its inputs, parameters too, are low, else in FP32.
// Those of random graphs are Paddle's own (paddle_typed.inc).
#include <doctest/doctest.h>

#include <comp/autocast/casts.hpp>
#include <comp/systems/paddle_pass.hpp>
#include <sstream>

#include "autocast/model_graphs.hpp"

namespace paddle_pass_tests {
using comp::precision;
using comp::autocast::casts;
using comp::autocast::decorate;
using comp::autocast::paddle_pass;
using comp::policy::paddle;
using comp::policy::paddle_level;
using comp::policy::paddle_version;
using model_graphs::builder;
using model_graphs::weight;

std::string plan_of(const paddle& amp, const comp::op_graph& graph) { return paddle_pass(amp, graph).plan.str(); }
std::string times(int n, const std::string& text) {
  std::string all;
  for (int i = 0; i < n; ++i) all += text;
  return all;
}

/// The guide's SimpleNet: nine Linear, each a matmul and an add, then the mean squared error. `low_data`: the data set
/// gives FP16, as the guide asks of O2 in static graphs. Linear 1 to 8 have the tag of the guide's fp16_guard example.
comp::op_graph simple_net(bool low_data = false) {
  const std::int64_t batch = 2048, width = 8192;
  const precision data = low_data ? precision::fp16 : precision::fp32;
  builder net;
  std::size_t at = 0;
  for (int l = 0; l < 9; ++l) {
    const std::string n = "linears." + std::to_string(l);
    const comp::tensor_info input{.shape = {batch, width}, .dtype = data};
    at = l == 0 ? net.add(n + ".matmul", "matmul_v2", {}, {batch, width}, {input, weight({width, width})})
                : net.add(n + ".matmul", "matmul_v2", {at}, {batch, width}, {weight({width, width})});
    at = net.add(n + ".add", "elementwise_add", {at}, {batch, width}, {weight({width})});
  }
  net.add("loss", "mse_loss", {at}, {}, {{.shape = {batch, width}, .dtype = data}});
  return std::move(net).finish();
}
paddle of_guide(paddle_level level) { return {.level = level, .version = paddle_version::guide}; }

TEST_CASE("the guide's FP32 and O1 training of SimpleNet: add on the custom white list makes all nine Linear FP16") {
  CHECK(plan_of(of_guide(paddle_level::o0), simple_net()) == times(18, "1") + "1");
  paddle amp = of_guide(paddle_level::o1);
  CHECK(plan_of(amp, simple_net()) == times(9, "01") + "1");  // the bias is FP32, so is the add
  amp.custom_white_list = {"elementwise_add"};
  CHECK(plan_of(amp, simple_net()) == times(18, "0") + "1");  // the square in the loss is black
  amp.version = paddle_version::v3;
  CHECK(plan_of(amp, simple_net()) == times(18, "0") + "1");
}

TEST_CASE("the guide's O2 training of SimpleNet gives its loss in FP16, Paddle 3 promotes it to the label's FP32") {
  // In the guide: "loss: [array([0.6743], dtype=float16)]".
  CHECK(plan_of(of_guide(paddle_level::o2), simple_net()) == times(19, "0"));
  CHECK(plan_of({.level = paddle_level::o2}, simple_net()) == times(18, "0") + "1");
  CHECK(plan_of({.level = paddle_level::o2}, simple_net(true)) == times(19, "0"));
  CHECK(plan_of({.level = paddle_level::o2, .use_promote = false}, simple_net()) == times(19, "0"));
}

TEST_CASE("the guide's fp16_guard: the first Linear and the loss stay in FP32") {
  // In the guide: "loss: [array([0.6691731], dtype=float32)]".
  paddle amp = of_guide(paddle_level::o2);
  amp.use_fp16_guard = true;
  for (int l = 1; l < 9; ++l) amp.fp16_guard.push_back("linears." + std::to_string(l));
  const auto types = paddle_pass(amp, simple_net());
  CHECK(types.plan.str() == "11" + times(16, "0") + "1");
  CHECK(types.parameters[0] == precision::fp32);
  CHECK(types.parameters[2] == precision::fp16);
}

TEST_CASE("O2 casts parameters before training: its steps have casts of data and loss only, O1's one per parameter") {
  const auto steps = [](const paddle& amp) {
    return casts(simple_net(), paddle_pass(amp, simple_net())).forward.size();
  };
  CHECK(steps(of_guide(paddle_level::o2)) == 2);  // data and label
  paddle o1 = of_guide(paddle_level::o1);
  o1.custom_white_list = {"elementwise_add"};
  CHECK(steps(o1) == 1 + 18 + 1);  // data, weights and biases, what the loss reads
}

TEST_CASE("decorate keeps batch norm and layer norm in FP32, has master weights, and does nothing below O2") {
  builder net;
  std::size_t at = net.add("conv", "conv2d", {}, {4, 8, 2, 2}, {{.shape = {4, 3, 2, 2}}, weight({8, 3, 1, 1})});
  for (const char* norm : {"batch_norm", "layer_norm", "instance_norm", "group_norm"})
    at = net.add(norm, norm, {at}, {4, 8, 2, 2}, {weight({8}), weight({8})});
  const comp::op_graph graph = std::move(net).finish();
  const auto stored = [&](const paddle& amp) { return comp::plan{decorate(amp, graph).parameters}.str(); };
  CHECK(stored({.level = paddle_level::o2}) == "01110");
  CHECK(stored(of_guide(paddle_level::o2)) == "01100");
  CHECK(stored({.level = paddle_level::o2, .low = precision::bf16}) == "b1bbb");
  CHECK(stored({.level = paddle_level::o2, .excluded_layers = {"conv"}}) == "11110");
  CHECK(stored({.level = paddle_level::o2, .excluded_types = {"conv2d", "group_norm"}}) == "11111");
  CHECK(stored({.level = paddle_level::o1}) == "11111");
  CHECK(decorate({.level = paddle_level::o2}, graph).master_weights);
  CHECK_FALSE(decorate({.level = paddle_level::o1}, graph).master_weights);
  // A norm's first input decides: batch norm and layer norm follow the convolution, instance norm's FP32 scale
  // promotes, and group norm then reads FP32.
  CHECK(plan_of({.level = paddle_level::o2}, graph) == "00011");
}

TEST_CASE("O2 without decorate reads FP32 parameters: a bias in FP32 keeps in FP32 what a low one would not") {
  const comp::op_graph vgg = model_graphs::vgg16();
  const paddle bare{.level = paddle_level::o2, .decorate = false};
  CHECK(plan_of(bare, vgg).substr(0, 4) == "0101");  // convolution, ReLU behind a bias of FP32
  CHECK(plan_of({.level = paddle_level::o2}, vgg).substr(0, 4) == "0000");
  const auto decoration = decorate(bare, vgg);
  CHECK_FALSE(decoration.master_weights);
  CHECK(decoration.parameters == std::vector<precision>(vgg.size(), precision::fp32));
}

TEST_CASE("decorate is told of master weights, master gradients and the precision of files") {
  const comp::op_graph vgg = model_graphs::vgg16();
  const auto usual = decorate({.level = paddle_level::o2}, vgg);
  CHECK(usual.saved[0] == precision::fp16);
  CHECK_FALSE(usual.master_gradients);
  const auto decoration = decorate(
      {.level = paddle_level::o2, .master_weight = false, .master_grad = true, .save_dtype = precision::fp32}, vgg);
  CHECK_FALSE(decoration.master_weights);
  CHECK(decoration.master_gradients);
  CHECK(decoration.parameters[0] == precision::fp16);
  CHECK(decoration.saved[0] == precision::fp32);
}

TEST_CASE("parameters that are low already are refused: decorated twice") {
  builder net;
  net.add("fc", "linear", {}, {4, 8},
          {{.shape = {4, 2}}, {.shape = {8, 2}, .dtype = precision::fp16, .parameter = true}});
  const comp::op_graph graph = std::move(net).finish();
  CHECK_THROWS_WITH_AS(paddle_pass({.level = paddle_level::o2}, graph),
                       "a parameter of operator 0 (\"fc\") is fp16 already (O2 casts parameters once, from FP32): "
                       "decorate the FP32 model, and only once",
                       comp::settings_error);
  CHECK_NOTHROW(paddle_pass({.level = paddle_level::o1}, graph));
}

TEST_CASE("overlapping lists are refused before anything is decided") {
  CHECK_THROWS_AS(paddle_pass({.custom_white_list = {"exp"}, .custom_black_list = {"exp"}}, simple_net()),
                  comp::settings_error);
}

TEST_CASE("random graphs run at each level as Paddle 3.3.1 runs them") {
  const paddle o1{.low = precision::bf16}, od{.level = paddle_level::od, .low = precision::bf16};
  paddle o2{.level = paddle_level::o2, .low = precision::bf16};
  paddle unpromoted = o2, listed = o1;
  unpromoted.use_promote = false;
  o2.decorate = unpromoted.decorate = false;  // a static program's parameters are FP32
  listed.custom_white_list = {"softmax", "elementwise_add"};
  listed.custom_black_list = {"tanh"};
  for (const char* line : {
#include "paddle_typed.inc"
       }) {
    CAPTURE(line);
    std::istringstream words{line};
    const comp::op_graph graph = model_graphs::recorded(words);
    for (const paddle& amp : {o1, od, o2, unpromoted, listed}) {
      std::string theirs;
      words >> theirs;
      if (theirs != "-") CHECK(plan_of(amp, graph) == theirs);
    }
  }
}

}  // namespace paddle_pass_tests
