// SPDX-License-Identifier: Apache-2.0
// What the doctor costs: an examined step (forward and backward, with the low precision's errors) against the plain
// one, in turns, on a convolutional net, an MLP and a transformer.
#include <torch/torch.h>

#include <algorithm>
#include <chrono>
#include <comp_libtorch/doctor/doctor.hpp>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace torch::nn;

struct job {
  std::string name;
  std::shared_ptr<torch::nn::Module> model;
  std::function<torch::Tensor()> loss;
};

job job_of(std::string name, auto net, const torch::Tensor& x) {
  return {std::move(name), net.ptr(), [net, x]() mutable { return net->forward(x).pow(2).mean(); }};
}

std::vector<job> jobs() {
  const auto conv = [](int in, int out) { return Conv2d{Conv2dOptions{in, out, 3}.padding(1)}; };
  Sequential cnn{conv(3, 64),         BatchNorm2d{64}, ReLU{},           conv(64, 64), BatchNorm2d{64}, ReLU{},
                 MaxPool2d{2},        conv(64, 128),   BatchNorm2d{128}, ReLU{},       MaxPool2d{2},    Flatten{},
                 Linear{128 * 64, 10}};
  Sequential mlp{Linear{512, 1024}, ReLU{}, Linear{1024, 1024}, ReLU{}, Linear{1024, 10}};
  const auto layer = TransformerEncoderLayerOptions{256, 4}.dim_feedforward(1024).dropout(0.1).activation(torch::kGELU);
  TransformerEncoder transformer{TransformerEncoderOptions{TransformerEncoderLayer{layer}, 2}};
  return {job_of("cnn", cnn, torch::randn({32, 3, 32, 32})), job_of("mlp", mlp, torch::randn({128, 512})),
          job_of("transformer", transformer, torch::randn({128, 8, 256}))};
}

double seconds(const std::function<void()>& run) {
  const auto begin = std::chrono::steady_clock::now();
  run();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
}

double quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = argc > 1 ? std::max(4, std::atoi(argv[1])) : 20;
  for (const job& each : jobs()) {
    const auto plain = [&] {
      each.model->zero_grad();
      each.loss().backward();
    };
    const auto examined = [&] {
      each.model->zero_grad();
      comp::doctor doctor{{{"net", *each.model}}};
      torch::Tensor loss;
      {
        const auto on = doctor.examine();
        loss = each.loss();
      }
      loss.backward();
      (void)doctor.finish();
    };
    plain();
    examined();
    std::vector<double> ratios, steps;
    for (int i = 0; i < rounds; ++i) {
      steps.push_back(seconds(plain));
      ratios.push_back(seconds(examined) / steps.back());
    }
    fmt::print("{}: a step {:.1f} ms, examined {:.2f} of it ({:.2f} to {:.2f})\n", each.name,
               1e3 * quantile(steps, 0.5), quantile(ratios, 0.5), quantile(ratios, 0.25), quantile(ratios, 0.75));
  }
}
