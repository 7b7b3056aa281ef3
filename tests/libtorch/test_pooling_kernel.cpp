// SPDX-License-Identifier: Apache-2.0
// comp's max pooling, whose results and gradients have ATen's bits.

#include <limits>
#include <random>
#include <string>
#include <vector>

#include "kernel_support.hpp"

using namespace libtorch_tests;

namespace {

struct pooling_case {
  std::int64_t images = 3, channels = 16, height = 6, width = 7;
  std::vector<std::int64_t> size = {3, 3}, stride = {2, 2}, padding = {1, 1}, dilation = {1, 1};
  bool ceil = false;
  at::ScalarType type = at::kBFloat16;

  at::Tensor input() const {
    return at::randn({images, channels, height, width})
        .to(type)
        .contiguous(at::MemoryFormat::ChannelsLast)
        .requires_grad_();
  }
  at::Tensor by_aten(const at::Tensor& x) const { return at::max_pool2d(x, size, stride, padding, dilation, ceil); }
};

at::Tensor pooled(const pooling_case& of, const at::Tensor& x) {
  return run_kernel(lt::detail::pooling_kernel, 1, {1, of.channels, of.height, of.width}, x, pairs(of.size),
                    pairs(of.stride), pairs(of.padding), pairs(of.dilation), of.ceil);
}

/// Returns: whether both have the same bits; NaN may have others.
bool same_bits(const at::Tensor& a, const at::Tensor& b) {
  if (a.sizes() != b.sizes() || a.scalar_type() != b.scalar_type()) return false;
  const auto bits = [](const at::Tensor& t) { return t.contiguous().view(at::kShort); };
  return (bits(a).eq(bits(b)) | (a.isnan() & b.isnan())).all().item<bool>();
}

bool refuses_to_pool(const pooling_case& of) { return !pooled(of, of.input()).defined(); }

}  // namespace

TEST_CASE("max pooling by comp's kernel has ATen's bits, forward and backward") {
  std::mt19937 random{7};
  const auto draw = [&](std::int64_t low, std::int64_t high) {
    return std::uniform_int_distribution<std::int64_t>{low, high}(random);
  };
  torch::manual_seed(4);
  for (int i = 0; i < 80; ++i) {
    const thread_count threads{1 + i % 2};
    pooling_case of{draw(1, 3), 16 * draw(1, 5), draw(4, 12), draw(4, 12)};
    of.size = {draw(1, 4), draw(1, 4)};
    of.stride = {draw(1, 5), draw(1, 5)};
    of.padding = {draw(0, of.size[0] / 2), draw(0, of.size[1] / 2)};
    CAPTURE(i);
    CAPTURE(of.size);
    CAPTURE(of.stride);
    CAPTURE(of.padding);
    const at::Tensor own = of.input();
    if (i % 4 == 1) {  // equal numbers, zeros of both signs, infinities and NaN
      const torch::NoGradGuard no_grad;
      own.copy_(own.round());
      const double infinity = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
      for (const double each : {-infinity, infinity, nan, -nan, -0.0})
        own.masked_fill_(at::rand(own.sizes()) < 0.05, each);
    }
    if (i % 16 == 2) own.detach().slice(0, 0, 1).fill_(-std::numeric_limits<double>::infinity());
    const at::Tensor aten = own.detach().clone().requires_grad_();
    const at::Tensor y = pooled(of, own), expected = of.by_aten(aten);
    REQUIRE(y.defined());
    CHECK(y.is_contiguous(at::MemoryFormat::ChannelsLast));
    CHECK(same_bits(y, expected));
    at::Tensor gradient = at::randn(y.sizes()).to(of.type);
    if (i % 3 == 0) gradient = gradient.contiguous(at::MemoryFormat::ChannelsLast);
    if (i % 4 == 1) {
      gradient.masked_fill_(at::rand(y.sizes()) < 0.1, -0.0);
      gradient.masked_fill_(at::rand(y.sizes()) < 0.02, std::numeric_limits<double>::quiet_NaN());
      gradient.masked_fill_(at::rand(y.sizes()) < 0.02, std::numeric_limits<double>::infinity());
    }
    y.backward(gradient);
    expected.backward(gradient);
    CHECK(same_bits(own.grad(), aten.grad()));
  }
}

