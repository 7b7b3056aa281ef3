// SPDX-License-Identifier: Apache-2.0
// Runs the operators of a region by the instructions of a plan, in step with the recorded sequence. Per operator this
// costs one comparison, and a look at the formats of the arguments that may need a cast.
#pragma once

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <comp/core/op_graph.hpp>
#include <comp_libtorch/hook/casting.hpp>
#include <comp_libtorch/hook/composite.hpp>
#include <comp_libtorch/hook/problems.hpp>
#include <comp_libtorch/hook/session.hpp>
#include <comp_libtorch/hook/tf32.hpp>
#include <comp_libtorch/plan/input_casts.hpp>
#include <comp_libtorch/plan/instructions.hpp>
#include <comp_libtorch/plan/optimized_scripts.hpp>
#include <comp_libtorch/plan/profiler.hpp>
#include <comp_libtorch/plan/sensitivity.hpp>
#include <comp_libtorch/plan/settings.hpp>
#include <comp_libtorch/plan/unrecorded.hpp>
#include <comp_libtorch/support/exceptions.hpp>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

/// What the executors of one segment share.
struct executor_context {
  const op_graph* graph;
  const program_settings* settings;
  low_weights* weights;
  problem_list* problems;
  std::string_view segment;
  operator_errors* errors;          // if set, measures what low precision does to each operator; the plan is then FP32
  plan* autocast_plan = nullptr;    // if set, LibTorch's autocast is on, and what it gives each operator goes here
  precision low = precision::fp32;  // what that autocast lowers to
  bool keeps_weights = false;       // memory of low weights is kept; false if several threads run the program
  const parameter_names* names = nullptr;
  const named_choice* choose = nullptr;  // gives a precision to operators that the recorded forward does not have
};

class executor final : public session, public capturable {
 public:
  /// `times`: gets the times of operators; null: they are not timed.
  executor(const executor_context& context, std::shared_ptr<const code> program, std::shared_ptr<region_times> times)
      : session{context.settings->device.type(), !context.settings->protect_blocks},
        context_{context},
        code_{std::move(program)},
        casts_{*code_, *context_.weights, device(), context_.keeps_weights},
        times_{std::move(times)} {}

  resumption from_here() const override {
    if (goes_on_in_fp32_) return {};
    return [context = context_, program = std::weak_ptr{code_}, times = times_, next = next_, in = block(),
            segment = std::string{context_.segment}]() -> std::unique_ptr<session> {
      const auto same = program.lock();
      require<error>(
          same != nullptr,
          "a checkpoint of region \"{}\" is to be run again, and the plan has changed since (it would not be "
          "what was run): call backward() before the plan changes",
          segment);
      auto again = std::make_unique<executor>(context, same, times);
      again->next_ = next;
      again->is_repeat_ = true;
      again->begin_in(in);
      return again;
    };
  }

  void called(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) override {
    const std::optional<std::size_t> here = find_instruction(op, stack);
    if (!here) return captures_ ? capture_unrecorded(op, stack) : run_unrecorded(op, stack);
    const instruction& now = code_->instructions[*here];
    if ((now.tf32 || now.products) && captures_)
      captured_.note_stray(expected_at(now));  // compiled code neither switches TensorFloat-32 on nor rounds
    if (now.lowers) {
      if (const author_choice author = block(); author != author_choice::none) return run_protected(now, author, stack);
    }
    if (now.opens) return open(now, keys, stack);
    if (!code_->any_low) return run(now, stack);
    const op_info& info = (*context_.graph)[now.index];
    naming(info.kind, info.name, [&] { run(now, stack); });
  }

