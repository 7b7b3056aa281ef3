// SPDX-License-Identifier: Apache-2.0
// Sensitivities, perturbed weights, and epochs that were begun batch by batch.
#include <algorithm>
#include <cmath>
#include <comp_libtorch/comp_libtorch.hpp>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "trainer_support.hpp"

using namespace libtorch_tests;
using comp::op_error;
using comp::plan;
using comp::precision;

static_assert(comp::detail::perturbs<classification_trainer> && comp::detail::counts_batches<classification_trainer>);
static_assert(comp::detail::scores_operators<classification_trainer>);

namespace {

/// The losses of `t`'s next `n` steps.
std::vector<double> steps(auto& t, std::uint64_t n) {
  std::vector<double> losses;
  for (std::uint64_t i = 0; i < n; ++i) losses.push_back(t.run_batch().loss);
  return losses;
}

void check_begun_epochs(auto& t, std::uint64_t expected_batches) {
  const auto start = t.save();
  std::vector<double> expected = t.run_epoch().curve;
  REQUIRE(expected.size() == expected_batches);
  for (const double loss : t.run_epoch().curve) expected.push_back(loss);
  for (std::uint64_t begun = 1; begun <= expected_batches; ++begun) {
    CAPTURE(begun);
    t.restore(start);
    std::vector<double> losses = steps(t, begun);
    const auto middle = t.save();
    (void)steps(t, 2);
    t.restore(middle);
    CHECK(t.batches_per_epoch() == expected_batches);
    for (const double loss : steps(t, t.batches_per_epoch() - begun)) losses.push_back(loss);
    for (const double loss : t.run_epoch().curve) losses.push_back(loss);
    CHECK(losses == expected);
  }
}

/// A user's own source: goes back, and does not say how long it is. Draws from LibTorch's generator.
struct own_source {
  using batch_type = torch::data::Example<>;
  images data = some_images();
  std::uint64_t at = 0;
  int given = 0;
  std::optional<batch_type> next() {
    ++given;
    (void)torch::rand({1});
    if (at % 4 == 3) {
      ++at;
      return std::nullopt;
    }
    const auto first = 16 * static_cast<std::int64_t>(at++ % 4);
    return batch_type{data.x.narrow(0, first, 16), data.y.narrow(0, first, 16)};
  }
  void begin_epoch() { at = at % 4 == 0 ? at : (at / 4 + 1) * 4; }
  std::uint64_t position() const { return at; }
  void seek(std::uint64_t to) { at = to; }
  std::string signature() const { return "own"; }
};

TEST_CASE("an epoch begun batch by batch and finished is the epoch, and the next one follows") {
  classification job;
  SUBCASE("indexed batches say how many they are") {
    lt::trainer t{job.setup, job.batches, job.make_step()};
    CHECK(t.batches_per_epoch() == 4);
    check_begun_epochs(t, 4);
  }
  SUBCASE("with a last batch that is not full, and gradients accumulated") {
    const auto step = [&](lt::step& s, const torch::data::Example<>& batch) {
      for (const std::int64_t half : {0, 1}) {
        const auto x = batch.data.chunk(2)[static_cast<std::size_t>(half)];
        const auto y = batch.target.chunk(2)[static_cast<std::size_t>(half)];
        s.backward(s.forward([&] { return functional::cross_entropy(job.net->forward(x), y); }) / 2);
      }
      s.update(job.optimizer);
    };
    auto batches = lt::tensor_batches(job.data.x, job.data.y, {.batch = 24, .keep_last = true});
    lt::trainer t{job.setup, batches, step};
    check_begun_epochs(t, 3);
  }
  SUBCASE("a loader is read ahead, once") {
    int pulled = 0;
    auto loader = [&, batches = job.batches]() mutable {
      ++pulled;
      return batches.next();
    };
    lt::trainer t{job.setup, lt::replayed(loader), job.make_step()};
    (void)t.run_batch();
    CHECK(t.batches_per_epoch() == 4);
    CHECK(pulled == 5);  // four batches and the end
    CHECK(t.batches_per_epoch() == 4);
    (void)steps(t, 3);
    CHECK(pulled == 5);
    check_begun_epochs(t, 4);
  }
  SUBCASE("a source that only goes back is counted") {
    lt::trainer t{job.setup, own_source{}, job.make_step()};
    (void)t.run_batch();
    const auto saved = t.save();
    const double loss = t.run_batch().loss;
    t.restore(saved);
    CHECK(t.batches_per_epoch() == 3);
    const int given = t.batches().given;
    CHECK(t.batches_per_epoch() == 3);
    CHECK(t.batches().given == given);
    CHECK(t.run_batch().loss == loss);
  }
}

TEST_CASE("a loader too large to be read ahead is not counted, and goes on where it was") {
  classification job, same;
  const auto bytes_of_batch = 16 * (3 * 8 * 8 * 4 + 8);
  const auto build = [&](classification& of, std::int64_t limit) {
    auto loader = [batches = of.batches]() mutable { return batches.next(); };
    return std::make_unique<lt::trainer<lt::replayed_batches<torch::data::Example<>>>>(
        of.setup, lt::replayed(loader, {.limit_bytes = limit}), of.make_step());
  };
  const auto t = build(job, 4 * bytes_of_batch), other = build(same, 1 << 30);
  torch::manual_seed(5);
  const auto expected = steps(*other, 4);
  torch::manual_seed(5);
  CHECK(t->batches_per_epoch() == 0);
  CHECK(steps(*t, 4) == expected);
  (void)t->run_batch();  // passes the end of the epoch
  CHECK(t->batches_per_epoch() == 4);
}

TEST_CASE("data without an end are read ahead for so many batches, and given again") {
  int pulled = 0;
  auto endless = lt::replayed([&] { return std::optional{torch::full({2}, pulled++)}; }, {.read_ahead = 10});
  CHECK(endless.batches_per_epoch() == 0);
  CHECK(pulled == 11);
  CHECK(endless.batches_per_epoch() == 0);
  CHECK(pulled == 11);
  for (int i = 0; i < 11; ++i) CHECK(endless.next()->index({0}).item<int>() == i);
  int at = 0;
  const auto ten = [&]() -> std::optional<at::Tensor> {
    return ++at % 11 == 0 ? std::nullopt : std::optional{torch::ones(1)};
  };
  CHECK(lt::replayed(ten, {.read_ahead = 10}).batches_per_epoch() == 10);
}

TEST_CASE("a batch may be numbers, pairs and tuples: their bytes count, and what was written in them is seen") {
  auto loader = lt::replayed([] { return std::optional{std::tuple{torch::ones(4), std::pair{torch::ones(2), 3}}}; });
  const auto here = loader.position();
  const auto batch = loader.next();
  CHECK(loader.kept_bytes() == 4 * 4 + 2 * 4 + static_cast<std::int64_t>(sizeof(int)));
  std::get<1>(*batch).first.add_(1);
  loader.seek(here);
  CHECK_THROWS_WITH_AS((void)loader.next(), doctest::Contains("batch 0 was written in place"), comp::settings_error);
}

TEST_CASE("a loader that draws from LibTorch's generator leaves a step the numbers of the plain loop") {
  const auto draw = [](bool begins) { return begins ? torch::randperm(8).to(torch::kFloat) : torch::ones(8); };
  torch::manual_seed(5);
  std::vector<at::Tensor> expected;
  for (int i = 0; i < 4; ++i) expected.push_back(draw(i % 2 == 0) + torch::randn(8));
  torch::manual_seed(5);
  auto loader = lt::replayed([&, i = 0]() mutable { return std::optional{draw(i++ % 2 == 0)}; });
  const auto start = loader.position();
  at::Generator drawn = at::detail::getDefaultCPUGenerator();
  const at::Tensor state = drawn.get_state();
  for (int pass = 0; pass < 2; ++pass) {
    loader.seek(start);
    drawn.set_state(state);
    for (const at::Tensor& want : expected) CHECK((*loader.next() + torch::randn(8)).equal(want));
  }
}

TEST_CASE("a parameter that an optimizer trains and no model has comes back with the state") {
  classification job;
  const at::Tensor image = torch::ones({16, 3, 8, 8}, torch::requires_grad().device(device)),
                   before = image.detach().clone();
  torch::optim::Adam of_image{{image}, torch::optim::AdamOptions{0.1}};
  job.setup.optimizers = {&of_image};
  lt::trainer t{job.setup, job.batches, [&](lt::step& s, const torch::data::Example<>& batch) {
                  s.backward(s.forward([&] { return job.loss({batch.data * image, batch.target}); }));
                  s.update(of_image);
                }};
  CHECK(t.graph()[0].name == "optimizer.mul");
  CHECK(image.equal(before));
  const auto saved = t.save();
  const double loss = t.run_batch().loss;
  CHECK_FALSE(image.equal(before));
  t.restore(saved);
  CHECK(image.equal(before));
  CHECK(t.run_batch().loss == loss);
}

TEST_CASE("a batch that the step wrote is not given again as if it were the same") {
  classification job;
  auto loader = [batches = job.batches]() mutable { return batches.next(); };
  lt::trainer t{job.setup, lt::replayed(loader), [&](lt::step& s, torch::data::Example<>& batch) {
                  s.backward(s.forward([&] { return job.loss(batch); }));
                  s.update(job.optimizer);
                  batch.data.div_(2);
                }};
  CHECK_THROWS_WITH_AS((void)t.run_batch(), doctest::Contains("batch 0 was written in place since it was given"),
                       comp::settings_error);
}

TEST_CASE("a perturbed training has other losses, by little; restored, the same") {
  classification job;
  lt::trainer t{job.setup, job.batches, job.make_step()};
  (void)t.run_batch();
  const auto check = [&] {
    const auto start = t.save();
    const auto expected = steps(t, 3);
    const auto perturbed = [&](std::uint64_t seed) {
      t.restore(start);
      t.perturb(seed);
      return steps(t, 3);
    };
    std::set<double> values;  // third losses
    double first = 0;         // largest difference of the first loss
    for (std::uint64_t seed = 0; seed < 8; ++seed) {
      const auto losses = perturbed(seed);
      CHECK(perturbed(seed) == losses);
      values.insert(losses[2]);
      first = std::max(first, std::abs(losses[0] - expected[0]) / expected[0]);
    }
    CHECK(values.size() > 1);  // some are the same: a loss in FP32 is as coarse as they are different
    t.restore(start);
    CHECK(steps(t, 3) == expected);
    t.restore(start);
    return first;
  };
  CHECK(check() < 1e-5);
  t.set_precision(lowered(t.graph(), precision::bf16, "conv2d"));
  CHECK(check() < 1e-2);  // if a weight rounds to another number
}

TEST_CASE("perturbed values are the same or neighbours, zeros stay, and LibTorch's generator is left alone") {
  torch::manual_seed(1);
  const auto generator = at::globalContext().defaultGenerator(at::kCPU);
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    CAPTURE(c10::toString(type));
    auto weight = torch::randn({4096}).to(type);
    weight[0] = 0;
    const auto before = weight.clone();
    const auto state = generator.get_state().clone();
    lt::perturb({weight}, 9);
    CHECK(torch::equal(generator.get_state(), state));
    const auto moved = weight.ne(before).sum().item<std::int64_t>();
    CHECK(moved > 1000);
    CHECK(moved < 3000);
    CHECK(weight[0].item<double>() == 0);
    const auto parts = ((weight - before) / before).nan_to_num(0).abs().max().item<double>();
    CHECK(parts <= 2 * lt::detail::half_ulp(type) * 1.01);
  }
  auto whole = torch::arange(9);
  lt::perturb({whole}, 1);
  CHECK(torch::equal(whole, torch::arange(9)));
}

