// SPDX-License-Identifier: Apache-2.0
// Runs a first forward under a plan while it is recorded, operator by operator, so that it needs no more memory than
// the later ones. What later operators will read is not known yet. So a cast is shared only while somebody else keeps
// it (autograd, for a backward); copies of leaves that train are shared until the region ends.
#pragma once

#include <algorithm>
#include <comp/core/precision.hpp>
#include <comp_libtorch/hook/casting.hpp>
#include <comp_libtorch/hook/tf32.hpp>
#include <comp_libtorch/plan/first_plan.hpp>
#include <comp_libtorch/plan/instructions.hpp>
#include <comp_libtorch/plan/optimized_scripts.hpp>
#include <comp_libtorch/plan/recording.hpp>
#include <comp_libtorch/support/exceptions.hpp>
#include <cstddef>
#include <memory>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

/// The casts of one forward. A cast that nobody keeps is made again when it is read again.
class cast_cache {
 public:
  at::Tensor get(const at::Tensor& source, at::ScalarType type) {
    std::vector<entry>& known = casts_[source.unsafeGetTensorImpl()];
    std::erase_if(known, [&](const entry& e) { return !e.is_of(source); });
    if (const auto at = std::ranges::find(known, type, &entry::type); at != known.end()) {
      const at::Tensor copy{at->copy.lock()};
      if (copy.defined() && at->serves(copy, source)) return for_next_reader(copy, source);
      known.erase(at);
    }
    at::Tensor copy = cast(source, type, at::MemoryFormat::Preserve);
    known.push_back({address_of(source), address_of(copy), version(*source.unsafeGetTensorImpl()),
                     version(*copy.unsafeGetTensorImpl()), type});
    return copy;
  }

 private:
  struct entry {
    tensor_address source, copy;
    std::uint32_t source_version, copy_version;
    at::ScalarType type;
    bool is_of(const at::Tensor& tensor) const {
      return !source.expired() && source_version == version(*tensor.unsafeGetTensorImpl());
    }
    bool serves(const at::Tensor& cast, const at::Tensor& from) const {
      return copy_version == version(*cast.unsafeGetTensorImpl()) && differentiates_like(cast, from);
    }
  };

  std::unordered_map<const c10::TensorImpl*, std::vector<entry>> casts_;
};

/// Runs operators by what is known of them before the rest of the forward has come by.
class first_runner {
 public:
  explicit first_runner(at::DeviceType device) : device_{device} {}

  void operator()(const recorded_op& operation, const first_choice& choice, torch::jit::Stack& stack) {
    const op_traits& known = traits(operation.op);
    const bool computes = operation.role == op_role::choosable || operation.role == op_role::full;
    const precision own = precision_of_full(operation.full);
    const auto products = operation.role == op_role::choosable ? choice.chosen : product_precisions{own, own};
    const precision now = products.forward;
    if (computes) cast_inputs(operation, products, stack);
    if (operation.role == op_role::writes && !known.pointwise && !operation.inputs.empty())
      follow_written(stack, known, device_);
    const bool rounded = products.need_rounding() && run_scaled(known, stack, products);
    if (products.need_rounding() && !rounded) cast_read(stack, known, scalar_type(now), device_, true);
    if (!rounded) run_in(operation.op, stack, now == precision::tf32);
    if (choice.hands_on_fp32) hand_on(operation.op, stack, operation.result, device_);
  }

 private:
  void cast_inputs(const recorded_op& operation, const product_precisions& now, torch::jit::Stack& stack) {
    const bool as_written = now.forward == precision_of_full(operation.full);
    const op_traits& known = traits(operation.op);
    const std::size_t first = stack.size() - known.arguments.size();
    for (const recorded_input& input : operation.inputs) {
      const at::ScalarType to = as_written ? input.full : scalar_type(now.forward);  // FP32 beside FP64 stays
      at::IValue& value = stack[first + input.argument];
      if (takes_as_is(known, now, input.argument)) continue;
      if (as_written && value.isTensor() && is_wrapped_number(value.toTensor())) continue;
      if (input.affine && keeps_affine(known, to, device_)) continue;
      if (input.element < 0) {
        value = converted(value.toTensor(), to);
      } else if (value.isTensorList()) {
        c10::List<at::Tensor> list = value.toTensorList().copy();  // the caller's own list stays as it is
        const auto element = static_cast<std::size_t>(input.element);
        list.set(element, converted(list.get(element), to));
        value = std::move(list);
      }
    }
  }
  /// Returns: the cast of `tensor`. A copy of a leaf lives as long as the region, as in later forwards, so that the
  /// gradients of all its readers meet in it.
  at::Tensor converted(const at::Tensor& tensor, at::ScalarType to) {
    if (tensor.scalar_type() == to) return tensor;
    at::Tensor copy = casts_.get(tensor, to);
    if (tensor.is_leaf() && tensor.requires_grad()) copies_.push_back(copy);
    return copy;
  }

  at::DeviceType device_;
  cast_cache casts_;
  std::vector<at::Tensor> copies_;
};

/// An operator of a first forward, or a composite that was opened.
struct first_call {
  c10::OperatorHandle op;
  std::optional<recorded_op> operation = {};
  first_choice choice = {};
  bool outside_plan = false;  // ran in FP32, behind an operator that is not in the file
};
/// Runs an operator of a forward that has left the file: in FP32.
inline void run_outside_plan(const c10::OperatorHandle& op, torch::jit::Stack& stack, at::DeviceType device) {
  cast_to_full(stack, traits(op), device);
  op.callBoxed(stack);
}
using first_calls = std::vector<first_call>;

