// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <cmath>
#include <comp_native/network.hpp>
#include <examples/models/native/models.hpp>
#include <functional>

#include "graphs.hpp"
#include "reference_device.hpp"
#include "support.hpp"

using namespace comp::native;
using namespace comp::native::testing;

namespace {

/// Compares the gradient of every parameter of `m` that `phase` trains, at most `elements` of each, with central
/// differences. Returns: the largest difference, relative to the largest gradient of its parameter.
double worst_difference(const model& m, std::size_t elements = 40, std::size_t phase = 0) {
  constexpr std::uint64_t seed = 3;
  reference::device device;
  network<reference::device> net{device, m, seed};
  const auto batch = uploaded(device, net.model(), random_batch(m, seed));
  const auto loss = [&] {
    net.set_draws(0);
    for (std::size_t before = 0; before < phase; ++before) net.forward(batch, before);
    return net.forward(batch, phase);
  };
  loss();
  net.zero_gradients(phase);
  net.backward(batch, 1, phase);
  double worst = 0;
  for (reference::parameter* p : net.trained_by(phase)) {
    const std::vector<double> gradient = p->gradient;
    double largest = tolerance::smallest_gradient;  // a bias before a norm has none
    for (const double g : gradient) largest = std::max(largest, std::abs(g));
    for (std::size_t i = 0; i < gradient.size(); i += gradient.size() / elements + 1) {
      const double value = p->value[i], h = tolerance::difference_step;
      p->value[i] = value + h;
      const double above = loss();
      p->value[i] = value - h;
      const double below = loss();
      p->value[i] = value;
      worst = std::max(worst, std::abs((above - below) / (2 * h) - gradient[i]) / largest);
    }
  }
  return worst;
}

/// Ends a network of values in a loss that weighs every element differently.
model judged(model_builder& net, value y) {
  y.mse_loss("loss");
  return net.finish();
}

model small_bert(double dropout) {
  return native_models::bert({.batch = 3,
                              .length = 6,
                              .layers = 1,
                              .width = 8,
                              .heads = 2,
                              .vocabulary = 11,
                              .positions = 7,
                              .dropout = dropout,
                              .attention_dropout = dropout});
}
struct case_of_images {
  std::string name;
  std::function<value(value)> build;
};

}  // namespace

TEST_CASE("the gradient of each operator on images is the slope of the loss") {
  const case_of_images cases[] = {
      {"conv2d 3x3", [](value x) { return x.conv2d("it", 4, {.padding = 1}); }},
      {"conv2d strided", [](value x) { return x.conv2d("it", 4, {.kernel = 2, .stride = 2}); }},
      {"conv2d dilated", [](value x) { return x.conv2d("it", 2, {.padding = 2, .dilation = 2, .bias = false}); }},
      {"conv2d in groups", [](value x) { return x.conv2d("it", 6, {.padding = 1, .groups = 3}); }},
      {"batch_norm", [](value x) { return x.batch_norm("it"); }},
      {"layer_norm", [](value x) { return x.layer_norm("it"); }},
      {"relu", [](value x) { return x.relu("it"); }},
      {"gelu", [](value x) { return x.gelu("it"); }},
      {"gelu_tanh", [](value x) { return x.gelu_tanh("it"); }},
      {"tanh", [](value x) { return x.tanh("it"); }},
      {"sigmoid", [](value x) { return x.sigmoid("it"); }},
      {"elu", [](value x) { return x.elu("it"); }},
      {"leaky_relu", [](value x) { return x.leaky_relu("it"); }},
      {"dropout", [](value x) { return x.dropout("it", 0.4); }},
      {"max_pool2d", [](value x) { return x.max_pool2d("it"); }},
      {"max_pool2d overlapping",
       [](value x) {
         return x.max_pool2d("it", {{3, 3}, {2, 2}, {1, 1}});
       }},
      {"avg_pool2d", [](value x) { return x.avg_pool2d("it"); }},
      {"avg_pool2d padded",
       [](value x) {
         return x.avg_pool2d("it", {{3, 3}, {2, 1}, {1, 1}});
       }},
      {"adaptive_avg_pool2d",
       [](value x) {
         return x.adaptive_avg_pool2d("it", {3, 2});
       }},
      {"flatten", [](value x) { return x.flatten("it"); }},
      {"add", [](value x) { return x.add("it", x.tanh("other")); }},
      {"add of itself", [](value x) { return x.add("it", x); }},
      {"mul", [](value x) { return x.mul("it", x.sigmoid("other")); }},
      {"linear over the last axis", [](value x) { return x.linear("it", 3); }},
      {"softmax", [](value x) { return x.softmax("it"); }},
      {"causal softmax", [](value x) { return x.softmax("it", op::softmax_mask::causal); }},
      {"log_softmax", [](value x) { return x.log_softmax("it"); }},
      {"bmm", [](value x) { return x.bmm("it", x.tanh("other")); }},
      {"bmm transposed", [](value x) { return x.bmm("it", x.tanh("other"), {.transpose_b = true, .alpha = 0.3}); }},
  };
  for (const auto& each : cases) {
    CAPTURE(each.name);
    model_builder net{each.name, input_kind::values, {3, 2, 5, 5}};
    const value x = net.input().conv2d("before", 3, {.kernel = 2, .padding = 0, .bias = true});
    const value y = each.build(x);
    CHECK(worst_difference(judged(net, y)) < tolerance::difference);
  }
}

