// SPDX-License-Identifier: Apache-2.0
// comp's batch norm beside ATen's.

#include <random>
#include <string>

#include "kernel_support.hpp"

using namespace libtorch_tests;

namespace {

struct batch_norm_case {
  std::int64_t images = 3, channels = 16, height = 6, width = 7;
  bool affine = true, running = true, training = true;
  double momentum = 0.1, eps = 1e-5;
  at::ScalarType type = at::kBFloat16, parameters = at::kFloat;

  at::Tensor input() const {
    return at::randn({images, channels, height, width})
        .to(type)
        .contiguous(at::MemoryFormat::ChannelsLast)
        .requires_grad_();
  }
};

/// Weight, bias and running statistics.
struct of_channels {
  at::Tensor weight, bias, mean, variance;
  explicit of_channels(const batch_norm_case& of) {
    if (of.affine) {
      weight = (at::rand({of.channels}) + 0.5).to(of.parameters).requires_grad_();
      bias = at::randn({of.channels}).to(of.parameters).requires_grad_();
    }
    if (!of.running) return;
    mean = at::randn({of.channels}).to(of.parameters);
    variance = (at::rand({of.channels}) + 0.5).to(of.parameters);
  }
  of_channels(const of_channels& other, at::ScalarType type) {
    const auto copy = [&](const at::Tensor& t) {
      return t.defined() ? t.detach().to(type, false, true).requires_grad_(t.requires_grad()) : at::Tensor{};
    };
    weight = copy(other.weight), bias = copy(other.bias), mean = copy(other.mean), variance = copy(other.variance);
  }
};

at::Tensor normed(const batch_norm_case& of, const at::Tensor& x, const of_channels& with, int parts = 3) {
  return run_kernel(lt::detail::batch_norm_kernel, parts, {1, of.channels, of.height, of.width}, x, with.weight,
                    with.bias, with.mean, with.variance, of.training, of.momentum, of.eps, true);
}
at::Tensor by_aten(const batch_norm_case& of, const at::Tensor& x, const of_channels& with) {
  return at::batch_norm(x, with.weight, with.bias, with.mean, with.variance, of.training, of.momentum, of.eps, true);
}

bool refuses_to_norm(const batch_norm_case& of) { return !normed(of, of.input(), of_channels{of}).defined(); }

/// Returns: the largest difference, in units of the largest number expected.
double furthest(const at::Tensor& actual, const at::Tensor& expected) {
  REQUIRE(actual.sizes() == expected.sizes());
  return ((actual.to(at::kDouble) - expected).abs().max() / expected.abs().max()).item<double>();
}
/// Returns: whether each number is the BF16 number beside `expected`, but for FP32's errors of the terms that it is the
/// sum of, which are about as large as the largest number.
bool rounded_once(const at::Tensor& actual, const at::Tensor& expected) {
  REQUIRE(actual.sizes() == expected.sizes());
  const at::Tensor allowed = expected.abs() * 0.00391 + expected.abs().max() * 1e-5;  // 2^-8, half a step at most
  return ((actual.to(at::kDouble) - expected).abs() <= allowed).all().item<bool>();
}

}  // namespace

TEST_CASE("batch norm by comp's kernel has the values of FP64's, and ATen's running statistics") {
  std::mt19937 random{9};
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>{low, high}(random);
  };
  torch::manual_seed(6);
  for (int i = 0; i < 60; ++i) {
    const thread_count threads{1 + i % 2};
    batch_norm_case of{draw(1, 5), 16 * draw(1, 9), draw(1, 12), draw(2, 12)};
    of.affine = i % 5 != 0;
    of.running = i % 7 != 0;
    of.momentum = i % 3 == 0 ? 1.0 : 0.1;
    of.eps = i % 4 == 0 ? 0.1 : 1e-5;
    const int parts = 1 + i % 3;
    CAPTURE(i);
    CAPTURE(of.channels);
    const at::Tensor x = of.input();
    if (i % 4 == 3) {  // means far from 0, and a first pixel far from the mean
      const torch::NoGradGuard no_grad;
      x.mul_(0.5).add_(20 * at::randn({of.channels, 1, 1}));
      x.select(0, 0).select(1, 0).select(1, 0).fill_(100);
    }
    const at::Tensor x64 = x.detach().to(at::kDouble).requires_grad_();
    const of_channels with{of}, exact{with, at::kDouble};
    const at::Tensor y = normed(of, x, with, parts);
    REQUIRE(y.defined());
    CHECK(y.is_contiguous(at::MemoryFormat::ChannelsLast));
    CHECK((y.scalar_type() == of.type));
    const at::Tensor y64 = by_aten(of, x64, exact);
    if ((parts & 1) != 0) CHECK(rounded_once(y, y64));
    if (of.running) {
      CHECK(furthest(with.mean, exact.mean) < 1e-5);
      CHECK(furthest(with.variance, exact.variance) < 1e-5);
    }
    const at::Tensor gradient = at::randn(y.sizes()).to(of.type);
    y.backward(gradient);
    y64.backward(gradient.to(at::kDouble));
    if ((parts & 2) == 0) {  // ATen's, which rounds more
      CHECK(furthest(x.grad(), x64.grad()) < 0.02);
      continue;
    }
    CHECK(rounded_once(x.grad(), x64.grad()));
    CHECK(x.grad().is_contiguous(at::MemoryFormat::ChannelsLast));
    if (!of.affine) continue;
    CHECK(furthest(with.weight.grad(), exact.weight.grad()) < 1e-5);
    CHECK(furthest(with.bias.grad(), exact.bias.grad()) < 1e-5);
  }
}

