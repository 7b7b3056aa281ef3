// SPDX-License-Identifier: Apache-2.0
// What a user's step may hold beside plain modules: recomputation, TorchScript, a scheduler.
#include <torch/csrc/jit/frontend/tracer.h>
#include <torch/script.h>

#include <any>
#include <comp/comp.hpp>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <optional>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "program_support.hpp"
#include "torch_and_doctest.hpp"
#include "trainer_support.hpp"

using namespace libtorch_tests;
using comp::precision;

namespace {

/// A checkpoint of the user's own, as it is written without comp's.
struct own_checkpoint : torch::autograd::Function<own_checkpoint> {
  static at::Tensor forward(torch::autograd::AutogradContext* context, const at::Tensor& x, const at::Tensor& w) {
    context->save_for_backward({x, w});
    return torch::mm(x, w).tanh();
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    const at::AutoGradMode on{true};
    const auto x = saved[0].detach().requires_grad_(), w = saved[1].detach().requires_grad_();
    return torch::autograd::grad({torch::mm(x, w).tanh()}, {x, w}, {gradients[0]});
  }
};

/// 2x, by code that the dispatcher does not see and that knows contiguous FP32 only.
struct by_pointer : torch::autograd::Function<by_pointer> {
  static at::Tensor forward(torch::autograd::AutogradContext* /*context*/, const at::Tensor& x) {
    at::Tensor y = torch::empty(x.sizes());
    const float* from = x.const_data_ptr<float>();
    for (std::int64_t i = 0; i < x.numel(); ++i) y.mutable_data_ptr<float>()[i] = 2 * from[i];
    return y;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 const torch::autograd::variable_list& gradients) {
    return {gradients[0] * 2};
  }
};

/// A part with a weight in a module with another, dropout between them.
torch::jit::Module scripted_net() {
  torch::manual_seed(6);
  torch::jit::Module part{"part"};
  part.register_parameter("w", torch::randn({32, 8}) / 6, false);
  torch::jit::Module net{"net"};
  net.register_parameter("w", torch::randn({16, 32}) / 4, false);
  net.register_module("part", part);
  net.register_attribute("training", c10::BoolType::get(), true);
  net.define(R"(
    def forward(self, x):
        h = torch.relu(torch.mm(x, self.w) + 1)
        h = torch.dropout(h * 2 - 1, 0.5, self.training)
        return torch.softmax(torch.mm(h, self.part.w), 1)
  )");
  std::stringstream file;
  net.save(file);
  auto loaded = torch::jit::load(file);
  for (auto p : loaded.parameters()) p.requires_grad_();
  return loaded;
}

/// The same, traced: its parameters are those of `self`.
torch::jit::Module traced_net(const at::Tensor& x) {
  torch::jit::Module self{"traced"};
  torch::manual_seed(6);
  const auto w = torch::randn({16, 32}).requires_grad_(), v = torch::randn({32, 8}).requires_grad_();
  self.register_parameter("w", w, false);
  self.register_parameter("v", v, false);
  const auto forward = [=](torch::jit::Stack in) {
    const auto h = torch::relu(torch::mm(in[0].toTensor(), w) + 1);
    return torch::jit::Stack{torch::softmax(torch::mm(h * 2 - 1, v), 1)};
  };
  const auto traced = torch::jit::tracer::trace(
      {x}, forward, [](const at::Tensor&) { return std::string{}; }, true, false, &self);
  const auto method = self._ivalue()->compilation_unit()->create_function("forward", traced.first->graph);
  self.type()->addMethod(method);
  std::stringstream file;
  self.save(file);
  return torch::jit::load(file);
}

std::vector<at::Tensor> parameters_of(const torch::jit::Module& script) {
  std::vector<at::Tensor> all;
  for (const auto& p : script.parameters()) all.push_back(p);
  return all;
}

struct variable {  // of the environment, for a scope
  const char* name;
  variable(const char* called, const char* value) : name{called} { ::setenv(name, value, 1); }
  ~variable() { ::unsetenv(name); }
};

}  // namespace

