// SPDX-License-Identifier: Apache-2.0
// Operators that ATen makes of others are planned inside, and an all-rules plan is what LibTorch's autocast computes.
#include <comp_libtorch/hook/autocast_guard.hpp>

#include "program_support.hpp"
#include "torch_and_doctest.hpp"

namespace {

/// What LibTorch's autocast to BF16 gives each operator of `it`, which was recorded.
comp::plan seen_in(program& p, const job& it) {
  comp::plan plan{p.graph().size()};
  p.watch_autocast(&plan, precision::bf16);
  inside(p, it.loss);
  p.watch_autocast(nullptr);
  return plan;
}

/// Names of a graph's operators that multiply matrices.
std::vector<std::string> products_of(const comp::op_graph& graph) {
  std::vector<std::string> found;
  for (const comp::op_info& op : graph) {
    if (op.k > 0) found.push_back(op.name);
  }
  return found;
}

/// A linear layer before a recurrent one: the composite gets a low input, and makes its first state in that format.
job behind_a_linear() {
  struct nets : torch::nn::Module {
    torch::nn::Linear first = register_module("first", torch::nn::Linear{8, 8});
    torch::nn::GRU second = register_module("second", torch::nn::GRU{8, 12});
    torch::nn::LSTM third = runs_low_lstm() ? register_module("third", torch::nn::LSTM{12, 12}) : nullptr;
  };
  const auto net = std::make_shared<nets>();
  const auto x = torch::randn({6, 3, 8});
  return {net, [=] {
            auto h = std::get<0>(net->second->forward(net->first->forward(x)));
            if (net->third) h = std::get<0>(net->third->forward(h));
            return h.pow(2).mean();
          }};
}

outcome train_by(const comp::plan& chosen, job (*make)()) {
  torch::manual_seed(7);
  const job it = make();
  program p;
  record(p, it);
  p.set_plan(chosen);
  return train(it, 3, &p);
}

}  // namespace

TEST_CASE("the pytorch rule's plan gives each product of a model the precision that autocast gives it") {
  for (const auto& [name, make] : all_jobs()) {
    CAPTURE(name);
    torch::manual_seed(7);
    const job it = make();
    program p;
    record(p, it);
    const comp::plan plan = seen_in(p, it), ruled = autocast_plan(p.graph());
    CHECK(plan.count_low() > 0);
    for (std::size_t i = 0; i < plan.size(); ++i) {
      CAPTURE(p.graph()[i].name);
      CHECK(comp::name(plan[i]) == comp::name(ruled[i]));
    }
  }
}

TEST_CASE("the plan that was seen under autocast trains to its bits, by operators and by autocast itself") {
  auto jobs = all_jobs();
  jobs.emplace_back("behind a linear", behind_a_linear);
  for (const auto& [name, make] : jobs) {
    CAPTURE(name);
    torch::manual_seed(7);
    const job plain = make();
    const job under{plain.model, [&] {
                      const comp::libtorch::autocast_guard on{at::kCPU};
                      return plain.loss();
                    }};
    const outcome want = train(under, 3, nullptr);
    torch::manual_seed(7);
    const job it = make();
    program p;
    record(p, it);
    const comp::plan plan = seen_in(p, it);
    CHECK(same(train_by(plan, make), want));
    CHECK(same(train_by(plan.as_autocast(), make), want));
  }
}

TEST_CASE("composites are opened if autocast lowers a product in them for any arguments, and only then") {
  const auto x = torch::randn({4, 4});
  program p;
  recorded(p, [&] {
    torch::einsum("ij,jk->ik", {x, x});
    torch::chain_matmul({x, x, x});
    torch::linear(x, x);
    torch::matmul(x, x);
    torch::dropout(x, 0.5, true);
    torch::einsum("ii->i", {x});
  });
  CHECK(products_of(p.graph()) == std::vector<std::string>{"bmm", "mm", "mm_2", "linear", "matmul"});
  CHECK(index_of(p.graph(), "dropout") < p.graph().size());
  for (const char* name : {"einsum", "chain_matmul", "linalg_multi_dot"}) {
    CAPTURE(std::string{name});
    CHECK(index_of(p.graph(), name) == p.graph().size());
  }
  const comp::op_info& bmm = p.graph()[index_of(p.graph(), "bmm")];
  CHECK((std::array{bmm.m, bmm.n, bmm.k} == std::array<std::int64_t, 3>{4, 4, 4}));
}

TEST_CASE("one product of a composite can be low alone") {
  const auto x = torch::randn({4, 4}), y = torch::randn({4, 4});
  program p;
  const auto forward = [&] { return torch::linalg_multi_dot({x, y, x}); };
  const auto got = run_low(p, {"mm"}, forward);
  CHECK(got.dtype() == torch::kFloat);
  const auto bf16 = [](const torch::Tensor& t) { return t.to(torch::kBFloat16); };
  CHECK(same(got, torch::mm(torch::mm(bf16(x), bf16(y)).to(torch::kFloat), x)));
}

