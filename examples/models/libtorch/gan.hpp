// SPDX-License-Identifier: Apache-2.0
// A generative adversarial network for 28 x 28 images in plain LibTorch, in two forms: fully connected, as the first
// GANs were, and convolutional. The discriminator returns logits, since a sigmoid before the loss would overflow in low
// precision.
// Sources: Goodfellow et al. 2014 (arXiv 1406.2661); Radford et al. 2015 (arXiv 1511.06434), including the
// initialisation
#pragma once

#include <torch/nn/init.h>
#include <torch/nn/module.h>
#include <torch/nn/modules.h>
#include <torch/nn/modules/container/sequential.h>
#include <torch/nn/pimpl.h>

#include <cstdint>
#include <string>

namespace torch_models {

struct gan_options {
  bool convolutional = false;
  std::int64_t latent = 100;  // numbers that the generator starts from
};

namespace detail {

/// Draws weights with a deviation of 0.02, around 0, or around 1 in batch norms.
inline void initialize_gan(const torch::nn::Module& network) {
  for (const auto& parameter : network.named_parameters()) {
    const bool bias = parameter.key().ends_with("bias");
    torch::nn::init::normal_(parameter.value(), !bias && parameter.value().dim() == 1 ? 1.0 : 0.0, bias ? 0.0 : 0.02);
  }
}

inline torch::nn::LeakyReLU leaky() {
  return torch::nn::LeakyReLU(torch::nn::LeakyReLUOptions().negative_slope(0.2).inplace(true));
}

}  // namespace detail

struct generator_impl : torch::nn::Module {
  explicit generator_impl(const gan_options& o) {
    o.convolutional ? build_convolutional(o) : build_connected(o);
    register_module("layers", layers);
    if (o.convolutional) detail::initialize_gan(*this);
  }

  /// (B,latent) -> (B,1,28,28) in [-1,1]
  torch::Tensor forward(const torch::Tensor& noise) { return layers->forward(noise); }

  torch::nn::Sequential layers;

 private:
  void build_connected(const gan_options& o) {
    using namespace torch::nn;
    std::int64_t in = o.latent;
    for (const std::int64_t out : {128, 256, 512, 1024}) {
      const std::string size = std::to_string(out);
      layers->push_back("linear" + size, Linear(in, out));
      if (out > 128) layers->push_back("norm" + size, BatchNorm1d(out));
      layers->push_back("leaky" + size, detail::leaky());
      in = out;
    }
    layers->push_back("linear784", Linear(in, 784));
    layers->push_back("tanh", Tanh());
    layers->push_back("image", Unflatten(UnflattenOptions(1, {1, 28, 28})));
  }
  void build_convolutional(const gan_options& o) {
    using namespace torch::nn;
    const auto up = [](std::int64_t in, std::int64_t out) {
      return ConvTranspose2d(ConvTranspose2dOptions(in, out, 4).stride(2).padding(1));
    };
    layers->push_back("linear", Linear(o.latent, 128 * 7 * 7));
    layers->push_back("unflatten", Unflatten(UnflattenOptions(1, {128, 7, 7})));
    layers->push_back("norm1", BatchNorm2d(128));
    layers->push_back("relu1", ReLU(ReLUOptions().inplace(true)));
    layers->push_back("up14", up(128, 64));
    layers->push_back("norm2", BatchNorm2d(64));
    layers->push_back("relu2", ReLU(ReLUOptions().inplace(true)));
    layers->push_back("up28", up(64, 1));
    layers->push_back("tanh", Tanh());
  }
};
TORCH_MODULE_IMPL(generator, generator_impl);

struct discriminator_impl : torch::nn::Module {
  explicit discriminator_impl(const gan_options& o) {
    o.convolutional ? build_convolutional() : build_connected();
    register_module("layers", layers);
    if (o.convolutional) detail::initialize_gan(*this);
  }

  /// (B,1,28,28) -> (B): logits, which are positive for images judged as real
  torch::Tensor forward(const torch::Tensor& images) { return layers->forward(images).squeeze(1); }

  torch::nn::Sequential layers;

 private:
  void build_connected() {
    using namespace torch::nn;
    layers->push_back("flatten", Flatten());
    layers->push_back("linear512", Linear(784, 512));
    layers->push_back("leaky512", detail::leaky());
    layers->push_back("linear256", Linear(512, 256));
    layers->push_back("leaky256", detail::leaky());
    layers->push_back("linear1", Linear(256, 1));
  }
  void build_convolutional() {
    using namespace torch::nn;
    const auto down = [](std::int64_t in, std::int64_t out) {
      return Conv2d(Conv2dOptions(in, out, 4).stride(2).padding(1));
    };
    layers->push_back("down14", down(1, 64));
    layers->push_back("leaky1", detail::leaky());
    layers->push_back("down7", down(64, 128));
    layers->push_back("norm", BatchNorm2d(128));
    layers->push_back("leaky2", detail::leaky());
    layers->push_back("flatten", Flatten());
    layers->push_back("linear", Linear(128 * 7 * 7, 1));
  }
};
TORCH_MODULE_IMPL(discriminator, discriminator_impl);

}  // namespace torch_models
