// SPDX-License-Identifier: Apache-2.0
// Seven networks beside the seven of examples/models/libtorch, as users write them, of sizes that two cores train in
// fractions of a second: residual and encoding-decoding convolutions, recurrence, attention in LibTorch's own module
// and in its fused operator, and a mixture of experts. Each gives (B,classes).
#pragma once

#include <torch/nn.h>

#include <utility>
#include <vector>

namespace bench {

inline torch::nn::Conv2d conv3x3(std::int64_t in, std::int64_t out, std::int64_t stride = 1) {
  return torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 3).stride(stride).padding(1).bias(false));
}

/// A block of ResNet-18: two convolutions and what goes around them.
struct residual_impl : torch::nn::Module {
  residual_impl(std::int64_t in, std::int64_t out, std::int64_t stride)
      : first{register_module("first", conv3x3(in, out, stride))},
        second{register_module("second", conv3x3(out, out))},
        norm1{register_module("norm1", torch::nn::BatchNorm2d(out))},
        norm2{register_module("norm2", torch::nn::BatchNorm2d(out))} {
    if (in == out && stride == 1) return;
    around = register_module(
        "around",
        torch::nn::Sequential(torch::nn::Conv2d(torch::nn::Conv2dOptions(in, out, 1).stride(stride).bias(false)),
                              torch::nn::BatchNorm2d(out)));
  }
  torch::Tensor forward(const torch::Tensor& x) {
    const torch::Tensor y = norm2(second(torch::relu(norm1(first(x)))));
    return torch::relu(y + (around.is_empty() ? x : around->forward(x)));
  }
  torch::nn::Conv2d first, second;
  torch::nn::BatchNorm2d norm1, norm2;
  torch::nn::Sequential around{nullptr};
};
TORCH_MODULE_IMPL(residual, residual_impl);

/// (B,3,32,32), with CIFAR's first convolution.
struct resnet18_impl : torch::nn::Module {
  explicit resnet18_impl(std::int64_t classes)
      : stem{register_module("stem", torch::nn::Sequential(conv3x3(3, 64), torch::nn::BatchNorm2d(64)))},
        head{register_module("head", torch::nn::Linear(512, classes))} {
    std::int64_t in = 64;
    for (const std::int64_t out : {64, 128, 256, 512}) {
      blocks->push_back(residual(in, out, out == 64 ? 1 : 2));
      blocks->push_back(residual(out, out, 1));
      in = out;
    }
    register_module("blocks", blocks);
  }
  torch::Tensor forward(const torch::Tensor& x) {
    return head(blocks->forward(torch::relu(stem->forward(x))).mean({2, 3}));
  }
  torch::nn::Sequential stem, blocks;
  torch::nn::Linear head;
};
TORCH_MODULE_IMPL(resnet18, resnet18_impl);

/// Two layers of LSTM or GRU over (B,T,width), the last state's class.
template <class Recurrent, class Options>
struct recurrent_impl : torch::nn::Module {
  recurrent_impl(std::int64_t width, std::int64_t classes)
      : layers{register_module("layers", Recurrent(Options(width, width).num_layers(2).batch_first(true)))},
        head{register_module("head", torch::nn::Linear(width, classes))} {}
  torch::Tensor forward(const torch::Tensor& x) { return head(std::get<0>(layers(x)).select(1, -1)); }
  Recurrent layers;
  torch::nn::Linear head;
};

/// LibTorch's own encoder over (B,T,width), batch second inside as it is written.
struct encoder_impl : torch::nn::Module {
  encoder_impl(std::int64_t width, std::int64_t classes)
      : layers{register_module(
            "layers", torch::nn::TransformerEncoder(torch::nn::TransformerEncoderOptions(
                          torch::nn::TransformerEncoderLayerOptions(width, 4).dim_feedforward(4 * width), 4)))},
        head{register_module("head", torch::nn::Linear(width, classes))} {}
  torch::Tensor forward(const torch::Tensor& x) { return head(layers(x.transpose(0, 1)).mean(0)); }
  torch::nn::TransformerEncoder layers;
  torch::nn::Linear head;
};
TORCH_MODULE_IMPL(encoder, encoder_impl);

/// Three levels down and up over (B,3,side,side); the class of each picture from the mean of its map.
struct unet_impl : torch::nn::Module {
  unet_impl(std::int64_t channels, std::int64_t classes) : head{conv3x3(channels, classes)} {
    std::int64_t in = 3;
    for (std::int64_t level = 0, out = channels; level < 4; ++level, out *= 2) {
      down->push_back(twice(in, out));
      if (level > 0) {
        up->push_back(torch::nn::ConvTranspose2d(torch::nn::ConvTranspose2dOptions(out, in, 2).stride(2)));
        join->push_back(twice(out, in));
      }
      in = out;
    }
    register_module("down", down);
    register_module("up", up);
    register_module("join", join);
    register_module("head", head);
  }
  torch::Tensor forward(torch::Tensor x) {
    std::vector<torch::Tensor> skips;
    for (std::size_t level = 0; level < 4; ++level) {
      if (level > 0) x = torch::max_pool2d(x, 2);
      x = down[level]->as<torch::nn::Sequential>()->forward(x);
      skips.push_back(x);
    }
    for (std::size_t level = 3; level-- > 0;) {
      const torch::Tensor wide = up[level]->as<torch::nn::ConvTranspose2d>()->forward(x);
      x = join[level]->as<torch::nn::Sequential>()->forward(torch::cat({skips[level], wide}, 1));
    }
    return head(x).mean({2, 3});
  }
  torch::nn::ModuleList down, up, join;
  torch::nn::Conv2d head;

