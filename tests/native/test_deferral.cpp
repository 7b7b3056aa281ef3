// SPDX-License-Identifier: Apache-2.0
// Steps on a Device that defers, on one that captures, and on one that refuses to, beside those on one that is waited
// for.
#include <doctest/doctest.h>

#include <comp_native/trainer.hpp>
#include <examples/models/native/models.hpp>
#include <functional>
#include <tuple>

#include "reference_device.hpp"
#include "support.hpp"

using namespace comp::native;
using namespace comp::native::testing;
using comp::plan;
using comp::precision;
using comp::sample;

namespace {

/// Makes what is wrong: gradients that overflow if the loss is scaled by more than `most`, the loss number `broken`.
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
  int looks = 0, waits = 0;
  bool on = false;
  void synchronize() { ++waits; }

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

 protected:
  void tell(double loss, double* to) {
    if (!on) {
      *to = loss;
      return;
    }
    *to = std::numeric_limits<double>::signaling_NaN();  // who looks now sees it
    given_.push_back({to, loss});
  }

 private:
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

/// Captures: notes calls with the memory that they read and write, and does them again.
struct capturing_device : deferring_device {
  using call = std::function<void(std::uint64_t more_draws, double* loss)>;
  struct captured_work {
    std::vector<call> calls;
    std::uint64_t draws = 0;
    std::shared_ptr<void> memory = {};
  };
  std::shared_ptr<void> memory = std::make_shared<int>();  // as often in use as there is captured work, and once more
  int captured = 0, replayed = 0;
  int most_replays = 1000, most_captures = 1000;
  mutable bool moved = false;                  // memory that captured work uses, once
  double seconds() const { return replayed; }  // captured steps are slow

  template <class F>
  captured_work capture(std::span<parameter* const> all, std::uint64_t draws, F work) {
    std::vector<std::pair<std::vector<double>, bool>> before;
    for (const parameter* p : all) before.emplace_back(p->gradient, p->fresh);
    captured_work made{{}, draws, memory};
    noting_ = &made;
    work();
    noting_ = nullptr;
    for (std::size_t i = 0; i < all.size(); ++i) std::tie(all[i]->gradient, all[i]->fresh) = before[i];
    if (captured == most_captures) throw capture_refused{"a step (it is too long): train on"};
    ++captured;
    return made;
  }
  bool usable(const captured_work&) const { return !std::exchange(moved, false); }
  void replay(captured_work& work, std::uint64_t draws, double* loss) {
    if (replayed == most_replays) throw capture_refused{"a step (it was too often): train on"};
    ++replayed;
    for (const call& each : work.calls) each(draws - work.draws, loss);
  }
  void refill(tensor& to, const tensor& from) { to.values() = from.values(); }
  void refill(indices& to, const indices& from) { to.values = from.values; }

