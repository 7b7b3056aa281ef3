// SPDX-License-Identifier: Apache-2.0
// Perturbed weights, and epochs that were begun batch by batch, on the reference device; see also devices/.
#include <doctest/doctest.h>

#include <comp_native/perturbation.hpp>
#include <comp_native/trainer.hpp>
#include <examples/models/native/models.hpp>
#include <numeric>

#include "reference_device.hpp"
#include "support.hpp"

using namespace comp::native;
using namespace comp::native::testing;
using comp::plan;
using comp::precision;
using reference_trainer = trainer<reference::device>;

static_assert(comp::detail::perturbs<reference_trainer> && comp::detail::counts_batches<reference_trainer>);
static_assert(comp::detail::scores_operators<reference_trainer>);

TEST_CASE("perturbed values are neighbours in FP32, half of them moved, as many up as down") {
  std::vector<float> values;
  random_stream draws{3, 1};
  for (int i = 0; i < 4096; ++i) values.push_back(static_cast<float>(draws.normal()));
  const std::vector<float> before = values;
  perturb_values(values, 7);
  int up = 0, down = 0, farther = 0;  // from zero
  for (std::size_t i = 0; i < values.size(); ++i) {
    const float larger = std::nextafter(before[i], 9e9F), smaller = std::nextafter(before[i], -9e9F);
    up += values[i] == larger;
    down += values[i] == smaller;
    farther += std::abs(values[i]) > std::abs(before[i]);
    CHECK((values[i] == before[i] || values[i] == larger || values[i] == smaller));
  }
  CHECK(up + down > 1920);  // 2048 expected, deviation 32
  CHECK(up + down < 2176);
  CHECK(std::abs(up - down) < 200);
  CHECK(std::abs(2 * farther - (up + down)) < 200);
  std::vector<float> again = before, other = before;
  perturb_values(again, 7);
  perturb_values(other, 8);
  CHECK(again == values);
  CHECK(other != values);
}

TEST_CASE_FIXTURE(on_reference, "each parameter is perturbed by draws of its own") {
  const std::vector<float> same(64, 1.5F);
  auto a = device.make_parameter(same, {64}), b = device.make_parameter(same, {64});
  reference::parameter* both[] = {&a, &b};
  perturb_weights(device, std::span<reference::parameter* const>{both}, 7);
  CHECK(a.value != b.value);
  CHECK(device.values(a) != same);
  CHECK(device.values(b) != same);
}

TEST_CASE("zeros and what is not finite are not perturbed, and nothing becomes infinite or another sign") {
  constexpr float infinity = std::numeric_limits<float>::infinity(), most = std::numeric_limits<float>::max();
  for (std::uint64_t seed = 0; seed < 20; ++seed) {
    constexpr float least = std::numeric_limits<float>::denorm_min();
    std::vector<float> values{0, -0.0F, infinity, -infinity, most, -most, least, -least};
    perturb_values(values, seed);
    CHECK(values[0] == 0);
    CHECK(values[1] == 0);
    CHECK(values[2] == infinity);
    CHECK(values[3] == -infinity);
    CHECK(values[4] == most);
    CHECK(values[5] == -most);
    CHECK(values[6] >= 0);
    CHECK(values[7] <= 0);
    CHECK(values[6] - values[7] <= 4 * least);
  }
}

