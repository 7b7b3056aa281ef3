// SPDX-License-Identifier: Apache-2.0
// A plan over a recorded forward: nothing changes under FP32; low operators compute what hand-written casts compute.

#include <random>

#include "program_support.hpp"
#include "torch_and_doctest.hpp"

namespace {

using comp::libtorch::memory_format;
using comp::libtorch::weight_casts;

torch::Tensor bf16(const torch::Tensor& t) { return t.to(torch::kBFloat16); }

/// A step under LibTorch's own autocast.
outcome train_with_autocast(const job& it, int steps) {
  const job wrapped{it.model, [&] {
                      at::autocast::set_autocast_enabled(device.type(), true);
                      at::autocast::set_autocast_dtype(device.type(), at::kBFloat16);
                      auto loss = it.loss();
                      at::autocast::clear_cache();
                      at::autocast::set_autocast_enabled(device.type(), false);
                      return loss;
                    }};
  return train(wrapped, steps, nullptr);
}

}  // namespace

TEST_CASE("the FP32 plan gives the bits of the model without a program") {
  for (const auto& [name, make] : all_jobs()) {
    CAPTURE(name);
    const outcome plain = train(again(make), 4, nullptr);
    const job hooked = again(make);
    program p{{.device = device}};
    record(p, hooked);
    CHECK(p.graph().size() > 3);
    p.set_plan(comp::plan{p.graph().size()});
    CHECK(same(plain, train(hooked, 4, &p)));
    CHECK(p.problems().mismatches + p.problems().ended_early == 0);
  }
}

TEST_CASE("the pytorch rule's plan gives the bits of LibTorch's autocast") {
  for (const auto& [name, make] : all_jobs()) {
    CAPTURE(name);
    const outcome autocast = train_with_autocast(again(make), 3);
    const job hooked = again(make);
    program p{{.device = device}};
    record(p, hooked);
    p.set_plan(autocast_plan(p.graph()));
    CHECK(p.current_plan().count_low() > 0);
    const outcome planned = train(hooked, 3, &p);
    for (std::size_t i = 0; i < 3; ++i) {
      CAPTURE(i);
      const bool rounds_otherwise = device.is_cuda() && name == "conv_net";  // its cross_entropy: cuda_tests.cpp
      CHECK(same(autocast.losses[i], planned.losses[i]) != rounds_otherwise);
    }
  }
}

TEST_CASE("a scale without dimensions keeps its digits, as under LibTorch's autocast") {
  const auto scaled = [] {
    torch::nn::Sequential net{torch::nn::Linear{32, 32}, torch::nn::Linear{32, 32}};
    const auto scale = net->register_parameter("scale", torch::tensor(0.3F));
    const auto x = torch::randn({16, 32}).to(device);
    net->to(device);
    return job{net.ptr(), [=]() mutable {
                 return net[1]
                     ->as<torch::nn::Linear>()
                     ->forward(net[0]->as<torch::nn::Linear>()->forward(x).mul(scale))
                     .sub(scale)
                     .pow(2)
                     .mean();
               }};
  };
  const outcome autocast = train_with_autocast(again(scaled), 3);
  const job hooked = again(scaled);
  program p{{.device = device}};
  record(p, hooked);
  comp::plan low = autocast_plan(p.graph());
  for (std::size_t i = 0; i < low.size(); ++i) {
    if (p.graph()[i].kind == "aten::mul.Tensor" || p.graph()[i].kind == "aten::sub.Tensor") low[i] = precision::bf16;
  }
  p.set_plan(low);
  const outcome planned = train(hooked, 3, &p);
  for (std::size_t i = 0; i < 3; ++i) CHECK(same(autocast.losses[i], planned.losses[i]));
  for (std::size_t i = 0; i < planned.tensors.size(); ++i) CHECK(same(autocast.tensors[i], planned.tensors[i]));
}