  tensor linear(const tensor& x, parameter& w, parameter* b) {
    return noted([=, this, &w](auto) { return faulty::linear(x, w, b); });
  }
  tensor linear_backward(const tensor& dy, const tensor& x, parameter& w, parameter* b, bool need_dx, bool need_w) {
    return noted([=, this, &w, overwrites = w.fresh](auto) {
      w.fresh = overwrites;
      if (b) b->fresh = overwrites;
      return faulty::linear_backward(dy, x, w, b, need_dx, need_w);
    });
  }
  tensor activate(activation kind, const tensor& x) {
    return noted([=, this](auto) { return faulty::activate(kind, x); });
  }
  tensor activate_backward(activation kind, const tensor& dy, const tensor& x, const tensor& y) {
    return noted([=, this](auto) { return faulty::activate_backward(kind, dy, x, y); });
  }
  tensor dropout(const tensor& x, double p, const dropout_key& key) {
    return noted([=, this](auto more) { return faulty::dropout(x, p, {key.seed, key.draw + more}); });
  }
  tensor dropout_backward(const tensor& dy, double p, const dropout_key& key) { return dropout(dy, p, key); }
  tensor add(const tensor& a, const tensor& b) {
    return noted([=, this](auto) { return faulty::add(a, b); });
  }
  tensor embedding(const indices& at, parameter& w, precision p) {
    return noted([=, this, &at, &w](auto) { return faulty::embedding(at, w, p); });
  }
  void embedding_backward(const tensor& dy, const indices& at, parameter& w) {
    noted([=, this, &at, &w, overwrites = w.fresh](auto) {
      w.fresh = overwrites;
      faulty::embedding_backward(dy, at, w);
      return tensor{};
    });
  }
  tensor split_heads(const tensor& x, std::int64_t heads) {
    return noted([=, this](auto) { return faulty::split_heads(x, heads); });
  }
  tensor merge_heads(const tensor& x) {
    return noted([=, this](auto) { return faulty::merge_heads(x); });
  }
  tensor padded_softmax(const tensor& x, const indices& lengths) {
    return noted([=, this, &lengths](auto) { return faulty::padded_softmax(x, lengths); });
  }
  tensor softmax_backward(const tensor& dy, const tensor& y, bool causal) {
    return noted([=, this](auto) { return faulty::softmax_backward(dy, y, causal); });
  }
  void mse_loss(const tensor& x, const tensor& target, double* loss) {
    if (!noting_) return deferring_device::mse_loss(x, target, loss);
    noting_->calls.push_back([=, this](auto, double* to) { deferring_device::mse_loss(x, target, to); });
  }
  tensor mse_loss_backward(const tensor& x, const tensor& target, double scale) {
    return noted([=, this](auto) { return faulty::mse_loss_backward(x, target, scale); });
  }
  with_saved<tensor> cross_entropy(const tensor& logits, const indices& target, double* loss) {
    if (!noting_) return deferring_device::cross_entropy(logits, target, loss);
    double unread = 0;
    auto made = reference::device::cross_entropy(logits, target, &unread);
    noting_->calls.push_back([=, this, &target](auto, double* to) mutable {
      made.saved[0].values() = deferring_device::cross_entropy(logits, target, to).saved[0].values();
    });
    return made;
  }
  tensor cross_entropy_backward(const std::vector<tensor>& saved, const indices& target, double scale) {
    return noted([=, this, &target](auto) { return faulty::cross_entropy_backward(saved, target, scale); });
  }

