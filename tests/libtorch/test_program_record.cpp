// SPDX-License-Identifier: Apache-2.0
// What a recording holds: names, producers, sizes, and which operators a plan may choose for; and what becomes of
// forwards that differ from it.
#include <torch/library.h>

#include <algorithm>
#include <comp_libtorch/hook/autocast_guard.hpp>
#include <stdexcept>

#include "processor_time.hpp"
#include "program_support.hpp"
#include "torch_and_doctest.hpp"

namespace {

using comp::op_graph;
using comp::libtorch::on_mismatch;

std::string names(const op_graph& graph) {
  std::string all;
  for (const auto& op : graph) all += (all.empty() ? "" : " ") + op.name;
  return all;
}
const comp::op_info& at_name(const op_graph& graph, std::string_view name) {
  const std::size_t i = index_of(graph, name);
  REQUIRE_MESSAGE(i < graph.size(), name, " is not among ", names(graph));
  return graph[i];
}
using producers = std::vector<std::size_t>;

/// y = 2x, with its own backward.
struct doubled : torch::autograd::Function<doubled> {
  static torch::Tensor forward(torch::autograd::AutogradContext* context, const torch::Tensor& x,
                               const torch::Tensor& w) {
    context->save_for_backward({x, w});
    return torch::mm(x, w) * 2;
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* context,
                                                 const torch::autograd::variable_list& gradients) {
    const auto saved = context->get_saved_variables();
    return {torch::mm(gradients[0], saved[1].t()) * 2, torch::mm(saved[0].t(), gradients[0]) * 2};
  }
};

/// y = x, as FSDP marks the inputs of a module.
struct marked : torch::autograd::Function<marked> {
  static torch::Tensor forward(torch::autograd::AutogradContext* /*context*/, const torch::Tensor& x) { return x; }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext* /*context*/,
                                                 torch::autograd::variable_list gradients) {
    return gradients;
  }
};

/// An operator of the user's own that knows FP32 only.
torch::Tensor only_floats(const torch::Tensor& x) {
  auto y = torch::empty_like(x);
  const float* from = x.const_data_ptr<float>();
  for (std::int64_t i = 0; i < x.numel(); ++i) y.mutable_data_ptr<float>()[i] = from[i] + 1;
  return y;
}
torch::Tensor any_format(const torch::Tensor& x) { return x * 2; }

}  // namespace

TORCH_LIBRARY(comp_test, library) {
  library.def("only_floats(Tensor x) -> Tensor", &only_floats);
  library.def("any_format(Tensor x) -> Tensor", &any_format);
}

TEST_CASE("operators are named by the modules whose parameters they read") {
  const job it = conv_net();
  program p{{.device = device}};
  record(p, it);
  CHECK(names(p.graph()) ==
        "0.conv2d add 1.batch_norm 1.relu 1.max_pool2d 4.conv2d add_2 5.batch_norm 5.relu 5.flatten 5.dropout 9.t "
        "9.addmm 9.cross_entropy_loss");
  const auto& conv = at_name(p.graph(), "4.conv2d");
  CHECK(conv.kind == "aten::conv2d");
  CHECK(conv.channels_in == 8);
  CHECK(conv.channels_out == 16);
  CHECK(conv.flops == 2 * 4 * 16 * 4 * 4 * 8 * 9);
  CHECK(conv.inputs[1].parameter);
  CHECK_FALSE(conv.inputs[0].parameter);
  const auto& head = at_name(p.graph(), "9.addmm");
  CHECK((head.m == 4 && head.n == 10 && head.k == 256));
  CHECK(head.bytes == 4 * (10 + 4 * 256 + 256 * 10 + 4 * 10));
  CHECK(p.graph()[3].kind == "aten::relu_");
  CHECK_FALSE(p.graph()[3].choosable);
}

