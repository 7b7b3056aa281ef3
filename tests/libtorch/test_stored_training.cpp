// SPDX-License-Identifier: Apache-2.0
// Trainings that go on in another process, from a file.
#include <unistd.h>

#include <comp/core/stored_state.hpp>
#include <comp/files/training_file.hpp>
#include <comp_libtorch/comp_libtorch.hpp>
#include <comp_libtorch/train/stored_values.hpp>
#include <cstdint>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "trainer_support.hpp"

using namespace libtorch_tests;
using comp::precision;
using comp::stored_state;
namespace optim = torch::optim;

static_assert(comp::StoresState<classification_trainer>);
static_assert(!comp::StoresState<lt::trainer<lt::replayed_batches<torch::data::Example<>>>>);

namespace {

using makers = std::function<std::unique_ptr<optim::Optimizer>(const torch::nn::Sequential&)>;

/// A training with dropout, running statistics and an optimizer of its own.
struct training {
  classification job;
  std::unique_ptr<optim::Optimizer> optimizer;
  classification_trainer trainer;

  training(std::uint64_t seed, const makers& make)
      : job{seed},
        optimizer{make(job.net)},
        trainer{{.modules = {{"net", job.net}},
                 .optimizers = {optimizer.get()},
                 .choices = lt::executor_choices::fixed,
                 .scale_loss = lt::loss_scaling::always},
                job.batches,
                [this](lt::step& s, const torch::data::Example<>& batch) {
                  s.backward(s.forward([&] { return job.loss(batch); }));
                  s.update(*optimizer);
                }} {}
  std::vector<double> losses(int n) {
    std::vector<double> all;
    for (int i = 0; i < n; ++i) all.push_back(trainer.run_batch().loss);
    return all;
  }
};

/// Through a file.
stored_state kept(const stored_state& state) {
  const auto path = std::filesystem::temp_directory_path() / fmt::format("comp_stored_{}", ::getpid());
  comp::training_progress progress;
  progress.plans = {comp::plan{}};
  comp::write_training({"signature", state, progress}, path.string());
  auto read = comp::read_training(path.string()).state;
  std::filesystem::remove(path);
  return read;
}

const std::vector<std::pair<const char*, makers>> all_optimizers{
    {"SGD",
     [](auto& net) { return std::make_unique<optim::SGD>(net->parameters(), optim::SGDOptions{0.05}.momentum(0.9)); }},
    {"Adam",
     [](auto& net) { return std::make_unique<optim::Adam>(net->parameters(), optim::AdamOptions{}.amsgrad(true)); }},
    {"AdamW", [](auto& net) { return std::make_unique<optim::AdamW>(net->parameters(), optim::AdamWOptions{}); }},
    {"RMSprop",
     [](auto& net) {
       return std::make_unique<optim::RMSprop>(net->parameters(), optim::RMSpropOptions{0.001}.centered(true));
     }},
    {"Adagrad",
     [](auto& net) { return std::make_unique<optim::Adagrad>(net->parameters(), optim::AdagradOptions{}); }}};

}  // namespace

TEST_CASE("a training goes on from a file as it would have gone on itself") {
  for (const auto& [name, make] : all_optimizers) {
    CAPTURE(name);
    training here{1, make}, there{9, make};
    (void)here.losses(6);  // into the second epoch
    here.optimizer->param_groups()[0].options().set_lr(0.01);
    const stored_state state = kept(here.trainer.store_state());
    const auto expected = here.losses(5);
    (void)there.losses(2);
    there.trainer.load_state(state);
    CHECK(there.losses(5) == expected);
    for (const auto& p : here.job.net->named_buffers())
      CHECK(torch::equal(p.value(), there.job.net->named_buffers()[p.key()]));
    training fresh{9, make};  // whose optimizer has no state yet
    fresh.trainer.load_state(state);
    CHECK(fresh.losses(5) == expected);
  }
}

TEST_CASE("LBFGS goes on from a file") {
  const auto make = [](std::uint64_t seed) {
    auto job = std::make_unique<classification>(seed);
    auto optimizer = std::make_shared<optim::LBFGS>(job->net->parameters(), optim::LBFGSOptions{0.1}.max_iter(2));
    auto trainer = std::make_unique<classification_trainer>(
        lt::setup{
            .modules = {{"net", job->net}}, .optimizers = {optimizer.get()}, .choices = lt::executor_choices::fixed},
        job->batches, [&of = *job, optimizer](lt::step& s, const torch::data::Example<>& batch) {
          s.update(*optimizer, [&] {
            optimizer->zero_grad();
            const auto loss = s.forward([&] { return of.loss(batch); });
            s.backward(loss);
            return loss;
          });
        });
    return std::pair{std::move(job), std::move(trainer)};
  };
  const auto [job, here] = make(1);
  const auto [other, there] = make(9);
  const auto losses = [](auto& trainer) {
    std::vector<double> all;
    for (int i = 0; i < 3; ++i) all.push_back(trainer->run_batch().loss);
    return all;
  };
  (void)losses(here);
  const stored_state state = kept(here->store_state());
  const auto expected = losses(here);
  there->load_state(state);
  CHECK(losses(there) == expected);
}

TEST_CASE("formats other than FP32 keep their bits in a file") {
  stored_state state;
  lt::detail::state_writer to{state};
  const std::vector<at::Tensor> all{torch::tensor({1.0 / 3, -0.0}, torch::kDouble),
                                    torch::tensor(std::int64_t{1} << 60), torch::rand({2, 3}).to(torch::kBFloat16),
                                    torch::zeros({0, 2}, torch::kBool)};
  for (std::size_t i = 0; i < all.size(); ++i) to.add(std::to_string(i), all[i]);
  const stored_state read = kept(state);
  const lt::detail::state_reader from{read};
  for (std::size_t i = 0; i < all.size(); ++i) {
    const at::Tensor found = from.tensor(std::to_string(i));
    CHECK(found.dtype() == all[i].dtype());
    CHECK(torch::equal(found, all[i]));
  }
}

TEST_CASE("the state of another training is refused by name, and nothing is changed") {
  training here{1, all_optimizers[0].second};
  (void)here.losses(2);
  stored_state state = here.trainer.store_state();
  const auto before = here.job.net->parameters()[0].clone();
  for (auto& tensor : state.tensors)
    if (tensor.name.starts_with("net.")) std::ranges::fill(tensor.values, 0.F);
  state.tensors[1].shape.push_back(1);
  CHECK_THROWS_WITH_AS(
      here.trainer.load_state(state),
      fmt::format("stored tensor \"{}\" has shape 8 x 1 (the model's has shape 8): load what this trainer "
                  "stored",
                  state.tensors[1].name)
          .c_str(),
      comp::error);
  CHECK(torch::equal(here.job.net->parameters()[0], before));
  CHECK_THROWS_WITH_AS(
      here.trainer.load_state({}),
      "no stored number \"loss scale\" (it is another training's state): load what this trainer stored", comp::error);
  here.job.setup.extra = {.save = [] { return std::any{}; }, .restore = [](const std::any&) {}};
  classification_trainer with_more{here.job.setup, here.job.batches, here.job.make_step()};
  CHECK_THROWS_WITH_AS(
      (void)with_more.store_state(),
      "setup::extra has state that only this process can hold (it is any object of yours): train without "
      "checkpoints, or write a file of your own",
      comp::error);
}
