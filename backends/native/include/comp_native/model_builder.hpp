// SPDX-License-Identifier: Apache-2.0
// Builds a model operator by operator. Shapes are inferred, and an operator that does not fit throws at its line.
//   model_builder net{"mlp", input_kind::values, {64, 784}};
//   net.input().linear("hidden", 128).relu("relu").linear("head", 10).cross_entropy_loss("loss");
//   const model mlp = net.finish();
// Parameters start as in PyTorch: weights and biases uniform in +-1/sqrt(fan in) (kaiming_uniform_ with a = sqrt(5)),
// norms at one and zero, embeddings N(0,1). normal_weights() and xavier_weights() change that.
// An operator with @ in its name shares parameters: "judge.linear@fake" has those of "judge.linear". end_phase()
// divides a step that has several losses, each with an optimizer of its own.
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

/// A sparse matrix that was checked (host_csr.hpp).
using sparse = std::shared_ptr<const host_csr>;

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

/// An operator's output while a model is being built. Valid as long as its builder.
class value {
 public:
  value linear(std::string name, std::int64_t units, linear_options options = {}) const;
  value conv2d(std::string name, std::int64_t channels, convolution options = {}) const;
  value batch_norm(std::string name, op::batch_norm options = {}) const;
  value layer_norm(std::string name, op::layer_norm options = {}) const;
  value activate(std::string name, activation kind) const { return then(std::move(name), op::activate{kind}); }
  value relu(std::string name) const { return activate(std::move(name), activation::relu); }
  value gelu(std::string name) const { return activate(std::move(name), activation::gelu); }
  value gelu_tanh(std::string name) const { return activate(std::move(name), activation::gelu_tanh); }
  value elu(std::string name) const { return activate(std::move(name), activation::elu); }
  value tanh(std::string name) const { return activate(std::move(name), activation::tanh); }
  value sigmoid(std::string name) const { return activate(std::move(name), activation::sigmoid); }
  value leaky_relu(std::string name) const { return activate(std::move(name), activation::leaky_relu); }
  value dropout(std::string name, double p) const { return then(std::move(name), op::dropout{p}); }
  value max_pool2d(std::string name, pool2d_options o = {}) const { return then(std::move(name), op::max_pool2d{o}); }
  value avg_pool2d(std::string name, pool2d_options o = {}) const { return then(std::move(name), op::avg_pool2d{o}); }
  value adaptive_avg_pool2d(std::string name, std::array<std::int64_t, 2> size) const {
    return then(std::move(name), op::adaptive_avg_pool2d{size});
  }
  value flatten(std::string name) const { return then(std::move(name), op::flatten{}); }
  value detach(std::string name) const { return then(std::move(name), op::detach{}); }
  value masked_columns(std::string name) const { return then(std::move(name), op::masked_columns{}); }
  value add(std::string name, value other) const { return then(std::move(name), op::add{}, {other}); }
  value mul(std::string name, value other) const { return then(std::move(name), op::mul{}, {other}); }
  /// Tokens (B,T), or tokens with segments (B,2,T) -> (B,T,width).
  value embedding(std::string name, std::int64_t rows, std::int64_t width,
                  op::looked_up of = op::looked_up::tokens) const;
  value bmm(std::string name, value other, op::bmm o = {}) const { return then(std::move(name), o, {other}); }
  /// Queries (B,T,C) and keys (B,T,C) -> (B,heads,T,T), scaled by 1/sqrt(C/heads).
  value attention_scores(std::string name, value keys, std::int64_t heads) const;
  /// Probabilities (B,heads,T,T) and values (B,T,C) -> (B,T,C).
  value attention_context(std::string name, value values, std::int64_t heads) const {
    return then(std::move(name), op::bmm{.heads_b = heads, .merge = true}, {values});
  }
  /// Attention as one operator: of the queries (B,Tq,C), which are this value, over keys and values (B,Tk,C) ->
  /// (B,Tq,C).
  value attention(std::string name, value keys, value values, const attention_options& o) const {
    return then(std::move(name), op::attention{o}, {keys, values});
  }
  value softmax(std::string name, op::softmax_mask mask = {}) const { return then(std::move(name), op::softmax{mask}); }
  value log_softmax(std::string name) const { return then(std::move(name), op::log_softmax{}); }
  /// The operators on graphs and other sparse matrices are explained in op/graph.hpp. This value holds the elements
  /// (1,E) of `matrix` (N,K), which is multiplied by a weight (K,units) -> (N,units).
  value sparse_linear(std::string name, sparse matrix, std::int64_t units) const;
  value spmm(std::string name, sparse matrix, bool bias = true) const;
  value edge_scores(std::string name, sparse matrix, std::int64_t heads, double slope = 0.2) const;
  value edge_softmax(std::string name, sparse matrix) const {
    return then(std::move(name), op::edge_softmax{{std::move(matrix)}});
  }
  /// This value holds shares (E,H), which weigh `x` (M,H*D) -> (N,H*D).
  value weighted_sum(std::string name, sparse matrix, value x, bool bias = true) const;
  value cross_entropy_loss(std::string name) const { return then(std::move(name), op::cross_entropy_loss{}); }
  value nll_loss(std::string name) const { return then(std::move(name), op::nll_loss{}); }
  value mse_loss(std::string name) const { return then(std::move(name), op::mse_loss{}); }
  value binary_cross_entropy_loss(std::string name, double target) const {
    return then(std::move(name), op::binary_cross_entropy_loss{target});
  }
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
    model_.name = std::move(name);
    model_.input = kind;
    model_.input_shape = std::move(input_shape);
  }
  model_builder(const model_builder&) = delete;  // because values point to their builder
  model_builder& operator=(const model_builder&) = delete;

  value input() { return {this, model_input}; }
  /// Normal random numbers (B,width), other ones in each step.
  value noise(std::string name, std::int64_t width) {
    return append(std::move(name), op::noise{model_.batch(), width}, {}, {});
  }

  /// Lets weights from here on start as N(0, deviation), and biases at zero.
  void normal_weights(double deviation) {
    deviation_ = deviation;
    xavier_ = false;
  }
  /// Lets weights from here on start uniformly in +-sqrt(6 / (fan in + fan out)), and biases at zero (Glorot and Bengio
  /// 2010).
  void xavier_weights() { xavier_ = true; }
  /// Sets whether the optimizer's weight decay holds for parameters from here on.
  void decay(bool on) { decays_ = on; }

  /// Makes a sparse matrix for the operators that need one. Throws: error, saying what is wrong with it.
  static sparse matrix(host_csr from) {
    require_csr(from);
    return std::make_shared<const host_csr>(std::move(from));
  }

  /// Ends a phase of a step. Its losses train the parameters whose names begin with the scope `trains`.
  /// Throws: `model_error` if the phase does not end with a loss, trains nothing, or reads an operator of an earlier
  /// phase that is not detached.
  void end_phase(std::string name, const std::string& trains) {
    phase ended = phase_of_the_rest(std::move(name));
    for (const parameter_info& p : model_.parameters) ended.trains.push_back(p.name.starts_with(trains + "."));
    require_phase(ended, trains);
    model_.phases.push_back(std::move(ended));
  }

  /// Returns the finished model.
  /// Throws: `model_error` if the last operator is no loss, or if there is more than one loss and no phases.
  model finish() const {
    const auto losses = std::ranges::count_if(model_.nodes, [](const node& n) { return is_loss(n.what); });
    require<model_error>(
        (losses == 1 || !model_.phases.empty()) && !model_.nodes.empty() && is_loss(model_.nodes.back().what),
        "model \"{}\" has {} losses (exactly one, as the last operator): end it with one", model_.name, losses);
    model whole = model_;
    if (whole.phases.empty()) whole.phases.push_back(phase_of_the_rest(""));
    require<model_error>(
        whole.phases.back().last == whole.nodes.size(),
        "model \"{}\" has operators behind its last phase (nothing trains them): end_phase() after them", whole.name);
    for (phase& p : whole.phases) p.trains.resize(whole.parameters.size(), model_.phases.empty());
    return whole;
  }

 private:
  friend class value;

  phase phase_of_the_rest(std::string name) const {
    phase rest{.name = std::move(name),
               .first = model_.phases.empty() ? 0 : model_.phases.back().last,
               .last = model_.nodes.size()};
    for (std::size_t i = rest.first; i < rest.last; ++i) {
      if (is_loss(model_.nodes[i].what)) rest.losses.push_back(i);
    }
    return rest;
  }
  void require_phase(const phase& p, const std::string& trains) const {
    require<model_error>(!p.losses.empty() && p.losses.back() + 1 == p.last,
                         "phase \"{}\" of model \"{}\" ends with no loss (it trains by its losses): end it with one",
                         p.name, model_.name);
    require<model_error>(std::ranges::find(p.trains, true) != p.trains.end(),
                         "phase \"{}\" of model \"{}\" trains \"{}\" (no parameter is called so): name a scope of it",
                         p.name, model_.name, trains);
    for (std::size_t i = p.first; i < p.last; ++i) {
      const node& n = model_.nodes[i];
      const bool inside = std::ranges::all_of(
          n.inputs, [&](int from) { return from == model_input || static_cast<std::size_t>(from) >= p.first; });
      require<model_error>(inside || std::holds_alternative<op::detach>(n.what),
                           "\"{}\" of phase \"{}\" reads an operator of an earlier one (whose gradients are done): "
                           "detach() it",
                           n.name, p.name);
    }
  }

  /// Appends an operator. If an earlier operator has the same name up to an @, its parameters are shared.
  value append(std::string name, operation what, std::vector<int> inputs, std::vector<parameter_info> parameters) {
    require<model_error>(std::ranges::none_of(model_.nodes, [&](const node& n) { return n.name == name; }),
                         "two operators are called \"{}\" (names tell them apart in plans): rename one", name);
    const bool tokens = model_.input == input_kind::tokens && std::ranges::count(inputs, model_input) > 0;
    require<model_error>(!tokens || std::holds_alternative<op::embedding>(what),
                         "\"{}\" reads tokens (only an embedding can): put one before it", name);
    require<model_error>(!reads_lengths(what) || model_.reads_segments(),
                         "\"{}\" hides padding (which negative segments tell of): read tokens and segments, (B,2,T)",
                         name);
    std::vector<shape> shapes;
    for (const int input : inputs) shapes.push_back(model_.shape_of(input));
    node next{.name = std::move(name), .what = what, .inputs = std::move(inputs)};
    next.output = output_shape(next.name, what, shapes);
    for (parameter_info& p : parameters) {
      p.name = next.name.substr(0, next.name.find('@')) + "." + p.name;
      p.decays = decays_;
      const auto known = std::ranges::find(model_.parameters, p.name, &parameter_info::name);
      next.parameters.push_back(static_cast<std::size_t>(known - model_.parameters.begin()));
      if (known == model_.parameters.end()) {
        model_.parameters.push_back(std::move(p));
      } else {
        require<model_error>(known->shape == p.shape,
                             "\"{}\" has \"{}\" of {} (the operator before it has {}): give it another name", next.name,
                             p.name, text(p.shape), text(known->shape));
      }
    }
    model_.nodes.push_back(std::move(next));
    return {this, static_cast<int>(model_.nodes.size()) - 1};
  }
  /// Returns weight and bias of an operator in which each output has `fan_in` inputs and each input `fan_out` outputs.
  std::vector<parameter_info> weights(shape extents, std::int64_t fan_in, std::int64_t fan_out, bool bias) const {
    const initial fan{initial::kind::uniform, 1 / std::sqrt(static_cast<double>(std::max<std::int64_t>(fan_in, 1)))};
    const std::int64_t outputs = extents.front();
    std::vector<parameter_info> parameters{{.name = "weight", .shape = std::move(extents), .initial = fan}};
    if (deviation_) parameters[0].initial = {initial::kind::normal, *deviation_};
    if (xavier_) parameters[0].initial = xavier(fan_in, fan_out);
    if (bias)
      parameters.push_back({.name = "bias", .shape = {outputs}, .initial = deviation_ || xavier_ ? initial{} : fan});
    return parameters;
  }
  static initial xavier(std::int64_t fan_in, std::int64_t fan_out) {
    return {initial::kind::uniform, std::sqrt(6 / static_cast<double>(std::max<std::int64_t>(fan_in + fan_out, 1)))};
  }
  static std::vector<parameter_info> shift(std::int64_t width, bool there) {
    if (!there) return {};
    return {{.name = "bias", .shape = {width}}};
  }
  static std::vector<parameter_info> scale_and_shift(std::int64_t channels) {
    return {{.name = "weight", .shape = {channels}, .initial = {initial::kind::constant, 1}},
            {.name = "bias", .shape = {channels}}};
  }

  model model_;
  std::optional<double> deviation_;
  bool xavier_ = false, decays_ = true;
};