/// Runs a checkpoint of a first forward again in the backward, by the calls that were noted in the forward.
class repeated_checkpoint final : public session {
 public:
  repeated_checkpoint(std::shared_ptr<const first_calls> calls, std::size_t next, at::DeviceType device)
      : session{device}, calls_{std::move(calls)}, next_{next}, run_{device} {}

  void called(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) override {
    const bool is_next = next_ < calls_->size() && (*calls_)[next_].op == op;
    if (!is_next && traits(op).is_copy) return op.callBoxed(stack);  // a checkpoint inside detaches what it keeps
    require<error>(
        is_next,
        "a checkpoint that is run again calls {}, which it did not call then (it depends on what has changed "
        "since): make it give the same for the same inputs",
        traits(op).kind);
    const first_call& earlier = (*calls_)[next_++];
    if (earlier.operation) return run_(*earlier.operation, earlier.choice, stack);
    if (earlier.outside_plan) return run_outside_plan(op, stack, device());
    cast_read_to_full(stack, traits(op), device());
    call_opened(op, keys, stack);
  }
  resumption from_here() const override { return of(calls_, next_, device()); }

  static resumption of(std::shared_ptr<const first_calls> calls, std::size_t next, at::DeviceType device) {
    return [calls = std::move(calls), next, device]() -> std::unique_ptr<session> {
      return std::make_unique<repeated_checkpoint>(calls, next, device);
    };
  }

 private:
  std::shared_ptr<const first_calls> calls_;
  std::size_t next_;
  first_runner run_;
};

/// A region that runs under a plan while it is recorded.
class first_forward final : public recording_session {
 public:
  first_forward(std::shared_ptr<recording> to, std::string segment, at::DeviceType device, bool frees_blocks,
                std::shared_ptr<const first_plan> plan)
      : recording_session{std::move(to), std::move(segment), device, frees_blocks},
        plan_{std::move(plan)},
        run_{device} {}

  bool begin() override {
    if (plan_->autocast) begin_autocast(*plan_->autocast);
    return true;
  }
  resumption from_here() const override {
    return plan_->autocast ? resumption{} : repeated_checkpoint::of(calls_, calls_->size(), device());
  }

  void called(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) override {
    const author_choice author = block();
    if (has_left_plan_) return run_fp32(op, stack);
    if (has_products(op, stack, device())) return open(op, keys, stack);
    recorder::call now = recording_->begin_call(op, stack, segment_, author);
    first_choice choice;
    try {
      choice = plan_->choose(recording_->next_number(), now.info, now.named.layer);
    } catch (const plan_error&) {
      if (depth_ == 0) throw;
      has_left_plan_ = true;  // a composite may be made of other operators in other formats
      recording_->make_unsure();
      return run_fp32(op, stack);
    }
    const precision own = now.info.as_written;
    if (now.info.beyond_fp16 && choice.chosen.forward == precision::fp16) choice.chosen = {own, own};
    const bool lowers = now.op.role == op_role::choosable && is_lowered(now.info, choice.chosen.forward);
    has_lowered_ = has_lowered_ || lowers;
    if (has_lowered_ && !plan_->autocast && has_script_derivative()) refuse_script_derivative();
    now.gives_low = choice.gives_low;
    now.lowers = now.lowers || (plan_->autocast && author != author_choice::autocast_on) || lowers;
    calls_->push_back({op, now.op, choice});
    if (plan_->autocast) {
      op.callBoxed(stack);
    } else if (has_lowered_) {
      naming(now.info.kind, now.info.name, [&] { run_(now.op, choice, stack); });
    } else {
      run_(now.op, choice, stack);
    }
    recording_->end_call(std::move(now), stack);
  }

 private:
  void open(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
    calls_->push_back({op});
    if (!plan_->autocast) cast_to_record(stack, traits(op).arguments.size());
    ++depth_;
    const auto close = c10::make_scope_exit([&] { --depth_; });
    record_opened(op, keys, stack);
  }

  /// Casts the arguments of a composite back, since it is recorded as it is written.
  void cast_to_record(torch::jit::Stack& stack, std::size_t arguments) {
    replace(
        stack, arguments, device(),
        [&](const at::Tensor& t) { return is_below(t.scalar_type(), recording_->full_format(t)); },
        [&](const at::Tensor& t) {
          at::Tensor full = cast(t, recording_->full_format(t), at::MemoryFormat::Preserve);
          recording_->add_copy(full, t);
          return full;
        });
  }

  void run_fp32(const c10::OperatorHandle& op, torch::jit::Stack& stack) const {
    calls_->push_back({.op = op, .outside_plan = true});
    if (plan_->autocast) return op.callBoxed(stack);
    run_outside_plan(op, stack, device());
  }

  std::shared_ptr<const first_plan> plan_;
  first_runner run_;
  std::shared_ptr<first_calls> calls_ = std::make_shared<first_calls>();  // what has run, for checkpoints
  std::size_t depth_ = 0;                                                 // open composites
  bool has_left_plan_ = false;  // the forward has left the file, in a composite
  bool has_lowered_ = false;    // the plan has, so far
};

}  // namespace comp::libtorch::detail
