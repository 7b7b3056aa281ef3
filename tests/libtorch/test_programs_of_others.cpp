// SPDX-License-Identifier: Apache-2.0
// What torch's own C++ tests and programs of strangers do in a forward, or give as a batch, that comp did not run as
// they wrote it.
#include "program_support.hpp"
#include "torch_and_doctest.hpp"
#include "trainer_support.hpp"

using namespace libtorch_tests;

namespace {

/// A target that comp knows nothing of.
struct caption {
  torch::Tensor words;
};
[[maybe_unused]] std::int64_t bytes_of(const caption& c) { return static_cast<std::int64_t>(c.words.nbytes()); }

}  // namespace

TEST_CASE("what a cast to its own format gave may become a leaf, whose gradient a recording has, too") {
  const auto forward = [](bool writes) {
    auto x = torch::arange(4).to(torch::kFloat).to(torch::kFloat);
    if (writes) x.resize_({2, 2});
    x.requires_grad_(true);
    const auto y = x.exp();
    if (writes) torch::zeros({2}).add_(1);
    y.sum().backward();
    return x.grad();
  };
  for (const bool writes : {false, true}) {
    const torch::Tensor expected = forward(writes);
    program p;
    torch::Tensor recorded_gradient;
    recorded(p, [&] { recorded_gradient = forward(writes); });
    CHECK(same(recorded_gradient, expected));
    p.set_plan(as_written(p.graph()));
    CHECK(same(inside(p, [&] { return forward(writes); }), expected));
  }
}

TEST_CASE("a comparison of a lowered value with one in FP32 gets both in FP32") {
  const auto a = torch::ones({4, 4}), b = torch::full({4, 4}, 4.0);
  bool close = false, equal = false;
  torch::Tensor places;
  const auto forward = [&] {
    const auto c = torch::mm(a, a);
    close = torch::allclose(c, b);
    equal = torch::equal(c, b);
    places = torch::searchsorted(b[0], c);
    return c;
  };
  program p;
  const torch::Tensor c = run_low(p, {"mm"}, forward);
  CHECK(c.dtype() == torch::kBFloat16);
  CHECK(close);
  CHECK(equal);
  CHECK(same(places, torch::zeros({4, 4}, torch::kLong)));
}

TEST_CASE("an example whose target is a class of the user's is a batch") {
  using example = torch::data::Example<torch::Tensor, caption>;
  auto batches = comp::libtorch::replayed([left = 3]() mutable -> std::optional<example> {
    if (left-- == 0) return std::nullopt;
    return example{torch::full({2}, left), {torch::ones({1}, torch::kLong)}};
  });
  const auto begin = batches.position();
  const auto first = batches.next();
  CHECK(batches.kept_bytes() == 24);
  batches.seek(begin);
  CHECK(same(batches.next()->data, first->data));
}

TEST_CASE("under a plan that lowers nothing a score is computed in the formats that its author wrote") {
  classification it;
  const auto score = [&] {
    return it.net->forward(it.data.x).to(torch::kBFloat16).mul(1.01).add(0.3).to(torch::kDouble).sum().item<double>();
  };
  it.net->eval();
  const double expected = score();
  it.net->train();
  lt::trainer trainer{it.setup, it.batches, it.make_step(), score};
  (void)trainer.graph();
  CHECK(trainer.validate() == expected);
}