TEST_CASE("what is not finite or huge in weights, gradients, buffers and moments is counted") {
  const float nan = std::numeric_limits<float>::quiet_NaN(), infinity = std::numeric_limits<float>::infinity();
  CHECK(lt::count_extreme({torch::tensor({1.0F, nan, -infinity, -2e7F, 9e6F}),
                           torch::tensor({infinity}).to(torch::kHalf), torch::tensor({1, 2}), at::Tensor{},
                           torch::empty({0}), torch::tensor({0.0F, nan}).to_sparse()}) == 5);
  classification job;
  lt::trainer t{job.setup, job.batches, job.make_step()};
  (void)t.run_batch();
  CHECK(t.count_extreme() == 0);
  const auto before = t.save();
  const torch::NoGradGuard no_grad;
  job.setup.modules[0].module->parameters()[0].view(-1)[2] = nan;
  job.setup.modules[0].module->buffers()[0].view(-1)[0] = infinity;
  CHECK(t.count_extreme() == 2);
  t.restore(before);
  CHECK(t.count_extreme() == 0);
}

TEST_CASE("sensitivities are those of a few roundings, and the training is left as it was") {
  classification job;
  lt::trainer t{job.setup, job.batches, job.make_step()};
  t.set_precision(lowered(t.graph(), precision::fp16, "linear"));
  (void)t.run_batch();
  const auto saved = t.save();
  const auto expected = steps(t, 5);
  t.restore(saved);
  for (const precision low : {precision::bf16, precision::fp16}) {
    CAPTURE(name(low));
    const auto errors = t.sensitivity(low);
    REQUIRE(errors.size() == t.graph().size());
    for (std::size_t i = 0; i < errors.size(); ++i) {
      const auto& op = t.graph()[i];
      CAPTURE(op.name);
      CHECK(errors[i].output <= 8 * comp::traits(low).half_ulp);
      CHECK(errors[i].gradient <= 24 * comp::traits(low).half_ulp);
      const bool computes = op.kind == "aten::linear" || op.kind == "aten::conv2d";
      if (computes) CHECK(errors[i].output > comp::traits(low).half_ulp / 8);
      if (computes) CHECK(errors[i].gradient > comp::traits(low).half_ulp / 8);
      if (!op.choosable) CHECK((errors[i].output == 0 && errors[i].gradient == 0));
    }
    const auto again = t.sensitivity(low);
    for (std::size_t i = 0; i < errors.size(); ++i) CHECK(again[i].output == errors[i].output);
  }
  for (const op_error& e : t.sensitivity(precision::fp32)) CHECK((e.output == 0 && e.gradient == 0));
  CHECK(steps(t, 5) == expected);
  t.restore(saved);
  CHECK(t.executor().current_plan() == lowered(t.graph(), precision::fp16, "linear"));
  const auto lacking = device.is_cpu() ? precision::tf32 : precision::mxfp8;
  const std::string refusal = "sensitivity in " + std::string{comp::name(lacking)} +
                              " (LibTorch on this device has no such precision): choose another";
  CHECK_THROWS_WITH_AS(t.sensitivity(lacking), refusal.c_str(), comp::settings_error);
}

