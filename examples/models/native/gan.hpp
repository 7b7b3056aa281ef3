// SPDX-License-Identifier: Apache-2.0
// A fully connected generative adversarial network for 28 x 28 images: two networks, two optimizers, two losses. The
// generator's phase comes first, and the discriminator then judges the images of that phase. Names and sizes are those
// of models/libtorch/gan.hpp.
// Source: Goodfellow et al. 2014 (arXiv 1406.2661)
#pragma once

#include <cmath>
#include <comp_native/model_builder.hpp>
#include <comp_native/training.hpp>
#include <cstdint>
#include <string>

namespace native_models {

using namespace comp::native;

struct gan_options {
  std::int64_t batch = 156;
  std::int64_t latent = 100;  // numbers that the generator starts from
};

namespace detail {

/// (batch,latent) -> (batch,784) in [-1,1]
inline value generated(value x) {
  for (const std::int64_t width : {128, 256, 512, 1024}) {
    x = x.linear(fmt::format("generator.linear{}", width), width);
    if (width > 128) x = x.batch_norm(fmt::format("generator.norm{}", width));
    x = x.leaky_relu(fmt::format("generator.leaky{}", width));
  }
  return x.linear("generator.linear784", 784).tanh("generator.tanh");
}

/// (batch,784) -> (batch,1): the discriminator's logits, which are positive for images judged as real. Made and real
/// images go through the same network; `on` tells the names of the operators apart.
inline value judged(value x, const std::string& on) {
  for (const std::int64_t width : {512, 256}) {
    x = x.linear(fmt::format("discriminator.linear{}@{}", width, on), width)
            .leaky_relu(fmt::format("discriminator.leaky{}@{}", width, on));
  }
  return x.linear("discriminator.linear1@" + on, 1);
}

}  // namespace detail

/// Reads images (batch,1,28,28) in [-1,1]. Its phases are "generator" and "discriminator". In an evaluation
/// "discriminator.linear1@made" has the logits of made images, and "discriminator.linear1@real" those of real ones.
inline model gan(const gan_options& o) {
  model_builder net{"gan", input_kind::values, {o.batch, 1, 28, 28}};
  const value fakes = detail::generated(net.noise("noise", o.latent));
  detail::judged(fakes, "made").binary_cross_entropy_loss("loss@made", 1);
  net.end_phase("generator", "generator");
  detail::judged(net.input().flatten("flatten"), "real").binary_cross_entropy_loss("loss@real", 1);
  detail::judged(fakes.detach("detach"), "fake").binary_cross_entropy_loss("loss@fake", 0);
  net.end_phase("discriminator", "discriminator");
  return net.finish();
}

/// Returns: a score that is 1 if the discriminator distinguishes real and made images no better than a coin, and 0 if
/// it is always right or always wrong.
inline scoring undecided() {
  return {.reads = {"discriminator.linear1@real", "discriminator.linear1@made"},
          .score = [](std::span<const std::vector<float>> logits) {
            const auto right = std::ranges::count_if(logits[0], [](float x) { return x > 0; }) +
                               std::ranges::count_if(logits[1], [](float x) { return x <= 0; });
            return 1 - std::abs(static_cast<double>(right) / static_cast<double>(logits[0].size()) - 1);
          }};
}

}  // namespace native_models
