// SPDX-License-Identifier: Apache-2.0
// The doctor: faults that are found by name, others, on the same code, in python/test_doctor.py; sound models without
// one, and two runs that part.

#include <algorithm>
#include <cmath>
#include <comp/doctor/difference.hpp>
#include <comp/doctor/examination_text.hpp>
#include <comp/doctor/history_text.hpp>
#include <comp_libtorch/doctor/doctor.hpp>

#include "program_support.hpp"
#include "torch_and_doctest.hpp"

namespace {

using comp::fault;
using comp::fault_kind;

/// A step of `loss` over `model`, examined.
comp::examination examined(torch::nn::Module& model, const std::function<torch::Tensor()>& loss,
                           comp::doctor_settings settings = {}) {
  comp::doctor doctor{{{"net", model}}, settings};
  torch::Tensor value;
  {
    const auto on = doctor.examine();
    value = loss();
  }
  if (value.requires_grad()) value.backward();
  return doctor.finish();
}

/// A sound net of two layers with a place for a fault between them.
struct faulty : torch::nn::Module {
  torch::nn::Linear first = register_module("first", torch::nn::Linear(16, 16));
  torch::nn::Linear second = register_module("second", torch::nn::Linear(16, 4));
  torch::Tensor x = torch::randn({8, 16}), y = torch::randint(4, {8}, torch::kLong);

  comp::examination with(auto fault) {
    return examined(*this,
                    [&] { return torch::nn::functional::cross_entropy(second->forward(fault(first->forward(x))), y); });
  }
};

std::string words(const std::vector<fault>& found) {
  std::string text;
  for (const fault& f : found) text += f.text + "\n";
  return text;
}
void check_first(const comp::examination& examination, fault_kind kind, const std::string& name,
                 bool backward = false) {
  const auto found = comp::faults(examination);
  INFO(words(found));
  REQUIRE(!found.empty());
  CHECK(found.front().kind == kind);
  CHECK(found.front().name == name);
  CHECK(found.front().backward == backward);
}

}  // namespace

TEST_CASE("faults are found by the name of the operator that has them") {
  torch::manual_seed(3);
  faulty net;
  SUBCASE("the logarithm of 0") {
    check_first(net.with([](auto h) { return torch::relu(h).log(); }), fault_kind::infinity, "net.first.log");
  }
  SUBCASE("an exponential that FP16 cannot hold") {
    check_first(net.with([](auto h) { return torch::exp(h.abs() + 11.5).div(1e5); }), fault_kind::overflow,
                "net.first.exp");
  }
  SUBCASE("an eps that is 0 in FP16") {
    check_first(net.with([](auto h) { return h / (h.pow(2).mean(-1, true) + 1e-8).sqrt(); }), fault_kind::constant,
                "net.first.add");
  }
  SUBCASE("gradients that vanish in FP16, whatever the loss scale") {
    check_first(net.with([](auto h) { return h + (h * 1e-14 * torch::ones({})).tanh() * 1e-3; }), fault_kind::underflow,
                "net.first.mul");
    check_first(net.with([](auto h) { return h.detach() + h.mul(1e-13) * 1.0; }), fault_kind::underflow,
                "net.first.mul", false);
  }
  SUBCASE("a weight with an infinity") {
    {
      const torch::NoGradGuard no_gradients;
      net.second->weight.index_put_({1, 2}, std::numeric_limits<float>::infinity());
    }
    check_first(net.with([](auto h) { return h; }), fault_kind::infinity, "net.second.weight");
  }
  SUBCASE("a slope that is infinite") {
    check_first(net.with([](auto h) { return h + torch::relu(h).sqrt(); }), fault_kind::infinity, "net.first.sqrt",
                true);
  }
}

TEST_CASE("a module that differs between two runs is named, and so is a parameter") {
  torch::manual_seed(3);
  faulty net;
  const auto plain = net.with([](auto h) { return torch::gelu(h); });
  const auto again = net.with([](auto h) { return torch::gelu(h); });
  CHECK(comp::compared(plain, again, 0).first() == nullptr);
  const auto parted = comp::compared(plain, net.with([](auto h) { return torch::gelu(h * 1.01); }));
  REQUIRE(parted.first() != nullptr);
  CHECK(parted.first()->name == "net.first.gelu");
  CHECK(parted.only_second == std::vector<std::string>{"net.first.mul"});
  {
    const torch::NoGradGuard no_gradients;
    net.second->bias.add_(0.5);
  }
  const auto moved = comp::compared(plain, net.with([](auto h) { return torch::gelu(h); }));
  REQUIRE(moved.first() != nullptr);
  CHECK(moved.first()->name == "net.second.bias");
}

