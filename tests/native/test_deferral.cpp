// SPDX-License-Identifier: Apache-2.0
// Steps on a Device that defers, and on one that refuses to capture, beside those on one that is waited for.
#include <doctest/doctest.h>

#include <comp_native/trainer.hpp>
#include <examples/models/native/models.hpp>

#include "reference_device.hpp"
#include "support.hpp"

using namespace comp::native;
using namespace comp::native::testing;
using comp::plan;
using comp::precision;
using comp::sample;

namespace {

/// Makes what is wrong: gradients that overflow where the loss is scaled by more than `most`, the loss number `broken`.
struct faulty : reference::device {
  double most = std::numeric_limits<double>::infinity();
  int broken = -1;
  with_saved<tensor> cross_entropy(const tensor& logits, const indices& target, double* loss) {
    auto made = reference::device::cross_entropy(logits, target, loss);
    if (broken >= 0 && broken-- == 0) *loss = std::numeric_limits<double>::quiet_NaN();
    return made;
  }
  void mse_loss(const tensor& x, const tensor& target, double* loss) {
    reference::device::mse_loss(x, target, loss);
    if (broken >= 0 && broken-- == 0) *loss = std::numeric_limits<double>::quiet_NaN();
  }
  tensor mse_loss_backward(const tensor& x, const tensor& target, double scale) {
    return reference::device::mse_loss_backward(x, target,
                                                scale > most ? std::numeric_limits<double>::infinity() : scale);
  }
};

/// Tells no loss before the step ends, and updates by what it sees itself.
class deferring_device : public faulty {
 public:
  int looks = 0;
  bool on = false;

  void defer_losses(bool wanted) {
    on = wanted;
    given_.clear();
    guarded_ = false;
  }
  void guard_update(std::span<parameter* const>, const update_guard& guard) {
    guard_ = guard;
    guarded_ = true;
  }
  step_seen end_step() {
    ++looks;
    for (const auto& [to, loss] : std::exchange(given_, {})) *to = loss;
    return seen_;
  }

  with_saved<tensor> cross_entropy(const tensor& logits, const indices& target, double* loss) {
    double now = 0;
    auto made = faulty::cross_entropy(logits, target, &now);
    tell(now, loss);
    return made;
  }
  void mse_loss(const tensor& x, const tensor& target, double* loss) {
    double now = 0;
    faulty::mse_loss(x, target, &now);
    tell(now, loss);
  }
  void sgd_step(std::span<parameter* const> all, const sgd_options& o) {
    guarded(all, [&] { faulty::sgd_step(all, o); });
  }
  void adam_step(std::span<parameter* const> all, const adam_options& o, std::int64_t step) {
    guarded(all, [&] { faulty::adam_step(all, o, step); });
  }

 private:
  void tell(double loss, double* to) {
    if (!on) {
      *to = loss;
      return;
    }
    *to = std::numeric_limits<double>::signaling_NaN();  // who looks now sees it
    given_.push_back({to, loss});
  }
  void guarded(std::span<parameter* const> all, auto step) {
    if (!std::exchange(guarded_, false)) return step();
    std::vector<std::vector<double>> kept;
    for (const parameter* p : all) kept.push_back(p->gradient);
    seen_ = {count_not_finite(all) == 0, guard_.clip_norm > 0 ? gradient_norm(all) * guard_.unscale : 0};
    bool finite = seen_.finite;
    for (const auto& [to, loss] : given_) finite = finite && std::isfinite(loss);
    if (!finite) return;
    if (guard_.unscale != 1) scale_gradients(all, guard_.unscale);
    if (guard_.clip_norm > 0 && seen_.norm > guard_.clip_norm) scale_gradients(all, guard_.clip_norm / seen_.norm);
    step();
    for (std::size_t i = 0; i < all.size(); ++i) all[i]->gradient = kept[i];
  }

