// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <stdexcept>
#include <string>
#include <vector>

#include "torch_and_doctest.hpp"
#include "trainer_support.hpp"

using namespace libtorch_tests;
using comp::precision;
using comp::sample;
using comp::status;

static_assert(comp::Backend<classification_trainer>);
static_assert(comp::detail::saves<classification_trainer> && comp::detail::stops<classification_trainer> &&
              comp::detail::profiles<classification_trainer> &&
              comp::detail::knows_precisions<classification_trainer> &&
              comp::detail::knows_hardware<classification_trainer> && comp::detail::signs<classification_trainer>);
static_assert(!comp::detail::validates<classification_trainer>);
static_assert(comp::Backend<lt::trainer<lt::indexed_batches<at::Tensor>, true>>);
static_assert(comp::detail::validates<lt::trainer<lt::indexed_batches<at::Tensor>, true>>);

TEST_CASE("in all FP32 the trainer gives the losses of the plain loop bit for bit") {
  std::vector<double> plain;
  {
    classification user;
    torch::manual_seed(5);
    for (int epoch = 0; epoch < 2; ++epoch) {
      while (auto batch = user.batches.next()) {
        const auto loss = user.loss(*batch);
        loss.backward();
        user.optimizer.step();
        user.optimizer.zero_grad();
        plain.push_back(loss.item<double>());
      }
    }
  }
  classification user;
  classification_trainer trainer{user.setup, user.batches, user.make_step()};
  torch::manual_seed(5);
  CHECK(trainer.graph().size() > 5);  // a step was trained for it, and undone
  auto losses = trainer.run_epoch().curve;
  const auto second = trainer.run_epoch();
  losses.insert(losses.end(), second.curve.begin(), second.curve.end());
  CHECK(losses == plain);
  CHECK(second.batches == 4);
  CHECK(second.batch_seconds.size() == 4);
  CHECK(second.loss == doctest::Approx((plain[4] + plain[5] + plain[6] + plain[7]) / 4));
  CHECK(second.peak_bytes > 64 * 1024);
}

TEST_CASE("operators carry the names of the models, and the graph is the same each time") {
  classification user;
  classification_trainer trainer{user.setup, user.batches, user.make_step()};
  const auto& graph = trainer.graph();
  CHECK(std::ranges::any_of(graph, [](const auto& op) { return op.name == "net.0.conv2d"; }));
  classification again;
  classification_trainer other{again.setup, again.batches, again.make_step()};
  CHECK(other.graph().fingerprint() == graph.fingerprint());
  CHECK(other.signature() == trainer.signature());
  classification seeded{2};
  CHECK(classification_trainer{seeded.setup, seeded.batches, seeded.make_step()}.signature() != trainer.signature());
  classification slower;
  slower.optimizer.param_groups()[0].options().set_lr(0.01);
  CHECK(classification_trainer{slower.setup, slower.batches, slower.make_step()}.signature() != trainer.signature());
}

TEST_CASE("a restored state gives the same losses bit for bit, under a plan too") {
  for (const bool keep : {false, true}) {
    CAPTURE(keep);
    classification user;
    if (keep) user.setup.program.weights = lt::weight_casts::keep;
    classification_trainer trainer{user.setup, user.batches, user.make_step()};
    trainer.set_precision(lowered(trainer.graph(), precision::bf16));
    trainer.run_batch();
    const auto before = trainer.save();
    const auto rest = trainer.run_epoch().curve;
    const auto next = trainer.run_batch().curve;
    trainer.restore(before);
    CHECK(trainer.run_epoch().curve == rest);
    CHECK(trainer.run_batch().curve == next);
    CHECK(before.bytes() > 0);
    trainer.set_precision(comp::plan{trainer.graph().size()});
    trainer.restore(before);
    CHECK(trainer.run_epoch().curve != rest);
  }
}

TEST_CASE(
    "an epoch starts at its beginning, batches run on from one epoch to the next, and a stop is asked after each") {
  classification user;
  classification_trainer trainer{user.setup, user.batches, user.make_step()};
  for (int i = 0; i < 5; ++i) CHECK(trainer.run_batch().batches == 1);
  CHECK(trainer.batches().position().epoch == 1);
  CHECK(trainer.run_epoch().batches == 4);
  CHECK(trainer.batches().position().epoch == 3);
  int asked = 0;
  const auto cut = trainer.run_epoch([&](const sample& so_far) {
    CHECK(so_far.batches == ++asked);
    CHECK(so_far.curve.size() == so_far.batch_seconds.size());
    return asked == 2;
  });
  CHECK(cut.status == status::stopped_early);
  CHECK(cut.batches == 2);
}