  bool called_directly(const c10::OperatorHandle& op, const at::Tensor* const* tensors, at::Tensor* casts) override {
    const auto argument = [tensors](std::size_t i) {
      return tensors[i] == nullptr ? nullptr : tensors[i]->unsafeGetTensorImpl();
    };
    if (!is_next(op, argument) || times_ != nullptr || context_.errors != nullptr || context_.autocast_plan != nullptr)
      return false;
    const instruction& now = code_->instructions[next_];
    if (now.slow_path || now.lists || now.opens || (now.lowers && block() != author_choice::none)) return false;
    ++next_;
    const cast_slot* slot = code_->slots.data() + now.first_slot;
    for (const cast_slot* last = slot + now.slots; slot != last; ++slot) {
      const at::Tensor* tensor = tensors[slot->argument];
      if (tensor == nullptr || !casts_.wants_cast(*tensor->unsafeGetTensorImpl(), now)) continue;
      casts[slot->argument] = casts_.cast_for_slot(now, *slot, *tensor);
    }
    return true;
  }

  capturable* as_capturable() override {
    const bool plain = times_ == nullptr && context_.errors == nullptr && context_.autocast_plan == nullptr;
    return plain && !goes_on_in_fp32_ && !is_repeat_ && composite_.empty() ? this : nullptr;
  }
  listener* as_listener() override { return this; }
  std::size_t place() const override { return next_; }
  void go_to(std::size_t place) override { next_ = place; }
  void begin_capture(const std::vector<at::Tensor>& traced, const std::vector<at::Tensor>& parameters) override {
    captures_ = true;
    captured_ = {.first = next_, .block = block()};
    for (std::size_t i = 0; i < traced.size(); ++i) {
      captured_.parameters.push_back(parameters.at(i).unsafeGetTensorImpl());
      stand_ins_[traced[i].unsafeGetTensorImpl()] = captured_.parameters.back();
    }
    casts_.capture(true);
  }
  captured_part end_capture() override {
    captures_ = false;
    stand_ins_.clear();
    casts_.capture(false);
    captured_.end = next_;
    return std::exchange(captured_, {});
  }
  bool can_run(const captured_part& part, const std::vector<const c10::TensorImpl*>& given) const override {
    const std::size_t size = part.end - part.first;
    if (block() != part.block || next_ + size > code_->instructions.size()) return false;
    for (std::size_t i = 0; i < size; ++i) {
      const instruction &was = code_->instructions[part.first + i], &now = code_->instructions[next_ + i];
      const bool alike = was.op == now.op && was.target == now.target && was.products == now.products &&
                         was.lowers == now.lowers && was.slots == now.slots && was.hands_on_full == now.hands_on_full &&
                         was.follows_written == now.follows_written;
      if (!alike) return false;
      if (was.parameter == nullptr) continue;
      const auto at = std::find(part.parameters.begin(), part.parameters.end(), was.parameter);
      if (at == part.parameters.end()) continue;
      const c10::TensorImpl* reads = given.at(static_cast<std::size_t>(at - part.parameters.begin()));
      if (reads != now.parameter && is_of_another_module(reads, now.parameter)) return false;
    }
    return true;
  }

  bool begin() override {
    if (context_.autocast_plan != nullptr) begin_autocast(scalar_type(context_.low));
    context_.weights->begin_region();
    return true;
  }

  void end(bool abandoned) noexcept override {
    context_.weights->end_region();
    if (abandoned || goes_on_in_fp32_ || is_repeat_ || next_ == code_->instructions.size()) return;
    try {
      if (follows()) return note_other_model();
      context_.problems->add(&program_problems::ended_early, [&] {
        return fmt::format("region \"{}\" ended after {} of {} operators, before {}", context_.segment, next_,
                           code_->instructions.size(), expected());
      });
    } catch (...) {  // no memory for the text: the region ends all the same
    }
  }

 private:
  /// Counts the region as a problem if it ran other modules than the recorded ones. One without modules may be a part
  /// of the loss, as a penalty of gradients is.
  void note_other_model() const {
    if (!reads_other_ || !code_->map.is_before_parameters(next_)) return;
    context_.problems->add(&program_problems::mismatches, [&] {
      return fmt::format("region \"{}\" called none of the modules that it had when it was recorded", context_.segment);
    });
  }

  bool follows() const { return context_.settings->otherwise == on_mismatch::follow; }

  /// Returns: argument `i` of the operator on the stack, whose instruction is `now`; null if it is no tensor.
  static const c10::TensorImpl* tensor_of(const instruction& now, const torch::jit::Stack& stack, std::size_t i) {
    const at::IValue& value = stack[stack.size() - now.arguments + i];
    return value.isTensor() && value.toTensor().defined() ? value.unsafeToTensorImpl() : nullptr;
  }