  std::vector<std::pair<double*, double>> given_;
  update_guard guard_;
  bool guarded_ = false;
  step_seen seen_;
};

/// Offers to capture, and never does.
struct refusing_device : deferring_device {
  struct captured_work {};
  int asked = 0;
  template <class F>
  captured_work capture(std::span<parameter* const>, std::uint64_t, F) {
    ++asked;
    throw capture_refused{"a step (it is too long): train on"};
  }
  bool usable(const captured_work&) const { return true; }
  void replay(captured_work&, std::uint64_t, double*) {}
  void refill(tensor&, const tensor&) {}
  void refill(indices&, const indices&) {}
};

static_assert(Defers<deferring_device> && Captures<refusing_device>);
static_assert(!Defers<reference::device> && !Captures<deferring_device>);

template <class D>
std::vector<double> weights(trainer<D>& t) {
  std::vector<double> all;
  for (const auto& p : t.network().parameters()) all.insert(all.end(), p.value.begin(), p.value.end());
  return all;
}
template <class D>
trainer<D> regression_on(D& device, const training& settings) {
  return {device, native_models::mlp({.batch = 8, .input = {6}, .hidden = {24}, .outputs = 2, .regression = true}),
          regression_data{64}, regression_data{16}, settings};
}
template <class D>
trainer<D> gpt_on(D& device, const training& settings) {
  const auto tokens = counting_tokens(7, 260, 8);
  return {device,
          native_models::gpt(
              {.batch = 4, .vocabulary = 7, .context = 8, .layers = 1, .width = 16, .heads = 2, .dropout = 0.1}),
          tokens, tokens, settings};
}

/// Two epochs and a batch, FP16 where `low`, on two Devices: the same samples and states.
template <class A, class B>
void same(trainer<A>& a, trainer<B>& b, bool low) {
  const plan p{a.graph().size(), low ? precision::fp16 : precision::fp32};
  a.set_precision(p);
  b.set_precision(p);
  for (int i = 0; i < 3; ++i) {
    const sample x = i < 2 ? a.run_epoch() : a.run_batch(), y = i < 2 ? b.run_epoch() : b.run_batch();
    CHECK(x.status == y.status);
    CHECK(x.message == y.message);
    REQUIRE(x.curve.size() == y.curve.size());
    for (std::size_t k = 0; k < x.curve.size(); ++k) {
      CHECK((x.curve[k] == y.curve[k] || (std::isnan(x.curve[k]) && std::isnan(y.curve[k]))));
    }
    double sum = 0, finite = 0;
    for (const double loss : x.curve) {
      if (std::isfinite(loss)) sum += loss, ++finite;
    }
    if (finite > 0) CHECK(x.loss == doctest::Approx(sum / finite));  // lost batches are no part of the mean
    CHECK((x.loss == y.loss || finite == 0));
    const auto s = a.save(), r = b.save();
    CHECK(s.updates == r.updates);
    CHECK(s.draws == r.draws);
    CHECK(s.position == r.position);
    CHECK(weights(a) == weights(b));
  }
  CHECK(a.validate() == b.validate());
}

}  // namespace

TEST_CASE("steps whose losses are looked at once are the steps that look at each, bit for bit") {
  faulty looked_at;
  deferring_device deferring;
  refusing_device refusing;
  const auto three = [&](auto make, training settings, bool low) {
    auto a = make(looked_at, settings);
    auto b = make(deferring, settings);
    same(a, b, low);
    CHECK_FALSE(deferring.on);
    auto again = make(looked_at, settings);
    settings.captured = capture_mode::on;
    auto c = make(refusing, settings);
    same(again, c, low);
    CHECK(c.capture_refused() == "a step (it is too long): train on");
  };
  const auto regression = [](auto& device, const training& s) { return regression_on(device, s); };
  const auto gpt = [](auto& device, const training& s) { return gpt_on(device, s); };
  const comp::scaling::settings four{.micro_batches = 4};
  SUBCASE("SGD") { three(regression, {.optimizer = sgd(0.1, 0.9, 1e-4)}, false); }
  SUBCASE("a transformer with dropout, Adam and clipping") {
    three(gpt, {.optimizer = adamw(0.01), .clip_norm = 0.5}, false);
  }
  SUBCASE("micro-batches with clipping") {
    three(regression, {.optimizer = sgd(0.1), .clip_norm = 0.1, .scaling = four}, false);
  }
  SUBCASE("micro-batches that do not fill the last step of an epoch") {
    three(regression, {.optimizer = sgd(0.1), .clip_norm = 0.1, .scaling = {.micro_batches = 3}}, false);
    three(regression, {.optimizer = sgd(0.1), .scaling = {.micro_batches = 5}}, true);
  }
  SUBCASE("a scale that changes") {
    looked_at.most = deferring.most = refusing.most = 1024;
    three(regression, {.optimizer = adam(0.01), .clip_norm = 0.2, .scaling = {.growth_interval = 3}}, true);
  }
  SUBCASE("a scale of micro-batches") {
    looked_at.most = deferring.most = refusing.most = 1024;
    three(regression, {.optimizer = adam(0.01), .scaling = {.growth_interval = 2, .micro_batches = 2}}, true);
  }
  SUBCASE("gradients that overflow at every scale") {
    looked_at.most = deferring.most = refusing.most = 0;
    three(regression, {.scaling = {.initial = 4, .floor = 2}}, true);
  }
  SUBCASE("gradients that overflow without a scale") {
    looked_at.most = deferring.most = refusing.most = 0.5;
    three(regression, {.clip_norm = 1}, false);
  }
}

