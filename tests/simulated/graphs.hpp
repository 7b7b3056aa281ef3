// SPDX-License-Identifier: Apache-2.0
// Graphs of published trainings, by sizes alone.
#pragma once

#include <comp/core/op_graph.hpp>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace sizes {

using shape = std::vector<std::int64_t>;

/// Builds a chain of operators on `tokens` rows.
class chain {
 public:
  explicit chain(std::int64_t tokens) : tokens_{tokens} {}

  void linear(std::int64_t in, std::int64_t out) {
    comp::op_info op = next("linear", {{tokens_, in}}, {tokens_, out});
    op.inputs.push_back({.shape = {out, in}, .parameter = true});
    op.m = tokens_, op.n = out, op.k = in;
    op.flops = 2 * tokens_ * in * out;
    add(std::move(op));
  }
  void elementwise(const std::string& kind, std::int64_t width, std::int64_t reads = 1) {
    add(next(kind, std::vector<shape>(static_cast<std::size_t>(reads), shape{tokens_, width}), {tokens_, width}));
  }
  /// `scores`: for each token and head.
  void attention(std::int64_t width, std::int64_t keys_width, std::int64_t scores) {
    comp::op_info op = next("scaled_dot_product_attention",
                            {{tokens_, width}, {tokens_, keys_width}, {tokens_, keys_width}}, {tokens_, width});
    op.flops = 4 * tokens_ * scores * width;
    add(std::move(op));
  }
  /// A 3x3 convolution with padding on images of side `side`.
  void convolution(std::int64_t images, std::int64_t side, std::int64_t in, std::int64_t out) {
    comp::op_info op = next("conv2d", {{images, in, side, side}}, {images, out, side, side});
    op.inputs.push_back({.shape = {out, in, 3, 3}, .parameter = true});
    op.channels_in = in, op.channels_out = out;
    op.flops = 2 * images * side * side * in * out * 9;
    add(std::move(op));
  }
  comp::op_graph graph() const { return {ops_}; }

 private:
  comp::op_info next(const std::string& kind, const std::vector<shape>& inputs, shape output) const {
    comp::op_info op{.name = kind + std::to_string(ops_.size()), .kind = kind};
    for (const shape& each : inputs) op.inputs.push_back({.shape = each});
    op.outputs.push_back({.shape = std::move(output)});
    return op;
  }
  void add(comp::op_info op) {
    if (!ops_.empty()) op.producers = {ops_.size() - 1};
    ops_.push_back(std::move(op));
  }

  std::int64_t tokens_;
  std::vector<comp::op_info> ops_ = {};
};

/// The layers of TransformerEngine#2863: 5B parameters, 31 sequences of 512.
inline comp::op_graph linear_layers() {
  chain c{15872};
  c.linear(4096, 12288), c.linear(4096, 4096), c.linear(4096, 16384), c.linear(16384, 4096);
  return c.graph();
}

/// Llama 3 8B on a sequence of 8192, as torchao trains it; causal attention computes half of the scores.
inline comp::op_graph llama() {
  chain c{8192};
  for (int layer = 0; layer < 32; ++layer) {
    c.elementwise("rms_norm", 4096);
    c.linear(4096, 4096), c.linear(4096, 1024), c.linear(4096, 1024);
    c.elementwise("rope", 4096 + 1024);
    c.attention(4096, 1024, 8192 / 2);
    c.linear(4096, 4096);
    c.elementwise("add", 4096, 2);
    c.elementwise("rms_norm", 4096);
    c.linear(4096, 14336), c.linear(4096, 14336);
    c.elementwise("silu_mul", 14336, 2);
    c.linear(14336, 4096);
    c.elementwise("add", 4096, 2);
  }
  c.elementwise("rms_norm", 4096);
  c.linear(4096, 128256);
  c.elementwise("cross_entropy_loss", 128256);
  return c.graph();
}

/// VGG16 on CIFAR-100 in batches of 128, as the CoMP paper trains it.
inline comp::op_graph vgg16() {
  chain c{128};
  std::int64_t in = 3, side = 32;
  for (const auto& block : std::vector<std::vector<std::int64_t>>{
           {64, 64}, {128, 128}, {256, 256, 256}, {512, 512, 512}, {512, 512, 512}}) {
    for (const std::int64_t out : block) {
      c.convolution(128, side, in, out);
      c.elementwise("batch_norm", out * side * side);
      c.elementwise("relu", out * side * side);
      in = out;
    }
    c.elementwise("max_pool2d", in * side * side);
    side /= 2;
  }
  c.linear(512, 4096), c.linear(4096, 4096), c.linear(4096, 100);
  c.elementwise("cross_entropy_loss", 100);
  return c.graph();
}

}  // namespace sizes
