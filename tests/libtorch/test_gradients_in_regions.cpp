// SPDX-License-Identifier: Apache-2.0
// Gradients that are taken inside a forward: forces of a potential, the residual of a differential equation, a gradient
// penalty. What autograd runs is no operator of the forward.
#include <comp/comp.hpp>
#include <comp/files/plan_file.hpp>

#include "program_support.hpp"
#include "torch_and_doctest.hpp"
#include "trainer_support.hpp"

using namespace libtorch_tests;

namespace {

double far(const torch::Tensor& a, const torch::Tensor& b) {
  return ((a.to(torch::kDouble) - b.to(torch::kDouble)).norm() / b.to(torch::kDouble).norm()).item<double>();
}

}  // namespace

TEST_CASE("gradients in a region have the plain loop's bits in FP32, and are no operators of the recording") {
  for (const int order : {1, 2}) {
    CAPTURE(order);
    const outcome plain = train(with_slopes(order), 4, nullptr);
    const job hooked = with_slopes(order);
    program p{{.device = device}};
    record(p, hooked);
    CHECK(p.graph().size() < 25);  // the forward's, and what reads the slopes
    for (const comp::op_info& op : p.graph()) {
      CAPTURE(op.name);
      CHECK(op.kind.find("backward") == std::string::npos);
      CHECK_FALSE(op.hands_on_fp32);
    }
    p.set_plan(as_written(p.graph()));
    CHECK(same(plain, train(hooked, 4, &p)));
    CHECK(p.problems().mismatches + p.problems().ended_early + p.problems().unknown == 0);
  }
}

TEST_CASE("under plans, gradients in a region follow the formats of the operators that they are of") {
  for (const int order : {1, 2}) {
    const outcome plain = train(with_slopes(order), 2, nullptr);
    const job hooked = with_slopes(order);
    program p{{.device = device}};
    record(p, hooked);
    for (std::size_t i = 0; i <= p.graph().size(); ++i) {
      comp::plan low = everywhere(p.graph(), precision::bf16);
      if (i < p.graph().size()) {
        if (!p.graph()[i].choosable) continue;
        low = as_written(p.graph());
        low[i] = precision::bf16;
      }
      CAPTURE(low.str());
      const job anew = with_slopes(order);
      const auto [got, problems] = train_under(low, anew, 2);
      CHECK(far(got.losses.front(), plain.losses.front()) < 0.05);
      CHECK(problems.mismatches + problems.ended_early + problems.unknown == 0);
      for (std::size_t k = 0; k < 2 * anew.model->parameters().size(); ++k)
        CHECK(got.tensors[k].dtype() == torch::kFloat);
    }
  }
}

TEST_CASE("backward() inside a region is done, and leaves the region as it was") {
  torch::nn::Linear layer{8, 8};
  const auto x = torch::randn({4, 8});
  program p;
  p.name_parameters(*layer);
  recorded(p, [&] { layer(x).sum().backward(); });
  CHECK(p.graph().size() <= 4);  // with the ones that backward() begins with
  const torch::Tensor expected = layer->weight.grad().clone();
  layer->zero_grad();
  p.set_plan(as_written(p.graph()));
  inside(p, [&] { layer(x).sum().backward(); });
  CHECK(same(layer->weight.grad(), expected));
}
