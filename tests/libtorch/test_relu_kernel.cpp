// SPDX-License-Identifier: Apache-2.0
// comp's ReLU, whose results and gradients are ATen's but for the sign of zeros.

#include <string>

#include "torch_and_doctest.hpp"
#include "trainer_support.hpp"

using namespace libtorch_tests;

namespace {

/// Returns: every BF16 number there is, NaN among them, in rows of 256.
at::Tensor all_numbers() { return at::arange(65536, at::kInt).to(at::kShort).view(at::kBFloat16).view({256, 256}); }

/// Runs comp's kernel as the executor does. Returns: an undefined tensor if it refuses, with the stack as it was.
template <bool in_place>
at::Tensor rectified_here(const at::Tensor& x) {
  torch::jit::Stack stack{1, x};
  if (!lt::detail::run_relu<in_place>(stack)) {
    CHECK(stack.size() == 2);
    CHECK(stack[1].toTensor().is_same(x));
    return {};
  }
  REQUIRE(stack.size() == 2);
  return stack.back().toTensor();
}

bool same_numbers(const at::Tensor& a, const at::Tensor& b) { return at::allclose(a, b, 0, 0, true); }

}  // namespace

TEST_CASE("ReLU by bits gives ATen's numbers and gradients, for every BF16 number") {
  const at::Tensor gradient = at::arange(1, 65537).view({256, 256}).to(at::kBFloat16);
  for (const bool in_place : {false, true}) {
    for (const bool transposed : {false, true}) {
      CAPTURE(in_place);
      CAPTURE(transposed);
      const at::Tensor x = all_numbers().requires_grad_(), other = all_numbers().requires_grad_();
      const auto of = [&](const at::Tensor& leaf) { return transposed ? leaf.t().clone() : leaf.clone(); };
      const at::Tensor before = of(x), y = in_place ? rectified_here<true>(before) : rectified_here<false>(before);
      const at::Tensor expected = at::relu(of(other));
      REQUIRE(y.defined());
      CHECK(y.is_same(before) == in_place);
      CHECK(before._version() == (in_place ? 1 : 0));
      CHECK(y.strides() == expected.strides());
      CHECK(same_numbers(y, expected));
      y.backward(transposed ? gradient.t() : gradient);
      expected.backward(transposed ? gradient.t() : gradient);
      CHECK(same_numbers(x.grad(), other.grad()));
    }
  }
}

TEST_CASE("the last numbers that fill no vector are rectified, too, by any number of threads") {
  torch::manual_seed(3);
  for (const std::int64_t size : {32768, 32769, 65536 + 31, 99991}) {
    const at::Tensor x = at::randn({size}).to(at::kBFloat16);
    CHECK(same_numbers(rectified_here<false>(x), at::relu(x)));
  }
}

TEST_CASE("a gradient that lies otherwise, or is differentiated again, is left to ATen") {
  torch::manual_seed(4);
  const at::Tensor x = at::randn({256, 256}).to(at::kBFloat16).requires_grad_(), scale = at::randn({256, 256});
  const at::Tensor y = rectified_here<false>(x);
  y.backward(scale.to(at::kBFloat16).t(), true);
  CHECK(same_numbers(x.grad(), at::where(x > 0, scale.to(at::kBFloat16).t(), at::zeros_like(x))));
  const at::Tensor weight = scale.to(at::kBFloat16).requires_grad_();
  const auto first = torch::autograd::grad({(y * weight).sum()}, {x}, {}, true, true);
  const auto second = torch::autograd::grad({first[0].sum()}, {weight});
  CHECK(same_numbers(second[0], (x > 0).to(at::kBFloat16)));
}

TEST_CASE("what is not BF16, small, a view or a leaf that is written is left to ATen") {
  const at::Tensor x = at::randn({256, 256}).to(at::kBFloat16);
  CHECK(rectified_here<true>(x).defined());
  CHECK_FALSE(rectified_here<true>(x.to(at::kFloat)).defined());
  CHECK_FALSE(rectified_here<true>(x.to(at::kHalf)).defined());
  CHECK_FALSE(rectified_here<true>(x.slice(0, 0, 100).clone()).defined());
  CHECK_FALSE(rectified_here<true>(x.view({65536})).defined());
  CHECK(rectified_here<false>(x.view({65536})).defined());
  CHECK_FALSE(rectified_here<false>(at::cat({x, x}, 1).slice(1, 0, 256)).defined());  // with gaps
  CHECK_FALSE(rectified_here<true>(x.clone().requires_grad_()).defined());
}

TEST_CASE("a model's ReLU is comp's under a plan that lowers it, and ATen's in FP32") {
  torch::nn::Sequential net{torch::nn::Linear{64, 512}, torch::nn::ReLU{torch::nn::ReLUOptions{true}},
                            torch::nn::Linear{512, 512}, torch::nn::ReLU{}};
  lt::program program;
  program.name_parameters(*net, "net");
  const at::Tensor x = at::randn({128, 64});
  const auto graph_of = [&] {
    const auto region = program.enter();
    at::Tensor y = net->forward(x);
    std::string names;
    for (auto node = y.grad_fn(); node != nullptr && !node->next_edges().empty();) {
      names += node->name() + " ";
      const auto& edges = node->next_edges();
      node = edges.size() > 1 && edges[1].function && edges[1].function->name() != "AccumulateGrad" ? edges[1].function
                                                                                                    : edges[0].function;
    }
    return names;
  };
  program.record(true);
  (void)graph_of();
  program.record(false);
  const auto count = [](const std::string& text) {
    std::size_t found = 0;
    for (std::size_t at = text.find("rectified"); at != std::string::npos; at = text.find("rectified", at + 1)) ++found;
    return found;
  };
  CHECK(count(graph_of()) == 0);
  program.set_plan(lowered(program.graph(), comp::precision::bf16));
  CHECK(count(graph_of()) == 2);
  CHECK(program.problems().by_aten == 0);
}
