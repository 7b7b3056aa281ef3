// SPDX-License-Identifier: Apache-2.0
// The native trainer on this CPU beside LibTorch: the same models, batches, optimizers and threads, steps in turns in
// one process. FP32 both; BF16: LibTorch's autocast against the native trainer with all operators in BF16. And
// attention alone beside scaled_dot_product_attention, forward and backward.
//   host [rounds] [threads] [models or attention, a part of their names]
#include <ATen/Parallel.h>
#include <torch/autograd.h>
#include <torch/optim.h>

#include <array>
#include <bench/native/attention.hpp>
#include <bench/native/jobs.hpp>
#include <bench/seconds.hpp>
#include <comp/core/statistics.hpp>
#include <comp_host/device.hpp>
#include <comp_libtorch/hook/autocast_guard.hpp>
#include <cstdlib>
#include <functional>
#include <libtorch/alexnet.hpp>
#include <libtorch/jobs.hpp>
#include <libtorch/vgg16.hpp>
#include <memory>
#include <string>
#include <string_view>
#include <thread>
#include <vector>

#include "gpt.hpp"

namespace {

using comp::precision;

/// A step of ours.
std::function<void()> native_step(comp::host::device& device, const bench::native_job& job, precision p) {
  return [ours = std::shared_ptr{bench::trainer_of(device, job, p)}] { ours->run_batch(); };
}

/// A step as a LibTorch user writes it; under autocast for BF16.
std::function<void()> torch_step(precision p, std::shared_ptr<torch::optim::Optimizer> optimizer,
                                 std::function<torch::Tensor()> loss_of_next) {
  return [=] {
    torch::Tensor loss;
    {
      const comp::libtorch::autocast_guard on{at::kCPU, at::kBFloat16, p == precision::bf16};
      loss = loss_of_next();
    }
    optimizer->zero_grad();
    loss.backward();
    optimizer->step();
    (void)loss.item<float>();
  };
}

/// A step of one of LibTorch's jobs, on a batch that lies ready; under autocast for BF16.
std::function<void()> job_step(precision p, const std::string& name) {
  const auto job = std::make_shared<torch_models::job>(torch_models::make_job(name, {}));
  return [=, batch = pick(*job, job->train, torch::arange(job->batch))] {
    (void)train_step(*job, [&](const torch_models::phase& part) {
      const comp::libtorch::autocast_guard on{at::kCPU, at::kBFloat16, p == precision::bf16};
      return part.loss(batch);
    });
  };
}

/// A step of a classifier of images.
template <class Net>
std::function<void()> image_step(precision p, Net net, at::IntArrayRef size, std::int64_t classes) {
  const auto optimizer = std::make_shared<torch::optim::SGD>(
      net->parameters(), torch::optim::SGDOptions(0.01).momentum(0.9).weight_decay(5e-4));
  const auto x = torch::randint(0, 256, size, torch::kByte), y = torch::randint(0, classes, {size[0]});
  return torch_step(p, optimizer, [=]() mutable {
    const auto rows = torch::randint(0, x.size(0), {bench::image_batch});
    const auto batch = x.index_select(0, rows).to(torch::kFloat).div_(255).sub_(0.5).div_(0.25);
    return torch::cross_entropy_loss(net->forward(batch), y.index_select(0, rows));
  });
}
std::function<void()> lenet_step(precision p) {
  using namespace torch::nn;
  const Sequential net{Conv2d(Conv2dOptions(1, 6, 5).padding(2)),
                       Tanh(),
                       AvgPool2d(2),
                       Conv2d(6, 16, 5),
                       Tanh(),
                       AvgPool2d(2),
                       Flatten(),
                       Linear(400, 120),
                       Tanh(),
                       Linear(120, 84),
                       Tanh(),
                       Linear(84, 10)};
  return image_step(p, net, {bench::images, 1, 28, 28}, 10);
}

std::function<void()> gpt_step(precision p) {
  constexpr auto& shape = bench::gpt_shape;
  bench::gpt net{shape};
  const auto optimizer = std::make_shared<torch::optim::AdamW>(net->parameters(), torch::optim::AdamWOptions(1e-4));
  const auto tokens = torch::randint(0, 96, {64, shape.context + 1});
  return torch_step(p, optimizer, [=]() mutable {
    const auto rows = tokens.index_select(0, torch::randint(0, 64, {shape.batch}));
    const auto logits = net->forward(rows.narrow(1, 0, shape.context));
    return torch::cross_entropy_loss(logits.flatten(0, 1), rows.narrow(1, 1, shape.context).flatten());
  });
}

std::function<void()> libtorch_step(std::string_view name, precision p) {
  const torch_models::image_options cifar{.side = 32, .classes = 100};
  const std::array<std::int64_t, 4> images = {bench::images, 3, 32, 32};
  if (name == "lenet5") return lenet_step(p);
  if (name == "alexnet") return image_step(p, torch_models::alexnet{cifar}, images, 100);
  if (name == "vgg16") return image_step(p, torch_models::vgg16{cifar}, images, 100);
  if (name == "transformer") return gpt_step(p);
  return job_step(p, std::string{name});
}

/// LibTorch's attention of the same sizes; heads lie side by side in a row, as a linear layer leaves them.
std::function<void()> torch_attention(const bench::attention_sizes& s, precision p) {
  const auto kind = p == precision::bf16 ? torch::kBFloat16 : torch::kFloat;
  std::vector<torch::Tensor> x;
  for (int i = 0; i < 4; ++i) x.push_back(torch::randn({s.batch, s.length, s.heads * s.width}, kind));
  for (int i = 0; i < 3; ++i) x[static_cast<std::size_t>(i)].requires_grad_(true);
  return [s, x] {
    const auto heads = [&](const torch::Tensor& t) {
      return t.view({s.batch, s.length, s.heads, s.width}).transpose(1, 2);
    };
    const auto y = at::scaled_dot_product_attention(heads(x[0]), heads(x[1]), heads(x[2]), {}, 0.0, s.causal);
    (void)torch::autograd::grad({y.transpose(1, 2).reshape_as(x[3])}, {x[0], x[1], x[2]}, {x[3]});
  };
}

/// One model in one precision: a step of ours and a step of LibTorch's, each with its loss read.
struct duel {
  std::string name;
  std::function<void()> ours, theirs;
  std::vector<double> our_seconds = {}, their_seconds = {};

