// SPDX-License-Identifier: Apache-2.0
// What the recipes bench trains, and the recipes that are written by hand.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <comp/comp.hpp>
#include <comp_host/device.hpp>
#include <comp_native/trainer.hpp>
#include <cstdint>
#include <examples/data/read_squad.hpp>
#include <examples/data/squad_spans.hpp>
#include <examples/data/text.hpp>
#include <examples/models/native/bert.hpp>
#include <examples/models/native/datasets.hpp>
#include <examples/models/native/gpt.hpp>
#include <examples/train/span_data.hpp>
#include <memory>
#include <string>
#include <utility>
#include <vector>

namespace recipes {

using namespace comp::native;
using comp::op_graph;
using comp::op_info;
using comp::plan;
using comp::precision;

struct options {
  std::string model = "transformer", data = {};
  std::vector<std::string> targets = {"H100", "B200"};
  std::vector<std::string> only = {};  // recipes by hand with these names; empty: all
  std::int64_t layers = 2, width = 128, context = 64, batch = 16, windows = 3200, held_out = 512;
  std::int64_t timed_width = 4096, timed_context = 4096, timed_batch = 4;
  std::uint64_t steps = 400, seeds = 3;
  int threads = 0;
  double rate = 1e-3, tolerance = 0.01, finish = 0.15;
};

struct job {
  model net;
  data_source train, validation;
};

/// Returns the model that is trained, or one of another size whose times count.
inline model model_of(const options& o, std::int64_t vocabulary, std::int64_t width, std::int64_t context,
                      std::int64_t batch) {
  const std::int64_t heads = std::max<std::int64_t>(width / 128, 4);
  model net = o.model == "bert" ? native_models::bert({.batch = batch,
                                                       .length = context,
                                                       .layers = o.layers,
                                                       .width = width,
                                                       .heads = heads,
                                                       .vocabulary = vocabulary,
                                                       .positions = std::max<std::int64_t>(512, context)})
                                : native_models::gpt({.batch = batch,
                                                      .vocabulary = vocabulary,
                                                      .context = context,
                                                      .layers = o.layers,
                                                      .width = width,
                                                      .heads = heads});
  net.separate_products = true;
  return net;
}

/// A text, of whose end as many windows as `held_out` says are for validation.
inline job text_job(const options& o) {
  const std::string text = data_sets::read_text(o.data);
  const data_sets::vocabulary letters{text};
  const std::vector<std::int32_t> tokens = letters.encode(text);
  const auto train = static_cast<std::ptrdiff_t>(o.windows * o.context + 1);
  const auto held_out = static_cast<std::ptrdiff_t>(o.held_out * o.context + 1);
  comp::require<comp::error>(std::ssize(tokens) >= train + held_out,
                             "{} has {} characters ({} are needed): use another text, or fewer --windows", o.data,
                             tokens.size(), train + held_out);
  return {model_of(o, static_cast<std::int64_t>(letters.size()), o.width, o.context, o.batch),
          native_models::token_data{{tokens.begin(), tokens.begin() + train}, o.context},
          native_models::token_data{{tokens.end() - held_out, tokens.end()}, o.context}};
}
/// Questions of SQuAD; the loss is that of the answer's first and last token.
inline job squad_job(const options& o) {
  const auto [to_train, held_out, pieces] = data_sets::read_squad_folder(o.data);
  const auto length = static_cast<std::size_t>(o.context);
  const auto windows = [&, &words = pieces](const data_sets::squad& of, std::int64_t most) {
    const data_sets::window_options cut{.length = length, .stride = length / 2, .question = length / 6};
    auto all = data_sets::windows(of, words, cut);
    all.resize(std::min(all.size(), static_cast<std::size_t>(most)));
    return train::span_data{std::make_shared<const train::span_data::windows>(std::move(all)), o.context, words.pad};
  };
  return {model_of(o, pieces.size(), o.width, o.context, o.batch), windows(to_train, o.windows),
          windows(held_out, o.held_out)};
}
inline job job_of(const options& o) { return o.model == "bert" ? squad_job(o) : text_job(o); }

/// The operators of the model whose times count.
inline op_graph timed_graph(const options& o) {
  return graph_of(model_of(o, o.model == "bert" ? 30522 : 50304, o.timed_width, o.timed_context, o.timed_batch));
}

/// Losses after a training: the mean of its last tenth, and of the validation part under the last plan, and with the
/// same weights under BF16.
struct losses {
  double training = 0, validation = 0, in_bf16 = 0;
};
struct recipe {
  std::string name;
  comp::plan plan;
  double finish = 0;                 // the part at the training's end that has BF16 if that helps
  bool found = false;                // by a search; false: by hand
  std::size_t raised = 0;            // in how many trainings the last part had BF16
  std::vector<losses> seeds = {};    // by seed
  std::vector<double> seconds = {};  // by target: modelled, of a step; 0: the GPU lacks a format
};

/// The linear layers between the embedding and the head, in order. No published recipe lowers the head.
class body {
 public:
  explicit body(const op_graph& graph) {
    for (const op_info& op : graph) {
      if (op.kind != "linear" || op.scopes.empty() || op.product != comp::product::forward) continue;
      layers_.push_back(op.name);
      if (blocks_.empty() || blocks_.back() != op.scopes.front()) blocks_.push_back(op.scopes.front());
    }
  }
  bool has(const op_info& op) const { return op.kind == "linear" && !op.scopes.empty(); }
  std::size_t blocks() const { return blocks_.size(); }
  bool in_first_or_last_block(const op_info& op) const {
    return op.scopes.front() == blocks_.front() || op.scopes.front() == blocks_.back();
  }
  /// The published 12B model keeps 2 of 62 blocks at the start and 8 at the end in BF16: of a model with fewer blocks
  /// the same parts of the linear layers. Source: arXiv 2509.25149
  bool in_published_ends(const op_info& op) const {
    std::string layer = op.name;
    if (op.product != comp::product::forward) layer.resize(layer.size() - comp::suffix(op.product).size());
    const auto place = std::ranges::find(layers_, layer) - layers_.begin();
    const auto part = [&](double of_62) { return std::lround(of_62 / 62 * static_cast<double>(layers_.size())); };
    return place < part(2) || place >= std::ssize(layers_) - part(8);
  }

