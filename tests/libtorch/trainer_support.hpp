// SPDX-License-Identifier: Apache-2.0
// Tiny trainings for the tests of the trainer.
#pragma once

#include <unistd.h>

#include <comp_libtorch/comp_libtorch.hpp>
#include <cstdint>
#include <filesystem>
#include <string>
#include <string_view>

#include "device.hpp"
#include "regions.hpp"
#include "torch_and_doctest.hpp"

namespace libtorch_tests {

namespace lt = comp::libtorch;
namespace functional = torch::nn::functional;

/// A file name that nobody else has; the file is removed at the end.
struct scratch_file {
  inline static int count = 0;
  std::filesystem::path path = std::filesystem::temp_directory_path() /
                               ("comp_libtorch_" + std::to_string(::getpid()) + "_" + std::to_string(++count));
  scratch_file() { std::filesystem::remove(path); }
  ~scratch_file() { std::filesystem::remove(path); }
  std::string str() const { return path.string(); }
};

struct images {
  at::Tensor x, y;  // (64,3,8,8), (64)
};
inline images some_images(std::int64_t n = 64, std::int64_t side = 8) {
  torch::manual_seed(11);
  const auto y = torch::randint(0, 4, {n});
  const auto x = torch::randn({n, 3, side, side}) + 0.5 * y.reshape({-1, 1, 1, 1});
  return {x.to(device), y.to(device)};
}

/// Convolution, batch norm, dropout and a head.
inline torch::nn::Sequential small_net(std::int64_t channels = 8, std::int64_t side = 8) {
  using namespace torch::nn;
  Sequential net{Conv2d{Conv2dOptions{3, channels, 3}.padding(1)},
                 BatchNorm2d{channels},
                 ReLU{},
                 Dropout{0.2},
                 MaxPool2d{2},
                 Flatten{},
                 Linear{channels * side * side / 4, 4}};
  net->to(device);
  return net;
}

/// `low` for every choosable operator of the kinds that begin with `kind`; "" for all kinds.
inline comp::plan lowered(const comp::op_graph& graph, comp::precision low, std::string_view kind = "") {
  comp::plan p{graph.size()};
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (graph[i].choosable && graph[i].kind.find(kind) != std::string::npos) p[i] = low;
  }
  return p;
}

/// What a user has: a net, an optimizer and data; always the same.
struct classification {
  images data = some_images();
  torch::nn::Sequential net;
  torch::optim::SGD optimizer;
  lt::indexed_batches<torch::data::Example<>> batches;
  lt::setup setup;

  explicit classification(std::uint64_t seed = 1, std::int64_t channels = 8)
      : net{(torch::manual_seed(seed), small_net(channels))},
        optimizer{net->parameters(), torch::optim::SGDOptions{0.05}.momentum(0.9)},
        batches{lt::tensor_batches(data.x, data.y, {.batch = 16, .seed = 2})},
        setup{.modules = {{"net", net}}, .optimizers = {&optimizer}, .choices = lt::executor_choices::fixed} {}

  at::Tensor loss(const torch::data::Example<>& batch) {
    return functional::cross_entropy(net->forward(batch.data), batch.target);
  }
  auto make_step() {
    return [this](lt::step& s, const torch::data::Example<>& batch) {
      const auto l = s.forward([&] { return loss(batch); });
      s.backward(l);
      s.update(optimizer);
    };
  }
  double accuracy() { return net->forward(data.x).argmax(1).eq(data.y).to(torch::kFloat).mean().item<double>(); }
};

using classification_trainer = lt::trainer<lt::indexed_batches<torch::data::Example<>>>;

}  // namespace libtorch_tests