TEST_CASE("a GAN: two forwards, two optimizers, two losses, as in the plain loop bit for bit") {
  struct gan {
    torch::nn::Linear generator{2, 4}, discriminator{4, 1};
    torch::optim::Adam for_g{generator->parameters(), 0.01}, for_d{discriminator->parameters(), 0.01};
    at::Tensor real = torch::randn({32, 4});

    at::Tensor discriminator_loss() {
      const auto fake = generator(torch::randn({8, 2})).detach();
      return functional::softplus(-discriminator(real.narrow(0, 0, 8))).mean() +
             functional::softplus(discriminator(fake)).mean();
    }
    at::Tensor generator_loss() { return functional::softplus(-discriminator(generator(torch::randn({8, 2})))).mean(); }
  };
  std::vector<double> plain_d, plain_g;
  {
    torch::manual_seed(1);
    gan g;
    for (int i = 0; i < 4; ++i) {
      g.for_d.zero_grad();
      const auto d = g.discriminator_loss();
      d.backward();
      g.for_d.step();
      g.for_g.zero_grad();
      const auto loss = g.generator_loss();
      loss.backward();
      g.for_g.step();
      plain_d.push_back(d.item<double>());
      plain_g.push_back(loss.item<double>());
    }
  }
  torch::manual_seed(1);
  gan g;
  lt::trainer trainer{
      {.modules = {{"generator", g.generator}, {"discriminator", g.discriminator}}, .optimizers = {&g.for_d, &g.for_g}},
      lt::tensor_batches(g.real, torch::zeros({32}), {.batch = 8}),
      [&](lt::step& s, const auto& /*batch*/) {
        const auto d = s.forward("discriminator", [&] { return g.discriminator_loss(); });
        s.backward(d, {.loss = "discriminator"});
        s.update(g.for_d);
        const auto loss = s.forward("generator", [&] { return g.generator_loss(); });
        s.backward(loss, {.loss = "generator"});
        s.update(g.for_g);
      }};
  std::vector<double> d_losses, g_losses;
  for (int i = 0; i < 4; ++i) {
    const auto got = trainer.run_batch();
    REQUIRE(got.losses.size() == 2);
    CHECK(got.loss == got.losses[0] + got.losses[1]);
    d_losses.push_back(got.losses[0]);
    g_losses.push_back(got.losses[1]);
  }
  CHECK(d_losses == plain_d);
  CHECK(g_losses == plain_g);
  trainer.set_precision(lowered(trainer.graph(), precision::bf16, "addmm"));
  CHECK(trainer.run_epoch().ok());
  trainer.set_precision(lowered(trainer.graph(), precision::fp16, "addmm"));
  const auto scaled = trainer.run_epoch();
  CHECK(scaled.ok());
  CHECK(scaled.losses.size() == 2);
}

TEST_CASE("accumulated and clipped gradients train as in the plain loop") {
  const auto halves = [](const torch::data::Example<>& b) {
    return std::vector{torch::data::Example<>{b.data.narrow(0, 0, 8), b.target.narrow(0, 0, 8)},
                       torch::data::Example<>{b.data.narrow(0, 8, 8), b.target.narrow(0, 8, 8)}};
  };
  std::vector<double> plain;
  {
    classification user;
    torch::manual_seed(5);
    while (auto batch = user.batches.next()) {
      double sum = 0;
      for (const auto& half : halves(*batch)) {
        const auto loss = user.loss(half) / 2;
        loss.backward();
        sum += loss.item<double>();
      }
      torch::nn::utils::clip_grad_norm_(user.net->parameters(), 0.1);
      user.optimizer.step();
      user.optimizer.zero_grad();
      plain.push_back(sum);
    }
  }
  classification user;
  classification_trainer trainer{user.setup, user.batches, [&](lt::step& s, const torch::data::Example<>& batch) {
                                   for (const auto& half : halves(batch)) {
                                     s.backward(s.forward([&] { return user.loss(half) / 2; }));
                                   }
                                   s.clip(0.1);
                                   s.update(user.optimizer);
                                 }};
  torch::manual_seed(5);
  CHECK(trainer.run_epoch().curve == plain);
}