 private:
  std::vector<std::string> layers_, blocks_;
};

/// BF16 for all that stores a result, as Megatron-LM trains: norms, softmax and residuals, too. The loss stays in FP32.
inline plan all_bf16(const op_graph& graph) {
  plan formats{graph.size()};
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (graph[i].choosable && !graph[i].kind.ends_with("loss")) formats[i] = precision::bf16;
  }
  return formats;
}

/// The recipes by hand that have sense for the model. The second one is BF16, with which the others are compared.
inline std::vector<recipe> by_hand(const op_graph& graph, const options& o) {
  const body inner{graph};
  const plan bf16 = all_bf16(graph);
  std::vector<recipe> all;
  const auto add = [&](std::string name, plan p, double finish = 0) {
    all.push_back({.name = std::move(name), .plan = std::move(p), .finish = finish});
  };
  const auto lowered = [&](precision p, auto high) {
    plan formats = bf16;
    for (std::size_t i = 0; i < graph.size(); ++i) {
      if (inner.has(graph[i]) && !high(graph[i])) formats[i] = p;
    }
    return formats;
  };
  const comp::policy::pytorch rules{.list = comp::policy::pytorch_list::cuda, .low = precision::bf16};
  add("BF16 by PyTorch's rules", comp::autocast::rule_plan(rules, graph, precision::bf16));
  add("BF16", bf16);
  for (const precision p : {precision::fp8_e4m3, precision::mxfp8, precision::mxfp4, precision::nvfp4}) {
    const plan low = lowered(p, [](const op_info&) { return false; });
    add(std::string{name(p)}, low);
    if (o.finish > 0)
      add(fmt::format("{}, the last {:.0f}% BF16 where that helps", name(p), 100 * o.finish), low, o.finish);
    const auto ends = [&](const op_info& op) { return inner.in_first_or_last_block(op); };
    if (inner.blocks() > 2 && p != precision::mxfp4) {
      add(fmt::format("{}, first and last block BF16", name(p)), lowered(p, ends));
    }
  }
  add("nvfp4, 16% of the layers BF16",
      lowered(precision::nvfp4, [&](const op_info& op) { return inner.in_published_ends(op); }));
  return all;
}

}  // namespace recipes