/// The errors of one forward's operators, by name without scope.
std::map<std::string, op_error> errors_of(precision low, auto forward) {
  torch::nn::Linear net{torch::nn::LinearOptions(1, 1).bias(false)};
  torch::nn::init::ones_(net->weight);
  torch::optim::SGD optimizer{net->parameters(), 0.1};
  own_source source;
  lt::setup setup{.modules = {{"net", net}}, .optimizers = {&optimizer}};
  setup.choices = lt::executor_choices::fixed;
  lt::trainer t{setup, source, [&](lt::step& s, const torch::data::Example<>&) {
                  s.backward(s.forward([&] { return forward(net->weight.view({1})); }));
                  s.update(optimizer);
                }};
  const auto errors = t.sensitivity(low);
  std::map<std::string, op_error> named;
  for (std::size_t i = 0; i < errors.size(); ++i) {
    const std::string& name = t.graph()[i].name;  // "net.mul"
    named[name.substr(name.rfind('.') + 1)] = errors[i];
  }
  return named;
}

}  // namespace

TEST_CASE("each operator is judged from FP32's inputs, and its gradients from the same gradient of its output") {
  const auto x = torch::tensor({1.0F + 0x1p-9F, 3.0F});  // in BF16: 1 and 3
  const auto errors = errors_of(precision::bf16, [&](const at::Tensor& w) { return (x * w).exp().sum(); });
  const double rounded = 0x1p-9 / std::hypot(1 + 0x1p-9, 3);
  CHECK(errors.at("mul").output == doctest::Approx(rounded).epsilon(1e-3));
  CHECK(errors.at("mul").gradient > 0);
  CHECK(errors.at("mul").gradient < 0x1p-6);
  CHECK(errors.at("exp").output > 0);
  CHECK(errors.at("exp").output < 0x1p-8);
  CHECK(errors.at("sum").gradient < 0x1p-8);
}