TEST_CASE("max pooling that comp's kernel does not serve is left to ATen") {
  CHECK_FALSE(refuses_to_pool({}));
  CHECK_FALSE(refuses_to_pool({.size = {2}, .stride = {}, .padding = {0}, .dilation = {1}}));
  CHECK(refuses_to_pool({.dilation = {2, 1}}));
  CHECK(refuses_to_pool({.ceil = true}));
  CHECK(refuses_to_pool({.type = at::kFloat}));
  CHECK(refuses_to_pool({.type = at::kHalf}));
  CHECK(refuses_to_pool({.images = 0}));
  CHECK(refuses_to_pool({.channels = 12}));
  CHECK(refuses_to_pool({.padding = {2, 0}}));                                  // ATen has the error message
  CHECK(refuses_to_pool({.height = 2, .size = {3, 3}, .padding = {0, 0}}));     // no pixel of the output
  CHECK(refuses_to_pool({.height = 20, .width = 20, .size = {16, 16}}));        // 256 places
  CHECK_FALSE(refuses_to_pool({.height = 20, .width = 20, .size = {15, 17}}));  // 255
  const pooling_case of;
  const auto ran = [&](const at::Tensor& x) { return pooled(of, x).defined(); };
  CHECK(ran(of.input()));
  CHECK(ran(pooling_case{.images = 5}.input()));
  CHECK_FALSE(ran(of.input().contiguous()));            // not channels-last
  CHECK_FALSE(ran(pooling_case{.height = 7}.input()));  // not the recorded size
  CHECK_FALSE(ran(pooling_case{.channels = 32}.input()));
  CHECK_FALSE(ran(of.input().select(0, 0)));
  check_refuses_dual(of.input(), [&](const at::Tensor& x) { return pooled(of, x); });
}

TEST_CASE("autograd treats comp's max pooling as ATen's") {
  const pooling_case of;
  const at::Tensor x = of.input();
  check_autograd(x, [&](const at::Tensor& t) { return pooled(of, t); });
  SUBCASE("it can be differentiated twice") {
    const auto twice = [&](const at::Tensor& y) {
      const auto first = torch::autograd::grad({y.pow(3).sum()}, {x}, {}, true, true);
      return torch::autograd::grad({first[0].pow(2).sum()}, {x})[0];
    };
    const at::Tensor own = twice(pooled(of, x));
    CHECK(own.abs().sum().item<double>() > 0);
    CHECK(same_bits(own, twice(of.by_aten(x))));
  }
}

TEST_CASE("a program runs max pooling by comp's kernel where images lie channels-last") {
  lt::program program{{.images = lt::memory_format::channels_last}};
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions{4, 16, 3}};
  program.name_parameters(*conv, "conv");
  at::Tensor last;
  const auto node_of_forward = [&] {
    const auto region = program.enter();
    last = at::max_pool2d(conv->forward(at::ones({2, 4, 6, 6})), {2, 2});
    return last.grad_fn()->name();
  };
  program.record(true);
  node_of_forward();
  program.record(false);
  program.set_plan(lowered(program.graph(), comp::precision::bf16));
  const auto own = program.options_of(program.current_plan()).kernels;
  REQUIRE(own.size() == 2);
  REQUIRE(own[1].own == &lt::detail::pooling_kernel);
  CHECK(node_of_forward() == "MaxPool2DWithIndicesBackward0");
  auto settings = program.settings();
  settings.kernels = {{own[1].layer, {own[1].own, 1}}};
  program.set_settings(settings);
  CHECK(node_of_forward().find("max_pooling") != std::string::npos);
  settings.images = lt::memory_format::as_is;
  program.set_settings(settings);
  CHECK(node_of_forward() == "MaxPool2DWithIndicesBackward0");
  CHECK(program.problems().by_aten == 0);
}
