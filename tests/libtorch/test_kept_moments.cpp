// SPDX-License-Identifier: Apache-2.0
// Moments of LibTorch's own optimizers as operators of a plan.
#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <comp_libtorch/support/memory.hpp>
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

/// As classification, with an optimizer of the caller's, and a head of as many weights as FP8 takes at least.
struct kept_training : classification {
  std::unique_ptr<optim::Optimizer> chosen;
  classification_trainer t;
  kept_training(maker make, bool moments = true)
      : classification{1, 64}, chosen{make(net->parameters())}, t{prepared(moments), batches, make_own_step(), [this] {
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
  void lower(comp::precision to = comp::precision::bf16) {
    comp::plan p{t.graph().size()};
    for (std::size_t i = 0; i < p.size(); ++i) p[i] = t.graph()[i].is_state ? to : p[i];
    t.set_precision(p);
  }
  std::vector<at::Tensor> slots() {
    std::vector<at::Tensor> all;
    lt::detail::each_moment(*chosen, [&](const at::Tensor&, at::Tensor& m, int, std::uint64_t) { all.push_back(m); });
    return all;
  }
};

constexpr std::array low_formats{comp::precision::bf16, comp::precision::fp8_e4m3};

/// Whether moments are in the format; in FP8 those of fewer than 4096 values are in FP32.
bool all_in(const std::vector<at::Tensor>& slots, comp::precision format) {
  const bool blocks = format == comp::precision::fp8_e4m3;
  const auto is_kept = [&](const at::Tensor& t) {
    if (blocks && t.scalar_type() == at::kByte) return t.size(0) == 16 && t.size(1) == 260;
    return t.scalar_type() == (format == comp::precision::bf16 ? at::kBFloat16 : at::kFloat) &&
           (!blocks || t.numel() < 4096);
  };
  return !slots.empty() && std::ranges::all_of(slots, is_kept);
}
bool same(const std::vector<at::Tensor>& a, const std::vector<at::Tensor>& b) {
  return std::ranges::equal(a, b, [](const at::Tensor& x, const at::Tensor& y) { return at::equal(x, y); });
}

/// Returns: how many codes and scales of a moment are not what core's arithmetic makes of the numbers, or are none of
/// the two values of E4M3 beside a number, by ATen's own conversion. `k`: 1 for a second moment.
std::int64_t count_wrong_codes(const at::Tensor& blocks, const at::Tensor& numbers, std::uint64_t key, std::size_t k) {
  const std::int64_t n = numbers.numel(), rows = blocks.size(0);
  const at::Tensor exact = at::zeros({rows, 256});
  exact.view(-1).narrow(0, 0, n).copy_(numbers);
  const at::Tensor scales = blocks.view(at::kFloat).select(1, 64);
  std::int64_t wrong = (scales != std::get<0>(exact.abs().max(1)).clamp_min(1e-12) / 448).sum().item<std::int64_t>();
  const at::Tensor codes = blocks.narrow(1, 0, 256).contiguous(), of = exact / scales.unsqueeze(1);
  const at::Tensor nearest = of.to(at::kFloat8_e4m3fn).view(at::kByte).to(at::kInt), got = codes.to(at::kInt);
  wrong += ((nearest - got).abs() > 1).sum().item<std::int64_t>();
  wrong += k == 1 ? ((exact != 0) & (got == 0)).sum().item<std::int64_t>() : 0;
  const auto* quotient = of.const_data_ptr<float>();
  const auto* code = codes.const_data_ptr<std::uint8_t>();
  for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(n); ++i) {
    std::uint32_t expected = 0;
    comp::round_to_e4m3(std::abs(quotient[i]), comp::random_word(key, i) >> (16 * k) & 0xffffU, k == 1 ? 1U : 0U,
                        expected);
    wrong += code[i] != (expected | (std::signbit(quotient[i]) ? 0x80U : 0U)) ? 1 : 0;
  }
  const at::Tensor back = lt::detail::in_format(numbers, blocks, at::kFloat, 0, 0);
  const at::Tensor by_aten = codes.view(at::kFloat8_e4m3fn).to(at::kFloat) * scales.unsqueeze(1);
  return wrong + (back != by_aten.view(-1).narrow(0, 0, n)).sum().item<std::int64_t>();
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
      CHECK(with.t.supports(graph[graph.size() - 1], p) ==
            (p == comp::precision::fp32 || p == comp::precision::bf16 || p == comp::precision::fp8_e4m3));
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

TEST_CASE("in FP32 the training has the bits that it has without; lower moments take less, and losses are near") {
  for (const auto& [name, make, moments] : with_moments()) {
    CAPTURE(name);
    kept_training with{make}, without{make, false};
    torch::manual_seed(5);
    const auto expected = without.t.run_epoch();
    torch::manual_seed(5);
    CHECK(with.t.run_epoch().curve == expected.curve);
    CHECK(same(with.net->parameters(), without.net->parameters()));
    CHECK(all_in(with.slots(), comp::precision::fp32));
    REQUIRE(expected.held);
    CHECK(expected.held->gradients == lt::bytes_held(with.net->parameters()));
    CHECK(expected.held->weights == expected.held->gradients + lt::bytes_held(with.net->buffers()));
    CHECK(expected.held->copies == 0);
    CHECK(expected.held->moments >= lt::bytes_held(with.slots()));
    kept_training low{make};
    for (const comp::precision format : low_formats) {
      CAPTURE(comp::name(format));
      kept_training lowered{make};
      lowered.lower(format);
      torch::manual_seed(5);
      const auto got = lowered.t.run_epoch();
      CHECK(got.loss == doctest::Approx(expected.loss).epsilon(0.02));
      CHECK(got.curve != expected.curve);
      CHECK(all_in(lowered.slots(), format));
      CHECK(expected.held->moments - got.held->moments ==
            lt::bytes_held(with.slots()) - lt::bytes_held(lowered.slots()));
      for (const comp::precision next : {comp::precision::fp8_e4m3, comp::precision::bf16, comp::precision::fp32}) {
        low.lower(format);
        (void)low.t.run_batch();
        low.lower(next);
        CHECK(low.t.run_batch().ok());
        CHECK(all_in(low.slots(), next));
      }
    }
  }
}

TEST_CASE(
    "a training with lower moments is reproducible, and goes on with the same bits when it is restored or loaded") {
  for (const comp::precision format : low_formats) {
    CAPTURE(comp::name(format));
    for (const auto& [name, make, moments] : with_moments()) {
      CAPTURE(name);
      const auto begun = [&, make = make] {
        auto training = std::make_unique<kept_training>(make);
        training->lower(format);
        torch::manual_seed(5);
        (void)training->t.run_epoch();
        return training;
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
      fresh.lower(format);
      fresh.t.load_state(stored);
      CHECK(all_in(fresh.slots(), format));
      CHECK(fresh.t.run_epoch().curve == curve);
      CHECK(same(fresh.slots(), one->slots()));
    }
  }
}

TEST_CASE("moments are updated in pieces as ATen updates them whole, and rounded by core's random words") {
  constexpr std::int64_t n = lt::detail::piecewise::most + 4099;
  for (const auto& [format, each] : std::vector{std::pair{at::kBFloat16, 0},
                                                {at::kBFloat16, 1},
                                                {at::kBFloat16, 2},
                                                {at::kFloat8_e4m3fn, 0},
                                                {at::kFloat8_e4m3fn, 1},
                                                {at::kFloat8_e4m3fn, 2}}) {
    const auto& [name, make, moments] = with_moments()[static_cast<std::size_t>(each)];
    CAPTURE(name);
    CAPTURE(c10::toString(format));
    torch::manual_seed(3);
    const at::Tensor start = torch::randn({n}), gradient = torch::randn({n});
    at::Tensor p = start.clone().requires_grad_(), q = start.clone().requires_grad_();
    p.mutable_grad() = gradient.clone(), q.mutable_grad() = gradient.clone();
    const auto pieces = make({p}), whole = make({q});
    CHECK(lt::step_keeping(*pieces, {format, format, 7}));
    CHECK(lt::fused_step(*whole));
    CHECK(at::equal(p, q));  // the first step reads zeros
    std::vector<at::Tensor> low, full;
    lt::detail::each_moment(*pieces, [&](const at::Tensor&, at::Tensor& m, int, std::uint64_t) { low.push_back(m); });
    lt::detail::each_moment(*whole, [&](const at::Tensor&, at::Tensor& m, int, std::uint64_t) { full.push_back(m); });
    REQUIRE(low.size() == full.size());
    std::int64_t wrong = 0;
    for (std::size_t k = 0; k < low.size(); ++k) {
      const auto* exact = static_cast<const float*>(full[k].const_data_ptr());
      const std::uint64_t key = comp::mix_key(7, 0);
      if (format == at::kFloat8_e4m3fn) {
        wrong += count_wrong_codes(low[k], full[k], key, k);
        continue;
      }
      const auto* got = static_cast<const std::uint16_t*>(low[k].const_data_ptr());
      for (std::uint32_t i = 0; i < static_cast<std::uint32_t>(n); ++i)
        wrong += got[i] != comp::bf16_at_random(exact[i], comp::random_word(key, i) >> (16 * k)) ? 1 : 0;
    }
    CHECK(wrong == 0);
    // A gradient that lies otherwise has them widened for the optimizer's own step.
    at::Tensor r = torch::randn({64, 65}).requires_grad_();
    r.mutable_grad() = torch::randn({65, 64}).t();
    const auto own = make({r});
    for (int step = 0; step < 2; ++step) CHECK_FALSE(lt::step_keeping(*own, {format, format, 7}));
    lt::detail::each_moment(*own, [&](const at::Tensor&, at::Tensor& m, int, std::uint64_t) {
      CHECK((m.scalar_type() == (format == at::kBFloat16 ? format : at::kByte)));
    });
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

TEST_CASE(
    "of a moment in FP8 a NaN spoils its block alone, an infinite value becomes finite, and both are counted as extreme") {
  at::Tensor p = torch::zeros({4097});
  for (const float bad : {NAN, INFINITY}) {
    at::Tensor moment = torch::randn({4097});
    moment[300] = bad;
    const at::Tensor blocks = lt::detail::in_format(p, moment, at::kFloat8_e4m3fn, 7, 1);
    const at::Tensor back = lt::detail::in_format(p, blocks, at::kFloat, 7, 1);
    CHECK(at::isfinite(back).logical_not().sum().item<std::int64_t>() == (std::isnan(bad) ? 256 : 0));
    CHECK(lt::count_extreme({blocks}) == 1);
    CHECK(lt::count_extreme({lt::detail::new_moment(p, at::kFloat8_e4m3fn)}) == 0);
  }
}

TEST_CASE("the update is timed as the first moment, and both have an error") {
  kept_training some{with_moments()[1].make};
  const auto times = some.t.profile();
  CHECK(times[times.size() - 2].backward > 0);
  for (const comp::precision low : low_formats) CHECK(some.t.sensitivity(low).back().gradient > 0);
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
