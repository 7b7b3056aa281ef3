// SPDX-License-Identifier: Apache-2.0
// Measures how far low precision moves an operator's results. The operator runs once more from the same inputs in the
// low precision; if it can, on an eighth of their rows, and then also in FP32 on these rows. Such runs may take a share
// of the time that the operators have taken so far.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <comp/core/clock.hpp>
#include <comp/core/precision.hpp>
#include <comp_libtorch/hook/casting.hpp>
#include <comp_libtorch/hook/op_traits.hpp>
#include <comp_libtorch/plan/instructions.hpp>
#include <comp_libtorch/support/relative_error.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <limits>
#include <optional>
#include <unordered_set>
#include <vector>

namespace comp::libtorch::detail {

class low_errors {
 public:
  low_errors(precision low, double share, at::DeviceType device) : low_{low}, share_{share}, device_{device} {}

  /// Returns: the relative error of `op`, which made `results` of `arguments` in `seconds`; NaN if the time is used up,
  /// or if the operator draws random numbers, does not run alone or has the low precision already. `is_weight(tensor)`:
  /// its rows are not those of a batch.
  double measure(const c10::OperatorHandle& op, const torch::jit::Stack& arguments, const torch::jit::Stack& results,
                 double seconds, auto&& is_weight) {
    constexpr double at_least = 0.02;  // [s] that is allowed in any case, for small models
    allowed_ += share_ * seconds;
    if (share_ == 0 || spent_ > std::max(at_least, allowed_)) return unknown;
    if (scalar_type(low_) == full_format(arguments, traits(op), device_)) return unknown;
    if (op.hasTag(at::Tag::nondeterministic_seeded)) return unknown;
    const comp::detail::stopwatch watch;
    const at::NoGradGuard no_gradients;
    double error = unknown;
    try {
      torch::jit::Stack exact = results, inputs = copy_statistics(arguments, traits(op));
      if (auto rows = whole_only_.contains(op) ? std::nullopt : take_rows(inputs, is_weight)) {
        if (auto of_rows = run(op, *rows)) {
          exact = std::move(*of_rows);
          inputs = std::move(*rows);
        } else {
          whole_only_.insert(op);
        }
      }
      cast_all(inputs, op);
      const std::vector<at::Tensor> compared =
          eligible_tensors(exact, exact.size(), device_);  // none: the operator turns FP32 into FP64
      if (compared.empty()) return unknown;
      if (auto low = run(op, std::move(inputs)))
        error = relative_error(eligible_tensors(*low, low->size(), device_), compared);
    } catch (const std::exception&) {  // the operator has no results to compare
    }
    spent_ += watch.seconds();
    return error;
  }

 private:
  static constexpr double unknown = std::numeric_limits<double>::quiet_NaN();

  static std::optional<torch::jit::Stack> run(const c10::OperatorHandle& op, torch::jit::Stack arguments) {
    try {
      op.callBoxed(arguments);
      return arguments;
    } catch (const std::exception&) {
      return std::nullopt;
    }
  }

  /// Returns: the arguments, with copies of the running statistics, because each run writes them.
  torch::jit::Stack copy_statistics(torch::jit::Stack arguments, const op_traits& known) const {
    const std::size_t first = arguments.size() - known.arguments.size();
    for (std::size_t i = 0; i < known.arguments.size(); ++i) {
      if (known.arguments[i] != argument_use::kept) continue;
      replace(
          arguments[first + i], device_, [](const at::Tensor&) { return true; },
          [](const at::Tensor& t) { return t.clone(); });
    }
    return arguments;
  }

  /// Returns: the arguments with the first rows of each that has as many rows as the first large input; nothing if no
  /// input is large, or the first large one has less than two rows.
  static std::optional<torch::jit::Stack> take_rows(const torch::jit::Stack& arguments, auto&& is_weight) {
    constexpr std::int64_t small = 1 << 14, part = 8;
    std::int64_t all = 0;
    for_each_tensor(arguments, arguments.size(), [&](const at::Tensor& t, std::size_t, int) {
      if (all == 0 && t.dim() > 1 && t.layout() == at::kStrided && t.numel() > small && !is_weight(t)) all = t.size(0);
    });
    if (all < 2) return std::nullopt;
    torch::jit::Stack rows = arguments;
    for (at::IValue& value : rows) {
      if (!value.isTensor()) continue;
      const at::Tensor& t = value.toTensor();
      if (!t.defined() || t.layout() != at::kStrided || t.dim() == 0 || t.size(0) != all || is_weight(t)) continue;
      value = t.narrow(0, 0, std::max<std::int64_t>(1, all / part));
    }
    return rows;
  }

  void cast_all(torch::jit::Stack& stack, const c10::OperatorHandle& op) const {
    const op_traits& known = traits(op);
    cast_read(stack, known, scalar_type(low_), device_, !keeps_affine(known, scalar_type(low_), device_));
  }

  precision low_;
  double share_;
  at::DeviceType device_;
  double allowed_ = 0, spent_ = 0;                      // [s]
  std::unordered_set<c10::OperatorHandle> whole_only_;  // operators that do not run on some of their rows
};

}  // namespace comp::libtorch::detail