TEST_CASE("an operator that is registered once more is another one, also if it lies where the first one lay") {
  const auto x = torch::ones({2}, torch::requires_grad());
  const auto run = [&](program& p, const char* schema, auto kernel, auto call) {
    torch::Library definition{torch::Library::DEF, "comp_again", std::nullopt, __FILE__, __LINE__};
    definition.def(schema);
    torch::Library kernels{torch::Library::IMPL, "comp_again", c10::DispatchKey::CPU, __FILE__, __LINE__};
    kernels.impl("op", kernel);
    const auto op = c10::Dispatcher::singleton().findSchemaOrThrow("comp_again::op", "");
    const auto on = p.enter();
    return call(op);
  };
  const auto sum = [&](program& p) {
    return run(
        p, "op(Tensor x, Tensor y) -> Tensor", [](const at::Tensor& a, const at::Tensor& b) { return a + b; },
        [&](const auto& op) {
          return op.template typed<at::Tensor(const at::Tensor&, const at::Tensor&)>().call(x, x);
        });
  };
  const auto twice = [&](program& p) {
    return run(
        p, "op(Tensor x) -> Tensor", [](const at::Tensor& a) { return 2 * a; },
        [&](const auto& op) { return op.template typed<at::Tensor(const at::Tensor&)>().call(x); });
  };
  for (int i = 0; i < 3; ++i) {
    program before{{.device = device}}, after{{.device = device}};
    before.record(true);
    CHECK(torch::equal(sum(before), 2 * x));
    before.record(false);
    REQUIRE(before.graph().size() == 1);
    CHECK(before.graph()[0].inputs.size() == 2);
    before.set_plan(comp::as_written(before.graph()));
    CHECK(torch::equal(twice(before), 2 * x));
    CHECK(before.problems().unknown > 0);  // the recorded one is gone
    after.record(true);
    CHECK(torch::equal(twice(after), 2 * x));
    after.record(false);
    REQUIRE(after.graph().size() == 1);
    CHECK(after.graph()[0].inputs.size() == 1);
  }
}

TEST_CASE("scopes go from the outermost in, numbers stay with what they count") {
  const job it = transformer();
  program p{{.device = device}};
  p.name_parameters(*it.model, "net");
  recorded(p, it.loss);
  const auto found =
      std::ranges::find_if(p.graph(), [](const auto& op) { return op.name.find("linear1") != std::string::npos; });
  REQUIRE(found != p.graph().end());
  CHECK(found->scopes == std::vector<std::string>{"net", "layers.0", "linear1"});
  SUBCASE("a scope of the user's own") {
    const auto w = torch::ones({2, 2});
    recorded(p, [&] {
      const comp::libtorch::scope outer{"mine"};
      return torch::mm(w, w);
    });
    CHECK(p.graph()[0].name == "mine.mm");
    CHECK(p.graph()[0].scopes == std::vector<std::string>{"mine"});
  }
}

TEST_CASE("producers are found by the identity of tensors") {
  const auto x = torch::randn({4, 4}), w = torch::randn({4, 4});
  program p;
  SUBCASE("through views and lists") {
    recorded(p, [&] {
      const auto y = torch::mm(x, w);             // 0
      const auto v = y.view({2, 8});              // 1
      const auto z = torch::tanh(x);              // 2
      return torch::cat({v, z.view({2, 8})}, 0);  // 3, 4
    });
    CHECK(p.graph()[1].producers == producers{0});
    CHECK(p.graph()[4].producers == producers{1, 3});
  }
  SUBCASE("an in-place write becomes the producer, also of what shares its memory") {
    recorded(p, [&] {
      auto y = torch::mm(x, w);   // 0
      auto row = y.select(0, 1);  // 1
      row.add_(1);                // 2
      return torch::tanh(y);      // 3
    });
    CHECK(p.graph()[3].producers == producers{0, 2});
    CHECK(p.graph()[3].inputs[0].source == 2);
  }
  SUBCASE("out= writes count") {
    auto out = torch::empty({4, 4});
    recorded(p, [&] {
      torch::mm_out(out, x, w);
      return torch::tanh(out);
    });
    CHECK(p.graph()[1].producers == producers{0});
    CHECK_FALSE(p.graph()[0].choosable);
  }
  SUBCASE("an address that is used again is another tensor") {
    recorded(p, [&] {
      for (int i = 0; i < 50; ++i) torch::tanh(x.detach().sin());
      return torch::tanh(x);
    });
    REQUIRE(p.graph().size() == 151);
    for (std::size_t i = 0; i < 150; i += 3) CHECK(p.graph()[i].producers.empty());
    CHECK(p.graph()[150].producers.empty());
  }
}