  /// Returns: whether `op` is the next instruction. `argument(i)`: the tensor of argument i. If forwards are followed,
  /// an operator that reads the parameter of another module is not the next one.
  template <class Argument>
  bool is_next(const c10::OperatorHandle& op, Argument argument) const {
    const std::size_t end = composite_.empty() ? code_->instructions.size() : composite_.end;
    if (next_ >= end || code_->instructions[next_].op != op) return false;
    return reads_as_recorded(code_->instructions[next_], argument);
  }
  template <class Argument>
  bool reads_as_recorded(const instruction& now, Argument argument) const {
    if (now.parameter == nullptr || !composite_.empty() || !follows()) return true;
    const c10::TensorImpl* reads = argument(now.parameter_argument);
    if (const auto stands_for = stand_ins_.find(reads); stands_for != stand_ins_.end()) reads = stands_for->second;
    return reads == now.parameter || !is_of_another_module(reads, now.parameter);
  }
  /// Returns: whether `parameter` belongs to another module than `recorded`. It does not if nobody named it, or if it
  /// has taken the place of `recorded` under the same name.
  bool is_of_another_module(const c10::TensorImpl* parameter, const c10::TensorImpl* recorded) const {
    if (code_->map.is_parameter(parameter)) return true;
    const std::string *now = context_.names->find(parameter), *then = context_.names->find(recorded);
    return now != nullptr && (then == nullptr || *now != *then);
  }

  /// Finds the instruction of the operator on the stack, and goes on after it. Returns: nothing if the recorded forward
  /// does not have it.
  std::optional<std::size_t> find_instruction(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
    if (code_->removed != removed_operators() && !traits(op).aten) return {};  // perhaps another one than was recorded
    const auto argument = [&](std::size_t i) { return tensor_of(code_->instructions[next_], stack, i); };
    if (is_next(op, argument) || go_to_in_composite(op)) return next_++;
    if (captures_) return find_captured(op, stack);
    if (!follows() || !composite_.empty()) return {};
    const c10::TensorImpl* parameter = nullptr;
    for_each_tensor(stack, traits(op).arguments.size(), [&](const at::Tensor& tensor, std::size_t, int) {
      if (parameter == nullptr && code_->map.is_parameter(tensor.unsafeGetTensorImpl()))
        parameter = tensor.unsafeGetTensorImpl();
    });
    const auto found = code_->map.find(op, parameter, next_);
    if (!found) return {};
    if (found->follows || code_->instructions[found->at].opens) next_ = found->at + 1;
    return found->at;
  }

  /// Returns: the next instruction that is `op`; nothing if one before it has a precision.
  std::optional<std::size_t> find_captured(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
    const std::size_t end = composite_.empty() ? code_->instructions.size() : composite_.end;
    for (std::size_t at = next_; at < end; ++at) {
      const instruction& now = code_->instructions[at];
      if (now.op == op && reads_as_recorded(now, [&](std::size_t i) { return tensor_of(now, stack, i); })) {
        next_ = at + 1;
        return at;
      }
      if (now.opens || (*context_.graph)[now.index].choosable) return {};
    }
    return {};
  }
  /// Runs an operator that the recorded forward does not have there. If it computes, torch.compile has captured another
  /// forward.
  void capture_unrecorded(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
    const op_traits& known = traits(op);
    const bool computes =
        !known.is_in_place && !known.is_view && !known.is_copy && !known.word.starts_with("sym_");  // of a size
    for_each_tensor(stack, known.arguments.size(), [&](const at::Tensor& tensor, std::size_t, int) {
      if (computes && is_eligible(tensor, device())) captured_.note_stray(known.kind);
    });
    op.callBoxed(stack);
  }

  /// Runs a composite by the instructions of the operators inside it.
  void open(const instruction& composite, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
    const auto outer = std::exchange(composite_, {next_, composite.end});
    const auto done = c10::make_scope_exit([&] {
      composite_ = outer;
      next_ = composite.end;
    });
    if (composite.uniform && context_.autocast_plan == nullptr)
      cast_read_to_full(stack, traits(composite.op), device());
    call_opened(composite.op, keys, stack);
  }

