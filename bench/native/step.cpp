// SPDX-License-Identifier: Apache-2.0
// The time of a training step against the time that it spends in oneDNN's primitives: what the trainer, this backend's
// own loops and changes of layout cost on top. VGG16 for CIFAR and a transformer, in FP32 and with every operator in
// BF16.
//   step [rounds] [threads] [file.json]
// The jobs take turns within each round, so that a noisy moment hits all of them; medians, and quartiles as the spread.
#include <fmt/format.h>

#include <algorithm>
#include <comp/core/statistics.hpp>
#include <comp_host/device.hpp>
#include <comp_native/trainer.hpp>
#include <cstdlib>
#include <examples/models/native/datasets.hpp>
#include <examples/models/native/models.hpp>
#include <fstream>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace {

using namespace comp::native;
using comp::precision;
using native_models::image_data;
using native_models::token_data;

/// Noise: the arithmetic takes as long whatever the values are.
image_data noise_images(std::size_t count) {
  random_stream draws{1, 1};
  std::vector<std::uint8_t> pixels(count * 3 * 32 * 32);
  std::vector<std::int32_t> labels(count);
  for (auto& pixel : pixels) pixel = static_cast<std::uint8_t>(draws.below(256));
  for (auto& label : labels) label = static_cast<std::int32_t>(draws.below(100));
  return {{3, 32, 32}, std::move(pixels), std::move(labels), {0.5F}, {0.25F}};
}
token_data noise_tokens(std::size_t count, std::int64_t context) {
  random_stream draws{1, 2};
  std::vector<std::int32_t> tokens(count);
  for (auto& token : tokens) token = static_cast<std::int32_t>(draws.below(96));
  return {std::move(tokens), context};
}

struct job {
  std::string name;
  std::unique_ptr<comp::host::device> device;
  std::unique_ptr<trainer<comp::host::device>> trained;
  std::vector<double> seconds = {}, primitives = {}, reorders = {}, kernels = {}, ratio = {};

  job(std::string named, const model& m, const data_source& data, optimizer with, precision p, int threads)
      : name{fmt::format("{} {}", named, comp::name(p))},
        device{std::make_unique<comp::host::device>(comp::host::settings{.threads = threads})},
        trained{std::make_unique<trainer<comp::host::device>>(*device, m, data, data, training{.optimizer = with})} {
    comp::plan all{trained->graph().size()};
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (trained->graph()[i].choosable) all[i] = p;
    }
    trained->set_precision(all);
  }

  void measure() {
    device->profile_primitives(true);
    seconds.push_back(trained->run_batch().seconds);
    const auto shares = device->shares();
    device->profile_primitives(false);
    primitives.push_back(shares.primitives);
    reorders.push_back(shares.reorders);
    kernels.push_back(shares.kernels);
    ratio.push_back(seconds.back() / shares.primitives);
  }
};

double quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

nlohmann::json report(const job& j) {
  const double step = comp::median(j.seconds), in_primitives = comp::median(j.primitives);
  const double in_reorders = comp::median(j.reorders), in_kernels = comp::median(j.kernels);
  fmt::print(
      "{:<18} step {:8.2f} ms ({:.2f} .. {:.2f}), primitives {:8.2f}, reorders {:7.2f}, own loops {:7.2f}, rest {:6.2f}; "
      "step / primitives {:.3f} ({:.3f} .. {:.3f})\n",
      j.name, step * 1e3, quantile(j.seconds, 0.25) * 1e3, quantile(j.seconds, 0.75) * 1e3, in_primitives * 1e3,
      in_reorders * 1e3, in_kernels * 1e3, (step - in_primitives - in_reorders - in_kernels) * 1e3,
      comp::median(j.ratio), quantile(j.ratio, 0.25), quantile(j.ratio, 0.75));
  return {{"job", j.name},
          {"step_seconds", step},
          {"step_quartiles", {quantile(j.seconds, 0.25), quantile(j.seconds, 0.75)}},
          {"primitive_seconds", in_primitives},
          {"reorder_seconds", in_reorders},
          {"own_loop_seconds", in_kernels},
          {"step_over_primitives", comp::median(j.ratio)},
          {"ratio_quartiles", {quantile(j.ratio, 0.25), quantile(j.ratio, 0.75)}},
          {"rounds", j.seconds.size()}};
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = std::max(argc > 1 ? std::atoi(argv[1]) : 12, 1);
  const int threads = argc > 2 ? std::atoi(argv[2]) : 0;
  const auto images = noise_images(256);
  const auto tokens = noise_tokens(64 * 64 + 1, 64);
  const auto vgg = native_models::vgg16({.batch = 64, .classes = 100});
  const auto gpt =
      native_models::gpt({.batch = 16, .vocabulary = 96, .context = 64, .layers = 4, .width = 256, .heads = 4});
  std::vector<job> jobs;
  for (const precision p : {precision::fp32, precision::bf16}) {
    jobs.emplace_back("vgg16-cifar", vgg, images, sgd(0.01, 0.9, 5e-4), p, threads);
    jobs.emplace_back("transformer", gpt, tokens, adamw(1e-4), p, threads);
  }
  for (auto& j : jobs) {
    for (int warm_up = 0; warm_up < 2; ++warm_up) j.trained->run_batch();
  }
  for (int round = 0; round < rounds; ++round) {
    for (auto& j : jobs) j.measure();
  }
  nlohmann::json all = {
      {"bench", "native step"}, {"hardware", jobs[0].device->hardware().name}, {"jobs", nlohmann::json::array()}};
  for (const auto& j : jobs) all["jobs"].push_back(report(j));
  for (std::size_t i = 0; i < 2; ++i) {
    const auto faster = comp::compare_paired(jobs[i].seconds, jobs[i + 2].seconds);
    fmt::print("{}: BF16 {:.2f}x as fast as FP32 (95%: {:.2f} .. {:.2f})\n", jobs[i].trained->model().name,
               faster.ratio, faster.bounds.low, faster.bounds.high);
    all["bf16_speedup"][jobs[i].trained->model().name] = faster.ratio;
  }
  if (argc > 3) std::ofstream{argv[3]} << all.dump(2) << '\n';
  fmt::print("{}\n", all.dump());
}