TEST_CASE("a plan chooses for operators that compute in floating point") {
  const auto x = torch::randn({4, 4}).requires_grad_();
  const auto index = torch::tensor({0, 1});
  const auto number = torch::tensor(0.1, torch::kDouble);  // as Python hands on 0.1 * y
  number.unsafeGetTensorImpl()->set_wrapped_number(true);
  program p;
  const auto& graph = recorded(p, [&] {
    auto y = torch::mm(x, x);
    torch::zeros({2});
    torch::rand_like(y);
    y.clone();
    y.detach();
    y.to(torch::kDouble).exp();
    y.gt(0);
    y.argmax(1);
    y.t().contiguous();
    torch::embedding(x, index);
    y.index_select(0, index);
    index + 1;
    torch::linalg_inv(y);
    torch::scaled_dot_product_attention(y, y, y);
    torch::einsum("ij,jk->ik", {y, y});
    y.sum_to_size({1, 4});
    torch::dropout(y, 0.5, true);
    torch::mul(y, number);
  });
  const auto choosable = [&](std::string_view name) { return at_name(graph, name).choosable; };
  for (const auto* name :
       {"mm", "embedding", "index_select", "scaled_dot_product_attention", "bmm", "dropout", "exp"}) {
    CAPTURE(name);
    CHECK(choosable(name));
  }
  for (const auto* name :
       {"zeros", "rand_like", "clone", "detach", "to", "gt", "argmax", "contiguous", "add", "linalg_inv"}) {
    CAPTURE(name);
    CHECK_FALSE(choosable(name));
  }
  for (const comp::op_info& op : graph)
    CHECK(op.as_written == (op.name == "exp" ? comp::precision::fp64 : comp::precision::fp32));
  const comp::tensor_info& factor = at_name(graph, "mul").inputs.at(1);
  CHECK((factor.number && !factor.floating));
  CHECK(at_name(graph, "bmm").flops == 2 * 4 * 4 * 4);
  CHECK(at_name(graph, "scaled_dot_product_attention").flops == 2 * 2 * 4 * 4 * 4);
}

TEST_CASE("written tensors and integers are never cast, and FP64 is not unless the plan says so") {
  const auto x = torch::randn({3, 3});
  const auto wide = torch::randn({3, 3}, torch::kDouble);
  const auto index = torch::tensor({2, 0, 1});
  auto sums = torch::zeros({3, 3}), out = torch::zeros({3, 3});
  program p;
  torch::Tensor gathered, wider;
  run_low(p, {"mm", "index_select"}, [&] {
    sums = torch::zeros({3, 3});
    const auto y = torch::mm(x, x);  // BF16
    sums.index_add_(0, index, y);    // FP32 += BF16: ATen refuses, the source follows what is written
    torch::mm_out(out, x, y);        // so with out=
    gathered = torch::index_select(y, 0, index);
    return wider = torch::add(wide, y);
  });
  const auto low = torch::mm(x.to(torch::kBFloat16), x.to(torch::kBFloat16)).to(torch::kFloat);
  CHECK(sums.dtype() == torch::kFloat);
  CHECK(same(sums, torch::zeros({3, 3}).index_add_(0, index, low)));
  CHECK(same(out, torch::mm(x, low)));
  CHECK(gathered.dtype() == torch::kBFloat16);
  CHECK(wider.dtype() == torch::kDouble);
}

TEST_CASE("what cannot run low gets FP32 whatever comes before it") {
  const auto x = torch::eye(4) * 3;
  program p;
  torch::Tensor inverse;
  run_low(p, {"mm"}, [&] { return inverse = torch::linalg_inv(torch::mm(x, x)); });
  CHECK(inverse.dtype() == torch::kFloat);
  CHECK(inverse[0][0].item<float>() == doctest::Approx(1.0 / 9));
}

