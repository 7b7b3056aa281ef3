// SPDX-License-Identifier: Apache-2.0
// Measures the error of each operator when it alone is lowered, for all operators of a network in one pass in FP32. On
// the way back each operator runs once more, forward and backward, in the low precision, with FP32's inputs and FP32's
// gradient of its output. So an operator answers for its own error and not for those before it. It takes two to five
// steps, all on the Device.
// Errors are 2-norms relative to FP32's. The error of gradients is over all inputs and trainable parameters together,
// because a single one may be nothing but rounding (a convolution's bias before batch norm, an attention's key bias).
#pragma once

#include <algorithm>
#include <array>
#include <cmath>
#include <comp/core/concepts.hpp>
#include <comp_native/network.hpp>
#include <comp_native/precision_flow.hpp>
#include <cstddef>
#include <limits>
#include <utility>
#include <vector>

namespace comp::native {

/// Sums of squares of one operator's results: of FP32's, and of the difference in the low precision.
struct squared_error {
  double of_difference = 0, of_whole = 0;

  squared_error& operator+=(const squared_error& other) {
    of_difference += other.of_difference;
    of_whole += other.of_whole;
    return *this;
  }
  /// Returns: infinity if a result is not finite; 1 if FP32's are all zero and the others are not.
  double relative() const {
    if (!std::isfinite(of_difference)) return std::numeric_limits<double>::infinity();
    if (of_difference == 0) return 0;
    return of_whole > 0 ? std::sqrt(of_difference / of_whole) : 1;
  }
};

template <Device D>
class sensitivity_pass {
 public:
  /// `scale` is the factor of the loss, which keeps small gradients in FP16's range. Relative errors do not depend on
  /// it otherwise.
  sensitivity_pass(D& device, network<D>& of, const device_batch<D>& batch, precision low, double scale)
      : device_{device}, network_{of}, model_{of.model()}, batch_{batch}, low_{low}, scale_{scale} {}

  /// Returns: an error for each operator; 0 if `lowers(op)` is false. The network's gradients are lost.
  template <class Lowers>
  std::vector<op_error> operator()(Lowers lowers) {
    const std::size_t n = model_.nodes.size();
    network_.forget();
    if constexpr (RoundsAtRandom<D>) device_.round_by({0, batch_.number});
    for (std::size_t i = 0; i < n; ++i) forward(i);
    std::vector<op_error> errors(graph().size());
    for (std::size_t i = n; i-- > 0;) {
      if (graph()[i].choosable && lowers(graph()[i])) {
        compare(i, errors);
      } else {
        hand_on(i, backward(i, kept_[i], precision::fp32, gradient_of_output(i)));
      }
      values_[i + 1] = {};
      gradients_[i + 1].clear();
      kept_[i] = {};
    }
    for (parameter* p : network_.trainable()) device_.zero_gradient(*p);
    return errors;
  }

 private:
  using tensor = typename D::tensor;
  using parameter = typename D::parameter;
  using input_gradients = std::array<tensor, 3>;

  const op_graph& graph() const { return network_.graph(); }

  struct run {
    tensor output;
    memory<D> left;
    double loss = 0;
  };
  run forward_in(std::size_t i, precision p) {
    const node& n = model_.nodes[i];
    std::vector<tensor> x;
    for (const int input : n.inputs) {
      if (const tensor& value = values_[slot(input)]; value) x.push_back(in(value, p));
    }
    run result;
    result.left.key = {0, i, true};  // any mask will do, as long as both precisions have the same
    if (!x.empty()) result.left.input_shape = x[0].shape();
    const std::vector<parameter*> operands = parameters_of(n);
    result.output = native::forward(
        n.what, forward_call<D>{{device_, batch_, operands, p, result.left, network_.matrix(i)}, x, true, result.loss});
    return result;
  }
  void forward(std::size_t i) {
    if (i == 0) {
      values_.assign(model_.nodes.size() + 1, {});
      gradients_.assign(model_.nodes.size() + 1, {});
      kept_.assign(model_.nodes.size(), {});
      losses_.assign(model_.nodes.size(), 0);
      if (model_.input == input_kind::values) values_[slot(model_input)] = batch_.values;
    }
    run result = forward_in(i, precision::fp32);
    values_[i + 1] = std::move(result.output);
    kept_[i] = std::move(result.left);
    losses_[i] = result.loss;
  }

