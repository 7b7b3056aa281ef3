// SPDX-License-Identifier: Apache-2.0
// Searches a plan for an ordinary LibTorch training (model, optimizer, data, step), and later trains with the plan
// without a search. Only the step is written for comp; the model's source does not change. Guide: docs/start/libtorch.md.
#include <torch/torch.h>

#include <comp/comp.hpp>
#include <comp_libtorch/comp_libtorch.hpp>

namespace functional = torch::nn::functional;

/// The user's model.
struct small_cnn : torch::nn::Module {
  torch::nn::Conv2d stem{torch::nn::Conv2dOptions{1, 32, 3}.padding(1)};
  torch::nn::Conv2d body{torch::nn::Conv2dOptions{32, 64, 3}.padding(1).bias(false)};
  torch::nn::BatchNorm2d norm{64};
  torch::nn::Linear head{64 * 8 * 8, 4};

  small_cnn() {
    register_module("stem", stem);
    register_module("body", body);
    register_module("norm", norm);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto features = torch::relu(norm(body(torch::relu(stem(x)))));
    return head(torch::flatten(torch::max_pool2d(features, 2), 1));
  }
};

struct images {
  torch::Tensor pixels, labels;  // (n,1,16,16), (n)
};

/// Images of noise in which one quarter is brighter. The label says which.
images bright_quarters(std::int64_t n) {
  const auto labels = torch::randint(4, {n});
  auto pixels = torch::randn({n, 1, 2, 8, 2, 8});
  pixels += 0.5 * functional::one_hot(labels, 4).reshape({n, 1, 2, 1, 2, 1});
  return {pixels.reshape({n, 1, 16, 16}), labels};
}

int main(int argc, char** argv) {
  const std::string plan_file = argc > 1 ? argv[1] : "libtorch_model.plan.json";
  torch::manual_seed(1);
  const images train = bright_quarters(1536), test = bright_quarters(512);
  const auto net = std::make_shared<small_cnn>();
  torch::optim::Adam optimizer{net->parameters(), torch::optim::AdamOptions{1e-3}};

  // 1. The training as a backend of comp.
  comp::libtorch::trainer trainer{
      {.modules = {{"net", *net}}, .optimizers = {&optimizer}},
      comp::libtorch::tensor_batches(train.pixels, train.labels, {.batch = 64}),
      [&](comp::libtorch::step& s, const auto& batch) {
        const auto loss = s.forward([&] { return functional::cross_entropy(net->forward(batch.data), batch.target); });
        s.backward(loss);
        s.update(optimizer);
      },
      [&] { return net->forward(test.pixels).argmax(1).eq(test.labels).to(torch::kFloat).mean().item<double>(); }};

  // 2. The search, and training on with what it found.
  const comp::two_stage search{comp::policy::pytorch{}};
  const comp::outcome found = search.run(trainer, comp::progress_bar{});
  fmt::print("{} is {:.2f}x as fast as FP32\n", found.plan.str(), found.speedup);
  const auto trained = comp::post_training{.epochs = 2}.run(trainer, found);
  fmt::print("after {} epochs: loss {:.3f}, score {:.3f}\n", trained.epochs.size(), trained.epochs.back().loss,
             trainer.validate());
  comp::save(found, plan_file);

  // 3. Another day: the same plan in a loop of the user's own.
  comp::libtorch::planned_region planned{{{"net", *net}}, plan_file};
  auto batches = comp::libtorch::tensor_batches(train.pixels, train.labels, {.batch = 64, .seed = 2});
  torch::Tensor loss;
  while (const auto batch = batches.next()) {
    {
      const auto on = planned.enter();
      loss = functional::cross_entropy(net->forward(batch->data), batch->target);
    }
    loss.backward();
    optimizer.step();
    optimizer.zero_grad();
  }
  fmt::print("trained on with {}: loss {:.3f}\n", plan_file, loss.item<double>());
}
