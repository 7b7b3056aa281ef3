// SPDX-License-Identifier: Apache-2.0
// What the tests of the native trainer share: batches of random data, small data sets, and the one table of tolerances.
#pragma once

#include <comp/core/plan.hpp>
#include <comp_native/batch_upload.hpp>
#include <comp_native/model_builder.hpp>
#include <comp_native/model_graph.hpp>
#include <comp_native/random.hpp>
#include <cstdint>
#include <examples/models/native/datasets.hpp>
#include <functional>
#include <string>
#include <vector>

namespace comp::native::testing {

using native_models::image_data;
using native_models::token_data;

/// Every tolerance of these tests.
namespace tolerance {
constexpr double difference_step = 1e-5;    // of central differences, in FP64
constexpr double difference = 2e-7;         // of a gradient against them, beside the largest of its parameter
constexpr double smallest_gradient = 1e-3;  // below it the difference is rounding: absolute
constexpr double fp32 = 2e-5;               // of a loss or gradient in FP32 against FP64
/// Of one operator in precision `p` between FP32 ones: a few roundings, relative to the largest value.
constexpr double one_operator(precision p) { return p == precision::fp32 ? fp32 : 6 * traits(p).half_ulp; }
/// Of the gradient of a whole small network in precision `p`, in the 2-norm.
constexpr double network(precision p) { return p == precision::fp32 ? fp32 : 24 * traits(p).half_ulp; }
}  // namespace tolerance

/// The message of the Error that `f` throws; "" if it throws none.
template <class Error>
std::string words_of(auto&& f) {
  try {
    f();
  } catch (const Error& e) {
    return e.what();
  }
  return "";
}

/// `p` for each operator whose precision can be chosen, FP32 for all others.
inline plan everywhere(const op_graph& graph, precision p) {
  plan all{graph.size()};
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (graph[i].choosable) all[i] = p;
  }
  return all;
}
inline plan everywhere(const model& m, precision p) { return everywhere(graph_of(m), p); }

/// Makes the second half of each example its segments: 0, then 1, and up to two tokens of padding.
inline void write_segments(host_batch& batch, std::size_t length) {
  for (std::size_t i = 0; i < batch.tokens.size() / (2 * length); ++i) {
    for (std::size_t t = 0; t < length; ++t) {
      batch.tokens[(2 * i + 1) * length + t] = t + i % 3 >= length ? -1 : t > length / 2 ? 1 : 0;
    }
  }
}

/// Random inputs and targets of the kind and shapes that `m` reads.
inline host_batch random_batch(const model& m, std::uint64_t seed) {
  random_stream draws{seed, 77};
  const shape& output = m.shape_of(m.output());
  const auto inputs = static_cast<std::size_t>(elements(m.input_shape));
  const auto outputs = static_cast<std::size_t>(elements(output));
  host_batch batch{.size = m.batch()};
  if (m.input == input_kind::values) {
    for (std::size_t i = 0; i < inputs; ++i) batch.values.push_back(static_cast<float>(draws.normal()));
  } else {
    std::int64_t rows = 0;
    for (const node& n : m.nodes) {
      if (const auto* e = std::get_if<op::embedding>(&n.what); e && e->of == op::looked_up::tokens) rows = e->rows;
    }
    for (std::size_t i = 0; i < inputs; ++i) {
      batch.tokens.push_back(static_cast<std::int32_t>(draws.below(static_cast<std::uint64_t>(rows))));
    }
    if (m.reads_segments()) write_segments(batch, static_cast<std::size_t>(m.input_shape[2]));
  }
  if (m.predicts_values()) {
    for (std::size_t i = 0; i < outputs; ++i) batch.targets.push_back(static_cast<float>(draws.normal()));
  } else if (m.reads_labels()) {
    const auto classes = static_cast<std::size_t>(output.back()) - (m.reads_segments() ? 2 : 0);
    const std::size_t all = outputs / static_cast<std::size_t>(output.back());
    for (std::size_t i = 0; i < all; ++i) {
      batch.labels.push_back(static_cast<std::int32_t>(draws.below(classes)));
    }
  }
  return batch;
}

