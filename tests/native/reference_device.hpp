// SPDX-License-Identifier: Apache-2.0
// The FP64 Device: every operation of comp_native/device.hpp as the loop that its definition is.
// The oracle of the tests of every other Device, and what the trainer's gradients are checked on.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/op_info.hpp>
#include <comp/core/precision.hpp>
#include <comp_native/device.hpp>
#include <cstdint>
#include <span>
#include <utility>
#include <vector>

#include "reference_contractions.hpp"
#include "reference_graphs.hpp"
#include "reference_layers.hpp"
#include "reference_pools.hpp"
#include "reference_tensor.hpp"

namespace comp::native::reference {

/// Memory, parameters and optimizers; the operators come from the bases. What tests watch or change is virtual: a
/// Device that overrides it is trained by trainer<reference::device>, which the compiler then makes once for all tests.
class device : public layers, public contractions, public pools, public losses, public graphs {
 public:
  using tensor = reference::tensor;
  using indices = index_tensor;
  using parameter = reference::parameter;
  using parameter_state = reference::parameter_state;

  virtual tensor upload(std::span<const float> from, shape s, comp::precision p) {
    return {std::move(s), p, std::vector<double>(from.begin(), from.end())};
  }
  indices upload(std::span<const std::int32_t> from, shape s) { return {std::move(s), {from.begin(), from.end()}}; }
  std::vector<float> download(const tensor& t) { return {t.values().begin(), t.values().end()}; }
  virtual tensor cast(const tensor& t, comp::precision p) { return t.viewed(t.shape(), p); }
  tensor reshape(const tensor& t, shape s) {
    require<error>(elements(s) == t.size(), "reshape of {} elements to {} (they must agree): fix the shape", t.size(),
                   elements(s));
    return t.viewed(std::move(s), t.precision());
  }
  virtual void synchronize() {}
  virtual std::int64_t live_bytes() const { return 0; }
  virtual std::int64_t peak_bytes() const { return 0; }
  virtual void reset_peak() {}

  parameter make_parameter(std::span<const float> from, shape s, bool trainable = true) {
    return {std::move(s), std::vector<double>(from.begin(), from.end()), trainable};
  }
  const shape& shape_of(const parameter& p) const { return p.extents; }
  std::vector<float> values(const parameter& p) const { return {p.value.begin(), p.value.end()}; }
  std::vector<float> gradient(const parameter& p) const { return {p.gradient.begin(), p.gradient.end()}; }
  void set_values(parameter& p, std::span<const float> from) { p.value.assign(from.begin(), from.end()); }
  void zero_gradient(parameter& p) { p.fresh = true; }
  void set_trainable(parameter& p, bool on) { p.trainable = on; }
  virtual parameter_state snapshot(const parameter& p) const { return {p.value, p.first, p.second}; }
  void restore(parameter& p, const parameter_state& s) {
    p.value = s.value;
    p.first = s.first;
    p.second = s.second;
  }

  std::int64_t count_not_finite(std::span<parameter* const> all) {
    std::int64_t count = 0;
    for (const parameter* p : all)
      count += std::ranges::count_if(p->gradient, [](double g) { return !std::isfinite(g); });
    return count;
  }
  double gradient_norm(std::span<parameter* const> all) {
    double squares = 0;
    for (const parameter* p : all) {
      for (const double g : p->gradient) squares += g * g;
    }
    return std::sqrt(squares);
  }
  void scale_gradients(std::span<parameter* const> all, double factor) {
    for (parameter* p : all) {
      for (double& g : p->gradient) g *= factor;
    }
  }

  /// As torch.optim.SGD without dampening.
  void sgd_step(std::span<parameter* const> all, const sgd_options& o) {
    for (parameter* p : all) {
      const bool first_step = p->first.empty();
      p->first.resize(p->value.size());
      for (std::size_t i = 0; i < p->value.size(); ++i) {
        const double g = p->gradient[i] + o.weight_decay * p->value[i];
        double& velocity = p->first[i];
        velocity = first_step ? g : o.momentum * velocity + g;
        p->value[i] -= o.learning_rate * (o.nesterov ? g + o.momentum * velocity : o.momentum == 0 ? g : velocity);
      }
    }
  }
  /// As torch.optim.Adam and AdamW.
  void adam_step(std::span<parameter* const> all, const adam_options& o, std::int64_t step) {
    const double correct1 = 1 - std::pow(o.beta1, static_cast<double>(step));
    const double correct2 = 1 - std::pow(o.beta2, static_cast<double>(step));
    for (parameter* p : all) {
      p->first.resize(p->value.size());
      p->second.resize(p->value.size());
      for (std::size_t i = 0; i < p->value.size(); ++i) {
        double& value = p->value[i];
        if (o.decoupled) value -= o.learning_rate * o.weight_decay * value;
        const double g = p->gradient[i] + (o.decoupled ? 0 : o.weight_decay * value);
        p->first[i] = o.beta1 * p->first[i] + (1 - o.beta1) * g;
        p->second[i] = o.beta2 * p->second[i] + (1 - o.beta2) * g * g;
        value -= o.learning_rate * (p->first[i] / correct1) / (std::sqrt(p->second[i] / correct2) + o.eps);
      }
    }
  }
};

/// A Device with optional parts, for tests to override: a clock, precisions, random rounding, noise and ranges.
struct capable_device : device {
  virtual double seconds() const { return 0; }
  auto supported_precisions() const { return std::vector{precision::fp32, precision::bf16, precision::fp8_e4m3}; }
  virtual bool supports(const op_info&, comp::precision) const { return true; }
  virtual void round_by(dropout_key) {}
  virtual tensor normal(const dropout_key&, const native::shape& size, comp::precision p) { return {size, p}; }
  virtual int range(const char*) { return 0; }
};

}  // namespace comp::native::reference

namespace comp::native {
/// A test case's own.
struct on_reference {
  reference::device device;
};
}  // namespace comp::native