TEST_CASE("sparse tensors run; where their kernels have no low precision they are not choosable") {
  const auto x = torch::randn({4, 4}).requires_grad_();
  const auto adjacency = torch::eye(4).to_sparse();
  program p;
  const auto forward = [&] { return torch::mm(adjacency, torch::tanh(torch::mm(x, x))).sum(); };
  const auto loss = run_low(p, {"mm", "tanh"}, forward);
  loss.backward();
  CHECK(x.grad().dtype() == torch::kFloat);
  CHECK(at_name(p.graph(), "mm_2").k == 4);
  CHECK(at_name(p.graph(), "mm_2").flops == 2 * 4 * 4);
}

TEST_CASE("an operator of the user's own is chosen for if it runs low") {
  const auto call = [](const char* name, const torch::Tensor& x) {
    static const auto floats = c10::Dispatcher::singleton().findSchemaOrThrow("comp_test::only_floats", "");
    static const auto any = c10::Dispatcher::singleton().findSchemaOrThrow("comp_test::any_format", "");
    const auto& op = std::string_view{name} == "only_floats" ? floats : any;
    return op.typed<torch::Tensor(const torch::Tensor&)>().call(x);
  };
  const auto x = torch::randn({4, 4});
  program p;
  torch::Tensor plain, any;
  run_low(p, {"mm"}, [&] {
    const auto y = torch::mm(x, x);
    any = call("any_format", y);
    return plain = call("only_floats", y);
  });
  CHECK(at_name(p.graph(), "any_format").choosable);
  CHECK_FALSE(at_name(p.graph(), "only_floats").choosable);
  CHECK(plain.dtype() == torch::kFloat);
}

TEST_CASE("an autograd function of the user's own works in FP32, forward and backward") {
  const auto x = torch::randn({4, 4}).requires_grad_(), w = torch::randn({4, 4}).requires_grad_();
  program p;
  torch::Tensor through;
  const auto forward = [&] {
    through = doubled::apply(torch::mm(x, x), w);
    return torch::mm(through, w).sum();
  };
  const auto loss = run_low(p, {"mm", "mm_3"}, forward);
  loss.backward();
  CHECK(names(p.graph()) == "mm mm_2 mul mm_3 sum");
  CHECK_FALSE(p.graph()[1].choosable);
  CHECK(through.dtype() == torch::kFloat);
  CHECK(w.grad().dtype() == torch::kFloat);
  CHECK(x.grad().isfinite().all().item<bool>());
}

TEST_CASE("what an unheard function passes on has the producer and the format of its input") {
  const auto x = torch::randn({4, 4}).requires_grad_(), w = torch::randn({4, 4}).requires_grad_();
  program p;
  torch::Tensor read;
  const auto forward = [&] {
    auto r = p.enter();
    const auto y = torch::mm(x, w);
    {
      const comp::libtorch::detail::unheard_guard none;
      read = marked::apply(y);
    }
    r.pass_on(y, read);
    return torch::mm(read, w) + torch::mm(y, w);
  };
  p.record(true);
  forward();
  p.record(false);
  CHECK(names(p.graph()) == "mm mm_2 mm_3 add");
  CHECK(p.graph()[1].producers == producers{0});
  p.set_plan(everywhere(p.graph(), precision::bf16));
  forward().sum().backward();
  CHECK(read.dtype() == torch::kBFloat16);
  CHECK(x.grad().isfinite().all().item<bool>());
}

TEST_CASE("no_grad and inference_mode inside a region are fine") {
  const auto w = torch::randn({4, 4}).requires_grad_();
  const auto x = torch::randn({4, 4});
  program p;
  const auto forward = [&] {
    torch::Tensor shift;
    {
      const torch::NoGradGuard no_gradients;
      shift = torch::mm(x, w);
    }
    return (torch::mm(x, w) + shift).sum();
  };
  const auto loss = run_low(p, {"mm", "mm_2"}, forward);
  loss.backward();
  CHECK(w.grad().defined());
  w.mutable_grad().reset();
  {
    const c10::InferenceMode inference;
    const auto r = p.enter();
    CHECK_FALSE(forward().requires_grad());
  }
  const torch::Tensor again = inside(p, forward);
  again.backward();
  CHECK(w.grad().defined());
}