TEST_CASE("gradients that are accumulated under plans with and without a loss scale are of one factor") {
  const auto moved = [](precision first, precision second) {
    classification user;
    classification_trainer trainer{user.setup, user.batches, [&](lt::step& s, const torch::data::Example<>& batch) {
                                     s.backward(s.forward([&] { return user.loss(batch); }));
                                     if (s.number() % 2 == 1) s.update(user.optimizer);
                                   }};
    const auto before = user.net->parameters()[0].detach().clone();
    trainer.set_precision(lowered(trainer.graph(), first, "addmm"));
    (void)trainer.run_batch();
    const auto middle = trainer.save();
    trainer.set_precision(lowered(trainer.graph(), second, "addmm"));
    (void)trainer.run_batch();
    const auto after = user.net->parameters()[0].detach().clone();
    trainer.restore(middle);
    (void)trainer.run_batch();
    CHECK(torch::equal(user.net->parameters()[0], after));
    return at::Tensor{after - before};
  };
  const auto expected = moved(precision::fp32, precision::fp32);
  for (const auto& [first, second] :
       {std::pair{precision::fp16, precision::fp32}, {precision::fp32, precision::fp16}}) {
    CHECK((moved(first, second) - expected).norm().item<double>() < 0.05 * expected.norm().item<double>());
  }
}

TEST_CASE("a schedule by the step's number is the same after a restored state") {
  classification user;
  std::vector<double> rates;
  classification_trainer trainer{user.setup, user.batches, [&](lt::step& s, const torch::data::Example<>& batch) {
                                   auto& options = user.optimizer.param_groups()[0].options();
                                   options.set_lr(0.1 / static_cast<double>(1 + s.number()));
                                   rates.push_back(options.get_lr());
                                   s.backward(s.forward([&] { return user.loss(batch); }));
                                   s.update(user.optimizer);
                                 }};
  const auto start = trainer.save();
  trainer.run_batch();  // and the step of the recording before it
  trainer.run_batch();
  trainer.restore(start);
  CHECK(user.optimizer.param_groups()[0].options().get_lr() == 0.05);
  trainer.run_batch();
  CHECK(rates == std::vector{0.1, 0.1, 0.05, 0.1});
}

TEST_CASE("FP16 plans scale the loss; an overflow skips the step and says so") {
  classification user;
  user.setup.scaling.initial = 0x1p40;  // overflows at once
  user.setup.scaling.floor = 0x1p-4;
  classification_trainer trainer{user.setup, user.batches, user.make_step()};
  trainer.set_precision(lowered(trainer.graph(), precision::fp16, "addmm"));
  const auto weight = user.net->parameters()[0].detach().clone();
  const auto before = trainer.save();
  const auto got = trainer.run_batch();
  CHECK(got.ok());
  CHECK(got.message == "1 steps skipped: FP16 gradients overflowed, loss scale now 549755813888");
  CHECK(torch::equal(user.net->parameters()[0], weight));
  trainer.run_epoch();
  trainer.restore(before);
  CHECK(trainer.run_batch().message == got.message);
  SUBCASE("BF16 is not scaled") {
    trainer.set_precision(lowered(trainer.graph(), precision::bf16, "addmm"));
    CHECK(trainer.run_batch().message.empty());
    CHECK_FALSE(torch::equal(user.net->parameters()[0], weight));
  }
  SUBCASE("in the end FP16 trains as FP32 does") {
    for (int i = 0; i < 12; ++i) trainer.run_epoch();
    CHECK(trainer.run_epoch().message.empty());
  }
}

TEST_CASE("gradients that overflow at the scale's floor end the run as not finite, naming the parameter") {
  classification user;
  user.setup.scaling = {.initial = 2, .floor = 1};
  user.setup.scale_loss = lt::loss_scaling::always;
  bool poison = false;
  classification_trainer trainer{user.setup, user.batches, [&](lt::step& s, const torch::data::Example<>& batch) {
                                   s.backward(s.forward([&] { return user.loss(batch); }));
                                   if (poison) user.net->parameters()[0].mutable_grad().fill_(std::nan(""));
                                   s.update(user.optimizer);
                                 }};
  CHECK(trainer.run_batch().ok());
  poison = true;
  CHECK(trainer.run_batch().ok());
  const auto got = trainer.run_batch();
  CHECK(got.status == status::not_finite);
  CHECK(got.message.find("gradients of net.0.weight are not finite at the lowest loss scale") == 0);
}

