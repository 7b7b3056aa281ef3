// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <comp_native/network.hpp>
#include <examples/models/native/models.hpp>
#include <map>

#include "reference_device.hpp"
#include "support.hpp"

using namespace comp::native;
using namespace comp::native::testing;
using comp::plan;
using comp::precision;

namespace {

/// Counts casts, notes the precisions that operators run in, and how many tensors live.
struct watching : reference::device {
  std::map<std::string, int> casts;  // "fp32>bf16"
  std::vector<std::string> ran;
  int dropouts = 0;

  tensor cast(const tensor& t, precision p) override {
    ++casts[fmt::format("{}>{}", name(t.precision()), name(p))];
    return reference::device::cast(t, p);
  }
  tensor linear(const tensor& x, parameter& w, parameter* b) override {
    ran.push_back(fmt::format("linear {}", name(x.precision())));
    return reference::device::linear(x, w, b);
  }
  tensor linear_backward(const tensor& dy, const tensor& x, parameter& w, parameter* b, bool need_dx,
                         bool need_parameters) override {
    ran.push_back(fmt::format("linear back {} {}", name(dy.precision()), need_dx ? "dx" : "no dx"));
    return reference::device::linear_backward(dy, x, w, b, need_dx, need_parameters);
  }
  tensor dropout(const tensor& x, double p, const dropout_key& key) override {
    ++dropouts;
    return reference::device::dropout(x, p, key);
  }
  tensor sum(std::span<const tensor> all) override {
    ran.push_back(fmt::format("sum of {} {}", all.size(), name(all[0].precision())));
    return reference::device::sum(all);
  }
};

/// One tensor read by three linear operators, as queries, keys and values are.
model three_readers() {
  model_builder net{"three", input_kind::values, {4, 6}};
  const value x = net.input().linear("stem", 6).tanh("tanh");
  x.linear("a", 6).mul("mul", x.linear("b", 6)).add("add", x.linear("c", 6)).mse_loss("loss");
  return net.finish();
}
plan with_low(const comp::op_graph& graph, std::initializer_list<std::string_view> names) {
  plan p{graph.size()};
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (std::ranges::find(names, graph[i].name) != names.end()) p[i] = precision::bf16;
  }
  return p;
}

}  // namespace

TEST_CASE("a tensor is cast once for all its readers of one precision, and its gradient once") {
  watching device;
  network<reference::device> net{device, three_readers(), 1};
  net.set_precision(with_low(net.graph(), {"a", "b", "c"}));
  const auto batch = uploaded<reference::device>(device, net.model(), random_batch(net.model(), 1));
  net.forward(batch);
  CHECK(device.casts == std::map<std::string, int>{{"bf16>fp32", 3}, {"fp32>bf16", 1}});  // mul reads a, b; add reads c
  device.casts.clear();
  device.ran.clear();
  net.backward(batch);
  CHECK(device.casts == std::map<std::string, int>{{"fp32>bf16", 3}, {"bf16>fp32", 1}});
  CHECK(device.ran == std::vector<std::string>{"linear back bf16 dx", "linear back bf16 dx", "linear back bf16 dx",
                                               "sum of 3 bf16", "linear back fp32 no dx"});
}

TEST_CASE("a tensor is cast from its own values, and not from a copy that is rounded already") {
  watching device;
  network<reference::device> net{device, three_readers(), 1};
  plan p = with_low(net.graph(), {"a", "c"});
  for (std::size_t i = 0; i < p.size(); ++i) p[i] = net.graph()[i].name == "b" ? precision::fp16 : p[i];
  net.set_precision(p);
  net.forward(uploaded<reference::device>(device, net.model(), random_batch(net.model(), 1)));
  CHECK(device.casts.at("fp32>fp16") == 1);
  CHECK_FALSE(device.casts.contains("bf16>fp16"));
}

TEST_CASE("each copy of a tensor is dropped behind the last operator that reads it, or that casts from it") {
  const model m = three_readers();
  plan p = with_low(graph_of(m), {"a", "c"});
  p[3] = precision::fp16;  // b
  const auto dead = flow_of(m, p).releases;
  CHECK(dead[2].empty());
  CHECK(dead[3].size() == 2);  // tanh in FP32, from which b's copy was cast, and in FP16
  CHECK(dead[5].size() == 1);  // tanh in BF16, which c reads
}

TEST_CASE("gradients of readers in several precisions meet in the producer's") {
  watching device;
  network<reference::device> net{device, three_readers(), 1};
  net.set_precision(with_low(net.graph(), {"a", "b"}));
  const auto batch = uploaded<reference::device>(device, net.model(), random_batch(net.model(), 1));
  net.forward(batch);
  device.ran.clear();
  net.backward(batch);
  CHECK(std::ranges::count(device.ran, "sum of 2 bf16") == 1);
  CHECK(std::ranges::count(device.ran, "sum of 2 fp32") == 1);
}