TEST_CASE("a loss that is not finite moves no weight, and the step ends where it would have") {
  faulty looked_at;
  deferring_device deferring;
  const training settings{.optimizer = sgd(0.1, 0.9), .scaling = {.micro_batches = 4}};
  const auto three = [&](auto make) {
    auto a = make(looked_at, settings);
    auto b = make(deferring, settings);
    for (const int broken : {2, 4, 11}) {
      looked_at.broken = deferring.broken = broken;
      same(a, b, false);
      looked_at.broken = deferring.broken = -1;
    }
  };
  three([](auto& device, const training& s) { return regression_on(device, s); });
  three([](auto& device, const training& s) { return gpt_on(device, s); });  // draws of the steps after are the same
}

TEST_CASE("a step is looked at once, whatever its micro-batches") {
  deferring_device device;
  auto t = regression_on(device, {.clip_norm = 1, .scaling = {.micro_batches = 4}});
  t.run_epoch();
  CHECK(device.looks == 2);
}

TEST_CASE("a refused capture is asked for once, until the plan changes or a state is restored") {
  refusing_device device;
  auto t = regression_on(device, {.captured = capture_mode::on});
  t.run_epoch();
  CHECK(device.asked == 1);
  t.run_epoch();
  CHECK(device.asked == 1);
  t.set_precision(plan{t.graph().size()});  // the same
  t.run_epoch();
  CHECK(device.asked == 1);
  t.set_precision(plan{t.graph().size(), precision::bf16});
  CHECK(t.capture_refused().empty());
  t.run_epoch();
  CHECK(device.asked == 2);
  t.restore(t.save());
  for (int i = 0; i < 3; ++i) t.run_batch();  // one by one they are not captured
  CHECK(device.asked == 2);
  t.run_epoch();
  CHECK(device.asked == 3);
}

TEST_CASE("measured capturing begins after the search, and ends for a plan where it is refused") {
  refusing_device device;
  auto t = regression_on(device, {});
  const auto epochs = [&](int n) {
    for (int i = 0; i < n; ++i) t.run_epoch();
  };
  epochs(4);
  CHECK(device.asked == 0);
  CHECK(text(t.captured_steps()) == "");
  t.post_training(true);
  for (int i = 0; i < 60; ++i) t.run_batch();  // one by one they are not captured
  CHECK(device.asked == 0);
  epochs(8);
  CHECK(device.asked == 1);
  CHECK(t.captured_steps().decided);
  CHECK_FALSE(t.captured_steps().captured);
  CHECK(t.capture_refused() == "a step (it is too long): train on");
  CHECK(text(t.captured_steps()) == "steps are not captured: a step (it is too long): train on");
  t.restore(t.save());  // the same plan
  epochs(8);
  CHECK(device.asked == 1);
  t.set_precision(plan{t.graph().size(), precision::bf16});
  CHECK(text(t.captured_steps()) == "");
  epochs(8);
  CHECK(device.asked == 2);
  t.set_precision(plan{t.graph().size()});
  t.post_training(false);
  epochs(8);
  CHECK(device.asked == 2);
}

TEST_CASE("a Device that does not capture trains as ever where capturing is measured or off") {
  deferring_device device;
  for (const auto mode : {capture_mode::measured, capture_mode::off}) {
    auto t = regression_on(device, {.captured = mode}), plain = regression_on(device, {});
    CHECK(t.signature() == plain.signature());
    t.post_training(true);
    for (int i = 0; i < 8; ++i) CHECK(t.run_epoch().curve == plain.run_epoch().curve);
    CHECK_FALSE(t.captured_steps().decided);
    CHECK(text(t.captured_steps()) == "");
  }
}

TEST_CASE_FIXTURE(on_reference, "captured steps are refused by a Device that has none") {
  CHECK_THROWS_WITH_AS(regression_on(device, {.captured = capture_mode::on}),
                       "captured = on (this device gives work call by call only): leave it out", comp::settings_error);
  refusing_device other;
  CHECK(regression_on(other, {.captured = capture_mode::on}).signature() ==
        regression_on(other, {}).signature() + " captured");
}
