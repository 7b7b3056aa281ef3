// SPDX-License-Identifier: Apache-2.0
// Graphs of real models at their real sizes, operator by operator as LibTorch dispatches them: VGG16 (Simonyan and
// Zisserman 2015, configuration D), BERT base for questions and answers (Devlin et al. 2019), GCN (Kipf and Welling
// 2017).
#pragma once

#include <comp/core/op_graph.hpp>
#include <cstdint>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

namespace model_graphs {

/// A plan's letters in groups that a reader can follow: "1 000" is "1000".
inline std::string spaced(std::string plan) {
  std::erase(plan, ' ');
  return plan;
}

using extents = std::vector<std::int64_t>;

inline comp::tensor_info weight(extents shape) { return {.shape = std::move(shape), .parameter = true}; }

/// Adds operators one by one; what they read beside other operators (parameters, data) is given with its shape.
class builder {
 public:
  std::size_t add(std::string name, std::string kind, std::vector<std::size_t> reads, extents out,
                  std::vector<comp::tensor_info> leaves = {}) {
    comp::op_info op{.name = std::move(name), .kind = std::move(kind), .producers = reads};
    for (const std::size_t from : reads) {
      op.inputs.push_back(ops_[from].outputs[0]);
      op.inputs.back().source = static_cast<std::int32_t>(from);
    }
    if (reads.empty()) std::swap(op.inputs, leaves);
    op.inputs.insert(op.inputs.end(), leaves.begin(), leaves.end());
    op.outputs = {{.shape = std::move(out)}};
    op.choosable = !is_view(op.kind);
    ops_.push_back(std::move(op));
    return ops_.size() - 1;
  }
  const extents& shape(std::size_t i) const { return ops_[i].outputs[0].shape; }
  std::size_t same(std::string name, std::string kind, std::vector<std::size_t> reads) {
    const extents out = shape(reads[0]);
    return add(std::move(name), std::move(kind), std::move(reads), out);
  }
  std::size_t linear(const std::string& name, std::size_t read, std::int64_t units) {
    extents out = shape(read);
    const std::int64_t k = out.back();
    out.back() = units;
    return add(name, "linear", {read}, out, {weight({units, k}), weight({units})});
  }
  std::size_t norm(const std::string& name, std::size_t read) {
    const std::int64_t c = shape(read).back();
    return add(name, "layer_norm", {read}, shape(read), {weight({c}), weight({c})});
  }
  std::size_t loss(const std::string& kind, std::size_t read) {
    return add("loss", kind, {read}, {}, {{.shape = {shape(read)[0]}, .floating = false}});
  }
  comp::op_graph finish() && { return std::move(ops_); }

