// SPDX-License-Identifier: Apache-2.0
// Networks and their training on the device that tested_device.hpp names.
#include <doctest/doctest.h>

#include <comp_native/trainer.hpp>
#include <cstdlib>
#include <examples/models/native/models.hpp>

#include "../graphs.hpp"
#include "../reference_device.hpp"
#include "../support.hpp"
#include "tested_device.hpp"

using namespace comp::native;
using namespace comp::native::testing;
using comp::plan;
using comp::precision;
using comp::sample;
using device_trainer = trainer<comp::tested::device>;

static_assert(comp::Backend<device_trainer>);

namespace {

namespace tested = comp::tested;

struct step_of_network {
  double loss = 0;
  std::vector<std::vector<float>> gradients = {};  // of each trainable parameter
};

/// One forward and backward of `m` on `device` under `p`.
template <class D>
step_of_network step(D& device, const model& m, const plan& p, std::uint64_t seed = 3) {
  network<D> net{device, m, seed};
  net.set_precision(p.empty() ? plan{net.graph().size()} : p);
  const auto batch = uploaded(device, net.model(), random_batch(m, seed));
  step_of_network result;
  for (std::size_t phase = 0; phase < m.phases.size(); ++phase) {
    result.loss += net.forward(batch, phase);
    net.backward(batch, 1, phase);
  }
  for (const auto* q : net.trainable()) result.gradients.push_back(device.gradient(*q));
  return result;
}

/// The 2-norm of the difference of all gradients, relative to that of `exact`.
double distance(const step_of_network& got, const step_of_network& exact) {
  double difference = 0, whole = 0;
  for (std::size_t i = 0; i < exact.gradients.size(); ++i) {
    for (std::size_t k = 0; k < exact.gradients[i].size(); ++k) {
      difference += std::pow(static_cast<double>(got.gradients[i][k]) - exact.gradients[i][k], 2);
      whole += std::pow(static_cast<double>(exact.gradients[i][k]), 2);
    }
  }
  return std::sqrt(difference / whole);
}

std::vector<std::pair<std::string, model>> whole_models() {
  return {
      {"MLP", native_models::mlp({.batch = 6, .input = {17}, .hidden = {33, 9}, .outputs = 5})},
      {"LeNet-5", native_models::lenet5({.batch = 3})},
      {"AlexNet for CIFAR", native_models::alexnet({.batch = 2, .dropout = 0.2})},
      {"GPT", native_models::gpt(
                  {.batch = 3, .vocabulary = 19, .context = 11, .layers = 2, .width = 24, .heads = 3, .dropout = 0.1})},
      {"GPT, attention in one",
       native_models::gpt(
           {.batch = 2, .vocabulary = 13, .context = 6, .layers = 1, .width = 16, .heads = 2, .one_attention = true})},
      {"GCN", small_gcn(community_set())},
      {"GAT", small_gat(community_set())},
      {"SimpleNet", native_models::simple_net({.batch = 4, .layers = 3, .width = 12})},
      {"BERT", native_models::bert({.batch = 3,
                                    .length = 17,
                                    .layers = 2,
                                    .width = 24,
                                    .heads = 3,
                                    .vocabulary = 19,
                                    .positions = 20,
                                    .attention_dropout = 0.1})},
      {"GAN", small_gan(48)},
  };
}

struct on_networks {
  tested::device on = tested::of_networks();
};

/// Two layers of one width, whose products are separate.
model separated() {
  model m = native_models::mlp({.batch = 6, .input = {17}, .hidden = {16, 16}, .outputs = 5});
  m.separate_products = true;
  return m;
}
plan with_low(const model& m, std::initializer_list<std::string_view> names, precision p) {
  const auto graph = graph_of(m);
  plan choice{graph.size()};
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (std::ranges::find(names, std::string_view{graph[i].name}) != names.end()) choice[i] = p;
  }
  return choice;
}

