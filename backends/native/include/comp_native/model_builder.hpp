// SPDX-License-Identifier: Apache-2.0
// Writes a model down operator by operator; shapes are inferred, and what does not fit is refused at its line.
//   model_builder net{"mlp", input_kind::values, {64, 784}};
//   net.input().linear("hidden", 128).relu("relu").linear("head", 10).cross_entropy_loss("loss");
//   const model mlp = net.finish();
// Parameters start as in PyTorch: weights and biases uniform in +-1/sqrt(fan in) (kaiming_uniform_ with a = sqrt(5)),
// norms at one and zero, embeddings N(0,1); `normal_weights` changes that.
#pragma once

#include <cmath>
#include <comp_native/model.hpp>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp::native {

class model_builder;

struct linear_options {
  bool bias = true;
};

struct convolution {
  std::int64_t kernel = 3;
  std::int64_t stride = 1;
  std::int64_t padding = 0;
  std::int64_t dilation = 1;
  std::int64_t groups = 1;
  bool bias = true;
};

/// An operator's output while a model is being written; valid as long as its builder.
class value {
 public:
  value linear(std::string name, std::int64_t units, linear_options options = {}) const;
  value conv2d(std::string name, std::int64_t channels, convolution options = {}) const;
  value batch_norm(std::string name, op::batch_norm options = {}) const;
  value layer_norm(std::string name, op::layer_norm options = {}) const;
  value activate(std::string name, activation kind) const { return then(std::move(name), op::activate{kind}); }
  value relu(std::string name) const { return activate(std::move(name), activation::relu); }
  value gelu(std::string name) const { return activate(std::move(name), activation::gelu); }
  value tanh(std::string name) const { return activate(std::move(name), activation::tanh); }
  value sigmoid(std::string name) const { return activate(std::move(name), activation::sigmoid); }
  value dropout(std::string name, double p) const { return then(std::move(name), op::dropout{p}); }
  value max_pool2d(std::string name, pool2d_options o = {}) const { return then(std::move(name), op::max_pool2d{o}); }
  value avg_pool2d(std::string name, pool2d_options o = {}) const { return then(std::move(name), op::avg_pool2d{o}); }
  value adaptive_avg_pool2d(std::string name, std::array<std::int64_t, 2> size) const {
    return then(std::move(name), op::adaptive_avg_pool2d{size});
  }
  value flatten(std::string name) const { return then(std::move(name), op::flatten{}); }
  value add(std::string name, value other) const { return then(std::move(name), op::add{}, {other}); }
  value mul(std::string name, value other) const { return then(std::move(name), op::mul{}, {other}); }
  /// Tokens (B,T) -> (B,T,width); with `of_positions` the rows of 0 .. T-1 instead of the tokens'.
  value embedding(std::string name, std::int64_t rows, std::int64_t width, bool of_positions = false) const;
  value bmm(std::string name, value other, op::bmm o = {}) const { return then(std::move(name), o, {other}); }
  /// Queries (B,T,C) and keys (B,T,C) -> (B,heads,T,T), scaled by 1/sqrt(C/heads).
  value attention_scores(std::string name, value keys, std::int64_t heads) const;
  /// Probabilities (B,heads,T,T) and values (B,T,C) -> (B,T,C).
  value attention_context(std::string name, value values, std::int64_t heads) const {
    return then(std::move(name), op::bmm{.heads_b = heads, .merge = true}, {values});
  }
  /// Of queries (B,Tq,C), this, over keys and values (B,Tk,C), in one operator -> (B,Tq,C).
  value attention(std::string name, value keys, value values, const attention_options& o) const {
    return then(std::move(name), op::attention{o}, {keys, values});
  }
  value softmax(std::string name, bool causal = false) const { return then(std::move(name), op::softmax{causal}); }
  value log_softmax(std::string name) const { return then(std::move(name), op::log_softmax{}); }
  value cross_entropy_loss(std::string name) const { return then(std::move(name), op::cross_entropy_loss{}); }
  value nll_loss(std::string name) const { return then(std::move(name), op::nll_loss{}); }
  value mse_loss(std::string name) const { return then(std::move(name), op::mse_loss{}); }
  const native::shape& shape() const;

 private:
  friend class model_builder;
  value(model_builder* net, int number) : net_{net}, number_{number} {}
  value then(std::string name, operation what, std::initializer_list<value> others = {},
             std::vector<parameter_info> parameters = {}) const;

  model_builder* net_;
  int number_;
};

class model_builder {
 public:
  model_builder(std::string name, input_kind kind, native::shape input_shape) {
    require<model_error>(!input_shape.empty() && std::ranges::all_of(input_shape, [](auto e) { return e > 0; }),
                         "model \"{}\" reads {} (extents must be positive): change its input", name, text(input_shape));
    made_.name = std::move(name);
    made_.input = kind;
    made_.input_shape = std::move(input_shape);
  }
  model_builder(const model_builder&) = delete;  // values point to it
  model_builder& operator=(const model_builder&) = delete;

  value input() { return {this, model_input}; }

  /// From here on weights start as N(0, deviation) and biases at zero.
  void normal_weights(double deviation) { deviation_ = deviation; }

