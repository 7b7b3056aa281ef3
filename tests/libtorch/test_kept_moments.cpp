// SPDX-License-Identifier: Apache-2.0
// Moments of LibTorch's own optimizers as operators of a plan.
#include <algorithm>
#include <bit>
#include <comp_libtorch/train/kept_moments.hpp>
#include <memory>
#include <string>
#include <vector>

#include "trainer_support.hpp"

namespace optim = torch::optim;
using namespace libtorch_tests;

namespace {

using maker = std::unique_ptr<optim::Optimizer> (*)(std::vector<at::Tensor>);

struct moments_case {
  const char* name;
  maker make;
  std::size_t moments;
};
const std::vector<moments_case>& with_moments() {
  static const std::vector<moments_case> all{
      {"Adam",
       [](std::vector<at::Tensor> p) -> std::unique_ptr<optim::Optimizer> {
         return std::make_unique<optim::Adam>(std::move(p), optim::AdamOptions(1e-2).weight_decay(0.1).amsgrad(true));
       },
       2},
      {"AdamW",
       [](std::vector<at::Tensor> p) -> std::unique_ptr<optim::Optimizer> {
         return std::make_unique<optim::AdamW>(std::move(p), optim::AdamWOptions(1e-2));
       },
       2},
      {"SGD",
       [](std::vector<at::Tensor> p) -> std::unique_ptr<optim::Optimizer> {
         return std::make_unique<optim::SGD>(std::move(p),
                                             optim::SGDOptions(0.05).momentum(0.9).dampening(0.1).weight_decay(0.01));
       },
       1}};
  return all;
}

/// As classification, with an optimizer of the caller's.
struct kept_training : classification {
  std::unique_ptr<optim::Optimizer> chosen;
  classification_trainer t;
  kept_training(maker make, bool moments = true)
      : chosen{make(net->parameters())}, t{prepared(moments), batches, make_own_step(), [this] {
                                             return accuracy();
                                           }} {}

  lt::setup prepared(bool moments) {
    setup.optimizers = {chosen.get()};
    setup.moments = moments;
    return setup;
  }
  std::function<void(lt::step&, const torch::data::Example<>&)> make_own_step() {
    return [this](lt::step& s, const torch::data::Example<>& batch) {
      const auto l = s.forward([&] { return loss(batch); });
      s.backward(l);
      s.update(*chosen);
    };
  }
  void lower() {
    comp::plan p{t.graph().size()};
    for (std::size_t i = 0; i < p.size(); ++i) p[i] = t.graph()[i].is_state ? comp::precision::bf16 : p[i];
    t.set_precision(p);
  }
  std::vector<at::Tensor> slots() {
    std::vector<at::Tensor> all;
    lt::detail::each_moment(*chosen, [&](const at::Tensor&, at::Tensor& m, int, std::uint64_t) { all.push_back(m); });
    return all;
  }
};

bool all_in(const std::vector<at::Tensor>& slots, at::ScalarType format) {
  return !slots.empty() && std::ranges::all_of(slots, [&](const at::Tensor& t) { return t.scalar_type() == format; });
}
bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b, [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x, y); });
}

}  // namespace

TEST_CASE("a LibTorch optimizer's moments are operators if they are asked for") {
  for (const auto& [name, make, moments] : with_moments()) {
    CAPTURE(name);
    kept_training with{make}, without{make, false};
    const auto& graph = with.t.graph();
    REQUIRE(graph.size() == without.t.graph().size() + moments);
    CHECK(graph[graph.size() - moments].name == "optimizer.moment1");
    CHECK((graph[graph.size() - 1].kind == (moments == 2 ? "moment2" : "moment1")));
    CHECK(with.t.signature() != without.t.signature());
    for (const comp::precision p : comp::all_precisions)
      CHECK(with.t.supports(graph[graph.size() - 1], p) == (p == comp::precision::fp32 || p == comp::precision::bf16));
    comp::plan fp16{graph.size()};
    fp16[graph.size() - 1] = comp::precision::fp16;
    CHECK_THROWS_AS(with.t.set_precision(fp16), comp::plan_error);
    CHECK(with.t.own_autocast(comp::precision::bf16)[graph.size() - 1] == comp::precision::fp32);
  }
  const auto plain = [](std::vector<at::Tensor> p) -> std::unique_ptr<optim::Optimizer> {
    return std::make_unique<optim::RMSprop>(std::move(p), optim::RMSpropOptions(1e-2));
  };
  CHECK_THROWS_AS(kept_training{plain}, comp::settings_error);
}

TEST_CASE("in FP32 the training has the bits that it has without; in BF16 moments take half, and losses are near") {
  for (const auto& [name, make, moments] : with_moments()) {
    CAPTURE(name);
    kept_training with{make}, without{make, false}, low{make};
    torch::manual_seed(5);
    const auto expected = without.t.run_epoch();
    torch::manual_seed(5);
    CHECK(with.t.run_epoch().curve == expected.curve);
    CHECK(same(with.net->parameters(), without.net->parameters()));
    low.lower();
    torch::manual_seed(5);
    const auto got = low.t.run_epoch();
    CHECK(got.loss == doctest::Approx(expected.loss).epsilon(0.01));
    CHECK(got.curve != expected.curve);
    CHECK(all_in(low.slots(), at::kBFloat16));
    CHECK(all_in(with.slots(), at::kFloat));
    low.t.set_precision(comp::plan{low.t.graph().size()});
    (void)low.t.run_batch();
    CHECK(all_in(low.slots(), at::kFloat));
  }
}

