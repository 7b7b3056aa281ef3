// SPDX-License-Identifier: Apache-2.0
// Measures what lowering each operator alone does to its output and to the gradients that it makes. While a step runs
// in FP32, each choosable operator is run twice more from the same inputs and the same random numbers, as written and
// in the low precision, forward and backward. This costs three to five steps.
// An error is a 2-norm relative to FP32's, over all outputs or over the gradients of all inputs. The gradient of the
// outputs is drawn at random, and scaled so that FP16 holds it and what is made of it, as a loss scale does.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/ops/randn.h>
#include <c10/core/InferenceMode.h>
#include <c10/util/Exception.h>
#include <torch/csrc/autograd/autograd.h>

#include <algorithm>
#include <cmath>
#include <comp/core/concepts.hpp>
#include <comp_libtorch/hook/cast.hpp>
#include <comp_libtorch/hook/casting.hpp>
#include <comp_libtorch/hook/op_traits.hpp>
#include <comp_libtorch/hook/tf32.hpp>
#include <comp_libtorch/plan/instructions.hpp>
#include <comp_libtorch/support/exceptions.hpp>
#include <comp_libtorch/support/generators.hpp>
#include <comp_libtorch/support/perturbation.hpp>
#include <comp_libtorch/support/relative_error.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <vector>

namespace comp::libtorch::detail {

class operator_errors {
 public:
  /// `apart`: the operators of the gradients of each recorded operator. They have the layer's gradient errors.
  operator_errors(std::size_t operators, std::span<const gradient_operators> apart, precision low, at::Device device)
      : errors_(operators), compared_(operators), apart_{apart}, low_{low}, device_{device} {}

  /// Runs `op` as it is. When operator `index` runs for the first time, it is compared, too.
  void run(const c10::OperatorHandle& op, std::uint32_t index, torch::jit::Stack& stack) {
    if (compared_[index]) return op.callBoxed(stack);
    compared_[index] = true;
    const op_traits& known = traits(op);
    const torch::jit::Stack arguments = torch::jit::last(stack, known.arguments.size()).vec();
    std::vector<at::Generator> own;
    for (const at::IValue& value : arguments) {
      if (value.isGenerator()) own.push_back(value.toGenerator());
    }
    const auto before = generator_states::save(device_, own);
    op.callBoxed(stack);
    const auto after = generator_states::save(device_, own);
    errors_[index] = compare(op, known, arguments, apart_[index], [&] { before.restore(device_, own); });
    after.restore(device_, own);
  }
  /// Returns: the error of each operator; 0 if it has not run or cannot be lowered.
  const std::vector<op_error>& errors() const { return errors_; }

 private:
  struct results {
    std::vector<at::Tensor> outputs = {}, gradients = {};  // gradients: of inputs that require one; may be undefined
    std::vector<std::size_t> of = {};                      // the arguments that the gradients are of

    /// Returns: the gradients, only that of argument `i` or only the others.
    std::vector<at::Tensor> gradients_of(std::size_t i, bool only) const {
      std::vector<at::Tensor> some = gradients;
      for (std::size_t k = 0; k < some.size(); ++k) {
        if ((of[k] == i) != only) some[k].reset();
      }
      return some;
    }
  };

  template <class Rewind>
  op_error compare(const c10::OperatorHandle& op, const op_traits& known, const torch::jit::Stack& arguments,
                   const gradient_operators& apart, Rewind rewind) {
    const precision own = precision_of_full(full_format(arguments, known, device_.type()));
    if (low_ == own) return {};
    rewind();
    std::vector<at::Tensor> drawn;
    const results exact = run_once(op, known, arguments, own, drawn);
    const double scale = low_ == precision::fp16 ? scale_for(exact, drawn) : 1;
    for (at::Tensor& gradient : drawn) {
      if (gradient.defined() && scale != 1) gradient = gradient.mul(scale);
    }
    rewind();
    try {
      const results low = run_once(op, known, arguments, low_, drawn);
      const double output = relative_error(low.outputs, exact.outputs);
      if (!apart.input && !apart.weight) return {output, relative_error(low.gradients, exact.gradients, scale)};
      const std::size_t x = linear_arguments_of(known)->input;
      const auto off = [&](bool input) {
        return relative_error(low.gradients_of(x, input), exact.gradients_of(x, input), scale);
      };
      if (apart.input) errors_[apart.input].gradient = off(true);
      if (apart.weight) errors_[apart.weight].gradient = off(false);
      return {output, apart.weight ? 0 : off(false)};  // a bias may be trained alone
    } catch (const c10::OutOfMemoryError&) {
      throw;
    } catch (const c10::Error& failure) {  // no kernel for this format: a plan that asks for it fails
      if (says_out_of_memory(failure.what_without_backtrace())) throw;
      constexpr double infinity = std::numeric_limits<double>::infinity();
      for (const std::size_t i : {apart.input, apart.weight}) {
        if (i) errors_[i].gradient = infinity;
      }
      return {infinity, infinity};
    }
  }

