// SPDX-License-Identifier: Apache-2.0
// VGG16 (configuration D) in plain LibTorch: torchvision's form for 224 x 224 images (138,357,544 parameters for 1000
// classes without batch norm), and the form for small images, whose classifier is one linear layer.
// Source: Simonyan and Zisserman 2015; torchvision's vgg16 and vgg16_bn
#pragma once

#include <libtorch/alexnet.hpp>
#include <string>
#include <vector>

namespace torch_models {

struct vgg16_impl : torch::nn::Module {
  explicit vgg16_impl(const image_options& o) {
    const std::vector<std::vector<std::int64_t>> stages = {
        {64, 64}, {128, 128}, {256, 256, 256}, {512, 512, 512}, {512, 512, 512}};
    std::int64_t channels = 3;
    for (std::size_t s = 0; s < stages.size(); ++s) {
      for (std::size_t i = 0; i < stages[s].size(); ++i) {
        add_convolution(std::to_string(s + 1) + "_" + std::to_string(i + 1), channels, stages[s][i], o.batch_norm);
        channels = stages[s][i];
      }
      features->push_back("pool" + std::to_string(s + 1), torch::nn::MaxPool2d(2));
    }
    o.side == 224 ? add_large_classifier(o) : add_small_classifier(o);
    register_module("features", features);
    register_module("classifier", classifier);
    for (const auto& module : modules(false)) initialize(*module);
  }

  /// (B,3,side,side) -> (B,classes)
  torch::Tensor forward(const torch::Tensor& images) { return classifier->forward(features->forward(images)); }

  torch::nn::Sequential features, classifier;

 private:
  void add_convolution(const std::string& name, std::int64_t in, std::int64_t out, bool batch_norm) {
    using namespace torch::nn;
    features->push_back("conv" + name, Conv2d(Conv2dOptions(in, out, 3).padding(1)));
    if (batch_norm) features->push_back("norm" + name, BatchNorm2d(out));
    features->push_back("relu" + name, ReLU(ReLUOptions().inplace(true)));
  }
  void add_small_classifier(const image_options& o) {
    const std::int64_t rest = o.side / 32;
    classifier->push_back("flatten", torch::nn::Flatten());
    classifier->push_back("linear", torch::nn::Linear(512 * rest * rest, o.classes));
  }
  void add_large_classifier(const image_options& o) {
    using namespace torch::nn;
    features->push_back("average", AdaptiveAvgPool2d(7));
    classifier->push_back("flatten", Flatten());
    for (int i = 1; i <= 2; ++i) {
      classifier->push_back("linear" + std::to_string(i), Linear(i == 1 ? 512 * 7 * 7 : 4096, 4096));
      classifier->push_back("relu" + std::to_string(i), ReLU(ReLUOptions().inplace(true)));
      classifier->push_back("dropout" + std::to_string(i), Dropout(o.dropout));
    }
    classifier->push_back("linear3", Linear(4096, o.classes));
  }
  /// Initialises weights as torchvision does. Without batch norm, sixteen layers do not begin to learn otherwise.
  static void initialize(torch::nn::Module& module) {
    if (auto* conv = module.as<torch::nn::Conv2d>()) {
      torch::nn::init::kaiming_normal_(conv->weight, 0.0, torch::kFanOut, torch::kReLU);
      torch::nn::init::zeros_(conv->bias);
    } else if (auto* linear = module.as<torch::nn::Linear>()) {
      torch::nn::init::normal_(linear->weight, 0.0, 0.01);
      torch::nn::init::zeros_(linear->bias);
    }
  }
};
TORCH_MODULE_IMPL(vgg16, vgg16_impl);

}  // namespace torch_models