 private:
  static torch::nn::Sequential twice(std::int64_t in, std::int64_t out) {
    using namespace torch::nn;
    return Sequential(conv3x3(in, out), BatchNorm2d(out), ReLU(), conv3x3(out, out), BatchNorm2d(out), ReLU());
  }
};
TORCH_MODULE_IMPL(unet, unet_impl);

/// A vision transformer over (B,3,32,32) in patches of 4 x 4, attention by LibTorch's fused operator.
struct vit_impl : torch::nn::Module {
  vit_impl(std::int64_t width, std::int64_t layers, std::int64_t classes)
      : patches{register_module("patches", torch::nn::Conv2d(torch::nn::Conv2dOptions(3, width, 4).stride(4)))},
        position{register_parameter("position", 0.02 * torch::randn({64, width}))},
        head{register_module("head", torch::nn::Linear(width, classes))} {
    for (std::int64_t i = 0; i < layers; ++i) blocks->push_back(block(width));
    register_module("blocks", blocks);
  }
  torch::Tensor forward(const torch::Tensor& images) {
    torch::Tensor x = patches(images).flatten(2).transpose(1, 2) + position;
    for (const auto& each : *blocks) x = each->as<block_impl>()->forward(x);
    return head(x.mean(1));
  }

  struct block_impl : torch::nn::Module {
    explicit block_impl(std::int64_t width)
        : norm1{register_module("norm1", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))},
          norm2{register_module("norm2", torch::nn::LayerNorm(torch::nn::LayerNormOptions({width})))},
          qkv{register_module("qkv", torch::nn::Linear(width, 3 * width))},
          mix{register_module("mix", torch::nn::Linear(width, width))},
          expand{register_module("expand", torch::nn::Linear(width, 4 * width))},
          shrink{register_module("shrink", torch::nn::Linear(4 * width, width))} {}
    torch::Tensor forward(torch::Tensor x) {
      const auto heads = qkv(norm1(x)).unflatten(-1, {3, -1, 64}).permute({2, 0, 3, 1, 4}).unbind(0);
      const torch::Tensor attended = torch::scaled_dot_product_attention(heads[0], heads[1], heads[2]);
      x = x + mix(attended.transpose(1, 2).flatten(2));
      return x + shrink(torch::gelu(expand(norm2(x))));
    }
    torch::nn::LayerNorm norm1, norm2;
    torch::nn::Linear qkv, mix, expand, shrink;
  };
  TORCH_MODULE_IMPL(block, block_impl);

  torch::nn::Conv2d patches;
  torch::Tensor position;
  torch::nn::ModuleList blocks;
  torch::nn::Linear head;
};
TORCH_MODULE_IMPL(vit, vit_impl);

/// Layers of experts over (B,width). Each expert takes the rows that fit it best, a quarter of them, so that shapes are
/// the same in each step (routing by the experts: Zhou et al. 2022).
struct experts_impl : torch::nn::Module {
  experts_impl(std::int64_t width, std::int64_t layers, std::int64_t experts, std::int64_t classes)
      : head{register_module("head", torch::nn::Linear(width, classes))} {
    for (std::int64_t i = 0; i < layers; ++i) {
      gates->push_back(torch::nn::Linear(width, experts));
      torch::nn::ModuleList of;
      for (std::int64_t e = 0; e < experts; ++e) {
        of->push_back(torch::nn::Sequential(torch::nn::Linear(width, 4 * width), torch::nn::GELU(),
                                            torch::nn::Linear(4 * width, width)));
      }
      all->push_back(of);
    }
    register_module("gates", gates);
    register_module("experts", all);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (std::size_t layer = 0; layer < gates->size(); ++layer) {
      const torch::Tensor fit = gates[layer]->as<torch::nn::Linear>()->forward(x).softmax(-1);
      const auto [weight, rows] = fit.topk(x.size(0) / 4, 0);
      torch::Tensor sum = x;
      const auto& experts = *all[layer]->as<torch::nn::ModuleList>();
      for (std::size_t e = 0; e < experts.size(); ++e) {
        const auto column = static_cast<std::int64_t>(e);
        const torch::Tensor mine = rows.select(1, column);
        const torch::Tensor done = experts[e]->as<torch::nn::Sequential>()->forward(x.index_select(0, mine));
        sum = sum.index_add(0, mine, (done * weight.select(1, column).unsqueeze(1)).to(sum.scalar_type()));
      }
      x = torch::layer_norm(sum, {x.size(1)});
    }
    return head(x);
  }
  torch::nn::ModuleList gates, all;
  torch::nn::Linear head;
};
TORCH_MODULE_IMPL(experts, experts_impl);

}  // namespace bench