  /// Goes to the next instruction of the running composite that is `op`, and begins the composite anew if none follows.
  /// A composite may be made of other operators than when it was recorded (a longer sequence, another kernel for
  /// another format). Returns: false if it has none.
  bool go_to_in_composite(const c10::OperatorHandle& op) {
    const auto [first, end] = composite_;
    for (std::size_t tried = 0, at = next_; tried < end - first; ++tried, ++at) {
      if (at >= end) at = first;
      if (code_->instructions[at].op == op) {
        next_ = at;
        return true;
      }
    }
    return false;
  }

  /// Runs the operator, which LibTorch's autocast casts, and notes what it computed in: the format of its results
  /// tells.
  void run_autocast(const instruction& now, torch::jit::Stack& stack) const {
    now.op.callBoxed(stack);
    if (!(*context_.graph)[now.index].choosable) return;
    bool low = false, full = false;
    for_each_tensor(stack, now.op.schema().returns().size(), [&](const at::Tensor& t, std::size_t, int) {
      if (is_eligible(t, device())) (t.scalar_type() == scalar_type(context_.low) ? low : full) = true;
    });
    (*context_.autocast_plan)[now.index] = low && !full ? context_.low : (*context_.graph)[now.index].as_written;
  }

  void run(const instruction& now, torch::jit::Stack& stack) {
    if (context_.autocast_plan != nullptr) return run_autocast(now, stack);
    const bool compares = context_.errors != nullptr && times_ == nullptr && !in_checkpoint;
    if (compares && (*context_.graph)[now.index].choosable) return context_.errors->run(now.op, now.index, stack);
    if (now.slots != 0) casts_.cast_inputs(now, stack);
    if (times_ != nullptr)
      return profiled(times_, now.index, stack, now.op.schema().returns().size(), [&] { run_slow_path(now, stack); });
    if (now.slow_path) return run_slow_path(now, stack);
    now.op.callBoxed(stack);
  }

  /// Runs an operator as its author wrote it. The plan lowers it, but it stands in a block of the author's now, and did
  /// not when it was recorded.
  void run_protected(const instruction& now, author_choice author, torch::jit::Stack& stack) const {
    cast_for_author(stack, traits(now.op), author, device());
    now.op.callBoxed(stack);
    if (now.hands_on_full) hand_on(now.op, stack, now.full, device());
  }

  void run_slow_path(const instruction& now, torch::jit::Stack& stack) const {
    if (now.follows_written) follow_written(stack, traits(now.op), device());
    if (now.wants_view) make_viewable(stack);
    if (now.wants_contiguous) make_contiguous(stack, now.arguments, device());
    if (!now.drawn_in.empty() && !captures_) lay_in_order(stack[stack.size() - now.arguments], now.drawn_in);
    if (!run_own(now, stack)) run_in(now.op, stack, now.tf32);
    if (now.hands_on_full) hand_on(now.op, stack, now.full, device());
    if (now.gives_contiguous) make_contiguous(stack, now.op.schema().returns().size(), device());
  }

  /// Runs the operator by comp's kernel. Returns: false if that does not serve these arguments.
  bool run_own(const instruction& now, torch::jit::Stack& stack) const {
    if (now.products) {
      if (!captures_ && run_scaled(traits(now.op), stack, *now.products)) return true;
      cast_read(stack, traits(now.op), now.target, device(), true);
    }
    if (captures_) return false;
    if (now.by_bits != nullptr) return now.by_bits(stack);
    if (now.own.parts == 0) return false;
    const op_info& recorded = (*context_.graph)[now.index];
    if (now.own.own->run(stack, now.arguments, now.own.parts, recorded)) return true;
    context_.problems->add(&program_problems::by_aten, [&] {
      return fmt::format("{} has arguments that comp's kernel does not take, such as other shapes", recorded.name);
    });
    return false;
  }