TEST_CASE("kept copies of the weights give the bits of casts, over steps of Adam") {
  for (const auto& [name, make] : all_jobs()) {
    for (const precision low : {precision::bf16, precision::fp16}) {
      if (low == precision::fp16 && name == "lstm") continue;
      CAPTURE(name);
      CAPTURE(comp::name(low));
      std::vector<outcome> outcomes;
      for (const auto weights : {weight_casts::cast, weight_casts::keep}) {
        const job it = again(make);
        program p{{.device = device, .weights = weights}};
        record(p, it);
        p.set_plan(low == precision::fp16 ? everywhere(p.graph(), low) : autocast_plan(p.graph()));
        outcomes.push_back(train(it, 4, &p));
        CHECK((p.kept_bytes() > 0) == (weights == weight_casts::keep));
      }
      CHECK(same(outcomes[0], outcomes[1]));
    }
  }
}

TEST_CASE("any plan on any small net computes what casts written at each operator compute") {
  std::mt19937_64 draw{11};
  const auto below = [&](std::uint64_t n) { return static_cast<int>(draw() % n); };
  const auto type_of = [](precision p) {
    return p == precision::bf16 ? torch::kBFloat16 : p == precision::fp16 ? torch::kHalf : torch::kFloat;
  };
  for (int trial = 0; trial < 60; ++trial) {
    CAPTURE(trial);
    torch::manual_seed(trial);
    const int depth = 2 + below(7);
    std::vector<torch::Tensor> weights;
    std::vector<int> kinds, other;
    for (int i = 0; i < depth; ++i) {
      kinds.push_back(below(i == 0 ? 2 : 6));  // a weight comes first: there is something to learn
      other.push_back(below(static_cast<std::uint64_t>(i) + 1));
      weights.push_back(torch::randn({8, 8}).requires_grad_());
    }
    const auto x = torch::randn({4, 8});
    std::vector<precision> chosen;  // of each operator, in order; empty: no casts
    const auto run = [&] {
      std::size_t op = 0;
      std::vector<torch::Tensor> values{x};
      const auto in = [&](const torch::Tensor& t) { return chosen.empty() ? t : t.to(type_of(chosen[op])); };
      for (int i = 0; i < depth; ++i) {
        const int kind = kinds[static_cast<std::size_t>(i)];
        const auto a = in(values.back());
        const auto b = in(kind < 2 ? weights[static_cast<std::size_t>(i)]
                                   : values[static_cast<std::size_t>(other[static_cast<std::size_t>(i)])]);
        values.push_back(kind == 0   ? torch::mm(a, b)
                         : kind == 1 ? torch::linear(a, b)
                         : kind == 2 ? torch::add(a, b)
                         : kind == 3 ? torch::tanh(a)
                         : kind == 4 ? torch::mul(a, b)
                                     : torch::softmax(a, 1));
        ++op;
      }
      return torch::sum(in(values.back()));
    };
    program p{{.weights = below(2) == 0 ? weight_casts::cast : weight_casts::keep}};
    recorded(p, run);
    REQUIRE(p.graph().size() == static_cast<std::size_t>(depth) + 1);
    comp::plan plan{p.graph().size()};
    for (std::size_t i = 0; i < plan.size(); ++i) {
      plan[i] = std::array{precision::fp32, precision::bf16, precision::fp16}[static_cast<std::size_t>(below(3))];
    }
    CAPTURE(plan.str());
    p.set_plan(plan);
    const torch::Tensor loss = inside(p, run);
    loss.backward();
    std::vector<torch::Tensor> gradients;
    for (auto& w : weights)
      gradients.push_back(w.grad().defined() ? w.grad().clone() : torch::Tensor{}), w.mutable_grad().reset();
    chosen.assign(plan.begin(), plan.end());
    const auto by_hand = run();
    by_hand.backward();
    CHECK((same(loss, by_hand) || (loss.isnan().item<bool>() && by_hand.isnan().item<bool>())));
    for (std::size_t i = 0; i < weights.size(); ++i) {
      REQUIRE(gradients[i].defined() == weights[i].grad().defined());
      if (!gradients[i].defined() || gradients[i].isnan().any().item<bool>()) continue;
      CHECK(same(gradients[i], weights[i].grad()));
      CHECK(gradients[i].dtype() == torch::kFloat);
    }
  }
}

