// SPDX-License-Identifier: Apache-2.0
// A network is a model with weights on a Device. It runs forward and backward under a plan.
// Each operator computes in its precision. A tensor is cast once for each precision in which it is read, and its
// readers share the copy. Gradients flow in the operators' precisions and are summed in FP32. Weights stay FP32
// masters. A tensor is released as soon as nothing will read it again.
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/concepts.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp_native/device_capabilities.hpp>
#include <comp_native/model.hpp>
#include <comp_native/model_graph.hpp>
#include <comp_native/precision_flow.hpp>
#include <comp_native/ranges.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>
#include <variant>
#include <vector>

namespace comp::native {

/// The parameters of one phase.
template <class Parameter>
struct trained_parameters {
  std::vector<Parameter*> moved = {};                        // those that it trains
  std::vector<Parameter*> decaying = {}, not_decaying = {};  // of these, those with weight decay and those without
  std::vector<std::string> names = {};                       // the names of `moved`
  std::vector<Parameter*> others_move = {};                  // those that it reads and another phase trains

  trained_parameters(const model& m, const phase& of, std::span<Parameter> all) {
    std::vector<bool> read(m.parameters.size());
    for (std::size_t i = of.first; i < of.last; ++i) {
      for (const std::size_t p : m.nodes[i].parameters) read[p] = true;
    }
    for (std::size_t p = 0; p < read.size(); ++p) {
      if (trains(m, of, p)) {
        moved.push_back(&all[p]);
        (m.parameters[p].decays ? decaying : not_decaying).push_back(&all[p]);
        names.push_back(m.parameters[p].name);
      } else if (read[p] && m.parameters[p].trainable) {
        others_move.push_back(&all[p]);
      }
    }
  }
};

/// Backwards make no gradients of these parameters while an object of this class lives.
template <class D>
class without_gradients {
 public:
  without_gradients(D& device, std::span<typename D::parameter* const> all) : device_{device}, all_{all} { set(false); }
  without_gradients(const without_gradients&) = delete;
  without_gradients& operator=(const without_gradients&) = delete;
  ~without_gradients() { set(true); }

 private:
  void set(bool on) {
    for (auto* p : all_) device_.set_trainable(*p, on);
  }
  D& device_;
  std::span<typename D::parameter* const> all_;
};

template <Device D>
class network {
 public:
  using tensor = typename D::tensor;
  using parameter = typename D::parameter;

  /// Makes the parameters. One seed gives the same values on every Device.
  network(D& device, native::model m, std::uint64_t seed)
      : device_{device},
        model_{std::move(m)},
        graph_{graph_of(model_)},
        needs_gradient_{native::needed_gradients(model_)},
        products_(model_.nodes.size()),
        times_(graph_.size()),
        seed_{mix_seed(seed, ~0ULL)},
        evaluation_seed_{mix_seed(seed, ~1ULL)} {
    parameters_.reserve(model_.parameters.size());
    for (std::size_t i = 0; i < model_.parameters.size(); ++i) {
      const parameter_info& info = model_.parameters[i];
      parameters_.push_back(device_.make_parameter(initial_values(info, seed, i), info.shape, info.trainable));
      all_.push_back(&parameters_.back());
      if (info.trainable) trainable_.push_back(&parameters_.back());
    }
    for (std::size_t at = model_.nodes.size(); const auto& [node, product] : gradient_products(model_)) {
      (product == product::input_gradient ? products_[node].input : products_[node].weight) = at++;
    }
    moments_.resize(model_.phases.size());
    for (std::size_t k = model_.moments.size(), at = graph_.size(); k-- > 0;) {
      moment_operators& of = moments_[model_.moments[k].phase];
      (model_.moments[k].second ? of.second : of.first) = --at;
    }
    for (const phase& p : model_.phases) {
      trained_.emplace_back(model_, p, std::span{parameters_});
      for (std::size_t i = p.first; i < p.last; ++i) prepare(model_.nodes[i]);
    }
    set_precision(plan{graph_.size()});
  }
  network(const network&) = delete;
  network& operator=(const network&) = delete;