TEST_CASE_FIXTURE(on_reference, "an epoch begun batch by batch and finished is the epoch, and the next one follows") {
  const auto tokens = counting_tokens(7, 200, 8);  // 24 examples: 6 batches
  const auto check = [&](std::int64_t micro_batches, bool keep_last, precision p) {
    CAPTURE(micro_batches);
    CAPTURE(keep_last);
    CAPTURE(name(p));
    reference_trainer t{
        device,
        native_models::gpt(
            {.batch = 4, .vocabulary = 7, .context = 8, .layers = 1, .width = 8, .heads = 2, .dropout = 0.1}),
        tokens,
        tokens,
        {.optimizer = adamw(0.01),
         .keep_last = keep_last,
         .scaling = {.growth_interval = 2, .micro_batches = micro_batches}}};
    t.set_precision(plan{t.graph().size(), p});
    const auto start = t.save();
    std::vector<double> expected = t.run_epoch().curve;
    REQUIRE(expected.size() == t.batches_per_epoch());
    for (const double loss : t.run_epoch().curve) expected.push_back(loss);
    for (std::uint64_t begun = 1; begun <= t.batches_per_epoch(); ++begun) {
      CAPTURE(begun);
      t.restore(start);
      std::vector<double> losses;
      for (std::uint64_t i = 0; i < t.batches_per_epoch(); ++i) losses.push_back(t.run_batch().loss);
      if (begun < t.batches_per_epoch()) {  // a state saved in the middle of the epoch goes on as well
        t.restore(start);
        losses.clear();
        for (std::uint64_t i = 0; i < begun; ++i) losses.push_back(t.run_batch().loss);
        const auto middle = t.save();
        t.run_batch();
        t.restore(middle);
        while (losses.size() < t.batches_per_epoch()) losses.push_back(t.run_batch().loss);
      }
      for (const double loss : t.run_epoch().curve) losses.push_back(loss);
      CHECK(losses == expected);
    }
  };
  check(1, false, precision::fp32);
  check(2, false, precision::fp16);
  check(4, false, precision::fp32);  // the second step has two of six micro-batches
  check(1, true, precision::fp32);
  check(5, true, precision::fp16);
}

TEST_CASE("a device that does not round has no sensitivities, and an operator that throws leaves the state") {
  struct failing : reference::device {
    bool fails = false;
    tensor linear(const tensor& x, parameter& w, parameter* b) override {
      comp::require<comp::error>(!fails || x.precision() == precision::fp32, "no linear in {} (a test's): none",
                                 name(x.precision()));
      return reference::device::linear(x, w, b);
    }
  } device;
  model_builder net{"net", input_kind::values, {8, 6}};
  net.input().linear("a", 24).batch_norm("norm").dropout("drop", 0.2).linear("head", 2).mse_loss("loss");
  reference_trainer t{device, net.finish(), regression_data{64}, regression_data{16}, {.optimizer = adam(0.01)}};
  t.run_batch();
  const auto saved = t.save();
  const auto losses = [&] { return std::vector{t.run_batch().loss, t.run_batch().loss, t.validate()}; };
  const auto expected = losses();
  t.restore(saved);
  for (const auto& error : t.sensitivity(precision::bf16)) {
    CHECK(error.output == 0);
    CHECK(error.gradient < 1e-15);  // a difference of sums
  }
  CHECK(losses() == expected);
  t.restore(saved);
  device.fails = true;
  CHECK_THROWS_WITH_AS(t.sensitivity(precision::bf16), "no linear in bf16 (a test's): none", comp::error);
  CHECK(losses() == expected);
  CHECK(t.network().times()[0].forward == 0);  // nothing is timed
  CHECK_THROWS_WITH_AS(t.sensitivity(precision::fp8_e4m3),
                       "sensitivity in fp8_e4m3 (this device computes in fp32, bf16, fp16): choose one of those",
                       comp::settings_error);
}

