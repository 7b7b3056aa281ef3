// SPDX-License-Identifier: Apache-2.0
// Lowers a network that was trained in FP32 by the rules of TVM's ToMixedPrecision, without training it again, and
// compares its inference in BF16 with FP32's: TVM's RFC 0006. Another system's rules are one argument.
// Usage: lower_trained examples/data/optdigits.csv.gz [SYSTEM]; ends with 1 if nothing is lowered or the accuracy
// changes by more than 1%.
#include <fmt/core.h>
#include <torch/torch.h>

#include <comp/policy/plan_name.hpp>
#include <comp/systems/system_rules.hpp>
#include <comp_libtorch/plan/program.hpp>
#include <comp_libtorch/support/hardware.hpp>
#include <examples/data/digits.hpp>

/// The user's model and its training, which know nothing of comp.
struct small_cnn : torch::nn::Module {
  torch::nn::Conv2d stem{torch::nn::Conv2dOptions{1, 16, 3}.padding(1)};
  torch::nn::Conv2d body{torch::nn::Conv2dOptions{16, 32, 3}.padding(1)};
  torch::nn::Linear head{32 * 4 * 4, 10};

  small_cnn() {
    register_module("stem", stem);
    register_module("body", body);
    register_module("head", head);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const auto features = torch::max_pool2d(torch::relu(body(torch::relu(stem(x)))), 2);
    return head(torch::flatten(features, 1));
  }
};

void train(small_cnn& net, const torch::Tensor& pixels, const torch::Tensor& labels) {
  torch::optim::Adam optimizer{net.parameters(), torch::optim::AdamOptions{3e-3}};
  for (int epoch = 0; epoch < 20; ++epoch) {
    for (const auto& batch : torch::randperm(pixels.size(0)).split(64)) {
      optimizer.zero_grad();
      torch::nn::functional::cross_entropy(net.forward(pixels.index({batch})), labels.index({batch})).backward();
      optimizer.step();
    }
  }
}

/// The one call after training: `lowered` then runs the forward as the rules of `system` have it in BF16.
void lower(comp::libtorch::program& lowered, small_cnn& trained, const torch::Tensor& example,
           const std::string& system) {
  lowered.name_parameters(trained);
  lowered.record(true);
  {
    const auto recorded = lowered.enter();
    (void)trained.forward(example);
  }
  lowered.record(false);
  const auto rules = comp::system_rules({system}, comp::libtorch::probe(torch::kCPU));
  const comp::rival candidate = rules(lowered.graph(), std::array{comp::precision::bf16}).at(0);
  comp::require<comp::error>(candidate.refusal.empty(), "{}", candidate.refusal);
  lowered.set_plan(candidate.plan);  // for conversion rules of your own: autocast::tvm_pass(amp, lowered.graph()).plan
}

int main(int argc, char** argv) {
  const std::string file = argc > 1 ? argv[1] : "examples/data/optdigits.csv.gz", system = argc > 2 ? argv[2] : "tvm";
  const data_sets::images digits = data_sets::read_digits(file);
  const auto pixels = torch::tensor(digits.pixels).reshape({-1, 1, 8, 8}) / 255.0F;
  const auto labels = torch::tensor(digits.labels).to(torch::kLong);
  const auto tested = pixels.slice(0, 1200), right = labels.slice(0, 1200);
  torch::manual_seed(1);
  small_cnn net;
  train(net, pixels.slice(0, 0, 1200), labels.slice(0, 0, 1200));

  const torch::NoGradGuard inference;
  comp::libtorch::program lowered;
  lower(lowered, net, tested.slice(0, 0, 8), system);
  const auto in_fp32 = net.forward(tested);
  const auto in_bf16 = [&] {
    const auto on = lowered.enter();
    return net.forward(tested).to(torch::kFloat);
  }();

  const auto accuracy = [&](const torch::Tensor& of) {
    return of.argmax(1).eq(right).to(torch::kFloat).mean().item<double>();
  };
  const double change = accuracy(in_bf16) - accuracy(in_fp32);
  fmt::print("{}: {}\n", system, comp::name(lowered.current_plan(), lowered.graph()));
  fmt::print("accuracy {:.2f}% in FP32, {:.2f}% lowered; {} of {} predictions change, a logit by {:.4f} at most\n",
             100 * accuracy(in_fp32), 100 * accuracy(in_bf16),
             in_fp32.argmax(1).ne(in_bf16.argmax(1)).sum().item<int>(), right.size(0),
             (in_bf16 - in_fp32).abs().max().item<double>());
  return lowered.lowers() && std::abs(change) <= 0.01 ? 0 : 1;
}