  const op_graph& graph() const { return graph_; }
  const native::model& model() const { return model_; }
  std::span<parameter* const> trainable() const { return trainable_; }
  /// The parameters that a phase trains, and their names.
  std::span<parameter* const> trained_by(std::size_t phase) const { return trained_[phase].moved; }
  std::span<const std::string> names_trained_by(std::size_t phase) const { return trained_[phase].names; }
  /// Those of them for which weight decay holds, and the others.
  std::span<parameter* const> decaying(std::size_t phase) const { return trained_[phase].decaying; }
  std::span<parameter* const> not_decaying(std::size_t phase) const { return trained_[phase].not_decaying; }
  /// Returns the parameters of node `i` that its phase trains.
  std::vector<parameter*> trained_in(std::size_t i) {
    const auto of = std::ranges::find_if(model_.phases, [&](const phase& p) { return i < p.last; });
    std::vector<parameter*> all;
    for (const std::size_t p : model_.nodes[i].parameters) {
      if (trains(model_, *of, p)) all.push_back(&parameters_[p]);
    }
    return all;
  }
  /// Returns whether the gradient of a value is needed. Value 0 is the model's input, value i + 1 the output of node i.
  bool needs_gradient(std::size_t value) const { return needs_gradient_[value]; }
  /// Returns for each input of `n` whether its backward has to make the gradient.
  std::array<bool, 3> needed_gradients(const node& n) const {
    std::array<bool, 3> need{};
    for (std::size_t k = 0; k < n.inputs.size(); ++k) need[k] = needs_gradient_[slot(n.inputs[k])];
    return need;
  }
  /// The operators of a linear layer's backward if they are apart; 0 for a product that the layer's own operator does.
  struct gradient_operators {
    std::size_t input = 0, weight = 0;
  };
  gradient_operators gradient_operators_of(std::size_t node) const { return products_[node]; }
  /// The operators of a phase's moments; 0 for a moment that is none.
  struct moment_operators {
    std::size_t first = 0, second = 0;
    bool any() const { return first != 0 || second != 0; }
  };
  moment_operators moments_of(std::size_t phase) const { return moments_[phase]; }
  /// Runs the optimizer's part of a phase. Its time counts as that of the moments, half each if there are two.
  void timed_update(std::size_t phase, auto work) {
    double seconds = 0;
    timed(seconds, [&] { return work(), true; });
    const auto [first, second] = moments_[phase];
    for (const std::size_t op : {first, second}) {
      if (op) times_[op].backward = first && second ? seconds / 2 : seconds;
    }
  }
  std::span<parameter* const> all() const { return all_; }
  /// Returns: the sparse matrix of node `i` on the Device; null if it has none.
  const typename D::sparse_matrix* matrix(std::size_t i) const { return matrices_[i].get(); }
  std::span<parameter> parameters() { return parameters_; }
  std::span<const parameter> parameters() const { return parameters_; }

  /// The number of random draws so far. Together with the seed it is the whole state of the network's random numbers.
  std::uint64_t draws() const { return draws_; }
  void set_draws(std::uint64_t draws) { draws_ = draws; }

  /// Sets the plan. Throws: `plan_error` for a plan that does not fit the graph.
  void set_precision(const plan& p) {
    require_fits(p, graph_);
    plan_ = p;
    flow_ = flow_of(model_, p);
    forget();
  }
  const plan& precisions() const { return plan_; }

  /// Runs the forward of a training step: with batch statistics and dropout, and keeping everything that backward()
  /// reads.
  /// Requires: phases come in order, and each one's backward before the next one's forward.
  /// Returns: the phase's loss, the mean over the batch.
  double forward(const device_batch<D>& batch, std::size_t phase = 0) {
    std::vector<double> losses(losses_of(phase));
    forward(batch, phase, losses);
    return mean_of(losses);
  }
  /// The same, with each of the phase's losses. The Device writes them at once or, if losses are deferred, at the end
  /// of the step.
  void forward(const device_batch<D>& batch, std::size_t phase, std::span<double> losses) {
    [[maybe_unused]] const auto marked = range(device_, "forward");
    if (phase == 0) begin(batch, {mix_seed(seed_, 0), batch.number});
    run(batch, phase, true, 0, losses);
  }
  std::size_t losses_of(std::size_t phase) const { return model_.phases[phase].losses.size(); }
  static double mean_of(std::span<const double> losses) {
    double sum = 0;
    for (const double loss : losses) sum += loss;
    return sum / static_cast<double>(losses.size());
  }

  /// Adds d(scale * loss)/d(parameter) to the gradient of every parameter that the phase trains.
  /// Requires: the phase's forward of the same batch came before.
  void backward(const device_batch<D>& batch, double scale = 1, std::size_t phase = 0) {
    [[maybe_unused]] const auto marked = range(device_, "backward");
    const native::phase& of = model_.phases[phase];
    require<error>(!memories_[of.last - 1].kept.empty(),
                   "backward of \"{}\" without a forward ({} operators have kept nothing): "
                   "call forward() before each backward()",
                   model_.name, of.last - of.first);
    const without_gradients<D> others{device_, trained_[phase].others_move};
    incoming_.assign(model_.nodes.size() + 1, {});
    for (std::size_t i = of.last; i-- > of.first;) {
      backward_of(i, batch, scale / static_cast<double>(of.losses.size()));
    }
  }
  void zero_gradients(std::size_t phase = 0) {
    for (parameter* p : trained_[phase].moved) device_.zero_gradient(*p);
  }

