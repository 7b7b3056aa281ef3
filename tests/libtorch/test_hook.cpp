// SPDX-License-Identifier: Apache-2.0
// Regions: what they take over and that they leave nothing behind, over nesting, exceptions and threads.

#include <cmath>
#include <stdexcept>
#include <thread>

#include "program_support.hpp"
#include "torch_and_doctest.hpp"

namespace {

/// The dispatcher's state of this thread.
std::pair<std::uint64_t, std::uint64_t> key_sets() {
  const auto now = c10::impl::tls_local_dispatch_key_set();
  return {now.included_.raw_repr(), now.excluded_.raw_repr()};
}

/// Records tanh(mm(x, w)) and gives the product BF16.
struct small_program {
  program p;
  torch::Tensor x = torch::randn({3, 3});
  torch::Tensor w = torch::randn({3, 3}).requires_grad_();

  torch::Tensor forward() { return torch::tanh(torch::mm(x, w)); }
  small_program() {
    run_low(p, {"mm", "tanh"}, [this] { return forward(); });
  }
};

TEST_CASE("a region restores the dispatcher's state exactly") {
  small_program s;
  const auto before = key_sets();
  SUBCASE("in the ordinary way") {
    const auto r = s.p.enter();
    CHECK(key_sets() != before);
  }
  SUBCASE("by an exception in the middle") {
    const auto wrong = torch::randn({5, 5});
    try {
      const auto r = s.p.enter();
      torch::mm(s.x, wrong);
    } catch (const c10::Error&) {
    }
  }
  SUBCASE("nested") {
    const auto outer = s.p.enter();
    const auto inside = key_sets();
    {
      const auto inner = s.p.enter();
      CHECK(key_sets() == inside);
      CHECK(s.forward().dtype() == torch::kBFloat16);
    }
    CHECK(key_sets() == inside);
    CHECK(s.forward().dtype() == torch::kBFloat16);
  }
  SUBCASE("beside another guard") {
    const c10::InferenceMode mode;
    const auto inside = key_sets();
    { const auto r = s.p.enter(); }
    CHECK(key_sets() == inside);
  }
  CHECK(s.forward().dtype() == torch::kFloat);
  CHECK((key_sets() == before || c10::InferenceMode::is_enabled()));
}

TEST_CASE("a nested region of another program has its operators, the outer one goes on after it") {
  small_program a, b;
  const auto outer = a.p.enter();
  const auto product = torch::mm(a.x, a.w);
  {
    const auto inner = b.p.enter();
    CHECK(b.forward().dtype() == torch::kBFloat16);
  }
  CHECK(torch::tanh(product).dtype() == torch::kBFloat16);
}

TEST_CASE("an exception in a region leaves no trace in the program") {
  small_program s;
  for (int i = 0; i < 3; ++i) {
    try {
      const auto r = s.p.enter();
      torch::mm(s.x, s.w);
      throw std::runtime_error{"the user's"};
    } catch (const std::runtime_error&) {
    }
  }
  CHECK(s.p.problems().first.empty());
  const torch::Tensor y = inside(s.p, [&] { return s.forward(); });
  y.sum().backward();
  CHECK(s.w.grad().isfinite().all().item<bool>());
}

TEST_CASE("a thread started in a region is not in it; threads have regions of their own") {
  small_program s;
  const torch::Tensor want = inside(s.p, [&] { return s.forward(); });
  {
    const auto r = s.p.enter();
    torch::Tensor elsewhere;
    std::thread{[&] { elsewhere = torch::mm(s.x, s.w); }}.join();
    CHECK(elsewhere.dtype() == torch::kFloat);
    CHECK(s.forward().dtype() == torch::kBFloat16);
  }
  std::vector<std::thread> threads;
  std::vector<int> wrong(4);
  for (std::size_t t = 0; t < wrong.size(); ++t) {
    threads.emplace_back([&, t] {
      small_program own;
      for (int i = 0; i < 200; ++i) {
        program& p = i % 2 == 0 ? s.p : own.p;
        const torch::Tensor y = inside(p, [&] { return i % 2 == 0 ? s.forward() : own.forward(); });
        if (i % 2 == 0 && !same(y, want)) ++wrong[t];
        if (i % 2 == 1) y.sum().backward();
      }
    });
  }
  for (auto& thread : threads) thread.join();
  CHECK(wrong == std::vector<int>(4));
}

TEST_CASE("a region in LibTorch's autocast is an error that says so; where that is switched on inside, it decides") {
  small_program s;
  at::autocast::set_autocast_enabled(at::kCPU, true);
  CHECK_THROWS_WITH_AS(static_cast<void>(s.p.enter()), doctest::Contains("switch it off, the plan alone decides"),
                       comp::error);
  CHECK_THROWS_AS(static_cast<void>(s.p.evaluate()), comp::error);
  at::autocast::set_autocast_enabled(at::kCPU, false);
  {
    const auto r = s.p.enter();
    at::autocast::set_autocast_enabled(at::kCPU, true);  // nested no deeper, and seen all the same
    at::autocast::set_autocast_dtype(at::kCPU, at::kHalf);
    CHECK(s.forward().dtype() == torch::kHalf);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::set_autocast_enabled(at::kCPU, false);
    at::autocast::clear_cache();
  }
  CHECK(s.forward().dtype() == torch::kFloat);
}

TEST_CASE("a region is an error before any was recorded") {
  program p;
  CHECK_THROWS_WITH_AS(static_cast<void>(p.enter("generator")),
                       doctest::Contains("region \"generator\" is entered, and none was recorded: enter it while"),
                       comp::error);
  CHECK_THROWS_AS(p.set_plan(comp::plan{1}), comp::error);
}

TEST_CASE("a region that the recorded step did not enter runs as the plan runs most of each kind") {
  torch::manual_seed(5);
  torch::nn::Linear judge{8, 8}, make{8, 8};
  const auto x = torch::randn({4, 8});
  program p;
  p.record(true);
  {
    const auto r = p.enter("judge");
    (void)judge(x);
  }
  p.record(false);
  const auto both = [&] {
    const auto judged = [&] {
      const auto r = p.enter("judge");
      return judge(x);
    }();
    const auto r = p.enter("make");
    return torch::zeros({4, 8}).lerp_(make(judged), 0.5);
  };
  CHECK(both().equal(make(judge(x)) / 2));
  comp::plan low{p.graph().size()};
  for (std::size_t i = 0; i < low.size(); ++i) low[i] = p.graph()[i].choosable ? comp::precision::bf16 : low[i];
  p.set_plan(low);
  CHECK_FALSE(both().equal(make(judge(x)) / 2));
  CHECK(torch::allclose(both(), make(judge(x)) / 2, 0.05, 0.05));
  CHECK(p.problems().unknown > 0);
}

TEST_CASE("a step of several segments is one graph; a segment may come several times") {
  torch::manual_seed(5);
  torch::nn::Linear generator{4, 4}, discriminator{4, 1};
  const auto noise = torch::randn({8, 4});
  program p;
  p.name_parameters(*generator, "generator");
  p.name_parameters(*discriminator, "discriminator");
  torch::Tensor image, judged;
  const auto step = [&] {
    {
      const auto r = p.enter("generate");
      image = generator(noise);
    }
    for (int i = 0; i < 2; ++i) {
      const auto r = p.enter("judge");
      judged = discriminator(image).sigmoid();
    }
  };
  p.record(true);
  step();
  p.record(false);
  REQUIRE(p.graph().size() == 5);
  CHECK(p.graph()[1].name == "generator.addmm");
  CHECK(p.graph()[3].name == "discriminator.addmm");
  CHECK(p.graph()[3].producers == std::vector<std::size_t>{1, 2});
  p.set_plan(everywhere(p.graph(), precision::bf16));
  step();
  CHECK(judged.dtype() == torch::kBFloat16);
  judged.sum().backward();
  CHECK(generator->weight.grad().dtype() == torch::kFloat);
  CHECK(p.problems().first.empty());
}

TEST_CASE("one network's optimizer may step before the other's backward") {
  torch::manual_seed(6);
  const auto g = torch::randn({4, 4}).requires_grad_(), d = torch::randn({4, 4}).requires_grad_();
  const auto noise = torch::randn({4, 4});
  torch::optim::SGD judges{{d}, 0.1};
  std::vector<torch::Tensor> gradients;
  for (const auto weights : {comp::libtorch::weight_casts::cast, comp::libtorch::weight_casts::keep}) {
    program p{{.weights = weights}};
    const auto forward = [&] { return torch::mm(torch::tanh(torch::mm(noise, g)), g); };
    run_low(p, {"mm", "tanh", "mm_2"}, forward);
    const torch::Tensor image = inside(p, forward);
    torch::mm(image.detach().to(torch::kFloat), d).sum().backward();
    judges.step();
    image.sum().backward();
    gradients.push_back(g.grad().clone());
    g.mutable_grad().reset();
  }
  CHECK(same(gradients[0], gradients[1]));
}

TEST_CASE("a program cannot be changed in a region of its own") {
  small_program s;
  const auto plan = s.p.current_plan();
  {
    const auto r = s.p.enter();
    CHECK_THROWS_WITH_AS(s.p.set_plan(plan), doctest::Contains("end the region first"), comp::error);
    CHECK_THROWS_AS(s.p.record(true), comp::error);
    CHECK_THROWS_AS(s.p.set_settings({}), comp::error);
    CHECK(s.forward().dtype() == torch::kBFloat16);
  }
  recorded(s.p, [&] {
    s.forward();
    CHECK_THROWS_AS(s.p.record(false), comp::error);
  });
  CHECK(s.p.graph().size() == 2);
}

/// A generator after `drawn` words of its sequence.
at::Generator generator_after(int drawn) {
  at::Generator generator = at::make_generator<at::CPUGeneratorImpl>(7);
  for (int i = 0; i < drawn; ++i) at::check_generator<at::CPUGeneratorImpl>(generator)->random();
  return generator;
}

/// Whether ATen compares a double of two words of the generator with `p`; else it draws by MKL.
bool aten_draws_by_twister() {
  const at::Generator theirs = generator_after(0), ours = generator_after(0);
  const at::Tensor drawn = at::empty({1001}).bernoulli_(0.3, theirs);
  for (std::int64_t i = 0; i < drawn.numel(); ++i) {
    const auto bits = at::check_generator<at::CPUGeneratorImpl>(ours)->random64() & ((std::uint64_t{1} << 53) - 1);
    if ((std::ldexp(static_cast<double>(bits), -53) < 0.3) != (drawn[i].item<float>() == 1)) return false;
  }
  return true;
}

c10::DispatchKey random_key() { return comp::libtorch::detail::registration::once().random_key(); }

}  // namespace