TEST_CASE("kept copies come back with their plan, before its next forward, and as the weights are then") {
  const job it = again(conv_net), other = again(conv_net);
  program p{{.device = device, .weights = weight_casts::keep}}, twin{{.device = device, .weights = weight_casts::cast}};
  record(p, it);
  record(twin, other);
  const comp::plan low = everywhere(p.graph(), precision::bf16), high{p.graph().size()};
  for (const comp::plan& next : {low, high, low}) {
    p.set_plan(next);
    twin.set_plan(next);
    if (next == high) CHECK(p.kept_bytes() == 0);
    torch::manual_seed(9);
    const outcome kept = train(it, 2, &p);
    torch::manual_seed(9);
    CHECK(same(kept, train(other, 2, &twin)));
    CHECK((p.kept_bytes() > 0) == (next == low));
  }
  const auto bytes = p.kept_bytes();
  p.set_plan(high);
  p.set_plan(low);
  CHECK(p.kept_bytes() == bytes);
}

TEST_CASE("model and optimizer stay as they are under kept copies") {
  const job it = again(conv_net);
  program p{{.device = device, .weights = weight_casts::keep}};
  record(p, it);
  p.set_plan(everywhere(p.graph(), precision::bf16));
  std::vector<const void*> before;
  for (const auto& t : it.model->parameters()) before.push_back(t.unsafeGetTensorImpl());
  train(it, 2, &p);
  std::size_t i = 0;
  for (const auto& t : it.model->parameters()) {
    CHECK(t.unsafeGetTensorImpl() == before[i++]);
    CHECK(t.dtype() == torch::kFloat);
    CHECK(t.is_leaf());
    CHECK(t.grad().dtype() == torch::kFloat);
  }
}

TEST_CASE("one cast serves every reader of a tensor, in one format and until it is written") {
  const auto w = torch::randn({4, 4}).requires_grad_();
  const auto x = torch::randn({4, 4});
  torch::Tensor a, b, c;
  const auto forward = [&] {
    auto y = x + 1;
    a = torch::mm(y, w);
    b = torch::mm(y, w);
    y.add_(1);
    c = torch::mm(y, w);
    return (a + b + c).sum();
  };
  program p;
  run_low(p, {"mm", "mm_2", "mm_3"}, forward);
  CHECK(a.dtype() == torch::kBFloat16);
  CHECK(same(a, b));
  CHECK(same(c, torch::mm(bf16(x + 2), bf16(w))));
  const auto saved = [](const torch::Tensor& t) { return t.grad_fn()->next_edge(1).function; };
  CHECK(saved(a) == saved(b));  // the cast of w
  CHECK(saved(a) == saved(c));
}

TEST_CASE("a cast that an operator gave back and that was written is not used again") {
  const auto x = torch::ones({2, 2});
  const auto w = torch::ones({2, 2}).requires_grad_();
  torch::Tensor second;
  program p;
  run_low(p, {"dropout", "mm"}, [&] {
    const torch::NoGradGuard no_gradients;
    torch::dropout(x, 0.5, false).add_(1);  // in evaluation mode dropout gives its input: here the cast of x
    torch::dropout(w, 0.5, false);
    return second = torch::mm(x, w);
  });
  CHECK(x[0][0].item<float>() == 2);  // written while recording
  CHECK(second[0][0].item<float>() == 4);
}

TEST_CASE("the low copy of a weight is made again where it or the weight was written within a region") {
  const torch::NoGradGuard no_gradients;
  for (const bool keep : {false, true}) {
    comp::libtorch::detail::low_weights copies;
    const auto w = torch::ones({2, 2});
    const auto number = copies.entry_of(0, torch::kBFloat16, at::MemoryFormat::Preserve);
    copies.begin_region();
    auto low = copies.get(number, w, keep);
    CHECK(copies.get(number, w, keep).is_same(low));
    w.add_(1);
    low = copies.get(number, w, keep);
    CHECK(same(low, bf16(w)));
    low.mul_(7);
    CHECK(same(copies.get(number, w, keep), bf16(w)));
  }
}