TEST_CASE("a gradient that a product makes in a precision of its own is rounded to that of its layer") {
  watching device;
  model_builder builder{"net", input_kind::values, {4, 6}};
  builder.input().linear("a", 6).linear("b", 6).mse_loss("loss");
  model m = builder.finish();
  m.separate_products = true;
  network<reference::device> net{device, std::move(m), 1};
  net.set_precision(with_low(net.graph(), {"b", "b.weight_gradient"}));
  const auto batch = uploaded<reference::device>(device, net.model(), random_batch(net.model(), 1));
  net.forward(batch);
  device.casts.clear();
  net.backward(batch);
  CHECK(device.casts == std::map<std::string, int>{{"bf16>fp32", 2}, {"fp32>bf16", 2}});
}

TEST_CASE("an FP32 plan casts nothing and a uniform low plan only the input") {
  watching device;
  network<reference::device> net{
      device, native_models::gpt({.batch = 2, .vocabulary = 9, .context = 4, .layers = 1, .width = 8, .heads = 2}), 1};
  const auto batch = uploaded<reference::device>(device, net.model(), random_batch(net.model(), 1));
  net.forward(batch);
  net.backward(batch);
  CHECK(device.casts.empty());
  net.set_precision(plan{net.graph().size(), precision::bf16});
  net.forward(batch);
  net.backward(batch);
  CHECK(device.casts.empty());  // the embedding makes BF16 from tokens
}

TEST_CASE("a view has the precision of what it views") {
  watching device;
  model_builder builder{"view", input_kind::values, {2, 3, 4, 4}};
  builder.input().conv2d("conv", 4).flatten("flatten").linear("head", 3).cross_entropy_loss("loss");
  network<reference::device> net{device, builder.finish(), 1};
  const auto batch = uploaded<reference::device>(device, net.model(), random_batch(net.model(), 1));
  net.set_precision(with_low(net.graph(), {"conv", "head"}));
  net.forward(batch);
  CHECK(device.casts == std::map<std::string, int>{{"fp32>bf16", 1}, {"bf16>fp32", 1}});  // the image; the logits
  plan on_view{net.graph().size()};
  on_view[1] = precision::bf16;
  CHECK_THROWS_WITH_AS(net.set_precision(on_view),
                       "plan gives operator 1 (\"flatten\") bf16 (its precision cannot be chosen): leave it at fp32",
                       comp::plan_error);
}

TEST_CASE_FIXTURE(on_reference, "every plan gives the same loss and gradients where precision is only a tag") {
  const model m = native_models::gpt(
      {.batch = 2, .vocabulary = 9, .context = 5, .layers = 2, .width = 8, .heads = 2, .dropout = 0.1});
  network<reference::device> net{device, m, 1};
  const auto batch = uploaded(device, m, random_batch(m, 1));
  const auto run = [&](const plan& p) {
    net.set_precision(p);
    net.set_draws(0);
    net.zero_gradients();
    std::vector<double> all{net.forward(batch)};
    net.backward(batch);
    for (const reference::parameter* q : net.trainable()) all.insert(all.end(), q->gradient.begin(), q->gradient.end());
    return all;
  };
  const auto fp32 = run(plan{net.graph().size()});
  random_stream draws{1, 1};
  constexpr precision levels[] = {precision::fp32, precision::bf16, precision::fp16};
  for (int i = 0; i < 20; ++i) {
    plan p{net.graph().size()};
    for (std::size_t k = 0; k < p.size(); ++k) p[k] = levels[draws.below(3)];
    CAPTURE(p.str());
    const auto got = run(p);
    double worst = 0;
    for (std::size_t k = 0; k < got.size(); ++k) worst = std::max(worst, std::abs(got[k] - fp32[k]));
    CHECK(worst < 1e-12);  // sums in another order
  }
}

TEST_CASE("evaluation draws no dropout, uses running statistics and changes nothing") {
  watching device;
  model_builder builder{"net", input_kind::values, {6, 4}};
  builder.input()
      .linear("a", 5)
      .batch_norm("norm")
      .dropout("dropout", 0.5)
      .linear("head", 3)
      .cross_entropy_loss("loss");
  network<reference::device> net{device, builder.finish(), 1};
  const auto batch = uploaded<reference::device>(device, net.model(), random_batch(net.model(), 1));
  net.forward(batch);
  CHECK(device.dropouts == 1);
  CHECK(net.draws() == 1);
  const auto mean = device.values(net.parameters()[4]);
  CHECK(mean != std::vector<float>(5, 0.0F));
  const auto first = net.evaluate(batch);
  CHECK(net.evaluate(batch).loss == first.loss);
  CHECK(device.dropouts == 1);
  CHECK(net.draws() == 1);
  CHECK(device.values(net.parameters()[4]) == mean);
  CHECK(first.correct >= 0);
  CHECK(first.correct <= 6);
  CHECK_THROWS_AS(net.backward(batch), comp::error);
}