TEST_CASE(
    "a training with moments in BF16 is reproducible, and goes on with the same bits when it is restored or loaded") {
  for (const auto& [name, make, moments] : with_moments()) {
    CAPTURE(name);
    const auto begun = [&, make = make] {
      auto made = std::make_unique<kept_training>(make);
      made->lower();
      torch::manual_seed(5);
      (void)made->t.run_epoch();
      return made;
    };
    const auto one = begun(), other = begun();
    CHECK(same(one->slots(), other->slots()));
    CHECK(same(one->net->parameters(), other->net->parameters()));
    const auto saved = one->t.save();
    const auto stored = one->t.store_state();
    const auto curve = one->t.run_epoch().curve;
    one->t.restore(saved);
    CHECK(one->t.run_epoch().curve == curve);
    kept_training fresh{make};
    fresh.lower();
    fresh.t.load_state(stored);
    CHECK(all_in(fresh.slots(), at::kBFloat16));
    CHECK(fresh.t.run_epoch().curve == curve);
    CHECK(same(fresh.slots(), one->slots()));
  }
}

TEST_CASE("moments are updated in pieces as ATen updates them whole, and rounded by core's random words") {
  constexpr std::int64_t n = lt::detail::piecewise::most + 4099;
  for (const auto& [name, make, moments] : with_moments()) {
    CAPTURE(name);
    torch::manual_seed(3);
    const at::Tensor start = torch::randn({n}), gradient = torch::randn({n});
    at::Tensor p = start.clone().requires_grad_(), q = start.clone().requires_grad_();
    p.mutable_grad() = gradient.clone(), q.mutable_grad() = gradient.clone();
    const auto pieces = make({p}), whole = make({q});
    CHECK(lt::step_keeping(*pieces, {at::kBFloat16, at::kBFloat16, 7}));
    CHECK(lt::fused_step(*whole));
    CHECK(at::equal(p, q));  // the first step reads zeros
    std::vector<at::Tensor> low, full;
    lt::detail::each_moment(*pieces, [&](const at::Tensor&, at::Tensor& m, int, std::uint64_t) { low.push_back(m); });
    lt::detail::each_moment(*whole, [&](const at::Tensor&, at::Tensor& m, int, std::uint64_t) { full.push_back(m); });
    REQUIRE(low.size() == full.size());
    std::int64_t wrong = 0;
    for (std::size_t k = 0; k < low.size(); ++k) {
      const auto* got = static_cast<const std::uint16_t*>(low[k].const_data_ptr());
      const auto* exact = static_cast<const float*>(full[k].const_data_ptr());
      const std::uint64_t key = comp::mix_key(7, 0);
      for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(n); ++i)
        wrong += got[i] != comp::bf16_at_random(exact[i], comp::random_word(key, i) >> (16 * k)) ? 1 : 0;
    }
    CHECK(wrong == 0);
    // A gradient that lies otherwise has them widened for the optimizer's own step.
    at::Tensor r = torch::randn({6, 4}).requires_grad_();
    r.mutable_grad() = torch::randn({4, 6}).t();
    const auto own = make({r});
    CHECK_FALSE(lt::step_keeping(*own, {at::kBFloat16, at::kBFloat16, 7}));
    lt::detail::each_moment(
        *own, [&](const at::Tensor&, at::Tensor& m, int, std::uint64_t) { CHECK((m.scalar_type() == at::kBFloat16)); });
  }
}

TEST_CASE("beside an optimizer whose moments a plan keeps, the moments of parameters in FP64 stay as they are") {
  for (const moments_case& each : with_moments()) {
    CAPTURE(each.name);
    const auto trained = [&](bool beside) {
      const at::Tensor p = torch::linspace(0.1, 1, 5, at::kDouble).requires_grad_();
      const auto optimizer = each.make({p});
      for (int step = 0; step < 3; ++step) {
        p.mutable_grad() = p.detach() / 3;
        if (beside)
          lt::keep_moments(*optimizer, {});  // what the training's step does, in which this one has no operator
        optimizer->step();
      }
      return p.detach();
    };
    CHECK(torch::equal(trained(true), trained(false)));
  }
}

TEST_CASE("the update is timed as the first moment, and both have an error") {
  kept_training some{with_moments()[1].make};
  const auto times = some.t.profile();
  CHECK(times[times.size() - 2].backward > 0);
  const auto errors = some.t.sensitivity(comp::precision::bf16);
  CHECK(errors.back().gradient > 0);
}

TEST_CASE("a plan file with moments is loaded by a trainer with them, and by a region, which says what it leaves") {
  kept_training some{with_moments()[1].make};
  some.lower();
  const comp::plan low = some.t.executor().current_plan();
  const scratch_file file;
  comp::save(low, some.t.graph(), some.t.hardware(), file.str());
  CHECK(comp::load_plan(file.str(), some.t).plan == low);
  classification own;
  lt::planned_region region{{{"net", own.net}}, file.str()};
  inside(region, [&] { (void)own.net->forward(own.data.x); });
  inside(region, [&] { (void)own.net->forward(own.data.x); });
  REQUIRE(region.planned());
  CHECK(std::ranges::any_of(region.warnings(), [](const std::string& w) {
    return w.find("keeps an optimizer's moments in a lower format") != std::string::npos;
  }));
}
