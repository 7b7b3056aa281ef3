// SPDX-License-Identifier: Apache-2.0
// Runs a forward whose sequence of operators is not the recorded one, as in evaluation mode. Operators are found by
// their names, which takes about a microsecond for each.
// What torch.compile has captured stands for any modules whose operators have the same precisions under their names.
#pragma once

#include <algorithm>
#include <comp/core/precision.hpp>
#include <comp_libtorch/hook/capture.hpp>
#include <comp_libtorch/hook/casting.hpp>
#include <comp_libtorch/hook/composite.hpp>
#include <comp_libtorch/hook/op_names.hpp>
#include <comp_libtorch/hook/session.hpp>
#include <comp_libtorch/plan/settings.hpp>
#include <comp_libtorch/plan/unrecorded.hpp>
#include <comp_libtorch/support/exceptions.hpp>
#include <cstddef>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

/// How a program is evaluated.
struct evaluation {
  named_choice choose;
  std::size_t plan = 0;  // stands for what `choose` gives
  bool first = false;    // no other forward was evaluated before: composites are not known yet, so nothing is compiled
};

class evaluator final : public session, public capturable {
 public:
  evaluator(evaluation how, const parameter_names& names, known_composites& composites,
            const program_settings& settings)
      : session{settings.device.type(), !settings.protect_blocks},
        how_{std::move(how)},
        composites_{composites},
        parameters_{names},
        names_{names} {}

  void called(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) override {
    const author_choice author = block();
    const bool tries = !captures_ || composites_.knows(op);
    if (!tries) captured_.note_stray(traits(op).kind);  // a trial needs sizes
    if (const auto uniform = tries ? composites_.find(op, stack, device()) : std::nullopt) {
      if (*uniform) cast_read_to_full(stack, traits(op), device());
      return call_opened(op, keys, stack);
    }
    const op_traits& known = traits(op);
    const op_names::named named = names_.next(known, stack);
    const precision own = precision_of_full(full_format(stack, known, device()));
    const auto chosen =
        author == author_choice::none ? how_.choose(named.layer, known.kind, own) : product_precisions{own, own};
    if (captures_) {
      if (chosen.forward == precision::tf32 || chosen.need_rounding())
        captured_.note_stray(named.name);  // compiled code neither switches TensorFloat-32 on nor rounds
      captured_.names.push_back({named.layer, known.kind, chosen.forward, own});
    }
    naming(known.kind, named.name, [&] { run_unrecorded(op, author, chosen, stack, device(), captures_); });
    for_each_tensor(stack, op.schema().returns().size(),
                    [&](const at::Tensor& tensor, std::size_t, int) { names_.add_result(named, tensor); });
  }

  capturable* as_capturable() override { return how_.first ? nullptr : this; }
  listener* as_listener() override { return this; }
  std::size_t place() const override { return how_.plan; }
  void go_to(std::size_t /*place*/) override {}
  void begin_capture(const std::vector<at::Tensor>& traced, const std::vector<at::Tensor>& parameters) override {
    captures_ = true;
    before_ = names_;  // tensors without data are not to be named any longer
    captured_ = {.first = how_.plan, .end = how_.plan, .block = block()};
    for (std::size_t i = 0; i < traced.size(); ++i) {
      captured_.parameters.push_back(parameters.at(i).unsafeGetTensorImpl());
      names_.add_copy(traced[i], parameters[i]);
    }
  }
  captured_part end_capture() override {
    captures_ = false;
    names_ = *std::exchange(before_, std::nullopt);
    return std::exchange(captured_, {});
  }
  bool can_run(const captured_part& part, const std::vector<const c10::TensorImpl*>& given) const override {
    if (part.block != block()) return false;
    if (part.first == how_.plan && given == part.parameters) return true;
    std::map<std::string, std::string> moved;  // the modules of the captured parameters, and of these
    for (std::size_t i = 0; i < given.size(); ++i) moved[module_of(part.parameters[i])] = module_of(given[i]);
    return std::ranges::all_of(part.names, [&](const captured_name& was) {
      const std::string module = scope_of(was.layer);
      const auto at = moved.find(module);
      const std::string layer = at == moved.end() ? was.layer : at->second + was.layer.substr(module.size());
      const product_precisions now = how_.choose(layer, was.kind, was.as_written);
      return now.forward == was.chosen && !now.need_rounding();
    });
  }

 private:
  static std::string scope_of(const std::string& name) { return name.substr(0, name.rfind('.') + 1); }
  std::string module_of(const c10::TensorImpl* parameter) const {
    const std::string* name = parameters_.find(parameter);
    return name == nullptr ? std::string{} : scope_of(*name);
  }

  evaluation how_;
  known_composites& composites_;
  const parameter_names& parameters_;
  op_names names_;
  bool captures_ = false;  // torch.compile runs the operators
  captured_part captured_;
  std::optional<op_names> before_;  // the names when it began to
};

}  // namespace comp::libtorch::detail
