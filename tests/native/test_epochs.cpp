// SPDX-License-Identifier: Apache-2.0
// What a trainer tells of its epochs, validations and profiles, number by number, on made-up clocks and faults.
#include <doctest/doctest.h>

#include <algorithm>
#include <comp_native/trainer.hpp>
#include <condition_variable>
#include <examples/models/native/models.hpp>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <thread>

#include "reference_device.hpp"
#include "support.hpp"

using namespace comp::native;
using namespace comp::native::testing;
using comp::plan;
using comp::precision;
using comp::sample;
using reference_trainer = trainer<reference::device>;
using capable_trainer = trainer<reference::capable_device>;

namespace {

constexpr double not_a_number = std::numeric_limits<double>::quiet_NaN(),
                 beyond = std::numeric_limits<double>::infinity();

model of_values(std::int64_t batch = 8) {
  return native_models::mlp({.batch = batch, .input = {6}, .hidden = {24}, .outputs = 2, .regression = true});
}
model of_tokens(std::int64_t batch, double dropout = 0) {
  return native_models::gpt(
      {.batch = batch, .vocabulary = 7, .context = 8, .layers = 1, .width = 16, .heads = 2, .dropout = dropout});
}

/// Losses of some numbers, counted from 0, are lost, and gradients of losses scaled by more than `most` overflow.
struct losing : reference::device {
  std::map<int, double> lost;
  std::vector<double> loss_values = {};
  double most = beyond;
  int losses = 0;
  void spoil(double* loss) {
    if (const auto at = lost.find(losses++); at != lost.end()) *loss = at->second;
    loss_values.push_back(*loss);
  }
  void mse_loss(const tensor& x, const tensor& target, double* loss) override {
    reference::device::mse_loss(x, target, loss);
    spoil(loss);
  }
  void binary_cross_entropy(const tensor& x, double target, double* loss) override {
    reference::device::binary_cross_entropy(x, target, loss);
    spoil(loss);
  }
  tensor mse_loss_backward(const tensor& x, const tensor& target, double scale) override {
    return reference::device::mse_loss_backward(x, target, scale > most ? beyond : scale);
  }
};

std::vector<double> sound(const std::vector<double>& curve) {
  std::vector<double> all;
  std::ranges::copy_if(curve, std::back_inserter(all), [](double loss) { return std::isfinite(loss); });
  return all;
}
double mean_of(const std::vector<double>& all) {
  double sum = 0;
  for (const double each : all) sum += each;
  return sum / static_cast<double>(all.size());
}

}  // namespace

TEST_CASE("an epoch with lost batches is the mean of the others, and its message is of the first") {
  losing device;
  reference_trainer t{device, of_values(), regression_data{64}, regression_data{16}};
  device.lost = {{0, not_a_number}, {2, beyond}, {3, not_a_number}, {7, not_a_number}};
  const sample epoch = t.run_epoch();
  CHECK(epoch.ok());
  CHECK(epoch.batches == 8);
  CHECK(epoch.not_finite == 4);
  CHECK(epoch.message == "loss nan in step 0 (it left the range of its precision): use more FP32");
  for (std::size_t i = 0; i < 8; ++i) CHECK(std::isnan(epoch.curve[i]) == device.lost.contains(static_cast<int>(i)));
  CHECK(epoch.loss == doctest::Approx(mean_of(sound(epoch.curve))).epsilon(1e-12));
  CHECK(epoch.losses.empty());
  CHECK(t.save().updates[0].taken == 4);
  CHECK(t.save().position == loader_position{1, 0});
  device.lost = {{8, beyond}};
  const sample batch = t.run_batch();
  CHECK(batch.status == comp::status::not_finite);
  CHECK(batch.loss == beyond);
  CHECK(batch.message == "loss inf in step 4 (it left the range of its precision): use more FP32");
  CHECK(t.run_batch().message.empty());
}

