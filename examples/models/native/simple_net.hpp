// SPDX-License-Identifier: Apache-2.0
// SimpleNet: linear layers of one size, one after another, and the random numbers that it trains on.
// Source: PaddlePaddle's guide on automatic mixed precision (8192 wide, batches of 2048 there)
#pragma once

#include <algorithm>
#include <comp_native/data_source.hpp>
#include <comp_native/model_builder.hpp>
#include <comp_native/random.hpp>
#include <cstdint>
#include <string>
#include <vector>

namespace native_models {

using namespace comp::native;

struct simple_net_options {
  std::int64_t batch = 256;
  std::int64_t layers = 9;
  std::int64_t width = 1024;
};

/// Reads (batch,width) and predicts (batch,width).
inline model simple_net(const simple_net_options& o) {
  model_builder net{"simplenet", input_kind::values, {o.batch, o.width}};
  value x = net.input();
  for (std::int64_t i = 0; i < o.layers; ++i) x = x.linear(fmt::format("linears.{}", i), o.width);
  x.mse_loss("loss");
  return net.finish();
}

/// Examples whose inputs and targets are uniform numbers in [0, 1), the same in each epoch.
class random_examples {
 public:
  random_examples(std::int64_t width, std::int64_t count, std::uint64_t seed) : width_{width}, seed_{seed} {
    random_stream draws{seed, 1};
    numbers_.resize(static_cast<std::size_t>(2 * width * count));
    for (float& number : numbers_) number = static_cast<float>(draws.uniform());
  }
  std::size_t size() const { return numbers_.size() / static_cast<std::size_t>(2 * width_); }
  example_layout layout() const {
    return {.input_shape = {width_}, .target = input_kind::values, .target_shape = {width_}};
  }
  void write(std::size_t i, const example_spans& to) const {
    const auto from = numbers_.begin() + static_cast<std::ptrdiff_t>(2 * i * to.values.size());
    std::copy_n(from, width_, to.values.begin());
    std::copy_n(from + width_, width_, to.targets.begin());
  }
  std::string signature() const { return fmt::format("random {} x {} seed {}", size(), width_, seed_); }

 private:
  std::int64_t width_;
  std::uint64_t seed_;
  std::vector<float> numbers_;
};

}  // namespace native_models