  /// Runs an operator that is not in the recorded sequence, as program_settings::otherwise says.
  void run_unrecorded(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
    if (code_->any_low) require_no_script_derivative(op, stack);
    const op_traits& known = traits(op);
    if (follows()) return run_unknown(op, known, stack);
    if (!goes_on_in_fp32_ && composite_.empty()) {
      goes_on_in_fp32_ = true;
      if (context_.settings->otherwise == on_mismatch::error) throw error{difference(known)};
      context_.problems->add(&program_problems::mismatches, [&] { return difference(known); });
    }
    if (context_.autocast_plan == nullptr) cast_to_full(stack, known, device());
    op.callBoxed(stack);
  }

  /// Runs an operator that the recorded forward does not have, in the precision of its name in the plan file, else as
  /// most of its kind.
  void run_unknown(const c10::OperatorHandle& op, const op_traits& known, torch::jit::Stack& stack) {
    std::string called;
    for_each_tensor(stack, known.arguments.size(), [&](const at::Tensor& tensor, std::size_t, int) {
      if (called.empty()) called = context_.names->name_of(known, tensor);
      reads_other_ = reads_other_ || (tensor.requires_grad() && tensor.is_leaf());
    });
    const author_choice author = context_.autocast_plan == nullptr ? block() : author_choice::none;
    const std::string layer = called.empty() ? called : layer_names{}.next(called, known.kind);
    const precision own = precision_of_full(full_format(stack, known, device()));
    const bool chooses = author == author_choice::none && !known.is_in_place && !known.is_view && !known.is_copy;
    const auto chosen = chooses && !(known.only_fp32 && own == precision::fp32)
                            ? (*context_.choose)(layer, known.kind, own)
                            : product_precisions{own, own};
    context_.problems->add(&program_problems::unknown, [&] {
      return fmt::format("{} of region \"{}\" was not in the recorded forward: it runs in {}",
                         called.empty() ? known.kind : called, context_.segment, name(chosen.forward));
    });
    if (code_->channels_last && known.is_aten_view) make_viewable(stack);
    if (code_->channels_last && !known.aten) make_contiguous(stack, known.arguments.size(), device());
    if (context_.autocast_plan != nullptr || !code_->any_low) return op.callBoxed(stack);
    detail::run_unrecorded(op, author, chosen, stack, device(), captures_);
  }

  std::string difference(const op_traits& actual) const {
    const bool over = next_ >= code_->instructions.size();
    const std::string recorded = over ? std::string{"nothing: it was the last"} : expected();
    return fmt::format(
        "operator {} of region \"{}\" is {}, recorded was {} (a plan goes by the recorded sequence; it changes if a "
        "forward depends on its data or mode): keep the forward the same "
        "from step to step, evaluate under {}, or {}",
        next_, context_.segment, actual.kind, recorded, by_language("program::evaluate()", "torch.no_grad()"),
        fp32_otherwise());
  }

  /// Returns: the next recorded operator, in words.
  std::string expected() const { return expected_at(code_->instructions[next_]); }
  std::string expected_at(const instruction& now) const {
    if (now.opens) return traits(now.op).kind;
    const op_info& op = (*context_.graph)[now.index];
    return fmt::format("{} (\"{}\")", op.kind, op.name);
  }

  /// The instructions of the innermost composite that is running; empty: none is.
  struct range {
    std::size_t first = 0, end = 0;
    bool empty() const { return first == end; }
  };

  executor_context context_;
  std::shared_ptr<const code> code_;
  input_casts casts_;
  std::shared_ptr<region_times> times_;
  std::size_t next_ = 0;
  range composite_ = {};
  bool goes_on_in_fp32_ = false;  // the forward has left the recorded sequence and goes on in FP32
  bool reads_other_ = false;      // an operator that was not recorded reads a parameter
  bool is_repeat_ = false;        // it runs a part of a forward again, in the backward
  bool captures_ = false;         // torch.compile runs the operators
  captured_part captured_;        // what it has captured so far
  std::unordered_map<const c10::TensorImpl*, const c10::TensorImpl*> stand_ins_;  // traced tensors; their parameters
};

}  // namespace comp::libtorch::detail