TEST_CASE("a loss that was lost is told rather than the steps that were skipped beside it") {
  losing device;
  device.most = 32768;
  reference_trainer t{device, of_values(), regression_data{64}, regression_data{16}};
  t.set_precision(plan{t.graph().size(), precision::fp16});
  device.lost = {{4, not_a_number}};
  const sample epoch = t.run_epoch();
  CHECK(epoch.message == "loss nan in step 3 (it left the range of its precision): use more FP32");
  CHECK(epoch.not_finite == 1);
  CHECK(t.save().updates[0].scale.skipped == 1);
  CHECK(t.run_epoch().message.empty());
  device.most = 8192;
  CHECK(t.run_epoch().message == "2 steps skipped: FP16 gradients overflowed, loss scale now 8192");
  device.most = 4096;
  const sample stopped = t.run_epoch([](const sample& so_far) { return so_far.batches == 3; });
  CHECK(stopped.status == comp::status::stopped_early);
  CHECK(stopped.message == "1 steps skipped: FP16 gradients overflowed, loss scale now 4096");
}

TEST_CASE("without a score of its own a model of several phases has minus the sum of their losses") {
  losing device;
  const auto images = bars({1, 2, 3}, 3, 16, 1);
  reference_trainer t{device, small_gan(8), images, images};
  const double score = t.validate();
  const std::vector<double>& l = device.loss_values;
  REQUIRE(l.size() == 6);  // of two batches the maker's, and the judge's two, of which the mean counts
  CHECK(score == doctest::Approx(-(l[0] + (l[1] + l[2]) / 2 + l[3] + (l[4] + l[5]) / 2) / 2).epsilon(1e-12));
}

TEST_CASE("where a phase is lost, those behind it are left out of that step, and the next step has the next batch") {
  losing device;
  const auto images = bars({1, 2, 3}, 3, 40, 1);
  reference_trainer t{device, small_gan(8), images, images};
  device.lost = {{0, not_a_number}};
  const auto values = [&] {
    std::vector<std::vector<double>> all;
    for (const auto* p : t.network().trainable()) all.push_back(p->value);
    return all;
  };
  const auto before = values();
  CHECK(t.run_batch().status == comp::status::not_finite);
  CHECK(device.losses == 1);
  CHECK(values() == before);
  CHECK(t.save().position == loader_position{0, 1});
  device.lost.clear();
  t.run_epoch();  // the next one
  device.losses = 0;
  device.lost = {{0, not_a_number},
                 {3, not_a_number}};  // the maker's of a step, which ends it, and the judge's of the next
  const sample epoch = t.run_epoch();
  CHECK(epoch.not_finite == 2);
  CHECK(epoch.batches == 5);
  REQUIRE(epoch.curves.size() == 2);
  for (std::size_t k = 0; k < 2; ++k) {
    CHECK(epoch.curves[k].size() == 5);
    CHECK(epoch.losses[k] == doctest::Approx(mean_of(sound(epoch.curves[k]))).epsilon(1e-12));
  }
  CHECK(epoch.loss == doctest::Approx(epoch.losses[0] + epoch.losses[1]).epsilon(1e-12));
  const auto updates = t.save().updates;
  CHECK(updates[0].taken == 5 + 4);
  CHECK(updates[1].taken == 5 + 3);
  device.lost = {{device.losses + 1, not_a_number}};  // the judge's, who counts his own steps
  CHECK(t.run_batch().message == "loss nan in step 8 (it left the range of its precision): use more FP32");
}