TEST_CASE("products that have one precision give the bits of layers that are whole") {
  tested::device on = tested::reproducible();
  model whole = separated();
  whole.separate_products = false;
  for (const precision p : {precision::fp32, precision::bf16}) {
    CAPTURE(comp::name(p));
    const auto apart = step(on, separated(), everywhere(separated(), p)), one = step(on, whole, everywhere(whole, p));
    CHECK(apart.loss == one.loss);
    CHECK(apart.gradients == one.gradients);
  }
}

TEST_CASE("a product's precision changes what it makes, and nothing else") {
  tested::device on = tested::reproducible();
  const model m = separated();
  const auto fp32 = step(on, m, {});
  const auto changed = [&](std::string_view name) {  // which gradients, by parameter: three layers' weights and biases
    const auto low = step(on, m, with_low(m, {name}, precision::bf16));
    CHECK(low.loss == fp32.loss);
    CHECK(distance(low, fp32) < tolerance::network(precision::bf16));
    std::string which;
    for (std::size_t i = 0; i < fp32.gradients.size(); ++i) which += low.gradients[i] == fp32.gradients[i] ? '-' : 'x';
    return which;
  };
  CHECK(changed("layer1.linear.weight_gradient") == "--xx--");  // a bias is summed from what the product reads
  CHECK(changed("layer1.linear.input_gradient") == "xx----");
  CHECK(changed("head.input_gradient") == "xxxx--");
}

TEST_CASE_FIXTURE(on_networks, "whole networks in FP32 agree with the FP64 reference") {
  reference::device exact;
  for (const auto& [name, m] : whole_models()) {
    if (name == "AlexNet for CIFAR") continue;  // minutes in naive loops
    CAPTURE(name);
    const auto got = step(on, m, {}), want = step(exact, m, {});
    CHECK(std::abs(got.loss - want.loss) <= tolerance::fp32 * std::abs(want.loss));
    CHECK(distance(got, want) < tolerance::fp32);
  }
}

TEST_CASE_FIXTURE(on_networks, "any mixed plan trains close to FP32") {
  random_stream draws{1, 1};
  constexpr precision levels[] = {precision::fp32, precision::bf16, precision::fp16};
  for (const auto& [name, m] : whole_models()) {
    const auto graph = graph_of(m);
    const auto fp32 = step(on, m, {});
    for (int i = 0; i < (tested::thrift > 1 || std::getenv("COMP_TEST_SMALL") != nullptr ? 2 : 4); ++i) {
      plan p{graph.size()};
      for (std::size_t k = 0; k < p.size(); ++k) {
        if (graph[k].choosable) p[k] = levels[draws.below(3)];
      }
      CAPTURE(name);
      CAPTURE(p.str());
      const auto got = step(on, m, p);
      CHECK(std::abs(got.loss - fp32.loss) <= tolerance::network(precision::bf16) * std::abs(fp32.loss));
      CHECK(distance(got, fp32) < tolerance::network(precision::bf16));
    }
  }
}

/// A training, how many epochs of it, and the scores that it may begin with at most and has to end above.
struct lesson {
  const char* what;
  model net;
  data_source train, held_out;
  training how;
  int epochs;
  double before, after;
};
model stages() {
  model_builder net{"stages", input_kind::values, {16, 3, 16, 16}};
  value x = net.input();
  for (int i = 0; i < 3; ++i) {
    const auto name = [i](const char* kind) { return fmt::format("stage{}.{}", i, kind); };
    x = x.conv2d(name("conv"), 16, {.padding = 1}).batch_norm(name("norm")).relu(name("relu")).max_pool2d(name("pool"));
  }
  x.flatten("flatten").linear("head", 4).cross_entropy_loss("loss");
  return net.finish();
}
TEST_CASE("LeNet-5, a convolutional net with batch norm and a transformer learn in every precision") {
  tested::device on = tested::of_networks();
  const std::int64_t few = tested::thrift > 1 ? 4 : 8;
  const auto images = bars({1, 28, 28}, 4, 256 / tested::thrift, 1), small = bars({3, 16, 16}, 4, 96, 1);
  const auto tokens = counting_tokens(11, static_cast<std::size_t>(260 * few), 16);
  for (const lesson& each : std::initializer_list<lesson>{
           {"LeNet-5", native_models::lenet5({.batch = 32 / tested::thrift, .classes = 4}), images,
            bars({1, 28, 28}, 4, 64, 2), training{.optimizer = sgd(0.05, 0.9)}, 8, 0.6, 0.9},
           {"batch norm", stages(), small, small, training{.optimizer = sgd(0.02, 0.9)}, 5, 0.6, 0.9},
           {"a transformer",
            native_models::gpt({.batch = few, .vocabulary = 11, .context = 16, .layers = 2, .width = 32, .heads = 2}),
            tokens, tokens, training{.optimizer = adamw(5e-3), .schedule = {.warmup = 5}, .clip_norm = 1}, 6, -1.2,
            -0.6}}) {
    for (const precision p : {precision::fp32, precision::bf16, precision::fp16}) {
      CAPTURE(each.what);
      CAPTURE(comp::name(p));
      device_trainer t{on, each.net, each.train, each.held_out, each.how};
      t.set_precision(everywhere(t.model(), p));
      CHECK(t.validate() < each.before);
      for (int i = 0; i < each.epochs; ++i) CHECK(t.run_epoch().ok());
      CHECK(t.validate() > each.after);
    }
  }
}

