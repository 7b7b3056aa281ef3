// SPDX-License-Identifier: Apache-2.0
// Losses, which end a model or a phase. Their forward writes a number, and their result is no tensor that another
// operator could read.
#pragma once

#include <comp_native/op/call.hpp>

namespace comp::native::op {

/// A loss over the batch's labels: the mean over those that are not negative.
struct label_loss {
  static constexpr bool is_loss = true;
  static constexpr bool reads_labels = true;
  shape output(std::span<const shape> x) const {
    require<error>(x[0].size() >= 2, "a loss of {} (it takes (B,...,classes)): reshape it", text(x[0]));
    return {};
  }

 protected:
  static void count_labels(const cost_call& c) {
    const shape& x = c.inputs[0];
    c.info.inputs.push_back({.shape = {x.begin(), x.end() - 1}, .floating = false});
    c.info.bytes += 4 * elements(x) / x.back();
  }
};

struct cross_entropy_loss : label_loss {  // x (...,V)
  constexpr std::string_view kind() const { return "cross_entropy_loss"; }
  void cost(const cost_call& c) const {
    count_labels(c);
    c.info.flops = 5 * elements(c.inputs[0]);
  }
  auto forward(const auto& c) const { return c.keep(c.device.cross_entropy(c.rows(), c.batch.labels, &c.loss)); }
  auto backward(const auto& c) const {
    return c.gradients(c.as_input(c.device.cross_entropy_backward(c.left.kept, c.batch.labels, c.scale)));
  }
};

struct nll_loss : label_loss {  // x (...,V) of log-probabilities
  constexpr std::string_view kind() const { return "nll_loss"; }
  void cost(const cost_call& c) const {
    count_labels(c);
    c.info.flops = elements(c.inputs[0]) / c.inputs[0].back();
  }
  auto forward(const auto& c) const {
    c.device.nll_loss(c.keep(c.rows()), c.batch.labels, &c.loss);
    return c.nothing();
  }
  auto backward(const auto& c) const {
    return c.gradients(c.as_input(c.device.nll_loss_backward(c.kept(0), c.batch.labels, c.scale)));
  }
};

/// The mean loss of logits x that should all say yes (target 1) or all say no (target 0), as in a GAN.
struct binary_cross_entropy_loss {
  static constexpr bool is_loss = true;
  double target = 1;

  constexpr std::string_view kind() const { return "binary_cross_entropy_with_logits"; }
  constexpr auto settings() const { return std::tuple{target}; }
  shape output(std::span<const shape>) const {
    require<error>(target >= 0 && target <= 1, "binary cross entropy with target {} (it is a probability): use 0 to 1",
                   target);
    return {};
  }
  void cost(const cost_call& c) const { c.info.flops = 10 * elements(c.inputs[0]); }
  auto forward(const auto& c) const {
    c.device.binary_cross_entropy(c.keep(c.x[0]), target, &c.loss);
    return c.nothing();
  }
  auto backward(const auto& c) const {
    return c.gradients(c.device.binary_cross_entropy_backward(c.kept(0), target, c.scale));
  }
};

struct mse_loss {  // x, and the batch's target values of the same shape
  static constexpr bool is_loss = true;
  constexpr std::string_view kind() const { return "mse_loss"; }
  shape output(std::span<const shape>) const { return {}; }
  void cost(const cost_call& c) const {
    c.info.inputs.push_back({.shape = c.inputs[0]});
    c.info.bytes += 4 * elements(c.inputs[0]);
    c.info.flops = 3 * elements(c.inputs[0]);
  }
  auto forward(const auto& c) const {
    c.device.mse_loss(c.keep(c.x[0]), c.in_precision(c.batch.targets), &c.loss);
    return c.nothing();
  }
  auto backward(const auto& c) const {
    return c.gradients(c.device.mse_loss_backward(c.kept(0), c.in_precision(c.batch.targets), c.scale));
  }
};

}  // namespace comp::native::op