TEST_CASE("a loss that is not finite and damages the weights ends the run with a status") {
  classification user;
  classification_trainer trainer{user.setup, user.batches, [&](lt::step& s, const torch::data::Example<>& batch) {
                                   const double factor = s.number() == 2 ? std::numeric_limits<double>::infinity() : 1;
                                   s.backward(s.forward([&] { return user.loss(batch); }) * factor);
                                   s.update(user.optimizer);
                                 }};
  const auto got = trainer.run_epoch();  // of four batches
  CHECK(got.not_finite == 2);
  CHECK(std::isfinite(got.loss));
  CHECK(trainer.run_epoch().status == status::not_finite);
  CHECK(got.message == "loss inf in step 2 (in FP32): look at the data of that batch and at the learning rate");
  trainer.set_precision(lowered(trainer.graph(), precision::bf16));
  CHECK(trainer.run_batch().message.find("(it left the range of its precision): use more FP32") != std::string::npos);
}

TEST_CASE("exceptions in a step become comp's, and the trainer goes on") {
  classification user;
  std::string fault;
  classification_trainer trainer{user.setup, user.batches, [&](lt::step& s, const torch::data::Example<>& batch) {
                                   const auto loss = s.forward([&] {
                                     auto hidden = user.net[0]->as<torch::nn::Conv2d>()->forward(batch.data);
                                     if (fault == "memory") hidden = hidden.new_empty({std::int64_t{1} << 46});
                                     if (fault == "shape") hidden = torch::mm(hidden, hidden);
                                     if (fault == "user") throw std::runtime_error{"the user's own"};
                                     return hidden.square().mean();
                                   });
                                   s.backward(loss);
                                   if (fault == "late") throw std::runtime_error{"after backward"};
                                   s.update(user.optimizer);
                                 }};
  trainer.set_precision(lowered(trainer.graph(), precision::bf16));
  const auto before = trainer.save();
  const auto good = trainer.run_batch().loss;
  trainer.restore(before);
  fault = "memory";
  CHECK_THROWS_AS(trainer.run_batch(), comp::error);  // another operator came first: memory is asked for all the same
  fault = "shape";
  CHECK_THROWS_AS(trainer.run_batch(), comp::error);
  fault = "user";
  CHECK_THROWS_WITH_AS(trainer.run_batch(), "the user's own", std::runtime_error);
  fault = "late";
  CHECK_THROWS_AS(trainer.run_batch(), std::runtime_error);
  fault = "";
  trainer.restore(before);
  CHECK(trainer.run_batch().loss == good);
}

TEST_CASE("a plan without memory is out of memory, also while the first step is recorded") {
  classification user;
  std::int64_t size = std::int64_t{1} << 46;
  classification_trainer trainer{user.setup, user.batches, [&](lt::step& s, const torch::data::Example<>& batch) {
                                   const auto more = torch::empty({size});
                                   s.backward(s.forward([&] { return user.loss(batch); }));
                                   s.update(user.optimizer);
                                 }};
  CHECK_THROWS_AS(trainer.graph(), comp::out_of_memory);
  size = 1;
  CHECK(trainer.graph().size() > 5);
  CHECK(trainer.run_batch().ok());
  size = std::int64_t{1} << 46;
  CHECK_THROWS_AS(trainer.run_batch(), comp::out_of_memory);
}

TEST_CASE("a forward that changes goes on in FP32 if that is asked for, and is told") {
  classification user;
  user.setup.program.otherwise = lt::on_mismatch::fp32;
  bool changed = false;
  classification_trainer trainer{user.setup, user.batches, [&](lt::step& s, const torch::data::Example<>& batch) {
                                   s.backward(s.forward([&] {
                                     const auto out = user.net->forward(batch.data);
                                     if (changed) return out.tanh().square().mean();
                                     return functional::cross_entropy(out, batch.target);
                                   }));
                                   s.update(user.optimizer);
                                 }};
  trainer.set_precision(lowered(trainer.graph(), precision::bf16));
  CHECK(trainer.run_batch().ok());
  changed = true;
  const auto got = trainer.run_batch();
  CHECK(got.ok());
  CHECK(got.message.find("1 forwards left the recorded sequence and went on in FP32") == 0);
  changed = false;
  CHECK(trainer.run_batch().ok());
}