/// Adds a layer of each kind that trains, keeps statistics or draws. Returns: what a loss reads.
inline value small_convolutional(model_builder& net, std::int64_t channels, std::int64_t classes) {
  return net.input()
      .conv2d("conv", channels, {.padding = 1})
      .batch_norm("norm")
      .relu("relu")
      .max_pool2d("pool")
      .flatten("flatten")
      .dropout("dropout", 0.2)
      .linear("head", classes);
}

/// Reads (1,2,3). Its discriminator normalises and is shown two kinds of images.
inline model small_gan(std::int64_t batch) {
  model_builder net{"gan", input_kind::values, {batch, 1, 2, 3}};
  const value image = net.noise("noise", 3)
                          .linear("make.up", 5)
                          .batch_norm("make.norm")
                          .leaky_relu("make.leaky")
                          .linear("make.out", 6)
                          .tanh("make.tanh");
  const auto judge = [](value x, const std::string& on) {
    return x.linear("judge.in@" + on, 4)
        .batch_norm("judge.norm@" + on)
        .leaky_relu("judge.leaky@" + on)
        .linear("judge.out@" + on, 1);
  };
  judge(image, "made").binary_cross_entropy_loss("loss@made", 1);
  net.end_phase("make", "make");
  judge(net.input().flatten("flat"), "real").binary_cross_entropy_loss("loss@real", 0.9);
  judge(image.detach("detach"), "fake").binary_cross_entropy_loss("loss@fake", 0);
  net.end_phase("judge", "judge");
  return net.finish();
}

/// Images whose class is the position of a bright bar on a noisy ground: learnable in a few steps, not by chance.
inline image_data bars(shape image, std::int32_t classes, std::size_t count, std::uint64_t seed) {
  random_stream draws{seed, 5};
  std::vector<std::uint8_t> pixels;
  std::vector<std::int32_t> labels;
  for (std::size_t i = 0; i < count; ++i) {
    labels.push_back(static_cast<std::int32_t>(draws.below(static_cast<std::uint64_t>(classes))));
    for (std::int64_t at = 0; at < elements(image); ++at) {
      const bool bar = at % image[2] * classes / image[2] == labels.back();
      pixels.push_back(static_cast<std::uint8_t>((bar ? 150 : 0) + draws.below(100)));
    }
  }
  return {std::move(image), std::move(pixels), std::move(labels), {0.25F}, {0.25F}};
}

/// Text of a small grammar: the next token is decided by the last two.
inline token_data counting_tokens(std::int32_t vocabulary, std::size_t count, std::int64_t context) {
  std::vector<std::int32_t> tokens{0, 1};
  while (tokens.size() < count) {
    tokens.push_back((tokens[tokens.size() - 1] + 2 * tokens[tokens.size() - 2] + 1) % vocabulary);
  }
  return {std::move(tokens), context};
}

/// Tokens of whose labels only the first ones of each example count.
struct partly_labelled : token_data {
  std::function<std::size_t(std::size_t)> counting;  // how many of example i
  void write(std::size_t i, const example_spans& to) const {
    token_data::write(i, to);
    std::fill(to.labels.begin() + static_cast<std::ptrdiff_t>(counting(i)), to.labels.end(), -1);
  }
};

/// Values to be predicted: sums and products of the inputs.
struct regression_data {
  std::size_t examples = 64;
  std::size_t size() const { return examples; }
  example_layout layout() const { return {.input_shape = {6}, .target = input_kind::values, .target_shape = {2}}; }
  void write(std::size_t i, const example_spans& to) const {
    random_stream draws{i, 9};
    for (float& x : to.values) x = static_cast<float>(draws.uniform(-1, 1));
    to.targets[0] = to.values[0] + to.values[1] - to.values[2];
    to.targets[1] = to.values[3] * to.values[4] + 0.5F * to.values[5];
  }
  std::string signature() const { return "regression"; }
};

}  // namespace comp::native::testing
