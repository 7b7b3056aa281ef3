// SPDX-License-Identifier: Apache-2.0

#include <cmath>
#include <comp_libtorch/hook/autocast_guard.hpp>
#include <comp_libtorch/train/grad_scaler.hpp>
#include <limits>
#include <sstream>
#include <stdexcept>
#include <thread>
#include <vector>

#include "torch_and_doctest.hpp"

using comp::libtorch::autocast_guard;
using comp::libtorch::grad_scaler;
namespace autocast = at::autocast;

namespace {

at::ScalarType dtype_of_linear() {
  const auto w = torch::ones({2, 2}, torch::requires_grad());
  return torch::linear(torch::ones({2, 2}), w).scalar_type();
}

/// One parameter whose gradient is what the test says.
struct one_parameter {
  at::Tensor weight = torch::ones({3}, torch::requires_grad());
  torch::optim::SGD optimizer{{weight}, 0.5};

  void gradient(std::vector<float> values) { weight.mutable_grad() = torch::tensor(values); }
};

}  // namespace

TEST_CASE("autocast is on in the guard's life and as before after it") {
  REQUIRE((dtype_of_linear() == at::kFloat));
  {
    const autocast_guard on{at::kCPU};
    CHECK((dtype_of_linear() == at::kBFloat16));
    {
      const autocast_guard other{at::kCPU, at::kHalf};
      CHECK((dtype_of_linear() == at::kHalf));
      const autocast_guard off{at::kCPU, {}, false};
      CHECK((dtype_of_linear() == at::kFloat));
    }
    CHECK((dtype_of_linear() == at::kBFloat16));
    CHECK((autocast::get_autocast_dtype(at::kCPU) == at::kBFloat16));
  }
  CHECK((dtype_of_linear() == at::kFloat));
  CHECK_FALSE(autocast::is_autocast_enabled(at::kCPU));
}

TEST_CASE("an exception switches autocast off again") {
  CHECK_THROWS_AS(([] {
                    const autocast_guard on{at::kCPU, at::kHalf, true, false};
                    throw std::runtime_error{"in the forward"};
                  }()),
                  std::runtime_error);
  CHECK_FALSE(autocast::is_autocast_enabled(at::kCPU));
  CHECK(autocast::is_autocast_cache_enabled());
  CHECK((autocast::get_autocast_dtype(at::kCPU) == at::kBFloat16));
  CHECK(autocast::increment_nesting() == 1);
  autocast::decrement_nesting();
}

TEST_CASE("a weight that changed in place is cast anew by the next guard, and once only within one") {
  auto weight = torch::ones({1}, torch::requires_grad());
  const auto cast = [&] { return autocast::cached_cast(at::kBFloat16, weight, at::kCPU); };
  {
    const autocast_guard outer{at::kCPU};
    const auto first = cast();
    {
      const autocast_guard inner{at::kCPU};
      CHECK(cast().is_same(first));
    }
    CHECK(cast().is_same(first));
  }
  {
    torch::NoGradGuard no_grad;
    weight.fill_(2);
  }
  const autocast_guard again{at::kCPU};
  CHECK(cast().item<float>() == 2);
}

TEST_CASE("a guard without the cache casts each time, and other threads do not see a guard") {
  auto weight = torch::ones({1}, torch::requires_grad());
  const autocast_guard on{at::kCPU, {}, true, false};
  CHECK_FALSE(autocast::cached_cast(at::kBFloat16, weight, at::kCPU)
                  .is_same(autocast::cached_cast(at::kBFloat16, weight, at::kCPU)));
  at::ScalarType elsewhere{};
  std::thread{[&] { elsewhere = dtype_of_linear(); }}.join();
  CHECK((elsewhere == at::kFloat));
}

TEST_CASE("autocast to a precision that is not low is refused and changes nothing") {
  CHECK_THROWS_WITH_AS((autocast_guard{at::kCPU, at::kFloat}),
                       "autocast to Float (it lowers operators to bf16 or fp16): give one of those, or enabled = false",
                       comp::settings_error);
  CHECK_FALSE(autocast::is_autocast_enabled(at::kCPU));
}

TEST_CASE("clipping comes after unscaling, whether that was asked for or not") {
  for (const bool asked : {false, true}) {
    grad_scaler scaler{{.initial = 8}};
    one_parameter p;
    scaler.scale(torch::ones({}));
    p.gradient({24, 32, 0});  // 3, 4, 0 unscaled: norm 5
    if (asked) scaler.unscale_(p.optimizer);
    CHECK(scaler.clip_grad_norm(p.optimizer, 1) == doctest::Approx(5));
    CHECK(p.weight.grad().norm().item<double>() == doctest::Approx(1));
    CHECK_FALSE(scaler.step(p.optimizer).skipped);
    CHECK(p.weight[0].item<double>() == doctest::Approx(1 - 0.5 * 0.6));
  }
}