TEST_CASE("what leaves FP16's range is infinite, a mask is not, and what a loss scale is for does no harm") {
  const auto errors = errors_of(precision::fp16, [&](const at::Tensor& w) {
    const auto large = w * 3e4F + w * 4e4F;
    const auto scores = torch::zeros({4, 4}).add(w).masked_fill(torch::ones({4, 4}, torch::kBool).triu(1), -INFINITY);
    return large.sum() * 1e-9F + scores.softmax(-1).mul(scores.softmax(-1)).expand({1000, 4, 4}).mean();
  });
  CHECK(std::isinf(errors.at("add").output));
  CHECK(errors.at("mul").output < 0x1p-9);
  REQUIRE(errors.contains("masked_fill"));
  CHECK(errors.at("masked_fill").output < 0x1p-9);
  CHECK(errors.at("mean").gradient < 0x1p-9);  // 1/16000 each
}

TEST_CASE("dropout drops the same in both precisions") {
  const auto errors = errors_of(precision::bf16, [&](const at::Tensor& w) {
    return torch::dropout(torch::ones({64, 64}) * w, 0.5, true).sum();
  });
  CHECK(errors.at("dropout").output < 0x1p-8);
  CHECK(errors.at("dropout").gradient < 0x1p-6);
}

TEST_CASE("an operator that LibTorch does not run in a precision has an infinite error, and the others their own") {
  const auto x = torch::arange(6, torch::kFloat).reshape({3, 2});
  const auto errors =
      errors_of(precision::fp16, [&](const at::Tensor& w) { return torch::cdist(x * w, x + 0.5).mean().exp(); });
  CHECK_THROWS_AS(torch::cdist(x.to(torch::kHalf), x.to(torch::kHalf)), c10::Error);
  CHECK(std::isinf(errors.at("cdist").output));
  CHECK(std::isinf(errors.at("cdist").gradient));
  CHECK(errors.at("exp").output < 0x1p-9);
}