 private:
  static bool is_view(const std::string& kind) {
    return kind == "view" || kind == "transpose" || kind == "flatten" || kind == "t";
  }
  std::vector<comp::op_info> ops_;
};

inline comp::op_graph vgg16(std::int64_t batch = 32) {
  builder net;
  std::int64_t channels = 3, size = 224;
  std::size_t at = 0;
  int block = 0;
  for (const auto& [convolutions, width] :
       std::vector<std::pair<int, int>>{{2, 64}, {2, 128}, {3, 256}, {3, 512}, {3, 512}}) {
    ++block;
    for (int c = 1; c <= convolutions; ++c) {
      const std::string n = std::to_string(block) + "_" + std::to_string(c);
      const comp::tensor_info kernel = weight({width, channels, 3, 3}), bias = weight({width});
      const extents out{batch, width, size, size};
      at = channels == 3 ? net.add("conv" + n, "conv2d", {}, out, {{.shape = {batch, 3, size, size}}, kernel, bias})
                         : net.add("conv" + n, "conv2d", {at}, out, {kernel, bias});
      at = net.same("relu" + n, "relu", {at});
      channels = width;
    }
    size /= 2;
    at = net.add("pool" + std::to_string(block), "max_pool2d", {at}, {batch, width, size, size});
  }
  at = net.add("average", "adaptive_avg_pool2d", {at}, {batch, 512, 7, 7});
  at = net.add("flat", "flatten", {at}, {batch, 512 * 7 * 7});
  for (const char* n : {"fc6", "fc7"}) {
    at = net.linear(n, at, 4096);
    at = net.same(std::string{n} + ".relu", "relu", {at});
    at = net.same(std::string{n} + ".dropout", "dropout", {at});
  }
  net.loss("cross_entropy_loss", net.linear("fc8", at, 1000));
  return std::move(net).finish();
}

inline comp::op_graph bert(int layers = 12, std::int64_t batch = 16, std::int64_t tokens = 384) {
  builder net;
  const std::int64_t width = 768, heads = 12, per_head = width / heads;
  const extents hidden{batch, tokens, width}, split{batch, heads, tokens, per_head},
      scores{batch, heads, tokens, tokens};
  const comp::tensor_info ids{.shape = {batch, tokens}, .floating = false};
  const auto table = [&](const char* n, std::int64_t rows) {
    return net.add(n, "embedding", {}, hidden, {weight({rows, width}), ids});
  };
  const std::size_t words = table("words", 30522), places = table("places", 512), kinds = table("kinds", 2);
  std::size_t at = net.same("sum1", "add", {net.same("sum", "add", {words, kinds}), places});
  at = net.same("drop", "dropout", {net.norm("norm", at)});
  for (int l = 0; l < layers; ++l) {
    const std::string n = "layer" + std::to_string(l) + ".";
    const auto head = [&](const char* which) {
      const std::size_t all = net.linear(n + which, at, width);
      const std::size_t parts = net.add(n + which + ".view", "view", {all}, {batch, tokens, heads, per_head});
      return net.add(n + which + ".heads", "transpose", {parts}, split);
    };
    const std::size_t query = head("query"), key = head("key"), value = head("value");
    const std::size_t keys = net.add(n + "key.t", "transpose", {key}, {batch, heads, per_head, tokens});
    std::size_t a = net.add(n + "scores", "matmul", {query, keys}, scores);
    a = net.same(n + "softmax", "softmax", {net.same(n + "scale", "div", {a})});
    a = net.add(n + "context", "matmul", {net.same(n + "attention.drop", "dropout", {a}), value}, split);
    a = net.add(n + "context.t", "transpose", {a}, {batch, tokens, heads, per_head});
    a = net.linear(n + "out", net.add(n + "context.view", "view", {a}, hidden), width);
    at = net.norm(n + "norm1", net.same(n + "add1", "add", {net.same(n + "out.drop", "dropout", {a}), at}));
    std::size_t f = net.same(n + "gelu", "gelu", {net.linear(n + "up", at, 4 * width)});
    f = net.same(n + "down.drop", "dropout", {net.linear(n + "down", f, width)});
    at = net.norm(n + "norm2", net.same(n + "add2", "add", {f, at}));
  }
  net.loss("cross_entropy_loss", net.linear("answers", at, 2));
  return std::move(net).finish();
}

/// Cora: 2708 nodes with 1433 words, 7 classes.
inline comp::op_graph gcn() {
  builder net;
  const std::int64_t nodes = 2708, words = 1433, hidden = 16, classes = 7;
  const comp::tensor_info adjacency{.shape = {nodes, nodes}};
  std::size_t at = net.add("drop0", "dropout", {}, {nodes, words}, {{.shape = {nodes, words}}});
  at = net.add("weigh0", "mm", {at}, {nodes, hidden}, {weight({words, hidden})});
  at = net.add("gather0", "_sparse_mm", {at}, {nodes, hidden}, {adjacency});
  at = net.add("bias0", "add", {at}, {nodes, hidden}, {weight({hidden})});
  at = net.same("drop1", "dropout", {net.same("relu", "relu", {at})});
  at = net.add("weigh1", "mm", {at}, {nodes, classes}, {weight({hidden, classes})});
  at = net.add("gather1", "_sparse_mm", {at}, {nodes, classes}, {adjacency});
  at = net.add("bias1", "add", {at}, {nodes, classes}, {weight({classes})});
  net.loss("nll_loss", net.same("log_softmax", "log_softmax", {at}));
  return std::move(net).finish();
}

/// Reads the operators of a line that a system's script beside the tests wrote, up to its '|': "kind:h,0,p1,-" gives
/// halves (b: BF16, i: integers, else FP32), and reads operator 0, parameter 1 and data.
inline std::vector<comp::op_info> recorded(std::istringstream& words) {
  std::vector<comp::op_info> ops;
  for (std::string word; words >> word && word != "|";) {
    std::istringstream parts{word};
    comp::op_info op;
    std::getline(parts, op.kind, ',');
    const std::size_t colon = op.kind.find(':');
    const char gives = colon == std::string::npos ? 'f' : op.kind[colon + 1];
    op.name = op.kind = op.kind.substr(0, colon);
    const comp::precision in = gives == 'h'   ? comp::precision::fp16
                               : gives == 'b' ? comp::precision::bf16
                                              : comp::precision::fp32;
    op.outputs = {{.shape = {4, 4}, .dtype = in, .floating = gives != 'i'}};
    for (std::string read; std::getline(parts, read, ',');) {
      const bool parameter = read[0] == 'p';
      op.inputs.push_back({.shape = {4, 4}, .parameter = parameter, .leaf = parameter ? read[1] - '0' : -1});
      if (parameter || read[0] == '-') continue;
      op.producers.push_back(std::stoul(read));
      op.inputs.back() = ops.at(op.producers.back()).outputs[0];
      op.inputs.back().source = std::stoi(read);
    }
    ops.push_back(std::move(op));
  }
  return ops;
}

}  // namespace model_graphs