TEST_CASE("the gradient of each operator on rows is the slope of the loss") {
  const auto rows = [](auto build) {
    model_builder net{"rows", input_kind::values, {4, 5}};
    build(net.input().linear("before", 6));
    return worst_difference(net.finish());
  };
  CHECK(rows([](value x) { x.linear("it", 3, {.bias = false}).mse_loss("loss"); }) < tolerance::difference);
  CHECK(rows([](value x) { x.batch_norm("it").mse_loss("loss"); }) < tolerance::difference);
  CHECK(rows([](value x) { x.cross_entropy_loss("loss"); }) < tolerance::difference);
  CHECK(rows([](value x) { x.log_softmax("it").nll_loss("loss"); }) < tolerance::difference);
}

TEST_CASE("the gradient of attention with heads is the slope of the loss") {
  model_builder net{"attention", input_kind::tokens, {2, 5}};
  const value x = net.input()
                      .embedding("tokens", 7, 6)
                      .add("sum", net.input().embedding("positions", 5, 6, op::looked_up::positions));
  const value scores = x.linear("query", 6).attention_scores("scores", x.linear("key", 6), 3);
  CHECK(scores.shape() == shape{2, 3, 5, 5});
  const value context =
      scores.softmax("softmax", op::softmax_mask::causal).attention_context("context", x.linear("value", 6), 3);
  CHECK(context.shape() == shape{2, 5, 6});
  context.cross_entropy_loss("loss");
  CHECK(worst_difference(net.finish()) < tolerance::difference);
}

TEST_CASE("the gradient of attention in one operator is the slope of the loss") {
  for (const attention_options& o : {attention_options{.heads = 2, .mask = op::softmax_mask::causal},
                                     attention_options{.heads = 3, .dropout = 0.3}}) {
    model_builder net{"attention", input_kind::values, {2, 5, 6}};
    const value x = net.input();
    x.linear("q", 6).attention("it", x.linear("k", 6), x.linear("v", 6), o).mse_loss("loss");
    CHECK(worst_difference(net.finish()) < tolerance::difference);
  }
}

TEST_CASE("the gradient of a whole network is the slope of its loss") {
  SUBCASE("MLP") {
    CHECK(worst_difference(native_models::mlp({.batch = 3, .input = {7}, .hidden = {9, 5}, .outputs = 4})) <
          tolerance::difference);
  }
  SUBCASE("LeNet-5") { CHECK(worst_difference(native_models::lenet5({.batch = 2}), 6) < tolerance::difference); }
  SUBCASE("a convolutional net with batch norm and a residual") {
    model_builder net{"residual", input_kind::values, {4, 3, 8, 8}};
    const value stem = net.input().conv2d("stem.conv", 4, {.padding = 1}).batch_norm("stem.norm").relu("stem.relu");
    const value branch = stem.conv2d("block.conv", 4, {.padding = 1}).batch_norm("block.norm");
    branch.add("block.add", stem)
        .relu("block.relu")
        .adaptive_avg_pool2d("pool", {1, 1})
        .flatten("flatten")
        .linear("head", 5)
        .cross_entropy_loss("loss");
    CHECK(worst_difference(net.finish()) < tolerance::difference);
  }
  SUBCASE("GCN with dropout") {
    model m = small_gcn(community_set());
    for (parameter_info& p : m.parameters) {
      if (p.shape.size() == 1) p.initial.scale = 0.1;  // a node without features is at ReLU's kink else
    }
    CHECK(worst_difference(m) < tolerance::difference);
  }
  SUBCASE("GAT with dropout") { CHECK(worst_difference(small_gat(community_set())) < tolerance::difference); }
  SUBCASE("BERT with dropout and padding") { CHECK(worst_difference(small_bert(0.2)) < tolerance::difference); }
  SUBCASE("GPT with dropout") {
    CHECK(worst_difference(native_models::gpt(
              {.batch = 2, .vocabulary = 11, .context = 6, .layers = 2, .width = 8, .heads = 2, .dropout = 0.2})) <
          tolerance::difference);
  }
}

