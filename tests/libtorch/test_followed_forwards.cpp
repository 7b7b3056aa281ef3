// SPDX-License-Identifier: Apache-2.0
// A plan over forwards that are not as the recorded one: they skip, repeat, insert and add operators.

#include <numeric>

#include "program_support.hpp"
#include "torch_and_doctest.hpp"
#include "trainer_support.hpp"

namespace {

using comp::libtorch::on_mismatch;

/// Layers that are alike, of which a forward takes those that are asked for, in that order.
struct layers : torch::nn::Module {
  explicit layers(int count) {
    for (int i = 0; i < count; ++i) {
      norms.push_back(
          register_module("norm" + std::to_string(i), torch::nn::LayerNorm{torch::nn::LayerNormOptions{{16}}}));
      all.push_back(register_module("layer" + std::to_string(i), torch::nn::Linear{16, 16}));
    }
    head = register_module("head", torch::nn::Linear{16, 4});
  }
  /// The formats that the layers' products have, and the head's last.
  torch::Tensor forward(torch::Tensor h, const std::vector<int>& order) {
    formats.clear();
    for (const int i : order) {
      const auto product = all[static_cast<std::size_t>(i)]->forward(norms[static_cast<std::size_t>(i)]->forward(h));
      formats.push_back(product.scalar_type());
      h = h + torch::dropout(torch::gelu(product), 0.1, is_training());
    }
    const auto out = head->forward(h);
    formats.push_back(out.scalar_type());
    return out.pow(2).mean();
  }
  std::vector<torch::nn::LayerNorm> norms;
  std::vector<torch::nn::Linear> all;
  torch::nn::Linear head = nullptr;
  std::vector<at::ScalarType> formats = {};
};

/// Every other layer is low, and the head.
struct recorded_layers {
  explicit recorded_layers(int count, std::vector<int> order = {}) : net{std::make_shared<layers>(count)} {
    if (order.empty()) {
      order.resize(static_cast<std::size_t>(count));
      std::iota(order.begin(), order.end(), 0);
    }
    p.name_parameters(*net, "net");
    p.record(true);
    (void)run(order);
    p.record(false);
    comp::plan chosen{p.graph().size()};
    for (std::size_t i = 0; i < chosen.size(); ++i) {
      const auto& name = p.graph()[i].name;
      if (name.ends_with("addmm") && (name.find("head") != std::string::npos || (name[9] - '0') % 2 == 1))
        chosen[i] = precision::bf16;
    }
    plan = chosen;
    p.set_plan(chosen);
  }
  torch::Tensor run(const std::vector<int>& order) {
    const auto region = p.enter();
    return net->forward(x, order);
  }
  static at::ScalarType format_of(int layer) { return layer % 2 == 1 ? at::kBFloat16 : at::kFloat; }

  std::shared_ptr<layers> net;
  program p;
  comp::plan plan;
  torch::Tensor x = torch::randn({8, 16});
};

}  // namespace

TEST_CASE("layers that are left out, repeated and turned around keep the precisions of their own") {
  recorded_layers it{6};
  for (const std::vector<int>& order : std::vector<std::vector<int>>{{0, 1, 2, 3, 4, 5},
                                                                     {1, 2, 3, 4, 5},
                                                                     {0, 2, 4},
                                                                     {1, 3, 5},
                                                                     {0, 1},
                                                                     {5},
                                                                     {},
                                                                     {0, 1, 2, 3, 4, 5, 0, 1, 2, 3, 4, 5},
                                                                     {3, 3, 3, 2, 2},
                                                                     {5, 4, 3, 2, 1, 0}}) {
    std::vector<at::ScalarType> expected;
    for (const int i : order) expected.push_back(recorded_layers::format_of(i));
    expected.push_back(at::kBFloat16);
    it.run(order).backward();
    CHECK(bool{it.net->formats == expected});
  }
  CHECK(it.p.problems().unknown == 0);
  CHECK(it.p.problems().mismatches + it.p.problems().ended_early == 0);
}

TEST_CASE("several forwards in one region, and one that ends early, each have the plan") {
  recorded_layers it{4};
  const auto region = it.p.enter();
  for (int step = 1; step <= 4; ++step) {
    std::vector<int> order(static_cast<std::size_t>(step));
    std::iota(order.begin(), order.end(), 0);
    it.net->forward(it.x, order);
    for (int i = 0; i < step; ++i)
      CHECK(bool{it.net->formats[static_cast<std::size_t>(i)] == recorded_layers::format_of(i)});
    CHECK(bool{it.net->formats.back() == at::kBFloat16});
  }
}

