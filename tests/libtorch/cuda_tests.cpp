// SPDX-License-Identifier: Apache-2.0
// What a plan does on a CUDA device alone. NDEBUG as in LibTorch's release: at::RecordFunction, which shows what the
// dispatcher does, has more members without it.
#include <ATen/record_function.h>
#include <c10/core/CachingDeviceAllocator.h>

#include <algorithm>
#include <cmath>
#include <comp/policy/pytorch.hpp>
#include <comp_libtorch/hook/autocast_guard.hpp>
#include <comp_libtorch/kernels/scaled_linear.hpp>
#include <comp_libtorch/train/planned_region.hpp>
#include <comp_libtorch/train/trainer.hpp>
#include <limits>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "../scratch.hpp"
#include "program_support.hpp"
#include "torch_and_doctest.hpp"

namespace {

namespace functional = torch::nn::functional;

std::vector<std::pair<std::string, bool>> seen_products;  // in the order in which they run, and whether TF32 was on

struct watched_products {
  at::CallbackHandle handle = at::addGlobalCallback(
      at::RecordFunctionCallback{[](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
        const std::string name = f.name();
        if (name == "aten::addmm" || name == "aten::mm" || name == "aten::_scaled_mm")
          seen_products.emplace_back(name, at::globalContext().allowTF32CuBLAS());
        return nullptr;
      }}.scopes({at::RecordScope::FUNCTION}));
  watched_products() { seen_products.clear(); }
  ~watched_products() { at::removeCallback(handle); }
  static std::size_t in_fp8() {
    return static_cast<std::size_t>(
        std::ranges::count(seen_products, "aten::_scaled_mm", &std::pair<std::string, bool>::first));
  }
};

bool multiplies_fp8() { return comp::libtorch::multiplies_itself(precision::fp8_e4m3, device); }

torch::Tensor in_fp8(const torch::Tensor& x, const torch::Tensor& w, const std::optional<torch::Tensor>& b = {}) {
  return comp::libtorch::detail::scaled_linear::apply(x, w, b, comp::product_precisions{precision::fp8_e4m3});
}
double off(const torch::Tensor& a, const torch::Tensor& b) { return ((a - b).norm() / b.norm()).item<double>(); }

/// A layer's result and gradients, which are on `at`.
std::vector<torch::Tensor> layer_results(c10::Device at, const std::vector<torch::Tensor>& xwbd) {
  const auto copy = [&](std::size_t i) { return xwbd[i].to(at).detach().requires_grad_(); };
  const torch::Tensor x = copy(0), w = copy(1), b = copy(2);
  const auto y = in_fp8(x, w, b);
  y.backward(xwbd[3].to(at));
  std::vector<torch::Tensor> all{y.detach(), x.grad(), w.grad(), b.grad()};
  for (torch::Tensor& t : all) t = t.to(torch::kCPU, torch::kDouble);
  return all;
}
/// x, w, b and y's gradient.
std::vector<torch::Tensor> layer_inputs(std::int64_t rows, std::int64_t inputs, std::int64_t outputs) {
  return {torch::randn({rows, inputs}).to(torch::kBFloat16), torch::randn({outputs, inputs}), torch::randn({outputs}),
          torch::randn({rows, outputs}).to(torch::kBFloat16)};
}

}  // namespace

TEST_CASE("TF32 is on in the forward and the backward of the operators that have it, and in no other") {
  torch::manual_seed(7);
  const job it = mlp(2);
  program p{{.device = device}};
  record(p, it);
  comp::plan chosen{p.graph().size()};
  const auto first = std::ranges::find(p.graph(), "aten::addmm", &comp::op_info::kind);
  chosen[static_cast<std::size_t>(first - p.graph().begin())] = precision::tf32;
  p.set_plan(chosen);
  const watched_products watched;
  train(it, 1, &p);
  seen_products.erase(std::ranges::unique(seen_products).begin(), seen_products.end());  // once for each dispatch key
  using calls = decltype(seen_products);
  CHECK(seen_products == calls{{"aten::addmm", false},  // as the model calls it, before the plan has its say
                               {"aten::addmm", true},
                               {"aten::addmm", false},
                               {"aten::mm", false},
                               {"aten::mm", true}});
  CHECK_FALSE(at::globalContext().allowTF32CuBLAS());
}

