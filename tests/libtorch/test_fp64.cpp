// SPDX-License-Identifier: Apache-2.0
// Models in FP64: as written they have the plain loop's bits, and a plan gives operators FP32.
#include <comp/comp.hpp>
#include <comp/files/plan_file.hpp>
#include <random>

#include "program_support.hpp"
#include "torch_and_doctest.hpp"
#include "trainer_support.hpp"

using namespace libtorch_tests;

namespace {

/// Makes tensors in FP64 while it lives.
struct default_fp64 {
  caffe2::TypeMeta before = torch::get_default_dtype();
  default_fp64() { torch::set_default_dtype(caffe2::TypeMeta::Make<double>()); }
  ~default_fp64() { torch::set_default_dtype(before); }
};

double far(const torch::Tensor& a, const torch::Tensor& b) {
  return ((a.to(torch::kDouble) - b.to(torch::kDouble)).norm() / (b.to(torch::kDouble).norm() + 1e-30)).item<double>();
}

/// Distances of points far from the origin, a network, and the log-determinant of a kernel matrix.
job science() {
  torch::nn::Sequential net{torch::nn::Linear{8, 16}, torch::nn::Tanh{}, torch::nn::Linear{16, 8}};
  const auto x = torch::randn({12, 8}) + 1e6;
  net->to(device);
  return {net.ptr(), [=]() mutable {
            const auto near = x - x.mean(0);
            const auto h = net->forward(near);
            const auto kernel = torch::exp(-torch::cdist(h, h).pow(2) / 2) + 0.1 * torch::eye(12, h.options());
            const auto spectrum = torch::fft_rfft(h).abs().mean();
            return torch::linalg_cholesky(kernel).diagonal().log().sum() + h.pow(2).mean() + spectrum;
          }};
}

std::vector<std::pair<std::string, job (*)()>> jobs_in_fp64() {
  auto all = all_jobs();
  std::erase_if(all, [](const auto& each) { return each.first == "lstm" || each.first == "gru"; });
  all.emplace_back("science", science);
  return all;
}

/// Checks that operators are recorded as written in `expected`, those that may be lowered at least in a model in FP64,
/// and that a plan as written has the bits of the plain loop.
void check_as_written(auto make, precision expected) {
  const outcome plain = train(again(make), 3, nullptr);
  const job hooked = again(make);
  program p{{.device = device}};
  record(p, hooked);
  for (const comp::op_info& op : p.graph()) {
    CAPTURE(op.name);
    if (op.choosable || expected == precision::fp32) CHECK(op.as_written == expected);
  }
  p.set_plan(as_written(p.graph()));
  CHECK(same(plain, train(hooked, 3, &p)));
  CHECK_FALSE(p.changes());
  CHECK(p.problems().mismatches + p.problems().ended_early == 0);
}

}  // namespace

TEST_CASE("a model in FP64 as written has the bits of the plain loop, and its operators are recorded as FP64") {
  const default_fp64 in_fp64;
  for (const auto& [name, make] : jobs_in_fp64()) {
    CAPTURE(name);
    check_as_written(make, precision::fp64);
  }
}

TEST_CASE("numbers in a program's text make no operator FP64") {
  const auto make = [] {
    torch::nn::Linear net{8, 4};
    net->to(device);
    const auto x = torch::randn({6, 8}, device), count = torch::arange(4, torch::TensorOptions{device});
    return job{net.ptr(), [=]() mutable {
                 const auto y = torch::where(x.select(1, 0).unsqueeze(1) > 0, net->forward(x), -0.5);
                 return 0.1 * y.square().mean() + 1e-3 * (y * (count * 0.5)).sum() / 3.0 - 0.25;
               }};
  };
  check_as_written(+make, precision::fp32);
}

