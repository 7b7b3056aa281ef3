// SPDX-License-Identifier: Apache-2.0
// Runs a forward whose sequence of operators is not the recorded one, as in evaluation mode. Operators are found by
// their names, which takes about a microsecond for each.
#pragma once

#include <comp/core/precision.hpp>
#include <comp_libtorch/hook/casting.hpp>
#include <comp_libtorch/hook/composite.hpp>
#include <comp_libtorch/hook/op_names.hpp>
#include <comp_libtorch/hook/session.hpp>
#include <comp_libtorch/hook/tf32.hpp>
#include <comp_libtorch/plan/instructions.hpp>
#include <cstddef>
#include <functional>
#include <string>
#include <utility>

namespace comp::libtorch::detail {

class evaluator final : public session {
 public:
  evaluator(named_choice choose, const parameter_names& names, known_composites& composites,
            const program_settings& settings)
      : session{settings.device.type(), !settings.protect_blocks},
        choose_{std::move(choose)},
        composites_{composites},
        names_{names} {}

  void called(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) override {
    const author_choice author = block();
    if (torch::autograd::get_current_node() != nullptr) require_no_backward();
    if (const auto uniform = composites_.find(op, stack, device())) {
      if (*uniform) cast_read(stack, traits(op), at::kFloat, device(), true);
      return call_opened(op, keys, stack);
    }
    const op_traits& known = traits(op);
    const op_names::named named = names_.next(known, stack);
    const precision chosen = author == author_choice::none ? choose_(named.layer, known.kind) : precision::fp32;
    if (author != author_choice::none) {
      cast_for_author(stack, known, author, device());
    } else if (is_low(chosen) && chosen != precision::tf32) {
      cast_read(stack, known, scalar_type(chosen), device(), !keeps_affine(known, device()));
    } else {
      cast_to_fp32(stack, known, device());
    }
    run_in(op, stack, chosen == precision::tf32);
    for_each_tensor(stack, op.schema().returns().size(),
                    [&](const at::Tensor& tensor, std::size_t, int) { names_.add_result(named, tensor); });
  }
  void end(bool /*abandoned*/) noexcept override {}

 private:
  named_choice choose_;
  known_composites& composites_;
  op_names names_;
};

}  // namespace comp::libtorch::detail
