// SPDX-License-Identifier: Apache-2.0
// AlexNet: torchvision's single-column form for 224 x 224 images (61,100,840 parameters for 1000 classes), and the
// usual adaptation to 32 x 32 images, with a smaller first kernel, smaller strides, the same five convolutions and a
// narrower classifier.
// Source: Krizhevsky 2014 (arXiv 1404.5997); torchvision's alexnet
#pragma once

#include <comp_native/model_builder.hpp>
#include <cstdint>

namespace native_models {

using namespace comp::native;

enum class image_form : std::uint8_t { cifar, imagenet };

struct alexnet_options {
  image_form form = image_form::cifar;
  std::int64_t batch = 64;
  std::int64_t classes = 10;
  double dropout = 0.5;
};

/// Reads (batch,3,32,32), or (batch,3,224,224) in the ImageNet form.
inline model alexnet(const alexnet_options& o) {
  const bool large = o.form == image_form::imagenet;
  const std::int64_t side = large ? 224 : 32, width = large ? 4096 : 1024;
  const pool2d_options pool = large ? pool2d_options{{3, 3}, {2, 2}} : pool2d_options{};
  model_builder net{large ? "alexnet" : "alexnet-cifar", input_kind::values, {o.batch, 3, side, side}};
  value x = net.input()
                .conv2d("features.conv1", 64,
                        large ? convolution{.kernel = 11, .stride = 4, .padding = 2} : convolution{.padding = 1})
                .relu("features.relu1")
                .max_pool2d("features.pool1", pool)
                .conv2d("features.conv2", 192, {.kernel = large ? 5 : 3, .padding = large ? 2 : 1})
                .relu("features.relu2")
                .max_pool2d("features.pool2", pool)
                .conv2d("features.conv3", 384, {.padding = 1})
                .relu("features.relu3")
                .conv2d("features.conv4", 256, {.padding = 1})
                .relu("features.relu4")
                .conv2d("features.conv5", 256, {.padding = 1})
                .relu("features.relu5")
                .max_pool2d("features.pool5", pool);
  if (large) x = x.adaptive_avg_pool2d("pool", {6, 6});
  x.flatten("flatten")
      .dropout("classifier.dropout1", o.dropout)
      .linear("classifier.linear1", width)
      .relu("classifier.relu1")
      .dropout("classifier.dropout2", o.dropout)
      .linear("classifier.linear2", width)
      .relu("classifier.relu2")
      .linear("classifier.linear3", o.classes)
      .cross_entropy_loss("loss");
  return net.finish();
}

}  // namespace native_models