TEST_CASE("all in FP32, each operator alone and any mix run near FP64's values, with FP64's weights and gradients") {
  const default_fp64 in_fp64;
  std::mt19937 random{3};
  for (const auto& [name, make] : jobs_in_fp64()) {
    CAPTURE(name);
    const outcome plain = train(again(make), 2, nullptr);
    program p{{.device = device}};
    record(p, again(make));
    std::vector<comp::plan> plans{everywhere(p.graph(), precision::fp32)};
    for (std::size_t i = 0; i < p.graph().size(); ++i) {
      if (!p.graph()[i].choosable) continue;
      plans.push_back(as_written(p.graph()));
      plans.back()[i] = precision::fp32;
    }
    for (int k = 0; k < 6; ++k) {
      plans.push_back(as_written(p.graph()));
      for (std::size_t i = 0; i < p.graph().size(); ++i) {
        if (p.graph()[i].choosable && random() % 2 == 0) plans.back()[i] = precision::fp32;
      }
    }
    for (const comp::plan& chosen : plans) {
      CAPTURE(chosen.str());
      const job hooked = again(make);
      const auto [got, problems] = train_under(chosen, hooked, 2);
      const bool centred = name == "science" && chosen[0] == precision::fp32;  // differences of large numbers
      CHECK(far(got.losses.front(), plain.losses.front()) < (centred ? 1 : name == "science" ? 1e-2 : 1e-5));
      for (std::size_t k = 0; k < 2 * hooked.model->parameters().size(); ++k)
        CHECK(got.tensors[k].dtype() == torch::kDouble);
      CHECK(problems.mismatches + problems.ended_early == 0);
    }
  }
}

TEST_CASE("a layer in FP32 of a model in FP64 computes what casts by hand compute") {
  const default_fp64 in_fp64;
  torch::manual_seed(3);
  torch::nn::Linear first{8, 8}, second{8, 4};
  torch::nn::Sequential net{first, second};
  const auto x = torch::randn({5, 8});
  const job it{net.ptr(), [&] { return net->forward(x).pow(2).sum(); }};
  program p;
  record(p, it);
  comp::plan chosen = as_written(p.graph());
  chosen[1] = precision::fp32;  // the first addmm
  p.set_plan(chosen);
  const torch::Tensor loss = inside(p, it.loss);
  loss.backward();
  const torch::Tensor got = first->weight.grad().clone();
  net->zero_grad();
  const auto in = [](const torch::Tensor& t) { return t.to(torch::kFloat); };
  const auto by_hand = second(torch::linear(in(x), in(first->weight), in(first->bias)).to(torch::kDouble)).pow(2).sum();
  by_hand.backward();
  CHECK(same(loss, by_hand));
  CHECK(same(got, first->weight.grad()));
}

TEST_CASE("complex numbers keep their format, and decompositions may have FP32 but nothing below") {
  const default_fp64 in_fp64;
  const auto x = torch::eye(4) * 2 + 0.1;
  program p;
  torch::Tensor root, spectrum;
  const auto forward = [&] {
    root = torch::linalg_cholesky(x.mm(x));
    spectrum = torch::fft_fft(root);
    return spectrum;
  };
  recorded(p, forward);
  p.set_plan(everywhere(p.graph(), precision::fp32));
  inside(p, forward);
  CHECK(root.dtype() == torch::kFloat);
  CHECK(spectrum.dtype() == torch::kComplexDouble);
  CHECK_FALSE(p.graph()[index_of(p.graph(), "fft_fft")].choosable);
}

TEST_CASE("a trainer in FP64 has errors of FP32, and another loop trains by a plan that gives it some") {
  const default_fp64 in_fp64;
  classification user;
  lt::trainer trainer{user.setup, user.batches, user.make_step()};
  for (const comp::op_info& op : trainer.graph()) {
    if (op.choosable) CHECK(op.as_written == precision::fp64);
  }
  const auto errors = trainer.sensitivity(precision::fp32);
  double most = 0;
  for (const comp::op_error& e : errors) most = std::max(most, e.output);
  CHECK(most > 1e-9);
  CHECK(most < 1e-4);
  const job it = again([] { return mlp(); });
  program p;
  record(p, it);
  comp::plan low = as_written(p.graph());
  low[1] = precision::fp32;
  comp::save(low, p.graph(), lt::probe(at::kCPU), "fp64_loop.json");
  p.set_plan(low);
  const torch::Tensor expected = inside(p, it.loss);
  lt::planned_region planned{{{"", *it.model}}, std::string{"fp64_loop.json"}};
  for (int k = 0; k < 3; ++k) CHECK(same(inside(planned, it.loss), expected));
  CHECK(planned.planned());
  const auto on = planned.evaluate();
  const torch::NoGradGuard no_gradients;
  CHECK(far(it.loss(), expected) < 1e-6);
}