TEST_CASE("cross_entropy in FP32 reads low logits; CUDA's autocast rounds the log-probabilities, and a plan does not") {
  torch::manual_seed(3);
  const auto x = torch::randn({64, 32}, device), w = torch::randn({32, 1000}, device);
  const auto logits = torch::mm(x.to(torch::kBFloat16), w.to(torch::kBFloat16));
  const auto labels = torch::randint(1000, {64}, torch::kLong).to(device);
  const auto loss_of = [&](const at::Tensor& log_probabilities) {
    return torch::nll_loss(log_probabilities.to(torch::kFloat), labels).item<double>();
  };
  const double exact = loss_of(torch::log_softmax(logits.to(torch::kFloat), 1));
  const double rounded = loss_of(torch::log_softmax(logits, 1));
  REQUIRE(exact != rounded);

  const auto cross_entropy = [&] { return functional::cross_entropy(torch::mm(x, w), labels); };
  {
    const comp::libtorch::autocast_guard on{device.type(), torch::kBFloat16};
    CHECK(cross_entropy().item<double>() == rounded);  // torch 2.11
  }
  program p{{.device = device}};
  CHECK(run_low(p, {"mm"}, cross_entropy).item<double>() == exact);
}

TEST_CASE("a GPU multiplies E4M3 itself in each product whose sizes it takes, and gives what the emulation gives") {
  if (!multiplies_fp8()) return;
  torch::manual_seed(5);
  struct layer {
    std::int64_t rows, inputs, outputs;
    std::size_t of_device;
  };
  for (const layer& each :
       {layer{48, 80, 64, 3}, {1, 32, 16, 2}, {47, 80, 64, 2}, {48, 80, 60, 1}, {16, 32, 1, 1}, {48, 40, 64, 0}}) {
    CAPTURE(each.rows);
    CAPTURE(each.inputs);
    CAPTURE(each.outputs);
    const auto given = layer_inputs(each.rows, each.inputs, each.outputs);
    const auto emulated = layer_results(torch::kCPU, given);
    const watched_products watched;
    const auto own = layer_results(device, given);
    CHECK(watched.in_fp8() == each.of_device);
    for (std::size_t i = 0; i < own.size(); ++i) {
      CAPTURE(i);
      CHECK(off(own[i], emulated[i]) < 4e-3);  // a bias is rounded to BF16, and a GPU's sums have fewer bits
    }
  }
}

TEST_CASE("a bias in FP8's products may have gaps, or one element for all") {
  if (!multiplies_fp8()) return;
  torch::manual_seed(9);
  const auto given = layer_inputs(16, 32, 16);
  const auto wide = torch::randn({32}).to(torch::kBFloat16);
  for (const torch::Tensor& bias : {wide.slice(0, 0, 32, 2), wide.slice(0, 0, 1), wide.slice(0, 0, 1).expand({16})}) {
    const auto y = [&](c10::Device at) {
      const auto moved = bias.stride(0) == 1 ? bias.to(at) : wide.to(at).as_strided(bias.sizes(), bias.strides());
      return in_fp8(given[0].to(at), given[1].to(at), moved).to(torch::kCPU, torch::kDouble);
    };
    CHECK(off(y(device), y(torch::kCPU)) < 4e-3);
  }
}

TEST_CASE("a plan file whose FP8 has to be emulated on a GPU is warned of, and other formats want to be forced") {
  using namespace torch::nn;
  if (!multiplies_fp8()) return;
  const scratch folder;
  const std::string path = folder / "plan.json";
  Sequential net{Linear{32, 33}};
  net->to(device);
  const auto x = torch::randn({16, 32}, device);
  program p{{.device = device}};
  record(p, {net.ptr(), [&] { return net->forward(x).sum(); }});
  const auto loaded = [&](precision low, bool forced) {
    comp::plan chosen{p.graph().size()};
    chosen[index_of(p.graph(), "0.addmm")] = low;
    comp::save(chosen, p.graph(), comp::libtorch::probe(device), path);
    comp::libtorch::planned_region planned{{{"", *net}}, path, {.forced = forced}};
    for (int step = 0; step < 2; ++step) inside(planned, [&] { (void)net->forward(x); });
    return planned.warnings();
  };
  CHECK(loaded(precision::fp8_e4m3, false) ==
        std::vector<std::string>{"\"" + path +
                                 "\" gives 1 linear layers, or products of them, a format that this GPU's units do not "
                                 "multiply in these sizes (16 has to divide rows, inputs and outputs): they are "
                                 "emulated, slowly"});
  CHECK(loaded(precision::mxfp8, true).empty());
  CHECK_THROWS_WITH_AS(loaded(precision::fp8_e5m2, false),
                       ("\"" + path +
                        "\" gives an operator fp8_e5m2 (LibTorch only emulates it on this GPU): search again on this "
                        "machine, or set planned_settings::forced")
                           .c_str(),
                       comp::plan_error);
}