TEST_CASE("BF16 and sparse gradients are unscaled, FP16 ones refused") {
  grad_scaler scaler{{.initial = 4}};
  scaler.scale(torch::ones({}));
  SUBCASE("bf16 beside fp32") {
    auto low = torch::ones({2}, torch::dtype(torch::kBFloat16).requires_grad(true));
    auto high = torch::ones({2}, torch::requires_grad());
    torch::optim::SGD optimizer{{low, high}, 0.5};
    low.mutable_grad() = torch::full({2}, 4, torch::kBFloat16);
    high.mutable_grad() = torch::full({2}, 8.F);
    CHECK_FALSE(scaler.step(optimizer).skipped);
    CHECK(low[0].item<float>() == 0.5F);
    CHECK(high[0].item<float>() == 0.0F);
  }
  SUBCASE("sparse") {
    auto table = torch::ones({4, 2}, torch::requires_grad());
    torch::optim::SGD optimizer{{table}, 0.5};
    table.mutable_grad() =
        torch::sparse_coo_tensor(torch::tensor({{1, 3}}), torch::full({2, 2}, 4.F), {4, 2}).coalesce();
    scaler.unscale_(optimizer);
    CHECK(table.grad().to_dense()[3][1].item<float>() == 1.0F);
  }
  SUBCASE("fp16") {
    auto half = torch::ones({2}, torch::dtype(torch::kHalf).requires_grad(true));
    torch::optim::SGD optimizer{{half}, 0.5};
    half.mutable_grad() = torch::ones({2}, torch::kHalf);
    CHECK_THROWS_WITH_AS(scaler.unscale_(optimizer),
                         "gradient of a parameter of 2 elements is fp16 (fp16 parameters cannot be unscaled without "
                         "loss): keep the parameters in FP32 and lower the operators by a plan",
                         comp::error);
  }
}

TEST_CASE("gradients of several dtypes are clipped by one norm") {
  auto low = torch::ones({1}, torch::dtype(torch::kBFloat16).requires_grad(true));
  auto high = torch::ones({1}, torch::requires_grad());
  torch::optim::SGD optimizer{{low, high}, 0.5};
  grad_scaler scaler{{.initial = 4}};
  scaler.scale(torch::ones({}));
  low.mutable_grad() = torch::full({1}, 12, torch::kBFloat16);
  high.mutable_grad() = torch::full({1}, 16.F);
  CHECK(scaler.clip_grad_norm(optimizer, 2.5) == 5);
  CHECK(low.grad().item<float>() == 1.5F);
  CHECK(high.grad().item<float>() == 2.0F);
  CHECK(scaler.step(optimizer).norm == 5);
}

TEST_CASE("a scaler's state comes back, from memory and from an archive; a bad one is refused") {
  grad_scaler scaler{{.initial = 4}}, loaded{{.initial = 8}};
  const auto archived = [](auto write) {
    torch::serialize::OutputArchive out;
    write(out);
    std::stringstream bytes;
    out.save_to(bytes);
    torch::serialize::InputArchive in;
    in.load_from(bytes);
    return in;
  };
  torch::serialize::InputArchive good = archived([&](auto& out) { scaler.save(out); });
  loaded.load(good);
  CHECK(loaded.state() == scaler.state());
  const auto before = scaler.state();
  scaler.update(16);
  CHECK(scaler.scale(torch::ones({})).item<float>() == 16);
  scaler.load(before);
  CHECK(scaler.state().scale == 4);
  torch::serialize::InputArchive bad =
      archived([](auto& out) { out.write("grad_scaler", c10::IValue{R"({"scale": "high"})"}); });
  CHECK_THROWS_AS(loaded.load(bad), comp::file_error);
}

TEST_CASE("a loss is scaled over the micro-batches, and by a scaler that is off left as it is") {
  const auto loss = torch::ones({});
  CHECK(grad_scaler{comp::scaling::off()}.scale(loss).is_same(loss));
  grad_scaler scaler{{.initial = 8, .micro_batches = 2}};
  CHECK(scaler.scale(loss).item<float>() == 4);
  CHECK_FALSE(scaler.count_micro_batch());
  CHECK(scaler.end_accumulation());
}
