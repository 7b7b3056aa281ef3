// SPDX-License-Identifier: Apache-2.0
// VGG16 (configuration D): torchvision's form for 224 x 224 images (138,357,544 parameters for 1000 classes), and the
// form for 32 x 32 images, whose classifier is one linear layer over 512 channels. Both are with or without batch norm.
// Source: Simonyan and Zisserman 2015; torchvision's vgg16 and vgg16_bn, including the initialisation
#pragma once

#include <cmath>
#include <comp_native/model_builder.hpp>
#include <cstdint>
#include <examples/models/native/alexnet.hpp>
#include <vector>

namespace native_models {

using namespace comp::native;

struct vgg16_options {
  image_form form = image_form::cifar;
  std::int64_t batch = 64;
  std::int64_t classes = 10;
  bool batch_norm = true;
  double dropout = 0.5;  // in the ImageNet form's classifier
};

/// Reads (batch,3,32,32), or (batch,3,224,224) in the ImageNet form.
inline model vgg16(const vgg16_options& o) {
  const bool large = o.form == image_form::imagenet;
  const std::int64_t side = large ? 224 : 32;
  const std::string name = fmt::format("vgg16{}{}", o.batch_norm ? "-bn" : "", large ? "" : "-cifar");
  model_builder net{name, input_kind::values, {o.batch, 3, side, side}};
  const std::vector<std::vector<std::int64_t>> stages = {
      {64, 64}, {128, 128}, {256, 256, 256}, {512, 512, 512}, {512, 512, 512}};
  value x = net.input();
  for (std::size_t s = 0; s < stages.size(); ++s) {
    for (std::size_t i = 0; i < stages[s].size(); ++i) {
      const auto named = [&](const char* kind) { return fmt::format("stage{}.{}{}", s + 1, kind, i + 1); };
      net.normal_weights(std::sqrt(2 / (9.0 * static_cast<double>(stages[s][i]))));  // He et al. 2015, by fan out
      x = x.conv2d(named("conv"), stages[s][i], {.padding = 1});
      if (o.batch_norm) x = x.batch_norm(named("norm"));
      x = x.relu(named("relu"));
    }
    x = x.max_pool2d(fmt::format("stage{}.pool", s + 1));
  }
  if (large) x = x.adaptive_avg_pool2d("pool", {7, 7});
  net.normal_weights(0.01);
  x = x.flatten("flatten");
  for (int i = 1; large && i <= 2; ++i) {
    x = x.linear(fmt::format("classifier.linear{}", i), 4096)
            .relu(fmt::format("classifier.relu{}", i))
            .dropout(fmt::format("classifier.dropout{}", i), o.dropout);
  }
  x.linear(large ? "classifier.linear3" : "classifier.linear", o.classes).cross_entropy_loss("loss");
  return net.finish();
}

}  // namespace native_models
