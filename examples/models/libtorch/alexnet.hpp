// SPDX-License-Identifier: Apache-2.0
// AlexNet in plain LibTorch: torchvision's single-column form for 224 x 224 images (61,100,840 parameters for 1000
// classes), and the usual adaptation to small images, with a smaller first kernel, smaller strides, the same five
// convolutions and a narrower classifier.
// Source: Krizhevsky 2014 (arXiv 1404.5997); torchvision's alexnet
#pragma once

#include <torch/nn/module.h>
#include <torch/nn/modules.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cstdint>

namespace torch_models {

struct image_options {
  std::int64_t side = 32;  // [pixels] of an image; 224 is the ImageNet form, smaller sides are multiples of 32
  std::int64_t classes = 100;
  double dropout = 0.5;
  bool batch_norm = true;  // only for VGG16
};

struct alexnet_impl : torch::nn::Module {
  explicit alexnet_impl(const image_options& o) {
    using namespace torch::nn;
    const bool large = o.side == 224;
    const std::int64_t width = large ? 4096 : 1024, rest = large ? 6 : o.side / 8;
    const auto pool = MaxPool2dOptions(large ? 3 : 2).stride(2);
    const auto inner = [](std::int64_t in, std::int64_t out) { return Conv2d(Conv2dOptions(in, out, 3).padding(1)); };
    features->push_back("conv1", large ? Conv2d(Conv2dOptions(3, 64, 11).stride(4).padding(2)) : inner(3, 64));
    features->push_back("relu1", ReLU(ReLUOptions().inplace(true)));
    features->push_back("pool1", MaxPool2d(pool));
    features->push_back("conv2", large ? Conv2d(Conv2dOptions(64, 192, 5).padding(2)) : inner(64, 192));
    features->push_back("relu2", ReLU(ReLUOptions().inplace(true)));
    features->push_back("pool2", MaxPool2d(pool));
    features->push_back("conv3", inner(192, 384));
    features->push_back("relu3", ReLU(ReLUOptions().inplace(true)));
    features->push_back("conv4", inner(384, 256));
    features->push_back("relu4", ReLU(ReLUOptions().inplace(true)));
    features->push_back("conv5", inner(256, 256));
    features->push_back("relu5", ReLU(ReLUOptions().inplace(true)));
    features->push_back("pool5", MaxPool2d(pool));
    if (large) features->push_back("average", AdaptiveAvgPool2d(6));
    classifier->push_back("flatten", Flatten());
    classifier->push_back("dropout1", Dropout(o.dropout));
    classifier->push_back("linear1", Linear(256 * rest * rest, width));
    classifier->push_back("relu1", ReLU(ReLUOptions().inplace(true)));
    classifier->push_back("dropout2", Dropout(o.dropout));
    classifier->push_back("linear2", Linear(width, width));
    classifier->push_back("relu2", ReLU(ReLUOptions().inplace(true)));
    classifier->push_back("linear3", Linear(width, o.classes));
    register_module("features", features);
    register_module("classifier", classifier);
  }

  /// (B,3,side,side) -> (B,classes)
  torch::Tensor forward(const torch::Tensor& images) { return classifier->forward(features->forward(images)); }

  torch::nn::Sequential features, classifier;
};
TORCH_MODULE_IMPL(alexnet, alexnet_impl);

}  // namespace torch_models