TEST_CASE("what is run again in the backward is run as it was, under a plan, autocast, or nothing") {
  for (const std::string how : {"nothing", "plan", "kept weights", "autocast", "autocast's plan"}) {
    CAPTURE(how);
    std::vector<outcome> outcomes;
    std::vector<std::uint64_t> graphs;
    for (const bool again : {false, true}) {
      const job it = of_blocks(again);
      program p{{.device = device, .weights = how == "kept weights" ? lt::weight_casts::keep : lt::weight_casts::cast}};
      if (how != "nothing" && how != "autocast") {
        record(p, it);
        graphs.push_back(p.graph().fingerprint());
        const comp::plan low = everywhere(p.graph(), precision::bf16);
        p.set_plan(how == "autocast's plan" ? autocast_plan(p.graph()).as_autocast() : low);
      }
      torch::manual_seed(9);
      if (how == "autocast") {
        const job inside{it.model, [&] {
                           const lt::autocast_guard on{device.type(), at::kBFloat16};
                           return it.loss();
                         }};
        outcomes.push_back(train(inside, 3, nullptr));
      } else {
        outcomes.push_back(train(it, 3, how == "nothing" ? nullptr : &p));
      }
    }
    CHECK(same(outcomes[0], outcomes[1]));  // losses, weights, gradients, the random numbers that come next
    if (!graphs.empty()) CHECK(graphs[0] == graphs[1]);
  }
}

TEST_CASE("what is run again needs less memory, and reaches parameters although its input needs no gradient") {
  auto* const memory = lt::detail::counting_allocator::installed();
  REQUIRE(memory != nullptr);
  double peaks[2] = {};
  for (const bool again : {false, true}) {
    const job it = of_blocks(again, 4096);
    program p{{.device = device}};
    record(p, it);
    p.set_plan(everywhere(p.graph(), precision::bf16));
    const auto before = memory->current();
    memory->reset_peak();
    (void)train(it, 1, &p);
    peaks[again] = static_cast<double>(memory->peak() - before);
    CHECK(it.model->parameters()[0].grad().abs().sum().item<float>() > 0);
  }
  MESSAGE("peak ", peaks[0] / 1e6, " MB, with recomputation ", peaks[1] / 1e6);
  CHECK(peaks[1] < 0.7 * peaks[0]);
}

TEST_CASE("what cannot be run again as it was is named") {
  const job it = of_blocks(true);
  program p{{.device = device}};
  record(p, it);
  const comp::plan low = everywhere(p.graph(), precision::bf16);
  p.set_plan(low);
  const at::Tensor loss = inside(p, it.loss);
  p.set_plan(comp::plan{low.size()});
  CHECK_THROWS_WITH_AS(loss.backward(), doctest::Contains("is to be run again, and the plan has changed since"),
                       comp::error);

  const auto x = torch::ones({2, 2}), w = torch::ones({2, 2}).requires_grad_();
  CHECK(lt::checkpoint([](const at::Tensor& h) { return h; }, x).requires_grad());
  CHECK_FALSE(x.requires_grad());
  const auto y = lt::checkpoint([&](const at::Tensor& h) { return torch::mm(h, w); }, x);
  x.add_(1);
  CHECK_THROWS_WITH_AS(y.sum().backward(), doctest::Contains("input 0 of a checkpoint was written in place since"),
                       comp::error);
  const torch::NoGradGuard no_gradients;
  CHECK_FALSE(lt::checkpoint([&](const at::Tensor& h) { return torch::mm(h, w); }, x).requires_grad());
}

TEST_CASE("a trainer's times, errors and losses are those of a step that runs parts again") {
  std::vector<std::vector<double>> curves;
  for (const bool again : {false, true}) {
    torch::manual_seed(4);
    const auto net = std::make_shared<blocks>(again);
    torch::optim::SGD optimizer{net->parameters(), torch::optim::SGDOptions{0.05}};
    const auto x = torch::randn({64, 32});
    lt::setup setup{.modules = {{"net", *net}}, .optimizers = {&optimizer}};
    setup.choices = lt::executor_choices::fixed;
    lt::trainer trainer{
        setup, lt::tensor_batches(x, x, {.batch = 16}), [&](lt::step& s, const torch::data::Example<>& batch) {
          s.backward(s.forward([&] { return torch::mse_loss(net->forward(batch.data), batch.target); }));
          s.update(optimizer);
        }};
    const auto product = index_of(trainer.graph(), "net.block1.0.addmm");
    REQUIRE(product < trainer.graph().size());
    CHECK(trainer.sensitivity(precision::bf16)[product].gradient > 0);
    CHECK(trainer.profile()[product].backward > 0);
    trainer.set_precision(lowered(trainer.graph(), precision::bf16, "addmm"));
    torch::manual_seed(5);
    curves.push_back(trainer.run_epoch().curve);
  }
  CHECK(curves[0] == curves[1]);
}

