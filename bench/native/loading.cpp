// SPDX-License-Identifier: Apache-2.0
// What a batch of images costs before a step can read it: made by the loader's threads, as bytes, and made values of on
// the host Device; 64 images of 3 x 224 x 224, plain and augmented. And what loading ahead, which takes a core
// from them, does to steps on this CPU: steps that make their own batch, and steps with one thread ahead, in turns.
//   loading [rounds]
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <comp/core/statistics.hpp>
#include <comp_host/device.hpp>
#include <comp_native/trainer.hpp>
#include <examples/models/native/datasets.hpp>
#include <examples/models/native/models.hpp>
#include <functional>
#include <memory>
#include <string>
#include <vector>

namespace {

using namespace comp::native;
using native_models::image_data;
using native_models::token_data;

image_data noise_images(const shape& image, std::size_t count) {
  random_stream draws{1, 1};
  std::vector<std::uint8_t> pixels(count * static_cast<std::size_t>(elements(image)));
  std::vector<std::int32_t> labels(count);
  for (auto& pixel : pixels) pixel = static_cast<std::uint8_t>(draws.below(256));
  for (auto& label : labels) label = static_cast<std::int32_t>(draws.below(100));
  return {image, std::move(pixels), std::move(labels), {0.5F}, {0.25F}};
}
token_data noise_tokens(std::size_t count, std::int64_t context) {
  random_stream draws{1, 2};
  std::vector<std::int32_t> tokens(count);
  for (auto& token : tokens) token = static_cast<std::int32_t>(draws.below(96));
  return {std::move(tokens), context};
}

double seconds(auto work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// Something that is measured once in each round.
struct job {
  std::string name;
  std::function<double()> once;
  std::vector<double> taken = {};
};

job loading(const std::string& name, const image_data& data, int threads) {
  auto from = std::make_shared<loader>(data, loader_settings{.batch = 64, .seed = 1, .threads = threads});
  for (int i = 0; i < 4; ++i) (void)from->next();
  const int batches = 24;  // two of them may be there when the clock starts
  return {fmt::format("loader alone, {}, {} threads ahead", name, threads), [from] {
            return seconds([&] {
                     for (int i = 0; i < batches; ++i) (void)from->next();
                   }) /
                   batches;
          }};
}
job values_made(comp::host::device& device, const image_data& data) {
  auto from = std::make_shared<loader>(data, loader_settings{.batch = 64, .seed = 1, .threads = 0});
  const host_batch& batch = from->next();
  const std::vector<float> table = data.layout().of_bytes;
  const auto of_bytes = device.upload(table, {3, 256}, comp::precision::fp32);
  return {"values of its bytes, on the host device", [&device, from, &batch, of_bytes] {
            return seconds([&] {
              (void)device.upload(std::span<const std::uint8_t>{batch.bytes}, {64, 3, 224, 224}, of_bytes);
            });
          }};
}
/// The time of an epoch from its second batch on, a batch: waits for the loader are in it.
job steps(comp::host::device& device, const model& m, const data_source& data, int threads) {
  auto trained = std::make_shared<trainer<comp::host::device>>(
      device, m, data, data, training{.optimizer = sgd(1e-4), .loading_threads = threads});
  trained->run_batch();
  return {fmt::format("step of {}, {} threads ahead", m.name, threads), [trained] {
            const comp::sample s = trained->run_epoch();
            return s.seconds / static_cast<double>(s.batches);
          }};
}

double quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = std::max(argc > 1 ? std::atoi(argv[1]) : 12, 1);
  comp::host::device device;
  const image_data large = noise_images({3, 224, 224}, 256), small = noise_images({3, 32, 32}, 128);
  const auto random = large.augmented({.shift = 8, .flip = true});
  const auto gpt =
      native_models::gpt({.batch = 16, .vocabulary = 96, .context = 64, .layers = 4, .width = 256, .heads = 4});
  std::vector<job> jobs;
  for (const int threads : {0, 1, 2}) jobs.push_back(loading("plain", large, threads));
  for (const int threads : {0, 1, 2}) jobs.push_back(loading("augmented", random, threads));
  jobs.push_back(values_made(device, large));
  for (const int threads : {0, 1}) {
    jobs.push_back(steps(device, native_models::vgg16({.batch = 64, .classes = 100}), small, threads));
    jobs.push_back(steps(device, native_models::alexnet({.batch = 64, .classes = 100}), small, threads));
    jobs.push_back(steps(device, gpt, noise_tokens(4 * 16 * 64 + 1, 64), threads));
  }
  for (int round = 0; round < rounds; ++round) {
    for (job& j : jobs) j.taken.push_back(j.once());
  }
  for (const job& j : jobs) {
    const double low = quantile(j.taken, 0.25), high = quantile(j.taken, 0.75);
    fmt::print("{:<48} {:8.2f} ms ({:.2f} .. {:.2f})\n", j.name, comp::median(j.taken) * 1e3, low * 1e3, high * 1e3);
  }
  for (std::size_t i = jobs.size() - 6; i < jobs.size() - 3; ++i) {
    const auto faster = comp::compare_paired(jobs[i].taken, jobs[i + 3].taken);
    fmt::print("{}: {:.3f}x as fast with one (95%: {:.3f} .. {:.3f})\n", jobs[i].name, faster.ratio, faster.bounds.low,
               faster.bounds.high);
  }
}