TEST_CASE("in a region bernoulli_ gives ATen's numbers and leaves the generator where ATen does") {
  REQUIRE(comp::libtorch::detail::draws_as_aten() == aten_draws_by_twister());
  if (!aten_draws_by_twister()) return;
  for (const auto format : {at::kFloat, at::kBFloat16, at::kHalf, at::kDouble, at::kBool}) {
    for (const std::int64_t count : {1, 255, 256, 257, 623, 1024, 1025, 5000}) {
      for (const double p : {0.0, 0.1, 0.5, 0.9, 1.0}) {
        for (const int drawn : {0, 1, 2, 623, 624, 625}) {
          CAPTURE(count);
          CAPTURE(p);
          CAPTURE(drawn);
          at::Generator theirs = generator_after(drawn), ours = generator_after(drawn);
          const at::Tensor expected = at::empty({count}, format).bernoulli_(p, theirs);
          at::Tensor drawn_here = at::full({count}, 1, format);
          REQUIRE(comp::libtorch::detail::draw_as_aten(drawn_here, p, ours) == (count >= 256));
          if (count < 256) continue;
          REQUIRE(at::equal(drawn_here, expected));
          REQUIRE(at::equal(ours.get_state(), theirs.get_state()));
          REQUIRE(drawn_here._version() == 2);
        }
      }
    }
  }
}