TEST_CASE("a checkpoint of the user's own, and operators in any Function, run in FP32 both times") {
  torch::manual_seed(1);
  const auto a = torch::randn({8, 8}).requires_grad_(), w = torch::randn({8, 8}).requires_grad_();
  const auto x = torch::randn({4, 8});
  const auto gradient = [&](bool with_plan) {
    program p;
    const auto forward = [&] { return own_checkpoint::apply(torch::mm(x, a), w).sum(); };
    at::Tensor loss;
    if (with_plan) {
      loss = run_low(p, {"mm"}, forward);
      const auto at = index_of(p.graph(), "mm");
      CHECK(p.graph()[at].hands_on_fp32);
      CHECK_FALSE(p.graph()[index_of(p.graph(), "mm_2")].choosable);
    } else {
      const auto low = torch::mm(x.to(at::kBFloat16), a.to(at::kBFloat16)).to(at::kFloat);
      loss = own_checkpoint::apply(low, w).sum();
    }
    return torch::autograd::grad({loss}, {a, w});
  };
  const auto planned = gradient(true), expected = gradient(false);
  CHECK(same(planned[0], expected[0]));
  CHECK(same(planned[1], expected[1]));
}

TEST_CASE("a Function that reads by a pointer gets contiguous FP32") {
  torch::manual_seed(2);
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions{3, 8, 3}};
  const auto x = torch::randn({4, 3, 8, 8});
  const auto expected = conv->forward(x) * 2;
  for (const auto images : {lt::memory_format::as_is, lt::memory_format::channels_last}) {
    program p{{.images = images}};
    at::Tensor result;
    (void)run_low(p, {"conv2d"}, [&] { return (result = by_pointer::apply(conv->forward(x))).sum(); });
    CHECK(torch::allclose(result, expected, 0.02, 0.02));
  }
}

TEST_CASE("a TorchScript module runs under a plan in every forward as in the first") {
  const auto x = torch::randn({4, 16});
  for (const bool traced : {false, true}) {
    CAPTURE(traced);
    torch::jit::Module script = traced ? traced_net(x) : scripted_net();
    program p;
    p.name_parameters(script, "net");
    const auto forward = [&] { return script.forward({x}).toTensor().pow(2).sum(); };
    for (int i = 0; i < 3; ++i) forward().backward();  // TorchScript's executor has profiled and optimized it
    recorded(p, forward);
    CHECK(index_of(p.graph(), "net.mm") < p.graph().size());
    p.set_plan(everywhere(p.graph(), precision::bf16));
    std::vector<double> losses;
    for (int i = 0; i < 5; ++i) {
      if (i == 3) {
        for (int k = 0; k < 3; ++k) forward().backward();  // and again
      }
      torch::manual_seed(3);
      const at::Tensor loss = inside(p, forward);
      loss.backward();
      losses.push_back(loss.item<double>());
    }
    CHECK(losses == std::vector<double>(5, losses[0]));
    CHECK(p.problems().mismatches + p.problems().ended_early == 0);
    CHECK(torch::jit::getGraphExecutorOptimize());
    forward().backward();
  }
}

TEST_CASE(
    "a TorchScript function of no named module stays in FP32 if it was optimized, and is refused if it is later") {
  const auto x = torch::randn({8, 8}).requires_grad_();
  for (const bool before : {true, false}) {
    CAPTURE(before);
    const auto unit = torch::jit::compile("def f(x):\n    return torch.softmax(torch.mm(x, x.t()) * 2, 1).pow(2)\n");
    const auto forward = [&] { return unit->run_method("f", torch::mm(x, x)).toTensor().sum(); };
    const auto optimize = [&] {
      for (int i = 0; i < 3; ++i) forward().backward();
    };
    program p;
    if (before) optimize();
    recorded(p, forward);
    p.set_plan(everywhere(p.graph(), precision::bf16));
    CHECK(p.current_plan().count_low() == (before ? 2 : 6));
    if (!before) optimize();
    const auto trained = [&] { return inside(p, forward); };
    if (before) {
      trained().backward();
    } else {
      CHECK_THROWS_WITH(trained(), doctest::Contains("a TorchScript function that TorchScript has optimized (its "
                                                     "derivative is TorchScript's own, for the formats that it has "
                                                     "seen): name the module that has the function"));
    }
  }
}