TEST_CASE("a composite that takes tensors of one format gets them where an operator before it was lowered") {
  const auto x = torch::randn({4, 4}), w = torch::randn({4, 4});
  program p;
  const auto forward = [&] { return torch::tensordot(torch::mm(x, w), w, {1}, {0}); };
  const auto got = run_low(p, {"mm"}, forward);
  const auto low = torch::mm(x.to(torch::kBFloat16), w.to(torch::kBFloat16)).to(torch::kFloat);
  CHECK(same(got, torch::mm(low, w)));
  {
    const auto r = p.evaluate();
    CHECK(same(got, forward()));
  }
  program of_list;
  const auto product = [&] { return torch::linalg_multi_dot({torch::mm(x, w), w, w}); };
  CHECK(same(run_low(of_list, {"mm"}, product), torch::linalg_multi_dot({low, w, w})));
}

TEST_CASE("a recurrent network may be given sequences of other lengths than the recorded one") {
  torch::manual_seed(3);
  torch::nn::GRU net{torch::nn::GRUOptions{8, 12}.num_layers(2)};
  program p;
  p.name_parameters(*net);
  const auto six = torch::randn({6, 3, 8});
  recorded(p, [&] { net->forward(six); });
  const comp::plan low = autocast_plan(p.graph());
  const comp::plan fp32{p.graph().size()};
  for (const std::int64_t length : {1, 4, 9}) {
    CAPTURE(length);
    const auto x = torch::randn({length, 3, 8});
    const auto run = [&](const comp::plan& chosen) {
      p.set_plan(chosen);
      const auto r = p.enter();
      return std::get<0>(net->forward(x));
    };
    const auto exact = std::get<0>(net->forward(x));
    CHECK(same(run(fp32), exact));
    const auto got = run(low);
    CHECK_FALSE(torch::equal(got.to(torch::kFloat), exact));
    CHECK(torch::allclose(got.to(torch::kFloat), exact, 0.05, 0.05));
    CHECK(p.problems().first.empty());
  }
}

TEST_CASE("evaluation goes into composites by the names of their operators") {
  if (!runs_low_lstm()) return;
  torch::manual_seed(3);
  torch::nn::LSTM net{8, 12};
  const auto x = torch::randn({6, 3, 8});
  program p;
  p.name_parameters(*net, "net");
  recorded(p, [&] { net->forward(x); });
  p.set_plan(autocast_plan(p.graph()));
  CHECK(p.current_plan()[index_of(p.graph(), "net.mkldnn_rnn_layer")] == precision::bf16);
  const torch::NoGradGuard no_gradients;
  const auto r = p.evaluate();
  CHECK(std::get<0>(net->forward(x)).dtype() == torch::kBFloat16);
}

TEST_CASE("an exception in a composite leaves the forward where it was") {
  const auto x = torch::randn({4, 4}), wrong = torch::randn({3, 3});
  program p;
  const torch::Tensor* second = &x;
  const auto forward = [&] {
    try {
      torch::einsum("ij,jk->ik", {x, *second});
    } catch (const c10::Error&) {
    }
    return torch::mm(x, x);
  };
  CHECK(run_low(p, {"mm"}, forward).dtype() == torch::kBFloat16);
  second = &wrong;
  const auto r = p.enter();
  CHECK(forward().dtype() == torch::kBFloat16);
}

TEST_CASE("low copies never outlive their region, however weights are written") {
  using comp::libtorch::weight_casts;
  const std::vector<std::pair<std::string, std::function<void(torch::Tensor)>>> ways{
      {"an optimizer",
       [](torch::Tensor w) {
         torch::optim::SGD{{w}, 0.5}.step();
       }},
      {"data()", [](torch::Tensor w) { w.data().mul_(3); }},
      {"one element of data()", [](torch::Tensor w) { w.data()[1][2] = 7; }},
      {"detach()", [](torch::Tensor w) { w.detach().mul_(3); }},
      {"in place without gradients",
       [](torch::Tensor w) {
         const torch::NoGradGuard no_gradients;
         w.add_(1);
       }},
      {"its memory", [](torch::Tensor w) { w.data_ptr<float>()[5] = 9; }},
      {"set_data()",
       [](torch::Tensor w) {
         w.set_data(torch::full({4, 4}, 0.5));
       }},
      {"vector_to_parameters()",
       [](torch::Tensor w) { torch::nn::utils::vector_to_parameters(torch::full({16}, 0.25), {w}); }},
      {"an archive",
       [](torch::Tensor w) {
         std::stringstream file;
         torch::save(torch::full({4, 4}, 0.75), file);
         torch::Tensor read;
         torch::load(read, file);
         w.data().copy_(read);
       }},
  };
  for (const auto weights : {weight_casts::cast, weight_casts::keep}) {
    for (const auto& [how, write] : ways) {
      CAPTURE(how);
      CAPTURE(weights);
      torch::manual_seed(1);
      const auto x = torch::randn({4, 4}), w = torch::randn({4, 4}).requires_grad_();
      program p{{.weights = weights}};
      const auto forward = [&] { return torch::mm(x, w); };
      run_low(p, {"mm"}, forward).sum().backward();
      const auto before = w.detach().clone();
      write(w);
      CHECK_FALSE(torch::equal(before, w));
      const torch::Tensor got = inside(p, forward);
      CHECK(same(got, torch::mm(x.to(torch::kBFloat16), w.to(torch::kBFloat16))));
    }
  }
}