  void fight(bool we_begin, bool counts) {
    double ours_took = 0, theirs_took = 0;
    for (const bool us : {we_begin, !we_begin}) (us ? ours_took : theirs_took) = bench::seconds_of(us ? ours : theirs);
    if (!counts) return;
    our_seconds.push_back(ours_took);
    their_seconds.push_back(theirs_took);
  }
  void report() const {
    const auto speed = comp::compare_paired(their_seconds, our_seconds);
    const double we = comp::median(our_seconds), they = comp::median(their_seconds);
    fmt::print("| {} | {:.1f} ms | {:.1f} ms | {:.2f} ({:.2f} to {:.2f}) |\n", name, they * 1e3, we * 1e3, speed.ratio,
               speed.bounds.low, speed.bounds.high);
  }
};

}  // namespace

int main(int argc, char** argv) {
  const int rounds = std::max(argc > 1 ? std::atoi(argv[1]) : 12, 6);
  const int threads = argc > 2 ? std::atoi(argv[2]) : static_cast<int>(std::thread::hardware_concurrency());
  at::set_num_threads(threads);
  comp::host::device device{{.threads = threads}};
  const std::string_view part = argc > 3 ? argv[3] : "";
  fmt::print("| job | LibTorch | native | native's speed, of LibTorch's (95%) |\n|---|---|---|---|\n");
  constexpr std::array both = {precision::fp32, precision::bf16};
  const auto hold = [&](std::vector<duel> duels) {
    for (int round = -1; round < rounds; ++round) {  // the first is not counted
      for (duel& d : duels) d.fight(round % 2 == 0, round >= 0);
    }
    for (const duel& d : duels) d.report();
  };
  for (const std::string_view model : bench::native_jobs) {
    if (model.find(part) == std::string_view::npos) continue;
    const bench::native_job job = bench::native_job_of(model);
    std::vector<duel> duels;
    for (const precision p : both) {
      duels.push_back({fmt::format("{}, {}", job.name, name(p)), native_step(device, job, p), libtorch_step(model, p)});
    }
    hold(std::move(duels));
  }
  if (std::string_view{"attention"}.find(part) != std::string_view::npos) {
    bench::for_attention_sizes([&](const bench::attention_sizes& s) {
      std::vector<duel> duels;
      for (const precision p : both) {
        const auto ours = std::make_shared<bench::native_attention>(s, p, comp::host::settings{.threads = threads});
        duels.push_back(
            {fmt::format("attention, {}, {}", s.text(), name(p)), [ours] { (*ours)(); }, torch_attention(s, p)});
      }
      hold(std::move(duels));
    });
  }
}