inline const native::shape& value::shape() const { return net_->model_.shape_of(number_); }

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
  return then(std::move(name), op::linear{units, options.bias}, {},
              net_->weights({units, inner}, inner, units, options.bias));
}

inline value value::conv2d(std::string name, std::int64_t channels, convolution o) const {
  const op::conv2d what{channels,
                        {o.kernel, o.kernel},
                        {{o.stride, o.stride}, {o.padding, o.padding}, {o.dilation, o.dilation}, o.groups},
                        o.bias};
  const std::int64_t inner = (shape().size() > 1 ? shape()[1] : 0) / std::max<std::int64_t>(o.groups, 1);
  const std::int64_t window = o.kernel * o.kernel;
  return then(std::move(name), what, {},
              net_->weights({channels, inner, o.kernel, o.kernel}, inner * window, channels * window, o.bias));
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

inline value value::embedding(std::string name, std::int64_t rows, std::int64_t width, op::looked_up of) const {
  require<model_error>(number_ == model_input && net_->model_.input == input_kind::tokens,
                       "\"{}\" does not read the model's input (an embedding reads tokens): begin with it", name);
  const initial start{initial::kind::normal, net_->deviation_.value_or(1)};
  return then(std::move(name), op::embedding{rows, width, of}, {},
              {{.name = "weight", .shape = {rows, width}, .initial = start}});
}

inline value value::sparse_linear(std::string name, sparse matrix, std::int64_t units) const {
  const std::int64_t inner = matrix->columns;
  std::vector<parameter_info> weight = net_->weights({inner, units}, inner, units, false);
  return then(std::move(name), op::sparse_linear{{std::move(matrix)}, units}, {}, std::move(weight));
}

inline value value::spmm(std::string name, sparse matrix, bool bias) const {
  return then(std::move(name), op::spmm{{std::move(matrix)}, bias}, {}, model_builder::shift(shape().back(), bias));
}

inline value value::edge_scores(std::string name, sparse matrix, std::int64_t heads, double slope) const {
  require<model_error>(heads > 0, "\"{}\" has {} heads (at least one): change it", name, heads);
  const std::int64_t width = shape().back() / heads;
  const initial start = model_builder::xavier(heads * width, width);
  std::vector<parameter_info> vectors{{.name = "source", .shape = {1, heads, width}, .initial = start},
                                      {.name = "target", .shape = {1, heads, width}, .initial = start}};
  return then(std::move(name), op::edge_scores{{std::move(matrix)}, heads, slope}, {}, std::move(vectors));
}

inline value value::weighted_sum(std::string name, sparse matrix, value x, bool bias) const {
  return then(std::move(name), op::weighted_sum{{std::move(matrix)}, bias}, {x},
              model_builder::shift(x.shape().back(), bias));
}

inline value value::attention_scores(std::string name, value keys, std::int64_t heads) const {
  const double width = static_cast<double>(shape().back()) / static_cast<double>(std::max<std::int64_t>(heads, 1));
  return then(std::move(name), op::bmm{heads, heads, true, false, 1 / std::sqrt(width)}, {keys});
}

}  // namespace comp::native
