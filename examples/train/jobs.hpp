// SPDX-License-Identifier: Apache-2.0
// What `train` trains: a model and the data that was named on the command line, with settings that suit them.
#pragma once

#include "options.hpp"

#include <comp_native/data/cifar.hpp>
#include <comp_native/data/digits.hpp>
#include <comp_native/data/idx.hpp>
#include <comp_native/data/text.hpp>
#include <comp_native/datasets.hpp>
#include <comp_native/models.hpp>
#include <comp_native/training.hpp>

#include <algorithm>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

namespace train {

namespace native = comp::native;

struct job {
  native::model model;
  native::data_source train, validation;
  native::training settings;
  std::string description;  // one line: what is trained on what
};

namespace detail {

inline native::optimizer optimizer_for(const options& chosen) {
  const auto rate = [&](double usual) { return chosen.learning_rate > 0 ? chosen.learning_rate : usual; };
  if (chosen.model == "transformer") return native::adamw(rate(1e-3));
  if (chosen.model == "vgg16") return native::sgd(rate(0.02), 0.9, 5e-4);
  return native::sgd(rate(0.01), 0.9);
}

inline native::training settings_for(const options& chosen) {
  return {.optimizer = optimizer_for(chosen), .clip_norm = chosen.model == "transformer" ? 1.0 : 0.0, .seed = chosen.seed};
}

inline std::int64_t batch_for(const options& chosen, std::int64_t usual) {
  return chosen.batch > 0 ? static_cast<std::int64_t>(chosen.batch) : usual;
}

/// The last tenth of a text is for validation; of the rest as many windows as asked for.
inline job text_job(const options& chosen) {
  const auto text = native::data::read_text(chosen.data);
  const native::data::vocabulary letters{text};
  std::vector<std::int32_t> tokens = letters.encode(text);
  const auto cut = static_cast<std::ptrdiff_t>(tokens.size() - tokens.size() / 10);
  std::vector<std::int32_t> held_out(tokens.begin() + cut, tokens.end());
  tokens.resize(static_cast<std::size_t>(cut));
  const auto window = static_cast<std::size_t>(chosen.context);
  if (chosen.limit > 0) {
    tokens.resize(std::min(tokens.size(), chosen.limit * window + 1));
    held_out.resize(std::min(held_out.size(), std::max<std::size_t>(chosen.limit / 10, 16) * window + 1));
  }
  const native::models::gpt_options shape{.batch = batch_for(chosen, 16),
                                          .vocabulary = static_cast<std::int64_t>(letters.size()),
                                          .context = chosen.context,
                                          .layers = chosen.layers,
                                          .width = chosen.width,
                                          .heads = chosen.heads};
  std::string description = fmt::format("transformer of {} layers, width {}, on {} characters of {} ({} letters)", chosen.layers,
                                        chosen.width, tokens.size(), chosen.data.filename().string(), letters.size());
  return {native::models::gpt(shape), native::token_data{std::move(tokens), chosen.context},
          native::token_data{std::move(held_out), chosen.context}, settings_for(chosen), std::move(description)};
}

struct image_sets {
  native::data::images train, test;
};

/// Reads whatever standard layout `path` is.
inline image_sets read_images(const std::filesystem::path& path) {
  const std::string name = path.filename().string();
  if (name.ends_with(".csv.gz") || name.ends_with(".csv")) {
    auto [train, test] = native::data::split(native::data::read_digits(path), 0.1);
    return {std::move(train), std::move(test)};
  }
  if (native::data::is_mnist(path)) return {native::data::read_mnist(path, true), native::data::read_mnist(path, false)};
  return {native::data::read_cifar(path, true), native::data::read_cifar(path, false)};
}

}  // namespace detail

}  // namespace train