TEST_CASE("a sensitivity is the relative error of what one operator gives, and of the gradients that it makes") {
  struct off_by_parts : reference::capable_device {  // linears, when they are lowered
    tensor linear(const tensor& x, parameter& w, parameter* b) override {
      tensor y = reference::device::linear(x, w, b);
      for (double& v : y.values()) v *= off(x) ? 1.01 : 1;
      return y;
    }
    tensor linear_backward(const tensor& dy, const tensor& x, parameter& w, parameter* b, bool need_dx,
                           bool need_parameters) override {
      const std::vector<double> before = w.fresh ? std::vector<double>(w.value.size()) : w.gradient;
      tensor dx = reference::device::linear_backward(dy, x, w, b, need_dx, need_parameters);
      for (std::size_t i = 0; off(x) && i < before.size(); ++i) w.gradient[i] += 0.5 * (w.gradient[i] - before[i]);
      if (need_dx) of_inputs = squares(dx.values());
      return dx;
    }
    void mse_loss(const tensor& x, const tensor& target, double* loss) override {
      reference::device::mse_loss(x, target, loss);
      if (off(x)) *loss *= 4;
    }
    bool runs = true;
    double of_inputs = 0;  // of what the last one gave
    bool supports(const comp::op_info&, precision) const override { return runs; }
    static bool off(const tensor& x) { return x.precision() == precision::bf16; }
    static double squares(const std::vector<double>& values) {
      return std::inner_product(values.begin(), values.end(), values.begin(), 0.0);
    }
  } device;
  model_builder net{"net", input_kind::values, {8, 6}};
  const value twice = net.input().linear("twice", 24);  // read by two operators, whose gradients add up
  twice.relu("relu").add("both", twice.tanh("tanh")).linear("head", 2).mse_loss("loss");
  trainer<reference::capable_device> t{device, net.finish(), regression_data{64}, regression_data{16}};
  constexpr double infinite = std::numeric_limits<double>::infinity(), nan = std::numeric_limits<double>::quiet_NaN();
  CHECK(squared_error{nan, 1}.relative() == infinite);
  CHECK(squared_error{1, 0}.relative() == 1);
  CHECK(squared_error{0, 0}.relative() == 0);
  device.runs = false;
  CHECK(t.sensitivity(precision::bf16)[0].output == 0);
  device.runs = true;
  const auto errors = t.sensitivity(precision::bf16);
  t.run_batch();  // its gradients are those of the first batch too
  const auto norm = [&](std::size_t i) { return off_by_parts::squares(t.network().parameters()[i].gradient); };
  CHECK(errors[0].output == doctest::Approx(0.01));
  CHECK(errors[0].gradient == doctest::Approx(0.5 * std::sqrt(norm(0) / (norm(0) + norm(1)))));  // the bias is right
  CHECK(errors[4].output == doctest::Approx(0.01));
  CHECK(errors[4].gradient == doctest::Approx(0.5 * std::sqrt(norm(2) / (norm(2) + norm(3) + device.of_inputs))));
  CHECK(errors[5].output == doctest::Approx(3));  // 4 for 1
  for (const std::size_t i : {1, 2, 3, 5}) {
    if (i < 5) CHECK(errors[i].output == 0);
    CHECK(errors[i].gradient < 1e-15);
  }
}

TEST_CASE("a sensitivity's gradients are those of all inputs") {
  struct off_by_one : reference::device {
    int low = 0;
    tensor mul(const tensor& a, const tensor& b) override {
      tensor y = reference::device::mul(a, b);
      const bool of_first = a.precision() == precision::bf16 && ++low == 2;  // the forward, then each gradient
      for (double& v : y.values()) v *= of_first ? 1.5 : 1;
      return y;
    }
  } device;
  model_builder net{"net", input_kind::values, {8, 6}};
  const value x = net.input().linear("x", 4);
  x.mul("it", x.tanh("other")).linear("head", 2).mse_loss("loss");
  reference_trainer t{device, net.finish(), regression_data{64}, regression_data{16}};
  const double error = t.sensitivity(precision::bf16)[2].gradient;
  CHECK(error > 0.1);
  CHECK(error < 0.5);
}

TEST_CASE("a sensitivity runs operators as a training step does") {
  struct watching : reference::device {
    int dropped = 0, by_batch = 0, all = 0;
    tensor dropout(const tensor& x, double p, const dropout_key& key) override {
      ++dropped;
      CHECK(key.everywhere);  // one mask in both precisions, in fused operators too
      return reference::device::dropout(x, p, key);
    }
    with_saved<tensor> batch_norm(const tensor& x, parameter& gamma, parameter& beta, parameter& mean,
                                  parameter& variance, const batch_norm_options& o) override {
      ++all, by_batch += o.training;
      return reference::device::batch_norm(x, gamma, beta, mean, variance, o);
    }
  } device;
  model_builder net{"net", input_kind::values, {8, 6}};
  net.input().linear("a", 4).batch_norm("norm").dropout("drop", 0.5).linear("head", 2).mse_loss("loss");
  reference_trainer t{device, net.finish(), regression_data{64}, regression_data{16}};
  (void)t.sensitivity(precision::bf16);
  CHECK(device.dropped > 1);
  CHECK(device.all == 2);  // in FP32 and lowered
  CHECK(device.by_batch == 2);
}