  struct evaluation {
    double loss = 0;                               // mean over the batch, summed over phases
    std::int64_t correct = 0;                      // examples whose label has the largest output; 0 without labels
    std::vector<std::vector<float>> outputs = {};  // the outputs of the nodes that were asked for
  };
  /// Runs a forward without dropout, by the running statistics, keeping nothing. `number` is the batch's number, which
  /// fixes the random noise that a model reads. `wanted` are the nodes whose outputs are returned.
  evaluation evaluate(const device_batch<D>& batch, std::uint64_t number = 0,
                      std::span<const std::size_t> wanted = {}) {
    [[maybe_unused]] const auto marked = range(device_, "evaluation");
    evaluation result{.outputs = std::vector<std::vector<float>>(wanted.size())};
    begin(batch, {mix_seed(evaluation_seed_, 0), number});
    const auto keep = [&](std::size_t i, const tensor& y) {
      for (std::size_t k = 0; k < wanted.size(); ++k) {
        if (wanted[k] == i) result.outputs[k] = device_.download(y);
      }
      if (model_.reads_labels() && static_cast<int>(i) == model_.output()) {
        result.correct = device_.count_correct(as_rows(y), batch.labels);
      }
    };
    for (std::size_t p = 0; p < model_.phases.size(); ++p) {
      std::vector<double> losses(losses_of(p));
      run(batch, p, false, number, losses, keep);
      result.loss += mean_of(losses);
    }
    return result;
  }

  /// Times each operator from now on, without casts. It waits for the Device before and after each one, so steps take
  /// longer.
  void measure(bool on) {
    measuring_ = on;
    times_.assign(graph_.size(), {});
  }
  /// Returns the seconds of each operator in the last forward and backward.
  const std::vector<op_time>& times() const { return times_; }

  /// Drops everything that a forward kept.
  void forget() {
    values_.assign(model_.nodes.size() + 1, {});
    memories_.assign(model_.nodes.size(), {});
    incoming_.clear();
  }

 private:
  void prepare(const node& n) {
    std::vector<parameter*> mine;
    for (const std::size_t p : n.parameters) mine.push_back(&parameters_[p]);
    operands_.push_back(std::move(mine));
    matrices_.push_back(on_device(matrix_of(n.what)));
  }
  /// Returns the Device's form of a matrix. Nodes with the same matrix share it.
  std::shared_ptr<const typename D::sparse_matrix> on_device(const std::shared_ptr<const host_csr>& from) {
    if (!from) return nullptr;
    for (std::size_t i = 0; i < matrices_.size(); ++i) {
      if (matrix_of(model_.nodes[i].what) == from) return matrices_[i];
    }
    return std::make_shared<const typename D::sparse_matrix>(device_.make_sparse(*from));
  }

  /// Returns value `input` in precision `p`. The first reader casts it, later ones share the copy.
  tensor in_precision(int input, precision p) {
    auto& copies = values_[slot(input)];
    for (const tensor& copy : copies) {
      if (copy.precision() == p) return copy;
    }
    copies.push_back(device_.cast(copies.front(), p));
    return copies.back();
  }

  void begin(const device_batch<D>& batch, dropout_key key) {
    forget();
    if constexpr (RoundsAtRandom<D>) device_.round_by(key);  // seeds stochastic rounding; dropout uses other keys
    if (model_.input == input_kind::values) values_[slot(model_input)] = {batch.values};
  }
  /// Runs the nodes of a phase and calls visit(i, output of node i). `number` is that of an evaluation's batch.
  void run(const device_batch<D>& batch, std::size_t phase, bool training, std::uint64_t number,
           std::span<double> losses, auto visit) {
    const native::phase& of = model_.phases[phase];
    double unused = 0, *loss = losses.data();
    for (std::size_t i = of.first; i < of.last; ++i) {
      visit(i, forward_of(i, batch, training, number, is_loss(model_.nodes[i].what) ? *loss++ : unused));
    }
  }
  void run(const device_batch<D>& batch, std::size_t phase, bool training, std::uint64_t number,
           std::span<double> losses) {
    run(batch, phase, training, number, losses, [](std::size_t, const tensor&) {});
  }

