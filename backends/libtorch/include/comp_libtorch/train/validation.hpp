// SPDX-License-Identifier: Apache-2.0
// Puts models into evaluation mode, in which a user's score of a training is taken.
#pragma once

#include <torch/nn/module.h>

#include <comp_libtorch/train/setup.hpp>
#include <memory>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

/// Puts all modules into evaluation mode while it lives, and then each back into its own.
class evaluation_mode {
 public:
  explicit evaluation_mode(const std::vector<named_module>& models) {
    for (const named_module& m : models) {
      for (const auto& part : m.module->modules()) before_.emplace_back(part, part->is_training());
    }
    for (const auto& [part, training] : before_) set(*part, false);
  }
  ~evaluation_mode() {
    for (const auto& [part, training] : before_) set(*part, training);
  }
  evaluation_mode(const evaluation_mode&) = delete;
  evaluation_mode& operator=(const evaluation_mode&) = delete;

 private:
  static void set(torch::nn::Module& part, bool training) {
    if (part.is_training() != training) part.train(training);
  }
  std::vector<std::pair<std::shared_ptr<torch::nn::Module>, bool>> before_;
};

}  // namespace comp::libtorch::detail
