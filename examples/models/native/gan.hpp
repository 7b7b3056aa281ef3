// SPDX-License-Identifier: Apache-2.0
// A fully connected generative adversarial network for 28 x 28 images: two networks, two optimizers, two losses. The
// generator goes first, and its images are then what the discriminator is shown. Source: Goodfellow et al. 2014 (arXiv
// 1406.2661); names and sizes as in models/libtorch/gan.hpp.
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

/// The discriminator on what `on` says: one network, whatever it judges. (batch,784) -> (batch,1), logits: positive
/// means real.
inline value judged(value x, const std::string& on) {
  for (const std::int64_t width : {512, 256}) {
    x = x.linear(fmt::format("discriminator.linear{}@{}", width, on), width)
            .leaky_relu(fmt::format("discriminator.leaky{}@{}", width, on));
  }
  return x.linear("discriminator.linear1@" + on, 1);
}

}  // namespace detail

/// Reads images (batch,1,28,28) in [-1,1]. Its phases are "generator" and "discriminator"; of an evaluation's logits
/// "discriminator.linear1@made" judges images that are made, "discriminator.linear1@real" real ones.
inline model gan(const gan_options& o) {
  model_builder net{"gan", input_kind::values, {o.batch, 1, 28, 28}};
  const value made = detail::generated(net.noise("noise", o.latent));
  detail::judged(made, "made").binary_cross_entropy_loss("loss@made", 1);
  net.end_phase("generator", "generator");
  detail::judged(net.input().flatten("flatten"), "real").binary_cross_entropy_loss("loss@real", 1);
  detail::judged(made.detach("detach"), "fake").binary_cross_entropy_loss("loss@fake", 0);
  net.end_phase("discriminator", "discriminator");
  return net.finish();
}

/// 1 where the discriminator tells real from made no better than a coin, 0 where it is always right or always wrong.
inline scoring undecided() {
  return {.reads = {"discriminator.linear1@real", "discriminator.linear1@made"},
          .score = [](std::span<const std::vector<float>> logits) {
            const auto right = std::ranges::count_if(logits[0], [](float x) { return x > 0; }) +
                               std::ranges::count_if(logits[1], [](float x) { return x <= 0; });
            return 1 - std::abs(static_cast<double>(right) / static_cast<double>(logits[0].size()) - 1);
          }};
}

}  // namespace native_models