  tensor forward_of(std::size_t i, const device_batch<D>& batch, bool training, std::uint64_t number, double& loss) {
    const node& n = model_.nodes[i];
    [[maybe_unused]] const auto marked = range(device_, n.name.c_str());
    const bool reads_tokens = std::holds_alternative<op::embedding>(n.what);
    std::vector<tensor> x;
    for (const int input : n.inputs) {
      if (!reads_tokens) x.push_back(in_precision(input, flow_.precisions[i]));
    }
    memory<D> left;
    if (!x.empty()) left.input_shape = x[0].shape();
    if (native::draws(n.what))
      left.key = training ? dropout_key{seed_, draws_++} : dropout_key{evaluation_seed_, number};
    const forward_call<D> call{{device_, batch, operands_[i], flow_.precisions[i], left, matrix(i)}, x, training, loss};
    tensor y = timed(times_[i].forward, [&] { return native::forward(n.what, call); });
    for (const last_read& copy : flow_.releases[i]) release(copy);
    if (training && needs_gradient_[i + 1]) memories_[i] = std::move(left);
    if (!graph_.consumers(i).empty()) values_[i + 1] = {y};
    return y;
  }

  void release(const last_read& dead) {
    std::erase_if(values_[dead.value], [&](const tensor& copy) { return copy.precision() == dead.precision; });
  }

  void backward_of(std::size_t i, const device_batch<D>& batch, double scale) {
    const node& n = model_.nodes[i];
    [[maybe_unused]] const auto marked = range(device_, n.name.c_str());
    auto& incoming = incoming_[i + 1];
    const bool wanted = needs_gradient_[i + 1] && (is_loss(n.what) || !incoming.empty());
    if (wanted) {
      const tensor dy = incoming.empty() ? tensor{} : combined(std::exchange(incoming, {}), flow_.precisions[i]);
      const auto need = needed_gradients(n);
      const auto run = [&](std::size_t op, precision p, std::array<bool, 3> inputs, bool parameters) {
        const tensor g = dy ? cast(dy, p) : dy;
        const backward_call<D> call{
            {device_, batch, operands_[i], p, memories_[i], matrix(i)}, g, inputs, scale, parameters};
        return timed(times_[op].backward, [&] { return native::backward(n.what, call); });
      };
      const auto [of_input, of_weight] = products_[i];
      std::array<tensor, 3> dx;
      if (of_weight) run(of_weight, plan_[of_weight], {}, true);
      if (of_input) {
        dx = run(of_input, plan_[of_input], need, !of_weight);
        dx[0] = cast(std::move(dx[0]), flow_.precisions[i]);
      } else if (!of_weight) {
        dx = run(i, flow_.precisions[i], need, true);
      }
      for (std::size_t k = 0; k < n.inputs.size(); ++k) {
        if (need[k]) incoming_[slot(n.inputs[k])].push_back(std::move(dx[k]));
      }
    }
    memories_[i] = {};
  }

  /// Returns the sum of the readers' gradients in the precision `p` of the producer. Gradients of readers that share a
  /// cast are summed in the cast's precision first, as automatic differentiation of the cast would do.
  tensor combined(std::vector<tensor> all, precision p) {
    std::vector<tensor> in_p;
    while (!all.empty()) {
      const precision q = all.front().precision();
      std::vector<tensor> same, others;
      for (tensor& t : all) (t.precision() == q ? same : others).push_back(std::move(t));
      in_p.push_back(cast(sum(std::move(same)), p));
      all = std::move(others);
    }
    return sum(std::move(in_p));
  }
  tensor sum(std::vector<tensor> all) { return all.size() == 1 ? std::move(all[0]) : device_.sum(all); }
  tensor cast(tensor t, precision p) { return t.precision() == p ? t : device_.cast(t, p); }
  tensor as_rows(const tensor& t) {
    const shape s = t.shape();
    return s.size() == 2 ? t : device_.reshape(t, {elements(s) / s.back(), s.back()});
  }

  auto timed(double& seconds, auto f) {
    if (!measuring_) return f();
    device_.synchronize();
    const double start = seconds_of(device_);
    auto result = f();
    device_.synchronize();
    seconds = seconds_of(device_) - start;
    return result;
  }

  D& device_;
  native::model model_;
  op_graph graph_;
  std::vector<bool> needs_gradient_;          // by value
  std::vector<gradient_operators> products_;  // by node
  std::vector<moment_operators> moments_;     // by phase
  std::vector<op_time> times_;                // by operator
  plan plan_;
  precision_flow flow_;
  std::vector<parameter> parameters_;
  std::vector<parameter*> trainable_, all_;
  std::vector<trained_parameters<parameter>> trained_;                      // by phase
  std::vector<std::vector<parameter*>> operands_;                           // by node
  std::vector<std::shared_ptr<const typename D::sparse_matrix>> matrices_;  // by node
  std::vector<std::vector<tensor>> values_;    // by value: a copy for each precision in which it is read
  std::vector<memory<D>> memories_;            // by node: what its backward reads
  std::vector<std::vector<tensor>> incoming_;  // by value: the gradients from its readers
  std::uint64_t seed_, evaluation_seed_;
  std::uint64_t draws_ = 0;
  bool measuring_ = false;
};

}  // namespace comp::native