TEST_CASE("a view of a weight is taken of its low copy, and not where others read it in FP32") {
  const auto w = torch::randn({4, 4}).requires_grad_();
  const auto x = torch::randn({4, 4});
  torch::Tensor view;
  program p;
  run_low(p, {"mm"}, [&] { return torch::mm(x, view = w.t()); });
  CHECK(view.dtype() == torch::kBFloat16);
  run_low(p, {"mm"}, [&] {
    view = w.t();
    const auto product = torch::mm(x, view);
    return product + view.exp();
  });
  CHECK(view.dtype() == torch::kFloat);
  run_low(p, {"mm", "mm_2"}, [&] {
    view = w.t();
    return torch::mm(x, view) + torch::mm(view, x);
  });
  CHECK(view.dtype() == torch::kFloat);  // the gradients of two readers are added in FP32
  const auto bias = torch::randn({4}).requires_grad_();
  run_low(p, {"add"}, [&] { return (view = bias.expand({4, 4})) + x; });
  CHECK(view.dtype() == torch::kFloat);  // its gradient is a sum, of FP32
}

TEST_CASE("the gradients of a tensor's readers are added in its own format, those of a leaf's in its cast's") {
  const auto x = torch::randn({4, 4}).requires_grad_();
  const std::vector<torch::Tensor> w{torch::randn({4, 4}), torch::randn({4, 4}), torch::randn({4, 4})};
  const auto low = [](const torch::Tensor& t) { return t.to(torch::kBFloat16); };
  for (const bool leaf : {false, true}) {
    CAPTURE(leaf);
    const auto forward = [&](bool by_hand) {
      const torch::Tensor h = leaf ? x : x * 3;
      const torch::Tensor shared = by_hand && leaf ? low(h) : h;
      torch::Tensor sum;
      for (const torch::Tensor& each : w) {
        const auto product = by_hand ? torch::mm(low(shared), low(each)) : torch::mm(shared, each);
        sum = sum.defined() ? sum + product.to(torch::kFloat) : product.to(torch::kFloat);
      }
      return sum.sin().sum();
    };
    const auto gradient = [&](const torch::Tensor& loss) {
      x.mutable_grad().reset();
      loss.backward();
      return x.grad().clone();
    };
    const torch::Tensor expected = gradient(forward(true));
    program p;
    CHECK(same(gradient(run_low(p, {"mm", "mm_2", "mm_3"}, [&] { return forward(false); })), expected));
  }
}

TEST_CASE("a parameter has the format of all its readers") {
  const auto w = torch::randn({4, 4}).requires_grad_(), other = torch::randn({4, 4}).requires_grad_();
  const auto x = torch::randn({4, 4});
  program p;
  const auto low = [&](const torch::Tensor& parameter) { return p.format_of_parameter(parameter) == at::kBFloat16; };
  CHECK_FALSE(low(w));
  run_low(p, {"mm", "mm_2"}, [&] { return torch::mm(torch::mm(x, w), other.t()); });
  CHECK(low(w));
  CHECK(low(other));  // through a view
  run_low(p, {"mm", "mm_2"}, [&] { return torch::mm(x, w) + w.exp() + torch::mm(x, other); });
  CHECK_FALSE(low(w));
  CHECK(low(other));
  p.set_plan(comp::plan{p.graph().size()});
  CHECK_FALSE(low(other));
}

TEST_CASE("no copies are kept of parameters whose memory comes and goes") {
  const auto w = torch::randn({4, 4}).requires_grad_();
  const auto values = w.detach().clone(), x = torch::randn({4, 4});
  program p{{.weights = weight_casts::keep}};
  const auto forward = [&] { return torch::mm(x, w); };
  run_low(p, {"mm"}, forward);
  CHECK(p.kept_bytes() > 0);
  auto* const memory = w.storage().unsafeGetStorageImpl();
  const std::size_t bytes = memory->nbytes();
  for (int i = 0; i < 2; ++i) {
    {
      const auto r = p.enter();
      CHECK(same(forward(), torch::mm(bf16(x), bf16(values))));
      memory->set_nbytes(0);
    }
    CHECK(p.kept_bytes() == 0);
    memory->set_nbytes(bytes);
  }
}