  /// Runs `op` in precision `in`. `drawn`: the gradients of the outputs, which are drawn if there are none yet.
  results run_once(const c10::OperatorHandle& op, const op_traits& known, const torch::jit::Stack& arguments,
                   precision in, std::vector<at::Tensor>& drawn) {
    const bool differentiates = at::GradMode::is_enabled() && !c10::InferenceMode::is_enabled();
    std::optional<tf32_guard> tf32;
    if (in == precision::tf32) tf32.emplace();
    const bool scaled = product_precisions{in}.need_rounding() && linear_arguments_of(known);
    results all;
    std::vector<at::Tensor> leaves;
    torch::jit::Stack stack = arguments;
    for (std::size_t i = 0; i < stack.size(); ++i) {
      const argument_use use = known.arguments[i];
      if (use == argument_use::kept) continue;
      const bool casts = use == argument_use::read || !keeps_affine(known, scalar_type(in), device_.type());
      const auto make = [&](const at::Tensor& t) {
        at::Tensor leaf = t.detach();
        if (differentiates && t.requires_grad()) {
          leaves.push_back(leaf.requires_grad_());
          all.of.push_back(i);
        }
        const bool stays = !casts || scaled || is_number_beside_values(t, known, arguments, device_.type());
        return stays ? leaf : cast(leaf, scalar_type(in), at::MemoryFormat::Preserve);
      };
      replace(
          stack[i], device_.type(), [](const at::Tensor&) { return true; }, make);
    }
    if (!scaled || !run_scaled(known, stack, in)) op.callBoxed(stack);
    all.outputs = eligible_tensors(stack, op.schema().returns().size(), device_.type());
    if (!leaves.empty()) all.gradients = gradients(all.outputs, leaves, drawn);
    return all;
  }

  std::vector<at::Tensor> gradients(const std::vector<at::Tensor>& outputs, const std::vector<at::Tensor>& leaves,
                                    std::vector<at::Tensor>& drawn) {
    drawn.resize(outputs.size());
    std::vector<at::Tensor> roots, root_gradients;
    for (std::size_t i = 0; i < outputs.size(); ++i) {
      const at::Tensor& y = outputs[i];
      if (!y.requires_grad() || y.layout() != at::kStrided) continue;
      if (!drawn[i].defined()) drawn[i] = random_values(y);
      roots.push_back(y);
      root_gradients.push_back(drawn[i].to(y.scalar_type()));
    }
    if (roots.empty()) return {};
    return torch::autograd::grad(roots, leaves, root_gradients, false, false, true);
  }

  /// Returns: normal random values of the shape of `y`. All have the same memory, because drawing takes longer than
  /// most operators.
  at::Tensor random_values(const at::Tensor& y) {
    if (!random_.defined() || random_.numel() < y.numel()) {
      random_ = at::randn({y.numel()}, generator_for(device_, 1), y.options().dtype(at::kFloat).requires_grad(false));
    }
    return random_.narrow(0, 0, y.numel()).view(y.sizes());
  }

  /// Returns: a power of two that brings the largest of the drawn gradients, and of those made of them, to about 2^10.
  static double scale_for(const results& exact, const std::vector<at::Tensor>& drawn) {
    double largest = 0;
    for (const auto* list : {&exact.gradients, &drawn}) {
      for (const at::Tensor& t : *list) {
        if (t.defined() && t.numel() > 0)
          largest = std::max(largest, norm_of(dense(t), std::numeric_limits<double>::infinity()));
      }
    }
    return largest > 0 && std::isfinite(largest) ? std::exp2(10 - std::ceil(std::log2(largest))) : 1;
  }

  std::vector<op_error> errors_;
  std::vector<bool> compared_;
  std::span<const gradient_operators> apart_;
  precision low_;
  at::Device device_;
  at::Tensor random_;
};

}  // namespace comp::libtorch::detail
