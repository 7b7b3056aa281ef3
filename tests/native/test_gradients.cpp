// SPDX-License-Identifier: Apache-2.0
#include <doctest/doctest.h>

#include <algorithm>
#include <cmath>
#include <comp_native/network.hpp>
#include <cstddef>
#include <examples/models/native/models.hpp>
#include <random>
#include <vector>

#include "each_operator.hpp"
#include "reference_device.hpp"

using namespace comp::native;
using namespace comp::native::testing;

namespace {

/// Compares the gradient of every parameter of `m` that `phase` trains with central differences along three directions
/// drawn at random, which have a part of each element. Returns: the largest difference, relative to the root of the
/// gradient's mean square.
double worst_difference(const model& m, std::size_t phase = 0) {
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
  std::mt19937_64 dice{seed};
  for (reference::parameter* p : net.trained_by(phase)) {
    const std::vector<double> gradient = p->gradient, value = p->value;
    const double elements = static_cast<double>(value.size());
    for (int k = 0; k < 3; ++k) {
      std::vector<double> direction(value.size());
      double slope = 0, squares = 0;
      for (std::size_t i = 0; i < value.size(); ++i) {
        direction[i] = (dice() % 2 == 0 ? 1 : -1) / std::sqrt(elements);
        slope += gradient[i] * direction[i];
        squares += gradient[i] * gradient[i];
      }
      const auto loss_at = [&](double step) {
        for (std::size_t i = 0; i < value.size(); ++i) p->value[i] = value[i] + step * direction[i];
        return loss();
      };
      constexpr double h = tolerance::difference_step;
      const double difference = (loss_at(h) - loss_at(-h)) / (2 * h) - slope;
      // A bias before a norm has no gradient.
      const double scale = std::max(std::sqrt(squares / elements), tolerance::smallest_gradient);
      worst = std::max(worst, std::abs(difference) / scale);
    }
    p->value = value;
  }
  return worst;
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
}  // namespace

TEST_CASE("the gradient of each operator is the slope of the loss") {
  for (const auto& [name, m] : each_operator()) {
    CAPTURE(name);
    CHECK(worst_difference(m) < tolerance::difference);
  }
}

TEST_CASE("the gradient of a merged and scaled product whose left side alone has heads is the slope of the loss") {
  model_builder net{"product", input_kind::values, {2, 5, 10}};
  const value x = net.input(), scores = x.linear("q", 10).attention_scores("scores", x.linear("k", 10), 2);
  x.linear("v", 10).bmm("it", scores, {.heads_a = 2, .merge = true, .alpha = 0.5}).mse_loss("loss");
  CHECK(worst_difference(net.finish()) < tolerance::difference);
}

TEST_CASE("the gradient of attention with dropout is the slope of the loss") {
  model_builder net{"attention", input_kind::values, {2, 5, 6}};
  const value x = net.input();
  x.linear("q", 6).attention("it", x.linear("k", 6), x.linear("v", 6), {.heads = 3, .dropout = 0.3}).mse_loss("loss");
  CHECK(worst_difference(net.finish()) < tolerance::difference);
}

TEST_CASE("each phase's gradients are the slopes of its own loss, and of what it trains alone") {
  const model m = small_gan(4);
  CHECK(worst_difference(m, 0) < tolerance::difference);
  CHECK(worst_difference(m, 1) < tolerance::difference);
  reference::device device;
  network<reference::device> net{device, m, 3};
  CHECK(net.trained_by(0).size() + net.trained_by(1).size() == net.trainable().size());
  const auto batch = uploaded(device, m, random_batch(m, 3));
  const auto gradients_of = [&](std::size_t phase) {
    std::vector<std::vector<double>> all;
    for (const reference::parameter* p : net.trained_by(phase)) all.push_back(p->gradient);
    return all;
  };
  const auto judges = gradients_of(1);
  net.forward(batch, 0);
  net.backward(batch, 1, 0);
  CHECK(gradients_of(1) == judges);
  const auto makers = gradients_of(0);
  net.forward(batch, 1);
  net.backward(batch, 1, 1);
  CHECK(gradients_of(0) == makers);
  CHECK(gradients_of(1) != judges);
}

TEST_CASE_FIXTURE(on_reference, "padding has no part in loss and gradients, whatever its tokens are") {
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
    const double result = net.forward(there);
    net.zero_gradients();
    net.backward(there);
    return std::pair{result, net.trainable()[0]->gradient};
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

TEST_CASE_FIXTURE(on_reference, "labels below zero have no part in the loss") {
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