TEST_CASE("channels-last convolutions give the same results within rounding") {
  std::vector<outcome> outcomes;
  for (const auto images : {memory_format::as_is, memory_format::channels_last}) {
    for (const auto weights : {weight_casts::cast, weight_casts::keep}) {
      const job it = again(conv_net);
      program p{{.device = device, .weights = weights, .images = images}};
      record(p, it);
      p.set_plan(autocast_plan(p.graph()));
      outcomes.push_back(train(it, 1, &p));
    }
  }
  for (std::size_t i = 1; i < outcomes.size(); ++i) {
    CHECK(outcomes[i].losses[0].item<double>() == doctest::Approx(outcomes[0].losses[0].item<double>()).epsilon(0.02));
    CHECK(outcomes[i].tensors.size() == outcomes[0].tensors.size());
  }
}

TEST_CASE("what a channels-last convolution gives can be viewed") {
  torch::nn::Conv2d conv{torch::nn::Conv2dOptions{3, 8, 3}};
  const auto x = torch::randn({2, 3, 6, 6});
  torch::Tensor image;
  const auto forward = [&] { return (image = conv(x)).view({2, -1}).to(torch::kFloat); };
  program p{{.images = memory_format::channels_last}};
  p.name_parameters(*conv);
  const auto got = run_low(p, {"conv2d"}, forward);
  CHECK(image.is_contiguous(at::MemoryFormat::ChannelsLast));
  CHECK(same(got, image.contiguous().view({2, -1}).to(torch::kFloat)));
}

TEST_CASE("norms keep FP32 weights and statistics under low inputs") {
  torch::nn::BatchNorm2d norm{4};
  torch::nn::LayerNorm layer{torch::nn::LayerNormOptions{{4}}};
  const auto x = torch::randn({2, 4, 3, 3});
  torch::Tensor y, z;
  program p;
  run_low(p, {"batch_norm", "layer_norm"}, [&] {
    y = norm(x);
    return z = layer(y.permute({0, 2, 3, 1}));
  });
  CHECK(y.dtype() == torch::kBFloat16);
  CHECK(z.dtype() == torch::kBFloat16);
  CHECK(norm->running_mean.dtype() == torch::kFloat);
  CHECK(norm->running_mean.abs().sum().item<float>() > 0);
  y.sum().backward();
  CHECK(norm->weight.grad().dtype() == torch::kFloat);
}

TEST_CASE("a plan that does not fit is refused") {
  const job it = again([] { return mlp(); });
  program p{{.device = device}};
  record(p, it);
  CHECK_THROWS_AS(p.set_plan(comp::plan{2}), comp::plan_error);
  comp::plan chosen{p.graph().size()};
  const auto addmm = index_of(p.graph(), "0.addmm"), relu = addmm + 1;
  const auto other_devices = device.is_cpu() ? precision::tf32 : precision::mxfp8;
  for (const auto& [at, wrong] : {std::pair{addmm, other_devices}, {relu, precision::fp8_e4m3}}) {
    REQUIRE(at < p.graph().size());
    chosen[at] = wrong;
    CHECK_THROWS_WITH_AS(
        p.set_plan(chosen),
        doctest::Contains("(LibTorch runs fp32, bf16 and fp16, tf32 on CUDA, linear layers in bf16>fp32, "),
        comp::plan_error);
    chosen[at] = precision::fp32;
  }
  chosen[index_of(p.graph(), "0.t")] = precision::bf16;
  CHECK_THROWS_AS(p.set_plan(chosen), comp::plan_error);
}

TEST_CASE("operators are timed forward and backward, casts apart, and results stay the same") {
  std::vector<outcome> outcomes;
  for (const bool profiled : {false, true}) {
    const job it = again([] { return mlp(3, 128); });
    program p{{.device = device}};
    record(p, it);
    p.set_plan(autocast_plan(p.graph()));
    p.profile(profiled);
    outcomes.push_back(train(it, 5, &p));
    p.profile(false);
    const auto times = p.times();
    REQUIRE(times.size() == p.graph().size());
    const auto addmm = times[index_of(p.graph(), "2.addmm")];
    CHECK((addmm.forward > 0) == profiled);
    CHECK((addmm.backward > 0) == profiled);
    CHECK(addmm.forward < 0.1);
  }
  CHECK(same(outcomes[0], outcomes[1]));
}