TEST_CASE("a TorchScript module is a model of a trainer: names, state, mode") {
  torch::jit::Module script = scripted_net();
  torch::optim::SGD optimizer{parameters_of(script), torch::optim::SGDOptions{0.1}.momentum(0.9)};
  torch::manual_seed(8);
  const auto x = torch::randn({64, 16});
  const auto y = torch::randint(8, {64}, torch::kLong);
  bool trained_mode = false, scored_mode = true;
  lt::setup setup{.modules = {{"net", script}}, .optimizers = {&optimizer}};
  setup.choices = lt::executor_choices::fixed;
  lt::trainer trainer{setup, lt::tensor_batches(x, y, {.batch = 16}),
                      [&](lt::step& s, const torch::data::Example<>& batch) {
                        trained_mode = script.is_training();
                        s.backward(s.forward([&] {
                          return functional::nll_loss(script.forward({batch.data}).toTensor().log(), batch.target);
                        }));
                        s.update(optimizer);
                      },
                      [&] {
                        scored_mode = script.is_training();
                        return script.forward({x}).toTensor().sum().item<double>();
                      }};
  CHECK(index_of(trainer.graph(), "net.part.mm") < trainer.graph().size());
  trainer.set_precision(lowered(trainer.graph(), precision::bf16, "mm"));
  const auto before = trainer.save();
  const auto losses = trainer.run_epoch().curve;
  trainer.restore(before);
  CHECK(trainer.run_epoch().curve == losses);
  (void)trainer.validate();
  CHECK(trained_mode);
  CHECK_FALSE(scored_mode);
  CHECK(script.is_training());
}

TEST_CASE("a scheduler in the step is noticed once a restored state makes its rates others, and its recipe works") {
  using torch::optim::StepLR;
  for (const bool with_recipe : {false, true}) {
    CAPTURE(with_recipe);
    classification user;
    std::optional<StepLR> scheduler{std::in_place, user.optimizer, 3, 0.5};
    if (with_recipe) {
      user.setup.extra = {
          .save = [&] { return std::any{*scheduler}; },
          .restore = [&](const std::any& then) { scheduler.emplace(std::any_cast<const StepLR&>(then)); }};
    }
    classification_trainer trainer{user.setup, user.batches, [&](lt::step& s, const torch::data::Example<>& batch) {
                                     s.backward(s.forward([&] { return user.loss(batch); }));
                                     s.update(user.optimizer);
                                     scheduler->step();
                                   }};
    (void)trainer.graph();
    const auto before = trainer.save();
    const auto losses = [&] {
      std::vector<double> all;
      for (int i = 0; i < 7; ++i) all.push_back(trainer.run_batch().loss);
      return all;
    };
    if (with_recipe) {
      const auto first = losses();
      trainer.restore(before);
      CHECK(losses() == first);
      continue;
    }
    const auto twice = [&] {
      (void)losses();
      trainer.restore(before);
      (void)losses();
    };
    CHECK_THROWS_WITH_AS(twice(),
                         doctest::Contains("(a scheduler in the step counts steps by itself, and a restored state does "
                                           "not bring its count back): give setup::extra its save and restore"),
                         comp::settings_error);
  }
}

TEST_CASE("one of several ranks does not search, and says how ranks train with a plan") {
  classification user;
  const auto make = [&] { const classification_trainer trainer{user.setup, user.batches, user.make_step()}; };
  for (const char* const name : {"WORLD_SIZE", "OMPI_COMM_WORLD_SIZE"}) {
    const variable ranks{name, "2"};
    CHECK_THROWS_WITH_AS(make(), doctest::Contains("in one of several ranks (" + doctest::String(name) + " is 2;"),
                         comp::settings_error);
  }
  const variable one{"WORLD_SIZE", "1"};
  CHECK_NOTHROW(make());
}
