// SPDX-License-Identifier: Apache-2.0
// Saves the random generators of a training and puts them back: LibTorch's own for the CPU and the device, and those
// that the user names. Dropout and shuffles then draw the same numbers again.
#pragma once

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/Context.h>
#include <ATen/core/Tensor.h>

#include <algorithm>
#include <comp/core/error.hpp>
#include <mutex>
#include <utility>
#include <vector>

namespace comp::libtorch {

class generator_states {
 public:
  generator_states() = default;
  explicit generator_states(std::vector<at::Tensor> states) : states_{std::move(states)} {}
  static generator_states save(c10::Device device, const std::vector<at::Generator>& own = {}) {
    generator_states saved;
    for (at::Generator g : all(device, own)) {
      const std::lock_guard lock{g.mutex()};
      saved.states_.push_back(g.get_state());
    }
    return saved;
  }

  const std::vector<at::Tensor>& tensors() const { return states_; }
  friend bool operator==(const generator_states& a, const generator_states& b) {
    return std::ranges::equal(a.states_, b.states_, [](const auto& x, const auto& y) { return x.equal(y); });
  }

  /// Throws: `error` when the state has another number of generators.
  void restore(c10::Device device, const std::vector<at::Generator>& own = {}) const {
    std::vector<at::Generator> to = all(device, own);
    require<error>(to.size() == states_.size(),
                   "state of {} random generators for {} (it is another training's): save and restore one trainer",
                   states_.size(), to.size());
    for (std::size_t i = 0; i < to.size(); ++i) {
      const std::lock_guard lock{to[i].mutex()};
      to[i].set_state(states_[i]);
    }
  }

 private:
  static std::vector<at::Generator> all(c10::Device device, const std::vector<at::Generator>& own) {
    std::vector<at::Generator> generators{at::globalContext().defaultGenerator(at::kCPU)};
    if (!device.is_cpu()) generators.push_back(at::globalContext().defaultGenerator(device));
    generators.insert(generators.end(), own.begin(), own.end());
    return generators;
  }

  std::vector<at::Tensor> states_;
};

/// Puts LibTorch's generators back when its life ends.
class generator_guard {
 public:
  explicit generator_guard(c10::Device device) : device_{device}, before_{generator_states::save(device)} {}
  ~generator_guard() { before_.restore(device_); }
  generator_guard(const generator_guard&) = delete;
  generator_guard& operator=(const generator_guard&) = delete;

 private:
  c10::Device device_;
  generator_states before_;
};

}  // namespace comp::libtorch