  /// Returns whether operator `i` gets a gradient of its output.
  bool wanted(std::size_t i) const {
    return network_.needs_gradient(i + 1) && (is_loss(model_.nodes[i].what) || !gradients_[i + 1].empty());
  }
  tensor gradient_of_output(std::size_t i) {
    const auto& all = gradients_[i + 1];
    return all.empty() ? tensor{} : all.size() == 1 ? all[0] : device_.sum(all);
  }
  input_gradients backward(std::size_t i, memory<D>& left, precision p, const tensor& dy) {
    if (!wanted(i)) return {};
    const node& n = model_.nodes[i];
    const std::vector<parameter*> operands = parameters_of(n);
    return native::backward(
        n.what,
        backward_call<D>{
            {device_, batch_, operands, p, left, network_.matrix(i)}, dy, network_.needed_gradients(n), scale_});
  }
  void hand_on(std::size_t i, input_gradients dx) {
    const node& n = model_.nodes[i];
    for (std::size_t k = 0; k < n.inputs.size(); ++k) {
      if (dx[k] && network_.needs_gradient(slot(n.inputs[k])))
        gradients_[slot(n.inputs[k])].push_back(std::move(dx[k]));
    }
  }

  /// Runs node `i` in both precisions and writes the errors of its operators.
  void compare(std::size_t i, std::vector<op_error>& errors) {
    run low = forward_in(i, low_);
    const squared_error output = is_loss(model_.nodes[i].what)
                                     ? squared_error{squared(low.loss - losses_[i]), squared(losses_[i])}
                                     : between(low.output, values_[i + 1]);
    low.output = {};
    errors[i].output = output.relative();
    if (!wanted(i)) return;
    const auto trained = network_.trained_in(i);
    const tensor dy = gradient_of_output(i);
    for (parameter* p : trained) device_.zero_gradient(*p);
    input_gradients dx = backward(i, kept_[i], precision::fp32, dy);
    squared_error of_parameters, of_inputs;
    // FP32's gradients are negated in place; the low precision's backward then adds its own, which leaves the
    // difference without memory for a second set of gradients.
    if (!trained.empty()) {
      of_parameters.of_whole = squared(device_.gradient_norm(trained));
      device_.scale_gradients(trained, -1);
    }
    const input_gradients low_dx = backward(i, low.left, low_, dy ? in(dy, low_) : dy);
    if (!trained.empty()) of_parameters.of_difference = squared(device_.gradient_norm(trained));
    for (std::size_t k = 0; k < dx.size(); ++k) {
      if (!dx[k] || !low_dx[k]) continue;
      of_inputs += between(low_dx[k], dx[k]);
    }
    hand_on(i, std::move(dx));
    const auto [input, weight] = network_.gradient_operators_of(i);
    if (input) errors[input].gradient = std::exchange(of_inputs, {}).relative();
    if (weight) errors[weight].gradient = std::exchange(of_parameters, {}).relative();
    errors[i].gradient = (of_inputs += of_parameters).relative();
  }

  static double squared(double x) { return x * x; }
  tensor in(const tensor& t, precision p) { return t.precision() == p ? t : device_.cast(t, p); }
  /// Compares two tensors by the Device's own mean squared error, so that only two numbers come to the host.
  squared_error between(const tensor& low, const tensor& exact) {
    const std::array twice{exact, exact};
    double difference = 0, whole = 0;
    device_.mse_loss(in(low, precision::fp32), exact, &difference);
    device_.mse_loss(device_.sum(twice), exact, &whole);
    const auto n = static_cast<double>(elements(exact.shape()));
    return {difference * n, whole * n};
  }

  std::vector<parameter*> parameters_of(const node& n) {
    std::vector<parameter*> all;
    for (const std::size_t p : n.parameters) all.push_back(&network_.parameters()[p]);
    return all;
  }

  D& device_;
  network<D>& network_;
  const model& model_;
  const device_batch<D>& batch_;
  precision low_;
  double scale_;
  std::vector<tensor> values_;                  // value 0 is the model's input, value i + 1 the output of node i
  std::vector<std::vector<tensor>> gradients_;  // by value: the gradients from its readers
  std::vector<memory<D>> kept_;
  std::vector<double> losses_;
};

/// Returns the errors of all operators in `low`. `scale` is the factor of losses. If gradients overflow in FP16,
/// smaller ones are tried down to `least_scale`, as dynamic loss scaling would find one.
/// Requires: the caller puts running statistics, random draws and data order back.
template <Device D, class Lowers>
std::vector<op_error> sensitivity_of(D& device, network<D>& of, const device_batch<D>& batch, precision low,
                                     double scale, double least_scale, Lowers lowers) {
  const auto overflowed = [](const op_error& e) { return std::isfinite(e.output) && !std::isfinite(e.gradient); };
  for (;; scale = std::max(scale / 16, least_scale)) {
    std::vector<op_error> errors = sensitivity_pass<D>{device, of, batch, low, scale}(lowers);
    const bool again = low == precision::fp16 && scale > least_scale;
    if (!again || std::ranges::none_of(errors, overflowed)) return errors;
  }
}

}  // namespace comp::native
