// SPDX-License-Identifier: Apache-2.0
// Takes a user's score of a training: under the plan, without gradients, and with the models in evaluation mode.
#pragma once

#include <ATen/core/grad_mode.h>
#include <torch/nn/module.h>

#include <comp_libtorch/plan/program.hpp>
#include <comp_libtorch/support/exceptions.hpp>
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

/// Gives a trainer the member validate(), which the search looks for.
template <class Trainer>
class with_validation {
 public:
  /// Returns: the user's score, of the models in evaluation mode and without gradients, under the plan; higher is
  /// better.
  double validate() {
    auto& trained = static_cast<Trainer&>(*this);
    return translated([&] {
      const evaluation_mode mode{trained.setup_.modules};
      const at::NoGradGuard no_grad;
      const region on = trained.program_.evaluate();
      return trained.score_();
    });
  }
};
class without_validation {};

}  // namespace comp::libtorch::detail