TEST_CASE("a layer that the GPU multiplies keeps a byte of each input, and does not keep the input") {
  if (!multiplies_fp8()) return;
  const auto x = torch::randn({48, 80}, device).to(torch::kBFloat16);
  const auto w = torch::randn({64, 80}, device).requires_grad_();
  const auto y = in_fp8(x, w);
  REQUIRE(y.requires_grad());
  CHECK(x.storage().use_count() == 1);
}

TEST_CASE("a layer that the GPU multiplies keeps no copy of its weight, however often it is called") {
  if (!multiplies_fp8()) return;
  auto* const memory = dynamic_cast<c10::DeviceAllocator*>(c10::GetAllocator(device.type()));
  REQUIRE(memory != nullptr);
  const auto held = [&] {
    const auto all = static_cast<std::size_t>(c10::CachingAllocator::StatType::AGGREGATE);
    return memory->getDeviceStats(0).allocated_bytes[all].current;
  };
  const auto x = torch::randn({16, 512}, device).to(torch::kBFloat16);
  const auto w = torch::randn({512, 512}, device).requires_grad_();
  std::vector<torch::Tensor> results;
  const std::int64_t before = held();
  for (int call = 0; call < 8; ++call) results.push_back(in_fp8(x, w));
  CHECK(held() - before < 2 * w.numel());  // eight copies would be four times as much
}

TEST_CASE("FP8 on a GPU of zeros is exact, and what is not finite stays so") {
  if (!multiplies_fp8()) return;
  auto given = layer_inputs(32, 32, 16);
  given[2] = given[2].to(torch::kBFloat16).to(torch::kFloat);
  given[0].zero_();
  const auto zeros = layer_results(device, given);
  CHECK(torch::equal(zeros[0], given[2].to(torch::kBFloat16).to(torch::kDouble).expand({32, 16})));
  CHECK(zeros[2].abs().max().item<double>() == 0);
  for (const float bad : {std::numeric_limits<float>::infinity(), std::numeric_limits<float>::quiet_NaN()}) {
    given[0] = torch::randn({32, 32}).to(torch::kBFloat16);
    given[0][3][5] = bad;
    const auto results = layer_results(device, given);
    const auto expected = layer_results(torch::kCPU, given);
    for (const std::size_t i : {0, 1, 2}) CHECK(torch::equal(results[i].isnan(), expected[i].isnan()));
    CHECK(results[0].isnan().sum().item<std::int64_t>() == 16);
  }
}

TEST_CASE("a trainer on a GPU with units for FP8 has it for the linear layers whose sizes they take") {
  using namespace torch::nn;
  if (!multiplies_fp8()) return;
  torch::manual_seed(6);
  Sequential net{Linear{48, 64}, ReLU{}, Linear{64, 4}};
  net->to(device);
  torch::optim::SGD optimizer{net->parameters(), torch::optim::SGDOptions{0.05}};
  const auto x = torch::randn({64, 48}, device), y = torch::randint(4, {64}, torch::kLong).to(device);
  comp::libtorch::trainer trainer{
      {.modules = {{"net", net}}, .optimizers = {&optimizer}, .choices = comp::libtorch::executor_choices::fixed},
      comp::libtorch::tensor_batches(x, y, {.batch = 16, .seed = 1}),
      [&](comp::libtorch::step& s, const auto& batch) {
        auto loss = s.forward([&] { return functional::cross_entropy(net->forward(batch.data), batch.target); });
        s.backward(loss);
        s.update(optimizer);
      }};
  const auto supported = trainer.supported_precisions();
  CHECK(std::ranges::count_if(supported, comp::is_scaled) == 1);
  const std::size_t first = index_of(trainer.graph(), "net.0.addmm"), last = index_of(trainer.graph(), "net.2.addmm");
  for (std::size_t i = 0; i < trainer.graph().size(); ++i)
    CHECK(trainer.supports(trainer.graph()[i], precision::fp8_e4m3) == (i == first));
  comp::plan by_hand{trainer.graph().size()};
  by_hand[first] = precision::mxfp8;
  CHECK_THROWS_AS(trainer.set_precision(by_hand), comp::plan_error);
  by_hand[first] = precision::fp8_e4m3;
  by_hand[last] = precision::fp8_e4m3;  // emulated, but for its weight's gradient
  trainer.set_precision(by_hand);
  {
    const watched_products watched;
    CHECK(std::isfinite(trainer.run_batch().loss));
    CHECK(watched.in_fp8() == 3);  // two of the first layer, as nobody wants the gradient of x, and one of the last
  }
}