TEST_CASE("batch norm that comp's kernel does not serve is left to ATen") {
  CHECK_FALSE(refuses_to_norm({}));
  CHECK_FALSE(refuses_to_norm({.affine = false, .running = false}));
  CHECK(refuses_to_norm({.training = false}));
  CHECK(refuses_to_norm({.type = at::kFloat}));
  CHECK(refuses_to_norm({.type = at::kHalf}));
  CHECK(refuses_to_norm({.parameters = at::kBFloat16}));
  CHECK(refuses_to_norm({.images = 0}));
  CHECK(refuses_to_norm({.images = 1, .height = 1, .width = 1}));  // has no variance
  CHECK(refuses_to_norm({.channels = 12}));
  const batch_norm_case of;
  const of_channels with{of};
  const at::Tensor before = with.mean.clone();
  const auto ran = [&](const at::Tensor& x) { return normed(of, x, with).defined(); };
  CHECK_FALSE(ran(of.input().contiguous()));               // not channels-last
  CHECK_FALSE(ran(batch_norm_case{.height = 7}.input()));  // not the recorded size
  CHECK_FALSE(ran(batch_norm_case{.channels = 32}.input()));
  CHECK_FALSE(ran(of.input().select(0, 0)));
  check_refuses_dual(of.input(), [&](const at::Tensor& x) { return normed(of, x, with); });
  CHECK(at::equal(with.mean, before));
  CHECK(ran(batch_norm_case{.images = 5}.input()));
  CHECK_FALSE(at::equal(with.mean, before));
}

TEST_CASE("autograd treats comp's batch norm as ATen's") {
  const batch_norm_case of;
  const of_channels with{of};
  const at::Tensor x = of.input();
  check_autograd(x, [&](const at::Tensor& t) { return normed(of, t, with); });
  SUBCASE("it can be differentiated twice") {
    const auto twice = [&](const at::Tensor& y) {
      const auto first = torch::autograd::grad({y.pow(3).sum()}, {x, with.weight, with.bias}, {}, true, true);
      return torch::autograd::grad({first[0].pow(2).sum() + first[1].pow(2).sum()}, {x, with.weight});
    };
    const auto own = twice(normed(of, x, with)), aten = twice(by_aten(of, x, with));
    CHECK(furthest(own[0], aten[0].to(at::kDouble)) < 0.02);
    CHECK(furthest(own[1], aten[1].to(at::kDouble)) < 0.02);
  }
  SUBCASE("only the gradients are computed that are wanted") {
    with.bias.requires_grad_(false);
    normed(of, x.detach(), with).sum().backward();
    CHECK(with.weight.grad().defined());
    CHECK_FALSE(with.bias.grad().defined());
  }
}

TEST_CASE("a program runs batch norm by comp's kernel where images lie channels-last") {
  lt::program program{{.images = lt::memory_format::channels_last}};
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions{4, 16, 3}};
  torch::nn::BatchNorm2d norm{16};
  program.name_parameters(*conv, "conv");
  program.name_parameters(*norm, "norm");
  const auto node_of_forward = [&] {
    const auto region = program.enter();
    return norm->forward(conv->forward(at::ones({2, 4, 6, 6}))).grad_fn()->name();
  };
  program.record(true);
  node_of_forward();
  program.record(false);
  program.set_plan(lowered(program.graph(), comp::precision::bf16));
  auto settings = program.settings();
  settings.kernels = {{"norm.batch_norm", {&lt::detail::batch_norm_kernel, 3}}};
  program.set_settings(settings);
  CHECK(node_of_forward().find("tiled_batch_norm") != std::string::npos);
  settings.images = lt::memory_format::as_is;
  program.set_settings(settings);
  CHECK(node_of_forward() == "NativeBatchNormBackward0");
  CHECK(program.problems().by_aten == 0);
}