TEST_CASE("a forward that differs is an error that names the first operator, or goes on in FP32") {
  const auto x = torch::randn({4, 4}), w = torch::randn({4, 4}).requires_grad_();
  program p{{}};
  bool branch = false;
  torch::Tensor second;
  const auto forward = [&] {
    const auto y = torch::mm(x, w);
    const auto z = branch ? torch::sigmoid(y) : torch::tanh(y);
    return second = torch::mm(z, w);
  };
  run_low(p, {"mm", "tanh", "mm_2"}, forward);
  CHECK(second.dtype() == torch::kBFloat16);
  branch = true;
  p.set_settings({.otherwise = on_mismatch::error});
  SUBCASE("error") {
    const auto differing = [&] { inside(p, forward); };
    CHECK_THROWS_WITH_AS(differing(),
                         doctest::Contains("operator 1 of region \"forward\" is aten::sigmoid, recorded was aten::tanh "
                                           "(\"tanh\")"),
                         comp::error);
    branch = false;
    differing();  // no trace
    CHECK(second.dtype() == torch::kBFloat16);
  }
  SUBCASE("fp32") {
    p.set_settings({.otherwise = on_mismatch::fp32});
    inside(p, forward);
    CHECK(second.dtype() == torch::kFloat);
    CHECK(p.problems().mismatches == 1);
    CHECK(p.problems().first.find("aten::sigmoid") != std::string::npos);
  }
  SUBCASE("fewer operators") {
    inside(p, [&] { torch::mm(x, w); });
    CHECK(p.problems().ended_early == 1);
    CHECK(p.problems().first.find("ended after 1 of 3 operators, before aten::tanh (\"tanh\")") != std::string::npos);
  }
  SUBCASE("more operators") {
    branch = false;
    const auto r = p.enter();
    forward();
    CHECK_THROWS_WITH_AS(second.exp(), doctest::Contains("is aten::exp, recorded was nothing: it was the last"),
                         comp::error);
  }
}

TEST_CASE("evaluation mode runs operators in the precision of those of their name") {
  const job it = conv_net();
  program p{{.device = device}};
  record(p, it);
  p.set_plan(autocast_plan(p.graph()));
  train(it, 1, &p);
  it.model->eval();
  torch::Tensor planned, autocast;
  const torch::NoGradGuard no_gradients;
  planned = evaluated_in(p, it.loss);
  {
    const comp::libtorch::autocast_guard on{device.type(), at::kBFloat16};
    autocast = it.loss();
  }
  const bool rounds_otherwise = device.is_cuda();  // its cross_entropy: cuda_tests.cpp
  CHECK(same(planned, autocast) != rounds_otherwise);
  CHECK_FALSE(same(planned, it.loss()));
}

TEST_CASE("recording again after an exception starts anew") {
  const auto x = torch::randn({2, 2});
  program p;
  p.record(true);
  try {
    const auto r = p.enter();
    torch::mm(x, x);
    throw std::runtime_error{"the user's"};
  } catch (const std::runtime_error&) {
  }
  inside(p, [&] { torch::tanh(torch::mm(x, x)); });
  p.record(false);
  CHECK(names(p.graph()) == "mm tanh");
  CHECK(p.graph()[1].producers == producers{0});
}

TEST_CASE("the time of a recording grows with the operators, not with their square") {
  auto x = torch::randn({2}).requires_grad_();
  const auto seconds_for = [&](std::size_t operators) {
    program p;
    const double start = processor_seconds();
    recorded(p, [&] {
      auto y = x;
      for (std::size_t i = 0; i < operators; ++i) y = torch::tanh(y);
      y = torch::Tensor{};
    });
    CHECK(p.graph().size() == operators);
    CHECK(p.graph()[operators - 1].producers == producers{operators - 2});
    return processor_seconds() - start;
  };
  CHECK(seconds_for(16'000) < 30 * seconds_for(2'000));
}