  /// Throws: `model_error` for a model whose last operator is no loss, or that has a loss before it.
  model finish() const {
    const auto losses = std::ranges::count_if(made_.nodes, [](const node& n) { return is_loss(n.what); });
    require<model_error>(losses == 1 && is_loss(made_.nodes.back().what),
                         "model \"{}\" has {} losses (exactly one, as the last operator): end it with one", made_.name,
                         losses);
    return made_;
  }

 private:
  friend class value;

  value append(std::string name, operation what, std::vector<int> inputs, std::vector<parameter_info> parameters) {
    require<model_error>(std::ranges::none_of(made_.nodes, [&](const node& n) { return n.name == name; }),
                         "two operators are called \"{}\" (names tell them apart in plans): rename one", name);
    const bool tokens = made_.input == input_kind::tokens && std::ranges::count(inputs, model_input) > 0;
    require<model_error>(!tokens || std::holds_alternative<op::embedding>(what),
                         "\"{}\" reads tokens (only an embedding can): put one before it", name);
    std::vector<shape> shapes;
    for (const int input : inputs) shapes.push_back(made_.shape_of(input));
    node next{.name = std::move(name), .what = what, .inputs = std::move(inputs)};
    next.output = output_shape(next.name, what, shapes);
    for (parameter_info& p : parameters) {
      next.parameters.push_back(made_.parameters.size());
      p.name = next.name + "." + p.name;
      made_.parameters.push_back(std::move(p));
    }
    made_.nodes.push_back(std::move(next));
    return {this, static_cast<int>(made_.nodes.size()) - 1};
  }
  /// Weight and bias of an operator with `fan_in` inputs to each output.
  std::vector<parameter_info> weights(shape extents, std::int64_t fan_in, bool bias) const {
    const initial fan{initial::kind::uniform, 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(fan_in, 1)))};
    const std::int64_t outputs = extents.front();
    std::vector<parameter_info> made{{.name = "weight", .shape = std::move(extents), .initial = fan}};
    if (deviation_) made[0].initial = {initial::kind::normal, *deviation_};
    if (bias) made.push_back({.name = "bias", .shape = {outputs}, .initial = deviation_ ? initial{} : fan});
    return made;
  }
  static std::vector<parameter_info> scale_and_shift(std::int64_t channels) {
    return {{.name = "weight", .shape = {channels}, .initial = {initial::kind::constant, 1}},
            {.name = "bias", .shape = {channels}}};
  }

  model made_;
  std::optional<double> deviation_;
};

inline const native::shape& value::shape() const { return net_->made_.shape_of(number_); }

inline value value::then(std::string name, operation what, std::initializer_list<value> others,
                         std::vector<parameter_info> parameters) const {
  std::vector<int> inputs{number_};
  for (const value& other : others) {
    require<model_error>(other.net_ == net_,
                         "\"{}\" reads the output of another builder (a model is written by one): use one", name);
    inputs.push_back(other.number_);
  }
  return net_->append(std::move(name), what, std::move(inputs), std::move(parameters));
}

inline value value::linear(std::string name, std::int64_t units, linear_options options) const {
  const std::int64_t inner = shape().back();
  return then(std::move(name), op::linear{units, options.bias}, {}, net_->weights({units, inner}, inner, options.bias));
}

inline value value::conv2d(std::string name, std::int64_t channels, convolution o) const {
  const op::conv2d what{channels,
                        {o.kernel, o.kernel},
                        {{o.stride, o.stride}, {o.padding, o.padding}, {o.dilation, o.dilation}, o.groups},
                        o.bias};
  const std::int64_t inner = (shape().size() > 1 ? shape()[1] : 0) / std::max<std::int64_t>(o.groups, 1);
  return then(std::move(name), what, {},
              net_->weights({channels, inner, o.kernel, o.kernel}, inner * o.kernel * o.kernel, o.bias));
}

inline value value::batch_norm(std::string name, op::batch_norm options) const {
  const std::int64_t channels = shape().size() > 1 ? shape()[1] : 0;
  auto parameters = model_builder::scale_and_shift(channels);
  parameters.push_back({.name = "running_mean", .shape = {channels}, .trainable = false});
  parameters.push_back(
      {.name = "running_var", .shape = {channels}, .initial = {initial::kind::constant, 1}, .trainable = false});
  return then(std::move(name), options, {}, std::move(parameters));
}

inline value value::layer_norm(std::string name, op::layer_norm options) const {
  return then(std::move(name), options, {}, model_builder::scale_and_shift(shape().back()));
}

inline value value::embedding(std::string name, std::int64_t rows, std::int64_t width, bool of_positions) const {
  require<model_error>(number_ == model_input && net_->made_.input == input_kind::tokens,
                       "\"{}\" does not read the model's input (an embedding reads tokens): begin with it", name);
  const initial start{initial::kind::normal, net_->deviation_.value_or(1)};
  return then(std::move(name), op::embedding{rows, width, of_positions}, {},
              {{.name = "weight", .shape = {rows, width}, .initial = start}});
}

inline value value::attention_scores(std::string name, value keys, std::int64_t heads) const {
  const double width = static_cast<double>(shape().back()) / static_cast<double>(std::max<std::int64_t>(heads, 1));
  return then(std::move(name), op::bmm{heads, heads, true, false, 1 / std::sqrt(width)}, {keys});
}

}  // namespace comp::native
