// SPDX-License-Identifier: Apache-2.0
// What a plan does on a CUDA device alone. NDEBUG as in LibTorch's release: at::RecordFunction, which shows what the
// dispatcher does, has more members without it.
#include <ATen/record_function.h>

#include <algorithm>
#include <comp_libtorch/hook/autocast_guard.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "program_support.hpp"
#include "torch_and_doctest.hpp"

namespace {

namespace functional = torch::nn::functional;

std::vector<std::pair<std::string, bool>> seen_products;  // in the order in which they run, and whether TF32 was on

struct watched_products {
  at::CallbackHandle handle = at::addGlobalCallback(
      at::RecordFunctionCallback{[](const at::RecordFunction& f) -> std::unique_ptr<at::ObserverContext> {
        const std::string name = f.name();
        if (name == "aten::addmm" || name == "aten::mm")
          seen_products.emplace_back(name, at::globalContext().allowTF32CuBLAS());
        return nullptr;
      }}.scopes({at::RecordScope::FUNCTION}));
  watched_products() { seen_products.clear(); }
  ~watched_products() { at::removeCallback(handle); }
};

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
  using seen = decltype(seen_products);
  CHECK(seen_products == seen{{"aten::addmm", false},  // as the model calls it, before the plan has its say
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