TEST_CASE("a profile's times are medians of the steps after the first, of all micro-batches, in both directions") {
  // A clock that products of 24 units move: in step n by forward_of[n], and ten times as much on the way back. An
  // upload moves it, too. Work is done when it is waited for.
  struct clocked : reference::capable_device {
    std::vector<double> forward_of;
    double now = 0, given = 0;
    std::size_t forwards = 0, backwards = 0, fails_at = 99;
    double seconds() const override { return now; }
    void synchronize() override { now += std::exchange(given, 0); }
    using reference::device::upload;
    tensor upload(std::span<const float> from, shape s, comp::precision p) override {
      given += 1000;
      return reference::device::upload(from, std::move(s), p);
    }
    tensor linear(const tensor& x, parameter& w, parameter* b) override {
      comp::require<comp::error>(forwards != fails_at, "no product {} (a test's): none", fails_at);
      if (w.extents[0] == 24) given += forward_of[forwards++];
      return reference::device::linear(x, w, b);
    }
    tensor linear_backward(const tensor& dy, const tensor& x, parameter& w, parameter* b, bool need_dx,
                           bool need_parameters) override {
      if (w.extents[0] == 24) given += 10 * forward_of[backwards++];
      return reference::device::linear_backward(dy, x, w, b, need_dx, need_parameters);
    }
  } device;
  device.forward_of = {64, 64, 1, 1, 8, 8, 2, 2, 64, 64};  // two micro-batches a step
  const training chosen{.scaling = {.micro_batches = 2}, .profile_steps = 3};
  capable_trainer t{device, of_values(), regression_data{64}, regression_data{16}, chosen};
  const auto weights = t.network().parameters()[0].value;
  const auto times = t.profile();
  CHECK(t.network().parameters()[0].value == weights);
  CHECK(device.forwards == 8);
  REQUIRE(times.size() == 4);
  CHECK(times[0].forward == 4);
  CHECK(times[0].backward == 40);
  for (std::size_t i = 1; i < 4; ++i) {
    CHECK(times[i].forward == 0);
    CHECK(times[i].backward == 0);
  }
  CHECK(training{}.profile_steps == 2);
  device.forwards = device.backwards = 0;
  device.fails_at = 2;
  CHECK_THROWS_WITH_AS(t.profile(), "no product 2 (a test's): none", comp::error);
  device.fails_at = 99;
  CHECK(t.save().position == loader_position{});
  t.run_batch();
  CHECK(t.network().times()[0].forward == 0);  // nothing is timed any more
}

TEST_CASE("a run's clock begins when its first batches are loaded") {
  // Whoever else writes examples waits until the thread that made the trainer writes one, too.
  struct waiting_data : regression_data {
    struct gate {
      std::mutex mutex;
      std::condition_variable opened;
      const std::thread::id maker = std::this_thread::get_id();
      bool open = false;
      std::size_t written = 0;
    };
    std::shared_ptr<gate> at = std::make_shared<gate>();
    void write(std::size_t i, const example_spans& to) const {
      std::unique_lock lock{at->mutex};
      if (std::this_thread::get_id() == at->maker) at->open = true, at->opened.notify_all();
      at->opened.wait(lock, [this] { return at->open; });
      ++at->written;
      lock.unlock();
      regression_data::write(i, to);
    }
  };
  struct watching : reference::capable_device {
    std::shared_ptr<waiting_data::gate> data;
    mutable std::vector<std::size_t> written_at = {};
    double seconds() const override {
      const std::lock_guard lock{data->mutex};
      written_at.push_back(data->written);
      return 0;
    }
  } device;
  const waiting_data data{{64}};
  device.data = data.at;
  capable_trainer t{device, of_values(), data, regression_data{16}, {.loading_threads = 1}};
  t.run_batch();
  CHECK(device.written_at.at(0) >= 16);  // the batch and the next one
}