TEST_CASE("each phase's gradients are the slopes of its own loss, and of what it trains alone") {
  const model m = small_gan(4);
  CHECK(worst_difference(m, 40, 0) < tolerance::difference);
  CHECK(worst_difference(m, 40, 1) < tolerance::difference);
  reference::device device;
  network<reference::device> net{device, m, 3};
  CHECK(net.trained_by(0).size() + net.trained_by(1).size() == net.trainable().size());
  const auto batch = uploaded(device, m, random_batch(m, 3));
  const auto seen = [&](std::size_t phase) {
    std::vector<std::vector<double>> all;
    for (const reference::parameter* p : net.trained_by(phase)) all.push_back(p->gradient);
    return all;
  };
  const auto judges = seen(1);
  net.forward(batch, 0);
  net.backward(batch, 1, 0);
  CHECK(seen(1) == judges);
  const auto makers = seen(0);
  net.forward(batch, 1);
  net.backward(batch, 1, 1);
  CHECK(seen(0) == makers);
  CHECK(seen(1) != judges);
}

TEST_CASE("padding has no part in loss and gradients, whatever its tokens are") {
  reference::device device;
  const model m = small_bert(0.2);
  network<reference::device> net{device, m, 3};
  const auto step = [&](const host_batch& batch) {
    const auto there = uploaded(device, m, batch);
    net.set_draws(0);
    const double loss = net.forward(there);
    net.zero_gradients();
    net.backward(there);
    std::vector<std::vector<double>> all{{loss}};
    for (const reference::parameter* p : net.trainable()) all.push_back(p->gradient);
    return all;
  };
  host_batch batch = random_batch(m, 1);
  const auto before = step(batch);
  const std::size_t length = 6;
  std::size_t changed = 0;
  for (std::size_t i = 0; i < batch.tokens.size() / length; i += 2) {
    for (std::size_t t = 0; t < length; ++t) {
      if (batch.tokens[(i + 1) * length + t] >= 0) continue;
      batch.tokens[i * length + t] = (batch.tokens[i * length + t] + 3) % 11;
      ++changed;
    }
  }
  CHECK(changed == 3);
  CHECK(step(batch) == before);
}

TEST_CASE("an example that is all padding and has no labels leaves the others' loss and gradients as they are") {
  reference::device device;
  const model m = small_bert(0);
  network<reference::device> net{device, m, 3};
  host_batch batch = random_batch(m, 1);
  const auto loss = [&](const host_batch& of) {
    const auto there = uploaded(device, m, of);
    const double seen = net.forward(there);
    net.zero_gradients();
    net.backward(there);
    return std::pair{seen, net.trainable()[0]->gradient};
  };
  for (std::size_t t = 6; t < 12; ++t) batch.tokens[t] = -1;
  batch.labels[0] = batch.labels[1] = -1;
  const auto with = loss(batch);
  CHECK(std::isfinite(with.first));
  host_batch others = batch;
  others.size = 2;
  others.tokens.erase(others.tokens.begin(), others.tokens.begin() + 12);
  others.labels.erase(others.labels.begin(), others.labels.begin() + 2);
  const auto without = loss(others);
  CHECK(with.first == doctest::Approx(without.first).epsilon(1e-12));
  for (std::size_t i = 0; i < with.second.size(); ++i) {
    CHECK(with.second[i] == doctest::Approx(without.second[i]).epsilon(1e-9));
  }
}

TEST_CASE("labels below zero have no part in the loss") {
  reference::device device;
  const model m = native_models::mlp({.batch = 3, .input = {4}, .hidden = {}, .outputs = 4});
  network<reference::device> net{device, m, 1};
  host_batch batch = random_batch(m, 1);
  const auto alone = [&](std::size_t kept) {
    host_batch one = batch;
    for (std::size_t i = 0; i < 3; ++i) one.labels[i] = i == kept ? batch.labels[i] : -1;
    return net.forward(uploaded(device, m, one));
  };
  const double mean = (alone(0) + alone(1) + alone(2)) / 3;
  CHECK(net.forward(uploaded(device, m, batch)) == doctest::Approx(mean).epsilon(1e-12));
}

TEST_CASE("a gradient check notices a gradient that is off by a thousandth") {
  struct off_by_little : reference::device {
    tensor activate_backward(activation kind, const tensor& dy, const tensor& x, const tensor& y) {
      tensor dx = reference::device::activate_backward(kind, dy, x, y);
      for (double& v : dx.values()) v *= 1.001;
      return dx;
    }
  };
  off_by_little device;
  const model m = native_models::mlp({.batch = 3, .input = {7}, .hidden = {9}, .outputs = 4});
  network<off_by_little> wrong{device, m, 3};
  network<reference::device> right{device, m, 3};
  const auto batch = random_batch(m, 3);
  const auto gradient = [&](auto& net, auto& on) {
    const auto there = uploaded(on, m, batch);
    net.forward(there);
    net.backward(there);
    return net.trainable()[0]->gradient;
  };
  const auto a = gradient(wrong, device);
  const auto b = gradient(right, static_cast<reference::device&>(device));
  double difference = 0, largest = 0;
  for (std::size_t i = 0; i < a.size(); ++i) {
    difference = std::max(difference, std::abs(a[i] - b[i]));
    largest = std::max(largest, std::abs(b[i]));
  }
  CHECK(difference > 1000 * tolerance::difference * largest);
}