TEST_CASE("bernoulli_ is left to ATen where somebody else has a say") {
  const auto draws = [](at::Tensor to) { return comp::libtorch::detail::draw_as_aten(to, 0.5, {}); };
  CHECK(draws(at::empty({512})) == comp::libtorch::detail::draws_as_aten());
  CHECK_FALSE(draws(at::empty({512}).requires_grad_()));
  CHECK_FALSE(draws(at::empty({512}, at::kInt)));
  CHECK_FALSE(draws(at::empty({512, 4}).select(1, 0)));
  CHECK_FALSE(draws(at::empty({1}).expand({512})));
  {
    const c10::InferenceMode mode;
    CHECK_FALSE(draws(at::empty({512})));
  }
  CHECK_THROWS(at::empty({512}).bernoulli_(1.5));
  program p;
  p.record(true);
  const auto on = p.enter();
  CHECK_THROWS(at::empty({512}).bernoulli_(1.5));
}

TEST_CASE("dropout has the same bits in a region, forward and backward, alone and inside attention") {
  const auto run = [](const std::function<at::Tensor(const at::Tensor&)>& model, bool in_region) {
    torch::manual_seed(3);
    program p;
    p.record(true);
    const at::Tensor x = torch::randn({2, 4, 32, 16}).to(at::MemoryFormat::ChannelsLast).requires_grad_();
    const auto forward = [&] {
      CHECK(c10::impl::tls_is_dispatch_key_included(random_key()) == in_region);
      return model(x);
    };
    const at::Tensor y = in_region ? inside(p, forward) : forward();
    return std::vector{y.detach(), torch::autograd::grad({y}, {x}, {torch::ones_like(y)})[0], torch::randn({3})};
  };
  const std::function<at::Tensor(const at::Tensor&)> models[] = {
      [](const at::Tensor& x) { return at::dropout(x, 0.2, true); },
      [](const at::Tensor& x) { return at::dropout(x.to(at::kBFloat16), 0.2, true); },
      [](const at::Tensor& x) {
        at::Tensor y = x * 2;
        return at::dropout_(y, 0.2, true);
      },
      [](const at::Tensor& x) { return at::alpha_dropout(x, 0.3, true); },
      [](const at::Tensor& x) { return at::scaled_dot_product_attention(x, x, x, {}, 0.2); }};
  for (const auto& model : models) {
    const auto drawn = run(model, true), expected = run(model, false);
    for (std::size_t i = 0; i < drawn.size(); ++i) CHECK(at::equal(drawn[i], expected[i]));
  }
}