TEST_CASE("a trainer's batches are drawn by its seed, its validation's are in order, and each setting is kept") {
  struct noting : reference::device {
    std::vector<std::size_t> examples = {};
    void mse_loss(const tensor& x, const tensor& target, double* loss) override {
      for (std::int64_t i = 0; i < target.size(); i += 2) examples.push_back(static_cast<std::size_t>(target[i]));
      reference::device::mse_loss(x, target, loss);
    }
  } device;
  struct numbered : regression_data {
    void write(std::size_t i, const example_spans& to) const {
      regression_data::write(i, to);
      to.targets[0] = static_cast<float>(i);
    }
  };
  const auto seen_by = [&](training settings, auto run) {
    device.examples.clear();
    reference_trainer t{device, of_values(), numbered{20}, numbered{11}, settings};
    run(t);
    return device.examples;
  };
  const auto epochs = [](auto& t) { t.run_epoch(), t.run_epoch(); };
  const auto drawn = [](std::uint64_t epoch, std::size_t size) {
    const auto all = permutation(20, mix_seed(5, 1), epoch);
    return std::vector<std::size_t>(all.begin(), all.begin() + static_cast<std::ptrdiff_t>(size));
  };
  const auto joined = [](auto a, const auto& b) { return a.insert(a.end(), b.begin(), b.end()), a; };
  CHECK(seen_by({.seed = 5}, epochs) == joined(drawn(0, 16), drawn(1, 16)));
  CHECK(seen_by({.seed = 5, .keep_last = true}, epochs) == joined(drawn(0, 20), drawn(1, 20)));
  std::vector<std::size_t> in_order(16);
  for (std::size_t i = 0; i < 16; ++i) in_order[i] = i;
  CHECK(seen_by({.shuffle = false}, epochs) == joined(in_order, in_order));
  in_order.resize(11);
  CHECK(seen_by({.seed = 5}, [](auto& t) { (void)t.validate(), (void)t.validate(); }) == joined(in_order, in_order));
}

TEST_CASE_FIXTURE(on_reference, "a score is that of all examples at once, whatever the batches and the last one are") {
  const auto score = [&](const model& m, const data_source& data) {
    return reference_trainer{device, m, data, data}.validate();
  };
  const auto classes = [](std::int64_t batch) {
    return native_models::mlp({.batch = batch, .input = {1, 2, 3}, .hidden = {24}, .outputs = 3});
  };
  const auto images = bars({1, 2, 3}, 3, 19, 1);
  network<reference::device> net{device, classes(19), 0};
  loader all{images, {.batch = 19, .shuffle = false}};
  const auto batch = uploaded(device, net.model(), all.next(), images.layout().of_bytes);
  const auto right = net.evaluate(batch).correct;
  CHECK(right > 0);
  CHECK(right < 19);
  CHECK(score(classes(8), images) == doctest::Approx(static_cast<double>(right) / 19).epsilon(1e-12));
  const double whole = score(of_values(19), regression_data{19});
  CHECK(score(of_values(8), regression_data{19}) == doctest::Approx(whole).epsilon(1e-9));
  reference_trainer larger{device, of_values(32), regression_data{64}, regression_data{19}};
  CHECK(larger.validate() == doctest::Approx(whole).epsilon(1e-9));  // one batch that is not full
  network<reference::device> values{device, of_values(19), 0};
  loader targets{regression_data{19}, {.batch = 19, .shuffle = false}};
  CHECK(whole == doctest::Approx(-values.evaluate(uploaded(device, values.model(), targets.next())).loss));
  const auto tokens = counting_tokens(7, 100, 8);  // 12 examples
  CHECK(score(of_tokens(5), tokens) == doctest::Approx(score(of_tokens(12), tokens)).epsilon(1e-9));
  CHECK(score(of_tokens(5), tokens) < -1);  // of tokens it is the loss, and no share
}