TEST_CASE_FIXTURE(on_networks, "a BF16 plan needs less memory than FP32, and an epoch leaves nothing behind") {
  const std::int64_t batch = tested::thrift > 1 ? 8 : 16;
  const auto images = bars({3, 32, 32}, 10, 16, 1);
  const auto peak = [&](precision p) {
    model_builder net{"thin", input_kind::values, {batch, 3, 32, 32}};
    value x = net.input();
    for (int i = 0; i < 4; ++i) {
      x = x.conv2d(fmt::format("conv{}", i), 16, {.padding = 1})
              .batch_norm(fmt::format("norm{}", i))
              .relu(fmt::format("relu{}", i));
    }
    x.flatten("flatten").linear("head", 10).cross_entropy_loss("loss");
    device_trainer t{on, net.finish(), images, images, {.optimizer = sgd(0.01, 0.9)}};
    t.set_precision(everywhere(t.model(), p));
    for (int i = 0; i < 3; ++i) t.run_batch();  // until weights and their copies lie as the primitives want them
    const auto live = on.live_bytes();
    const sample got = t.run_batch();
    CHECK(on.live_bytes() == live);
    CHECK(got.peak_bytes > live);
    {
      const std::vector saved{t.save(), t.save(), t.save()};
      CHECK(on.live_bytes() > live);
      CHECK(t.run_batch().peak_bytes == got.peak_bytes);  // what a search saves is no need of the training
    }
    CHECK(t.run_batch().peak_bytes == got.peak_bytes);
    return got.peak_bytes - live;
  };
  const auto fp32 = peak(precision::fp32), bf16 = peak(precision::bf16);
  CHECK(static_cast<double>(bf16) < 0.7 * static_cast<double>(fp32));
  const auto kept = on.live_bytes();
  CHECK((tested::keeps_scratch || kept == 0));
  (void)peak(precision::fp32);
  CHECK(on.live_bytes() == kept);
}

}  // namespace

#ifndef COMP_TESTED_ON_GPU  // whose memory is as large as it is

TEST_CASE("a plan that does not fit into memory is out of memory, and the trainer goes on") {
  tested::device on = tested::with_memory(std::size_t{24} << 20);
  const auto images = bars({3, 32, 32}, 10, 64, 1);
  model_builder net{"wide", input_kind::values, {32, 3, 32, 32}};
  net.input()
      .conv2d("conv1", 64, {.padding = 1})
      .relu("relu")
      .conv2d("conv2", 64, {.padding = 1})
      .max_pool2d("pool")
      .flatten("flatten")
      .linear("head", 10)
      .cross_entropy_loss("loss");
  device_trainer t{on, net.finish(), images, images};
  const auto saved = t.save();
  CHECK_THROWS_AS(t.run_batch(), comp::out_of_memory);
  t.restore(saved);
  CHECK(on.live_bytes() < std::int64_t{16} << 20);
}
#endif