 private:
  tensor noted(auto make) {
    tensor y = make(std::uint64_t{0});
    if (noting_) {
      noting_->calls.push_back([=](std::uint64_t more, double*) mutable {
        const tensor again = make(more);
        if (y) y.values() = again.values();
      });
    }
    return y;
  }
  captured_work* noting_ = nullptr;
};

/// Tokens with segments and padding, and three labels each.
struct spans_data {
  std::size_t size() const { return 22; }
  example_layout layout() const { return {.input = input_kind::tokens, .input_shape = {2, 5}, .target_shape = {3}}; }
  void write(std::size_t i, const example_spans& to) const {
    for (std::size_t k = 0; k < 10; ++k) {
      const auto draw = static_cast<std::int32_t>(mix_seed(i, k) % 7);
      to.tokens[k] = k < 5 ? draw : k - 5 > i % 5 ? -1 : k % 2;
    }
    for (std::size_t k = 0; k < 3; ++k) to.labels[k] = static_cast<std::int32_t>(mix_seed(i, 20 + k) % 5);
  }
  std::string signature() const { return "spans"; }
};
template <class D>
trainer<D> spans_on(D& device, const training& settings) {
  model_builder net{"spans", input_kind::tokens, {4, 2, 5}};
  const value token = net.input().embedding("token", 7, 5),
              of = net.input().embedding("of", 2, 5, op::looked_up::segments);
  token.add("sum", of)
      .softmax("soft", op::softmax_mask::padding)
      .dropout("drop", 0.2)
      .linear("head", 3)
      .masked_columns("spans")
      .cross_entropy_loss("loss");
  return {device, net.finish(), spans_data{}, spans_data{}, settings};
}

static_assert(Defers<deferring_device> && Captures<refusing_device> && Captures<capturing_device>);
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

/// Two epochs and a batch, in FP16 if `low`, on two Devices: the same samples and states.
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
    const auto s = a.save();
    const auto r = b.save();  // of another type
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

TEST_CASE("captured steps are the steps call by call, bit for bit, whatever changes between them") {
  deferring_device plain;
  capturing_device device;
  const auto both = [&](auto make, training settings, bool low, int captured, int replayed) {
    auto a = make(plain, settings);
    settings.captured = capture_mode::on;
    auto b = make(device, settings);
    device.captured = device.replayed = 0;
    same(a, b, low);
    CHECK(device.captured == captured);
    CHECK(device.replayed == replayed);
    CHECK(b.capture_refused().empty());
  };
  const auto regression = [](auto& on, const training& s) { return regression_on(on, s); };
  const auto spans = [](auto& on, const training& s) { return spans_on(on, s); };
  SUBCASE("two epochs of 8 batches, of which the first comes before the capture") {
    both(regression, {.optimizer = sgd(0.1, 0.9), .clip_norm = 0.5}, false, 1, 15);
  }
  SUBCASE("first and further micro-batches") {
    both(regression, {.optimizer = adam(0.01), .scaling = {.micro_batches = 3}}, false, 2, 14);
  }
  SUBCASE("a scale that grows, overflows and gets smaller") {
    plain.most = device.most = 512;
    both(regression, {.scaling = {.initial = 512, .growth_interval = 3, .micro_batches = 2}}, true, 8, 14);
  }
  SUBCASE("dropout, tokens with padding and labels, and last batches that are not full") {
    both(spans, {.optimizer = adamw(0.01), .keep_last = true}, false, 1, 9);
  }
}

TEST_CASE("a step is captured again where its memory has moved, and given call by call where it is refused midway") {
  deferring_device plain;
  capturing_device device;
  auto a = regression_on(plain, {.optimizer = sgd(0.1)});
  auto b = regression_on(device, {.optimizer = sgd(0.1), .captured = capture_mode::on});
  for (int epoch = 0; epoch < 4; ++epoch) {
    device.moved = epoch == 1;
    if (epoch == 2) device.most_replays = device.replayed + 3;
    CHECK(b.run_epoch().curve == a.run_epoch().curve);
    CHECK(weights(a) == weights(b));
    CHECK(device.captured == (epoch == 0 ? 1 : 2));
  }
  CHECK(device.replayed == 7 + 8 + 3);
  CHECK(b.capture_refused() == "a step (it was too often): train on");
  device.most_replays = 1000;
  for (const precision p : {precision::bf16, precision::fp32}) {  // captures are of one plan
    a.set_precision(plan{a.graph().size(), p});
    b.set_precision(plan{a.graph().size(), p});
    device.captured = device.replayed = 0;
    CHECK(b.run_epoch().curve == a.run_epoch().curve);
    CHECK(device.captured == 1);
    CHECK(device.replayed == 7);
  }
  device.most_captures = 0;
  device.captured = 0;
  auto c = spans_on(plain, {});
  auto d = spans_on(device, {.captured = capture_mode::on});
  same(c, d, false);  // what was noted of a refused capture is no draw
  CHECK(d.capture_refused() == "a step (it is too long): train on");
}

TEST_CASE("a step is looked at once, whatever its micro-batches") {
  deferring_device device;
  auto t = regression_on(device, {.clip_norm = 1, .scaling = {.micro_batches = 4}});
  t.run_epoch();
  CHECK(device.looks == 2);
  CHECK(device.waits == 1);  // for the last update
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

TEST_CASE("captured steps hold no memory when the training after a search has ended, or plain steps were chosen") {
  capturing_device device;
  auto t = regression_on(device, {});
  t.post_training(true);
  for (int i = 0; i < 2; ++i) t.run_epoch();
  CHECK(device.memory.use_count() == 2);
  t.post_training(false);
  CHECK(device.memory.use_count() == 1);
  t.post_training(true);
  for (int i = 0; i < 8; ++i) t.run_epoch();
  CHECK(t.captured_steps().decided);
  CHECK(device.memory.use_count() == 1);
}

TEST_CASE("steps of several phases are never measured") {
  refusing_device device;
  const auto images = bars({1, 2, 3}, 3, 40, 1);
  trainer<refusing_device> t{device, small_gan(8), images, images};
  t.post_training(true);
  for (int i = 0; i < 8; ++i) t.run_epoch();
  CHECK(device.asked == 0);
  CHECK_FALSE(t.captured_steps().decided);
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