TEST_CASE("no random numbers are drawn twice: not in training, in validation, in rounding, or with another seed") {
  struct drawing : reference::capable_device {
    std::vector<std::pair<std::uint64_t, std::uint64_t>> masks, roundings, noises;
    void round_by(dropout_key key) override { roundings.emplace_back(key.seed, key.draw); }
    tensor dropout(const tensor& x, double p, const dropout_key& key) override {
      masks.emplace_back(key.seed, key.draw);
      return reference::device::dropout(x, p, key);
    }
    tensor normal(const dropout_key& key, const shape& size, comp::precision p) override {
      noises.emplace_back(key.seed, key.draw);
      return {size, p};
    }
  };
  model_builder net{"net", input_kind::values, {8, 6}};
  net.noise("noise", 6).add("sum", net.input()).dropout("drop", 0.2).linear("head", 2).mse_loss("loss");
  const model m = net.finish();
  std::set<std::pair<std::uint64_t, std::uint64_t>> all;
  const auto add = [&](auto& keys, std::size_t wanted) {
    CHECK(keys.size() == wanted);
    for (const auto& key : keys) CHECK(all.insert(key).second);
    keys.clear();
  };
  for (const std::uint64_t seed : {0, 1}) {
    drawing device;
    capable_trainer t{device, m, regression_data{32}, regression_data{24}, {.seed = seed}};
    t.run_epoch(), t.run_epoch();
    CHECK(t.save().draws == 16);
    add(device.masks, 8);
    add(device.noises, 8);
    add(device.roundings, 8);
    (void)t.validate();
    CHECK(t.save().draws == 16);
    const auto noises = device.noises, roundings = device.roundings;
    add(device.masks, 0);
    add(device.noises, 3);
    add(device.roundings, 3);
    (void)t.validate();  // draws the same again
    CHECK(device.noises == noises);
    CHECK(device.roundings == roundings);
  }
}

TEST_CASE_FIXTURE(on_reference, "a signature has the model, both data sets, the batch and every setting") {
  const auto train = bars({1, 2, 3}, 3, 40, 1), held = bars({1, 2, 3}, 3, 16, 2);
  const training chosen{.optimizer = adamw(0.01),
                        .optimizer_of = {{"judge", sgd(0.1, 0.9)}, {"make", adam(0.02)}},
                        .schedule = {.warmup = 3, .total = 9, .floor = 0.25},
                        .clip_norm = 2,
                        .seed = 6,
                        .shuffle = false,
                        .keep_last = true,
                        .scaling = comp::scaling::fixed(8),
                        .score = {.reads = {"judge.out@real"}}};
  const reference_trainer t{device, small_gan(8), train, held, chosen};
  CHECK(t.signature() == fmt::format("gan {:016x} | model's options {:016x} | {} | {} | batch 8 | {}",
                                     t.graph().fingerprint(), hash_of_options(t.model()), train.signature(),
                                     held.signature(), text(chosen)));
  CHECK(
      text(chosen) ==
      "adamw lr 0.01 betas 0.9,0.999 eps 1e-08 decay 0.01, judge sgd lr 0.1 momentum 0.9 decay 0, make adam lr 0.02 "
      "betas 0.9,0.999 eps 1e-08 decay 0 | score of judge.out@real | warm-up 3 of 9 to 0.25 | clip 2 | scale 8 | seed "
      "6 in order with last");
  CHECK(text(training{}) ==
        "sgd lr 0.01 momentum 0 decay 0 | warm-up 0 of 0 to 0 | clip 0 | scale 65536 up 2 after 2000 down 0.5 after 1, "
        "1.52587890625e-05 to 1.7014118346046923e+38 | seed 0");
}

TEST_CASE_FIXTURE(on_reference, "the state of another model is refused, and each phase's state comes back as its own") {
  const auto images = bars({1, 2, 3}, 3, 40, 1);
  reference_trainer gan{device, small_gan(8), images, images},
      other{device, of_values(), regression_data{}, regression_data{}};
  CHECK_THROWS_WITH_AS(other.restore(gan.save()),
                       "state of 16 parameters for a model of 4 (it is another model's): save and restore one trainer",
                       comp::error);
  auto state = gan.save();
  for (std::int64_t k = 0; k < 2; ++k) {
    update_state& update = state.updates[static_cast<std::size_t>(k)];
    update.taken = 5 + k;
    update.scale.scale = static_cast<double>(16 << k);
  }
  gan.restore(state);
  CHECK(gan.save().updates == state.updates);
  state.updates.pop_back();
  CHECK_THROWS_AS(gan.restore(state), comp::error);
}