TEST_CASE("sound models have no fault, and what they compute stays the same") {
  torch::manual_seed(5);
  for (const auto& [model, loss] : {mlp(), conv_net(), transformer()}) {
    torch::manual_seed(7);
    loss().backward();
    std::vector<torch::Tensor> plain;
    for (auto& p : model->parameters()) {
      plain.push_back(p.grad().clone());
      p.mutable_grad().reset();
    }
    torch::manual_seed(7);
    const auto examination = examined(*model, loss);
    const auto found = comp::faults(examination);
    INFO(words(found));
    CHECK(found.empty());
    const auto parameters = model->parameters();
    for (std::size_t i = 0; i < plain.size(); ++i) CHECK(torch::equal(plain[i], parameters[i].grad()));
  }
}

TEST_CASE("a mask of -inf is no fault, and what is behind it is none either") {
  torch::manual_seed(3);
  faulty net;
  const auto found = comp::faults(net.with([](auto h) {
    const auto mask = torch::full({8, 16}, -std::numeric_limits<double>::infinity()).triu(1);
    return (h + mask).softmax(-1);
  }));
  INFO(words(found));
  CHECK(found.empty());
}

TEST_CASE("values, names, order and errors in the low precision are those of the step") {
  torch::manual_seed(3);
  faulty net;
  net.x = torch::randn({64, 16});
  net.y = torch::randint(4, {64}, torch::kLong);
  const auto examination = net.with([](auto h) { return h.relu_(); });
  std::vector<std::string> names;
  for (const auto& each : examination.entries) names.push_back(each.name);
  CHECK(names == std::vector<std::string>{"net.first.weight", "net.first.bias", "input of net.first.addmm",
                                          "net.first.addmm", "net.first.relu", "net.second.weight", "net.second.bias",
                                          "net.second.addmm", "net.second.cross_entropy_loss"});
  const auto& relu = examination.entries[4];
  const auto h = net.first->forward(net.x).relu();
  CHECK(relu.values.values == 64 * 16);
  CHECK(relu.values.zeros == static_cast<std::uint64_t>(h.eq(0).sum().item<std::int64_t>()));
  CHECK(relu.values.largest == h.max().item<float>());
  CHECK(relu.inputs == std::vector<std::size_t>{3});
  CHECK(examination.entries[8].backward == 1);
  CHECK(examination.entries[3].backward == 4);
  const auto& product = examination.entries[3];  // of weight and bias: the batch needs no gradient
  CHECK(product.gradients.values == 16 * 16 + 16);
  CHECK(product.gradients.largest ==
        std::max(net.first->weight.grad().abs().max().item<float>(), net.first->bias.grad().abs().max().item<float>()));
  CHECK(product.error > 1e-4);
  CHECK(product.error < 1e-2);
}

TEST_CASE("FP64 and complex values are examined, finite where they are, and FP64 beside FP32 if that is asked for") {
  torch::manual_seed(3);
  faulty net;
  net.to(torch::kDouble);
  net.x = net.x.to(torch::kDouble);
  const auto examination = net.with([](auto h) { return torch::complex(h, h.relu().log()).abs(); });
  check_first(examination, fault_kind::infinity, "net.first.log");
  const auto in_fp32 = examined(net, [&] { return net.second->forward(net.first->forward(net.x)).sum(); },
                                {.low = comp::precision::fp32});
  const auto layer = std::ranges::find_if(in_fp32.entries, [](const auto& each) { return each.error > 0; });
  REQUIRE(layer != in_fp32.entries.end());
  CHECK(layer->error > 1e-9);
  CHECK(layer->error < 1e-5);
  const auto at = std::ranges::find(examination.entries, "net.first.complex", &comp::examined::name);
  REQUIRE(at != examination.entries.end());
  CHECK(at->values.values == 2 * 8 * 16);
  CHECK(at->values.infinities > 0);
  for (const auto& fault : comp::faults(net.with([](auto h) { return (h.abs() + 1e300).log(); })))
    CHECK(fault.kind > fault_kind::infinity);
}