TEST_CASE("under a plan of FP32 a forward that differs has the bits that it has without one") {
  recorded_layers it{4};
  it.p.set_plan(comp::plan{it.plan.size()});
  for (const std::vector<int>& order : std::vector<std::vector<int>>{{0, 2}, {3, 1}, {0, 1, 2, 3, 3}, {}}) {
    const auto gradients_of = [&](bool planned) {
      torch::manual_seed(3);
      it.net->zero_grad();
      const auto loss = planned ? it.run(order) : it.net->forward(it.x, order);
      loss.backward();
      std::vector<torch::Tensor> all{loss.detach()};
      for (const auto& parameter : it.net->parameters()) {
        if (parameter.grad().defined()) all.push_back(parameter.grad().clone());
      }
      return all;
    };
    const auto plain = gradients_of(false), planned = gradients_of(true);
    REQUIRE(plain.size() == planned.size());
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK(same(plain[i], planned[i]));
  }
}

TEST_CASE("a layer that the recorded forward left out runs as most of its kind, and is told") {
  recorded_layers it{5, {1, 3}};  // both low
  it.run({0, 1, 2, 3, 4});
  for (const auto format : it.net->formats) CHECK(bool{format == at::kBFloat16});
  CHECK(it.p.problems().unknown >= 3);
  CHECK(it.p.problems().first.find("was not in the recorded forward: it runs in") != std::string::npos);
  it.p.clear_problems();
  it.run({1, 3});
  CHECK(it.p.problems().unknown == 0);
}

TEST_CASE("a cast that a model inserts because a format changed is followed") {
  const auto net = std::make_shared<torch::nn::LinearImpl>(8, 8);
  const auto second = std::make_shared<torch::nn::LinearImpl>(8, 8);
  const auto x = torch::randn({4, 8});
  program p;
  p.name_parameters(*net, "first");
  p.name_parameters(*second, "second");
  at::ScalarType got = at::kFloat;
  const auto forward = [&] {
    auto h = net->forward(x);
    got = h.scalar_type();
    if (h.dtype() != second->weight.dtype()) h = h.to(second->weight.dtype());  // as T5 has it
    return second->forward(h).relu();
  };
  const auto out = run_low(p, {"first.addmm"}, forward);
  CHECK(bool{got == at::kBFloat16});
  CHECK(bool{out.scalar_type() == at::kFloat});
  CHECK(p.problems().mismatches == 0);
}

TEST_CASE("a recurrence of another length has the plan of the recorded one") {
  const auto cell = std::make_shared<torch::nn::LinearImpl>(8, 8);
  program p;
  p.name_parameters(*cell, "cell");
  std::vector<at::ScalarType> formats;
  const auto forward = [&](int length) {
    formats.clear();
    auto h = torch::ones({2, 8});
    for (int i = 0; i < length; ++i) {
      h = cell->forward(h);
      formats.push_back(h.scalar_type());
      h = torch::tanh(h);
    }
    return h.sum();
  };
  run_low(p, {"cell.addmm", "cell.addmm_2", "cell.addmm_3"}, [&] { return forward(3); });
  for (const int length : {1, 2, 3, 7}) {
    const torch::Tensor loss = inside(p, [&] { return forward(length); });
    loss.backward();
    CHECK(bool{formats == std::vector<at::ScalarType>(static_cast<std::size_t>(length), at::kBFloat16)});
  }
  CHECK(p.problems().unknown == 0);
}

TEST_CASE("parameters that were put in others' places are taken by what stands beside them") {
  recorded_layers it{4};
  for (auto& layer : it.net->all) layer->weight = torch::randn({16, 16}).requires_grad_();
  it.run({0, 1, 2, 3}).backward();
  for (int i = 0; i < 4; ++i)
    CHECK(bool{it.net->formats[static_cast<std::size_t>(i)] == recorded_layers::format_of(i)});
}

TEST_CASE("a checkpoint in a forward that skips layers is run again as it was") {
  recorded_layers it{4};
  const auto values = [&](const std::vector<int>& order) {
    it.net->zero_grad();
    it.run(order).backward();
    return it.net->head->weight.grad().clone();
  };
  it.net->eval();
  CHECK(same(values({0, 3}), values({0, 3})));
}

TEST_CASE("another model in the region of a program is an error of the step") {
  libtorch_tests::classification user;
  torch::nn::Sequential other{torch::nn::Flatten{}, torch::nn::Linear{192, 8}, torch::nn::Tanh{},
                              torch::nn::Linear{8, 4}};
  bool mistaken = false;
  libtorch_tests::classification_trainer trainer{
      user.setup, user.batches, [&](libtorch_tests::lt::step& s, const torch::data::Example<>& batch) {
        auto& net = mistaken ? other : user.net;
        const auto l = s.forward(
            [&] { return libtorch_tests::functional::cross_entropy(net->forward(batch.data), batch.target); });
        s.backward(l);
        s.update(user.optimizer);
      }};
  trainer.set_precision(libtorch_tests::lowered(trainer.graph(), precision::bf16));
  CHECK(trainer.run_batch().ok());
  mistaken = true;
  CHECK_THROWS_WITH_AS(trainer.run_batch(),
                       doctest::Contains("train the model that was recorded, or set on_mismatch::fp32"), comp::error);
}