TEST_CASE_FIXTURE(on_reference, "an evaluation drops nothing of attention, and without dropout nothing is drawn") {
  const auto loss = [&](double dropout) {
    model_builder builder{"attending", input_kind::values, {2, 5, 8}};
    const value x = builder.input().linear("x", 8);
    x.attention("it", x, x, {.heads = 2, .dropout = dropout}).dropout("drop", dropout).mse_loss("loss");
    network<reference::device> net{device, builder.finish(), 1};
    net.forward(uploaded(device, net.model(), random_batch(net.model(), 1)));
    CHECK(net.draws() == (dropout > 0 ? 2 : 0));
    return net.evaluate(uploaded(device, net.model(), random_batch(net.model(), 1))).loss;
  };
  CHECK(loss(0.5) == loss(0));
}

TEST_CASE("padding ends a row of tokens, and tokens behind it are refused") {
  model_builder builder{"net", input_kind::tokens, {2, 2, 3}};
  builder.input().embedding("e", 7, 4).linear("head", 2).cross_entropy_loss("loss");
  const model m = builder.finish();
  const auto parts = [&](std::int32_t last) {
    return tokens_of(m, {.size = 2, .tokens = {1, 2, 3, 0, 1, -1, 4, 5, 6, 0, -1, last}});
  };
  CHECK(parts(-1).lengths == std::vector<std::int32_t>{2, 1});
  CHECK_THROWS_WITH_AS(parts(1), "tokens behind padding in example 1 of a batch (padding ends a row): check the reader",
                       comp::error);
}

TEST_CASE_FIXTURE(on_reference, "tokens, segments and labels that the model has no number for are refused") {
  model_builder builder{"net", input_kind::tokens, {1, 2, 2}};
  const value x = builder.input().embedding("e", 7, 4);
  x.add("sum", builder.input().embedding("s", 3, 4, op::looked_up::segments))
      .linear("head", 5)
      .cross_entropy_loss("loss");
  const model m = builder.finish();
  const auto refused = [&](std::int32_t token, std::int32_t segment, std::int32_t label, const char* why) {
    const host_batch batch{.size = 1, .tokens = {1, token, 0, segment}, .labels = {1, label}};
    CHECK_THROWS_WITH_AS(uploaded(device, m, batch), doctest::Contains(why), comp::error);
  };
  CHECK_NOTHROW(uploaded(device, m, {.size = 1, .tokens = {1, 6, 0, 2}, .labels = {-1, 4}}));
  refused(7, 2, 4, "token 7 in the data (model \"net\" has 7, from 0)");
  refused(-1, 2, 4, "token -1 in the data (tokens are not negative)");
  refused(6, 3, 4, "segment 3 in the data (model \"net\" has 3, from 0)");
  refused(6, 2, 5, "label 5 in the data (model \"net\" has 5, from 0)");
}

TEST_CASE_FIXTURE(on_reference, "operators on graphs read the matrix that they were given, whichever came before") {
  const sparse swap = model_builder::matrix({2, 2, {0, 1, 2}, {1, 0}, {2, 1}}),
               sum = model_builder::matrix({2, 2, {0, 2, 3}, {0, 1, 1}, {1, 1, 3}});
  model_builder builder{"net", input_kind::values, {2, 2}};
  builder.input().spmm("a", swap, false).spmm("b", sum, false).spmm("c", swap, false).mse_loss("loss");
  network<reference::device> net{device, builder.finish(), 1};
  const host_batch batch{.size = 2, .values = {1, 2, 3, 4}, .targets = {0, 0, 0, 0}};
  CHECK(net.matrix(0) == net.matrix(2));  // which lies on the Device once
  CHECK(net.matrix(0) != net.matrix(1));
  CHECK(net.evaluate(uploaded(device, net.model(), batch)).loss == (6 * 6 + 12 * 12 + 7 * 7 + 10 * 10) / 4.0);
}

TEST_CASE_FIXTURE(on_reference,
                  "an edge's score is of the node that it enters by the target's vector, and of the other") {
  const sparse swap = model_builder::matrix({2, 2, {0, 1, 2}, {1, 0}});
  model_builder builder{"net", input_kind::values, {2, 1}};
  builder.input().edge_scores("it", swap, 1).mse_loss("loss");
  network<reference::device> net{device, builder.finish(), 1};
  CHECK(net.model().parameters[0].name == "it.source");
  CHECK(net.model().parameters[1].name == "it.target");
  net.parameters()[0].value = {10};
  net.parameters()[1].value = {1};
  const host_batch batch{.size = 2, .values = {1, -2}, .targets = {0, 0}};
  const double first = 0.2F * (1 - 20), second = -2 + 10;  // the first leaks
  CHECK(net.evaluate(uploaded(device, net.model(), batch)).loss ==
        doctest::Approx((first * first + second * second) / 2).epsilon(1e-6));
}

TEST_CASE_FIXTURE(on_reference, "backward without a forward is refused") {
  const model m = native_models::mlp({.batch = 3, .input = {4}, .hidden = {}, .outputs = 3});
  network<reference::device> net{device, m, 1};
  const auto batch = uploaded(device, m, random_batch(m, 1));
  CHECK_THROWS_WITH_AS(
      net.backward(batch),
      "backward of \"mlp\" without a forward (2 operators have kept nothing): call forward() before each backward()",
      comp::error);
  net.forward(batch);
  net.backward(batch);
  CHECK_THROWS_AS(net.backward(batch), comp::error);  // nothing is kept behind it
}