TEST_CASE("without a share of the time no operator is run again") {
  faulty net;
  const auto examination =
      examined(net, [&] { return net.second->forward(net.first->forward(net.x)).sum(); }, {.share = 0});
  CHECK(std::ranges::all_of(examination.entries, [](const auto& each) { return std::isnan(each.error); }));
}

TEST_CASE("what a doctor is not for is refused in a sentence") {
  faulty net;
  CHECK_THROWS_WITH_AS((comp::doctor{{{"net", net}}, {.low = precision::fp8_e4m3}}),
                       doctest::Contains("doctor for fp8_e4m3"), comp::settings_error);
  CHECK_THROWS_AS((comp::doctor{{{"net", net}}, {.share = -1}}), comp::settings_error);
}

TEST_CASE("an examined step moves batch norm's running statistics once") {
  torch::manual_seed(3);
  torch::nn::Sequential plain{torch::nn::BatchNorm2d{32}};
  const auto net = std::dynamic_pointer_cast<torch::nn::SequentialImpl>(plain->clone());
  const auto x = torch::randn({16, 32, 16, 16});
  plain->forward(x);
  (void)examined(*net, [&] { return net->forward(x).sum(); });
  for (const auto& expected : plain->named_buffers())
    CHECK(torch::equal(net->named_buffers()[expected.key()], expected.value()));
}

namespace {

/// Twenty steps of stochastic gradient descent on `trained` parameters, examined.
comp::history twenty_steps(faulty& net, std::vector<torch::Tensor> trained, bool clears, double rate = 0.1) {
  torch::optim::SGD optimizer{std::move(trained), rate};
  comp::doctor doctor{{{"net", net}}, {.share = 0, .many_steps = true}};
  for (std::size_t i = 0; i < 20; ++i) {
    torch::Tensor loss;
    if (clears) optimizer.zero_grad();
    const auto x = torch::randn({8, 16});
    {
      const auto on = doctor.examine();
      loss = torch::nn::functional::cross_entropy(net.second->forward(torch::relu(net.first->forward(x))), net.y);
    }
    loss.backward();
    optimizer.step();
    doctor.end_step({.loss = loss, .optimizers = {&optimizer}, .batch = {x, net.y}, .batch_number = i});
  }
  return doctor.history();
}

}  // namespace

TEST_CASE("many steps have no finding if they are sound, and name what raises nothing if not") {
  torch::manual_seed(3);
  faulty net;
  const auto only = [](const comp::history& h) {
    const auto found = comp::faults(h);
    INFO(words(found));
    REQUIRE(found.size() == 1);
    return found[0];
  };
  SUBCASE("sound") {
    const auto history = twenty_steps(net, net.parameters(), true);
    INFO(words(comp::faults(history)));
    CHECK(comp::faults(history).empty());
    CHECK(comp::numbers(history).at("net.first.addmm/nvfp4 gradient flush") > 0);
    CHECK(history.parameters().at("net.first.weight").updates == 20);
  }
  SUBCASE("gradients are never cleared") {
    CHECK(only(twenty_steps(net, net.parameters(), false, 1e-3)).kind == fault_kind::old_gradient);
  }
  SUBCASE("the optimizer lacks a layer") {
    const auto found = only(twenty_steps(net, net.second->parameters(), true));
    CHECK(found.kind == fault_kind::no_optimizer);
    CHECK(found.name == "net.first.bias");
  }
  SUBCASE("the model is in evaluation mode, which matters to no operator here") {
    net.eval();
    CHECK(comp::faults(twenty_steps(net, net.parameters(), true)).empty());
  }
  SUBCASE("end_step() needs copies of the weights") {
    comp::doctor doctor{{{"net", net}}};
    CHECK_THROWS_WITH_AS(doctor.end_step(),
                         "end_step() of a doctor for one step (it has no copies of the weights): give it "
                         "doctor_settings{.many_steps = true}",
                         comp::settings_error);
  }
}