TEST_CASE("steps without a loss, without a region, or with other losses than before are refused") {
  classification user;
  int kind = 0;
  const auto step = [&](lt::step& s, const torch::data::Example<>& batch) {
    if (kind == 0) {
      s.backward(s.forward([&] { return user.loss(batch); }));
    } else if (kind == 2) {
      s.forward([&] {
        const auto l = user.loss(batch);
        s.backward(l);
        return l;
      });
    } else if (kind == 3) {
      user.loss(batch).backward();
    }
    if (kind == 4) s.backward(s.forward([&] { return user.loss(batch); }), {.loss = "another"});
    if (kind == 5) s.backward(user.loss(batch));
    s.update(user.optimizer);
  };
  classification_trainer trainer{user.setup, user.batches, step};
  SUBCASE("nothing in a region") {
    kind = 5;
    CHECK_THROWS_AS(trainer.graph(), comp::graph_error);
    kind = 0;
    CHECK(trainer.graph().size() > 5);
  }
  SUBCASE("backward in a forward") {
    kind = 2;
    CHECK_THROWS_WITH_AS(trainer.run_batch(),
                         "backward() inside forward() (its operators would be taken for the model's): end the forward "
                         "first",
                         comp::error);
  }
  SUBCASE("no loss") {
    kind = 3;
    CHECK_THROWS_AS(trainer.run_batch(), comp::error);
  }
  SUBCASE("another loss after the first") {
    CHECK(trainer.run_batch().ok());
    CHECK_THROWS_AS(trainer.run_epoch([&](const sample& so_far) {
      kind = 4;
      return so_far.batches > 3;
    }),
                    comp::error);
  }
}

TEST_CASE("the score is taken in evaluation mode, without gradients, and changes nothing") {
  classification user;
  user.net[1]->as<torch::nn::BatchNorm2d>()->eval();  // frozen by the user
  bool training = true, gradients = true;
  lt::trainer trainer{user.setup, user.batches, user.make_step(), [&] {
                        training = user.net[3]->is_training();
                        gradients = torch::GradMode::is_enabled();
                        return user.accuracy();
                      }};
  trainer.set_precision(lowered(trainer.graph(), precision::bf16));
  const double score = trainer.validate();
  CHECK(score >= 0);
  CHECK(score <= 1);
  CHECK(trainer.validate() == score);  // dropout is off
  CHECK_FALSE(training);
  CHECK_FALSE(gradients);
  CHECK(user.net[3]->is_training());
  CHECK_FALSE(user.net[1]->is_training());
  const auto before = trainer.save();
  const auto next = trainer.run_batch().loss;
  trainer.restore(before);
  trainer.validate();
  CHECK(trainer.run_batch().loss == next);
}

TEST_CASE("an optimizer that evaluates the loss again and again trains under a plan") {
  torch::manual_seed(1);
  torch::nn::Linear net{4, 1};
  torch::optim::LBFGS optimizer{net->parameters(), torch::optim::LBFGSOptions{0.5}.max_iter(4)};
  const auto x = torch::randn({32, 4}), y = x.sum(1, true);
  int evaluations = 0;
  lt::trainer trainer{{.modules = {{"net", net}}, .optimizers = {&optimizer}},
                      lt::tensor_batches(x, y, {.batch = 32}),
                      [&](lt::step& s, const auto& batch) {
                        s.update(optimizer, [&] {
                          optimizer.zero_grad();
                          const auto l = s.forward([&] { return torch::mse_loss(net(batch.data), batch.target); });
                          s.backward(l);
                          ++evaluations;
                          return l;
                        });
                      }};
  trainer.set_precision(lowered(trainer.graph(), precision::bf16, "addmm"));
  evaluations = 0;
  const auto first = trainer.run_epoch(), second = trainer.run_epoch(), third = trainer.run_epoch();
  CHECK(evaluations > 6);
  CHECK(third.loss < 0.5 * first.loss);
  CHECK(second.curve.size() == 1);
  trainer.set_precision(lowered(trainer.graph(), precision::fp16, "addmm"));
  CHECK_THROWS_AS(trainer.run_epoch(), comp::error);
}

TEST_CASE("operators are timed without changing the training") {
  classification user;
  classification_trainer trainer{user.setup, user.batches, user.make_step()};
  trainer.set_precision(lowered(trainer.graph(), precision::bf16, "conv2d"));
  const auto before = trainer.save();
  const auto next = trainer.run_batch().loss;
  trainer.restore(before);
  const auto times = trainer.profile();
  REQUIRE(times.size() == trainer.graph().size());
  double forward = 0, backward = 0;
  for (std::size_t i = 0; i < times.size(); ++i) {
    CHECK(times[i].forward >= 0);
    CHECK(times[i].backward >= 0);
    if (trainer.graph()[i].kind == "aten::conv2d") CHECK(times[i].backward > 0);
    forward += times[i].forward;
    backward += times[i].backward;
  }
  CHECK(forward > 0);
  CHECK(backward > 0);
  CHECK(trainer.run_batch().loss == next);
}
