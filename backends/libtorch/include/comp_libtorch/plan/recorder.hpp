// SPDX-License-Identifier: Apache-2.0
// Records the operators of a forward: core's op_graph, and what the executor must know beside it. Tensors are told
// apart by their identity and their count of in-place writes; their memory is not kept alive. Operators inside a
// torch::autograd::Function, or in what TorchScript has optimized, are seen one by one, but the backward is not. So
// these stay as they are written, and so do the tensors that the Function gets.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <c10/core/impl/TorchDispatchModeTLS.h>
#include <torch/csrc/autograd/variable.h>

#include <algorithm>
#include <comp/core/op_graph.hpp>
#include <comp_libtorch/hook/casting.hpp>
#include <comp_libtorch/hook/contraction.hpp>
#include <comp_libtorch/hook/listener.hpp>
#include <comp_libtorch/hook/op_names.hpp>
#include <comp_libtorch/hook/op_traits.hpp>
#include <comp_libtorch/hook/probe.hpp>
#include <comp_libtorch/plan/optimized_scripts.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>
#include <typeinfo>
#include <unordered_map>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

/// What a plan does with an operator.
enum class op_role : std::uint8_t {
  choosable,  // its inputs are cast to the precision that the plan gives it
  full,       // cannot run low: low inputs are cast back
  writes,     // takes what it gets; if it cannot promote, inputs follow the tensor that it writes
  as_is       // takes what it gets
};

/// An input that a plan may cast.
struct recorded_input {
  std::uint16_t argument = 0;
  std::int16_t element = -1;         // its place in a list of tensors; -1: it is in none
  bool affine = false;               // weight or bias of a norm
  std::uint32_t value = 0;           // inputs with the same number are one tensor, not written in between
  std::int32_t parameter = -1;       // its number among the parameters of the recording; -1: it is none
  at::ScalarType full = at::kFloat;  // its format without a plan
};

struct recorded_op {
  c10::OperatorHandle op;
  op_role role = op_role::as_is;
  at::ScalarType full = at::kFloat;    // what it computes in without a plan: FP32, or FP64 if it reads that
  at::ScalarType result = at::kFloat;  // in which its result goes into a Function: `full`, or what it converts to
  bool without_grad = false;
  bool hands_on_fp32 = false;  // its result goes into a torch::autograd::Function
  bool shares = false;         // a view whose storage is written through one tensor and read through another
  std::size_t segment = 0;
  std::uint64_t removed = removed_operators();  // when it was recorded
  std::vector<recorded_input> inputs = {};
  const c10::TensorImpl* parameter = nullptr;  // the first that it reads, which tells the module that calls it
  std::uint16_t parameter_argument = 0;
  std::vector<std::uint32_t> uncast = {};   // values that it reads or writes as they are
  std::vector<std::uint32_t> outputs = {};  // the values that it makes
  std::vector<bool> differentiable = {};    // by argument: its gradient is wanted
  std::vector<std::int64_t> drawn_in = {};  // if it draws random numbers: the axis order of its first argument
};

/// What a forward called: an operator, or a composite that is opened; if it has neither, the composite that began last
/// ends.
struct recorded_call {
  std::optional<std::uint32_t> index = {};  // the operator's, in the graph
  std::optional<c10::OperatorHandle> composite = {};
  bool uniform = false;  // the composite takes tensors of one format only
};

/// Second identities of tensors. x.float() gives x itself if that is FP32 while it is recorded, but under a plan x may
/// be low, and whoever reads x does not read the cast. So such a cast gives a twin of x, with its memory, its count of
/// writes and its node, and operators run on x itself, so that values and gradients stay as they are.
class twins {
 public:
  at::Tensor make(const at::Tensor& of) {
    forget_unread();
    const auto& impl = *of.unsafeGetTensorImpl();
    at::Tensor twin{impl.shallow_copy_and_detach(impl.version_counter(), true)};
    torch::autograd::impl::set_gradient_edge(twin, torch::autograd::impl::gradient_edge(of));
    pairs_.insert_or_assign(twin.unsafeGetTensorImpl(), pair{address_of(twin), of});
    return twin;
  }
  void forget_unread() {
    std::erase_if(pairs_, [](const auto& known) { return known.second.twin.expired(); });
  }
  /// Returns: null for a tensor that is no twin, or that has become a leaf.
  const at::Tensor* original(const at::Tensor& twin) const {
    const auto at = pairs_.find(twin.unsafeGetTensorImpl());
    if (at == pairs_.end() || at->second.twin.expired() || is_leaf_now(twin, at->second.original)) return nullptr;
    return &at->second.original;
  }
  /// An operator has written in place: twins get the shapes and nodes that their originals have now.
  void follow() {
    for (const auto& [impl, known] : pairs_) {
      const at::Tensor twin{known.twin.lock()};
      if (!twin.defined() || is_leaf_now(twin, known.original)) continue;
      twin.unsafeGetTensorImpl()->shallow_copy_from(known.original.getIntrusivePtr());
      torch::autograd::impl::set_gradient_edge(twin, torch::autograd::impl::gradient_edge(known.original));
    }
  }

 private:
  /// Returns: whether the user called requires_grad_() of the twin, which no operator tells: gradients then end in it.
  static bool is_leaf_now(const at::Tensor& twin, const at::Tensor& original) {
    return twin.requires_grad() && !original.requires_grad();
  }

  struct pair {
    tensor_address twin;
    at::Tensor original;
  };
  std::unordered_map<const c10::TensorImpl*, pair> pairs_;
};

class recorder {
 public:
  /// `under_plan`: operators run in a plan's precisions while they are recorded, instead of FP32. `tries_low`: see
  /// program_settings.
  recorder(const parameter_names& parameters, at::DeviceType device, bool under_plan, bool tries_low)
      : parameters_{&parameters}, device_{device}, under_plan_{under_plan}, tries_low_{tries_low}, names_{parameters} {}

  /// An operator that is about to run.
  struct call {
    recorded_op op;
    op_info info;
    op_names::named named;
    std::vector<std::pair<const c10::TensorImpl*, std::uint32_t>> read = {};  // tensors and their values
    std::vector<at::IValue> arguments = {};
    bool lowers = false;      // by a plan, itself or something that it reads: low results count as full ones
    bool gives_low = false;   // without a plan, too
    bool is_own_low = false;  // reads a parameter that the model itself has in a low format
  };

  /// Notes an operator that is about to run, and has it read originals in place of twins. `author`: the choice of the
  /// block in which it stands.
  call begin_call(const c10::OperatorHandle& op, torch::jit::Stack& stack, std::size_t segment, author_choice author) {
    const op_traits& known = traits(op);
    const bool without_grad = (!at::GradMode::is_enabled() && !in_checkpoint) || has_script_derivative();
    call current{{.op = op, .without_grad = without_grad, .segment = segment}, {}, names_.next(known, stack)};
    current.info.name = current.named.name;
    current.info.kind = known.kind;
    current.info.beyond_fp16 = has_number_beyond_fp16(op, stack);
    current.info.scopes = scopes_of(names_.path(current.named.scope));
    current.arguments = torch::jit::last(stack, known.arguments.size()).vec();
    bool sparse = false, nested = false, uncastable = false;
    for_each_tensor(stack, known.arguments.size(), [&](const at::Tensor& tensor, std::size_t, int) {
      const bool low = is_eligible(tensor, device_) && !is_full(tensor.scalar_type());
      current.is_own_low = current.is_own_low || (low && is_parameter(tensor));
    });
    current.op.differentiable.resize(known.arguments.size());
    for_each_tensor(stack, known.arguments.size(), [&](const at::Tensor& tensor, std::size_t argument, int element) {
      read(current, known, tensor, argument, element);
      const bool repeats = !at::GradMode::is_enabled() && parameters_->find(tensor) == nullptr;  // in a checkpoint
      if (!without_grad && (tensor.requires_grad() || repeats)) current.op.differentiable[argument] = true;
      sparse = sparse || tensor.layout() != at::kStrided;
      uncastable = uncastable || (is_compressed(tensor) && current.op.differentiable[argument]);
      nested = nested || has_symbolic_sizes(tensor);
      if (argument == 0 && known.is_random && !sparse) current.op.drawn_in = order_in_memory(tensor);
    });
    for (const recorded_input& input : current.op.inputs) {
      if (input.full == at::kDouble) current.op.full = at::kDouble;
    }
    current.info.as_written = precision_of_full(current.op.full);
    current.op.role = role(known, current);
    for_each_tensor(stack, known.arguments.size(), [&](const at::Tensor& tensor, std::size_t argument, int) {
      const bool running = known.arguments[argument] == argument_use::kept && tensor.scalar_type() == at::kDouble;
      if (running && current.op.role == op_role::choosable) current.op.role = op_role::full;  // FP64 statistics
    });
    const bool unknown = sparse || !known.aten;
    if (uncastable && current.op.role == op_role::choosable) current.op.role = op_role::full;
    const bool doubtful = current.op.role == op_role::choosable && (unknown || (tries_low_ && !in_transform()));
    if (doubtful && (nested || !runs_low(op, known, stack, device_, !unknown))) current.op.role = op_role::full;
    // Also x.to(device, dtype) of an x that has the format without a plan.
    current.info.asks_format = (current.op.role == op_role::choosable || known.is_copy) && asks_format(known, stack);
    if (current.op.role == op_role::choosable && current.info.asks_format) {
      current.op.role = op_role::as_is;
      current.lowers = false;  // its result has the format that it asks for
    }
    if (author != author_choice::none && current.op.role == op_role::choosable) {
      current.op.role = op_role::full;
      current.info.author = author;
      current.lowers = false;  // it reads what it would without a plan
    }
    current.lowers = current.lowers && !current.is_own_low;
    current.op.result = known.is_copy && !current.lowers ? at::kFloat : current.op.full;
    replace(
        stack, known.arguments.size(), device_, [&](const at::Tensor& t) { return twins_.original(t) != nullptr; },
        [&](const at::Tensor& t) { return *twins_.original(t); });
    return current;
  }

  /// Records an operator that has run; its results are on top of the stack.
  void end_call(call current, torch::jit::Stack& stack) {
    const op_traits& known = traits(current.op.op);
    if (known.is_in_place) twins_.follow();
    tell_apart(current, known, stack);
    const auto index = static_cast<std::int32_t>(ops_.size());
    has_lowered_ = has_lowered_ || current.lowers;
    at::Tensor first;
    bool floating = false, complex = false;
    for_each_tensor(stack, current.op.op.schema().returns().size(), [&](const at::Tensor& tensor, std::size_t, int) {
      if (!first.defined()) first = tensor;
      floating = floating || is_eligible(tensor, device_);
      complex = complex || tensor.is_complex();
      add_result(current, known, tensor, index);
      current.info.outputs.push_back(described(tensor, find(tensor)));
    });
    if (known.is_in_place) add_written(current, known, index);
    if ((known.is_aten_view || known.is_reshape) && first.has_storage())
      views_[first.storage().unsafeGetStorageImpl()].push_back(ops_.size());
    if (complex && current.op.role == op_role::choosable) current.op.role = op_role::full;  // complex128 stays
    if (current.op.inputs.empty() && first.defined() && first.scalar_type() == at::kDouble)
      current.info.as_written = precision::fp64;
    if (!floating && (current.op.role == op_role::choosable || current.info.author != author_choice::none)) {
      // allclose, equal and searchsorted refuse two formats
      const bool compares = current.op.role == op_role::choosable && current.op.inputs.size() > 1;
      current.op.role = compares ? op_role::full : op_role::as_is;
      current.info.author = author_choice::none;
    }
    const bool makes_full = known.is_copy && first.defined() && is_full(first.scalar_type());
    if (makes_full && !current.lowers) current.op.result = first.scalar_type();
    current.info.choosable = current.op.role == op_role::choosable;
    measure(current.info, known, current.arguments, first);
    std::ranges::sort(current.info.producers);
    current.info.producers.erase(std::unique(current.info.producers.begin(), current.info.producers.end()),
                                 current.info.producers.end());
    ops_.push_back(std::move(current.op));
    infos_.push_back(std::move(current.info));
  }

  /// Returns: the format that `tensor` has without a plan; FP32 for one that the model itself has in a lower one.
  at::ScalarType full_format(const at::Tensor& tensor) {
    const at::ScalarType without_plan = find(tensor).without_plan(tensor);
    return is_full(without_plan) ? without_plan : at::kFloat;
  }

  /// From now on whoever reads `copy`, which is `source` in another format, counts as a reader of `source`.
  void add_copy(const at::Tensor& copy, const at::Tensor& source) {
    origin same = find(source);
    same.keep = address_of(copy);
    same.lowered = false;
    origins_.insert_or_assign(copy.unsafeGetTensorImpl(), std::move(same));
    names_.add_copy(copy, source);
  }

  /// `now` is `was` behind a torch::autograd::Function that changes no values: it has the same producer.
  void pass_on(const at::Tensor& was, const at::Tensor& now) {
    origin same = find(was);
    same.keep = address_of(now);
    same.value = values_seen_++;  // gradients go through the Function, so it shares no cast with `was`
    origins_.insert_or_assign(now.unsafeGetTensorImpl(), std::move(same));
    names_.add_copy(now, was);
  }

  /// Looks for results of a torch::autograd::Function that no operator has read.
  void end_of_segment() {
    twins_.forget_unread();
    for (const auto& [impl, from] : origins_) {
      if (!from.without_grad || from.producer < 0) continue;
      if (auto alive = from.keep.lock()) look_for_function(at::Tensor{std::move(alive)}, from);
    }
  }

  const std::vector<recorded_op>& ops() const { return ops_; }
  const std::vector<op_info>& infos() const { return infos_; }
  op_names& names() { return names_; }
  /// Returns: true if the model converted a tensor to a low format, or made one in it, while a plan ran. It may have
  /// done so by itself or because the plan had made another tensor low. So it is not sure that a recording in FP32
  /// would have been the same.
  bool is_unsure() const { return unsure_; }

 private:
  struct origin {
    tensor_address keep;
    std::int32_t producer = -1;  // index of the operator that made it; -1: the user
    std::uint32_t value = 0;
    std::int32_t parameter = -1;
    bool without_grad = false;  // made while gradients were off
    bool lowered = false;       // by a plan that ran while recording: it counts as `full`
    at::ScalarType full = at::kFloat;
    at::ScalarType without_plan(const at::Tensor& tensor) const { return lowered ? full : tensor.scalar_type(); }
  };
  /// The operator that wrote a storage last.
  struct writer {
    c10::weak_intrusive_ptr<c10::StorageImpl> keep;
    std::int32_t op = -1;
  };

  /// Returns: true for the node of an operator of ATen. A tensor that has one and that no operator here made came out
  /// of a backward in the region, or was there before it.
  static bool is_of_aten(const torch::autograd::Node& node) {
    return std::string_view{typeid(node).name()}.find("9generated") != std::string_view::npos;
  }

  origin& find(const at::Tensor& tensor) {
    const auto [at, added] = origins_.try_emplace(tensor.unsafeGetTensorImpl(), origin{address_of(tensor)});
    if (added) {
      const auto* node = torch::autograd::impl::grad_fn_unsafe(tensor);
      at->second.lowered = under_plan_ && has_lowered_ && node != nullptr && is_of_aten(*node) &&
                           is_eligible(tensor, device_) && !is_full(tensor.scalar_type());  // a gradient
      at->second.value = values_seen_++;
      if (is_parameter(tensor)) at->second.parameter = parameters_seen_++;
    }
    return at->second;
  }

  bool is_parameter(const at::Tensor& tensor) const {
    return (tensor.requires_grad() && tensor.is_leaf()) || parameters_->find(tensor) != nullptr;
  }

  void read(call& current, const op_traits& known, const at::Tensor& tensor, std::size_t argument, int element) {
    const origin& from = find(tensor);
    look_for_function(tensor, from);
    const std::int32_t last = std::max(from.producer, last_writer(tensor));
    if (from.producer >= 0) current.info.producers.push_back(static_cast<std::size_t>(from.producer));
    if (last > from.producer) {
      current.info.producers.push_back(static_cast<std::size_t>(last));
      for (const std::size_t view : views_[tensor.storage().unsafeGetStorageImpl()]) ops_[view].shares = true;
    }
    current.lowers = current.lowers || from.lowered;
    current.info.inputs.push_back(described(tensor, from));
    current.info.inputs.back().parameter = from.parameter >= 0;
    if (is_wrapped_number(tensor)) {
      current.info.inputs.back().floating = false;
      current.info.inputs.back().number = true;
    }
    current.info.inputs.back().source = last;
    current.read.emplace_back(tensor.unsafeGetTensorImpl(), from.value);
    if (element < 0 && current.op.parameter == nullptr && is_parameter(tensor)) {
      current.op.parameter = tensor.unsafeGetTensorImpl();
      current.op.parameter_argument = static_cast<std::uint16_t>(argument);
    }
    const argument_use use = known.arguments[argument];
    const bool may_be_cast = (use == argument_use::read || use == argument_use::affine) &&
                             !is_number_beside_values(tensor, known, current.arguments, device_);
    const bool counts_as_full = is_full(tensor.scalar_type()) || (from.lowered && !current.is_own_low);
    if (!may_be_cast || !is_eligible(tensor, device_) || !counts_as_full) {
      current.op.uncast.push_back(from.value);
      return;
    }
    current.op.inputs.push_back({static_cast<std::uint16_t>(argument), static_cast<std::int16_t>(element),
                                 use == argument_use::affine && !has_bias_alone(known, current.arguments), from.value,
                                 from.parameter, is_wrapped_number(tensor) ? at::kFloat : from.without_plan(tensor)});
  }

  /// Replaces a result that is an argument: by the twin that was given for it, or, behind a cast to the format that it
  /// has, by a new twin. Leaves and what no operator made are the same tensor under every plan.
  void tell_apart(call& current, const op_traits& known, torch::jit::Stack& stack) {
    if (!stack.back().isTensor() || !is_eligible(stack.back().toTensor(), device_)) return;
    const at::Tensor result = stack.back().toTensor();
    for_each_tensor(current.arguments, current.arguments.size(), [&](const at::Tensor& given, std::size_t i, int) {
      const at::Tensor* original = twins_.original(given);
      if (i != 0 || !result.is_same(original == nullptr ? given : *original)) return;
      const bool casts = known.aten && has_name("to type_as", known.word) && find(given).producer >= 0;
      if (casts && !(result.is_leaf() && result.requires_grad()) && can_have_twin(result)) {
        const at::Tensor twin = twins_.make(result);
        origin same = find(given);
        same.keep = address_of(twin);
        current.read.emplace_back(twin.unsafeGetTensorImpl(), same.value);
        origins_.insert_or_assign(twin.unsafeGetTensorImpl(), std::move(same));
        stack.back() = twin;
      } else {
        stack.back() = given;
      }
    });
  }
  static bool can_have_twin(const at::Tensor& tensor) {
    return tensor.layout() == at::kStrided && !tensor.is_inference() && !has_symbolic_sizes(tensor) &&
           !in_transform() && !tensor.key_set().has(c10::DispatchKey::Python) &&
           !c10::impl::TorchDispatchModeTLS::any_modes_set();
  }

  static tensor_info described(const at::Tensor& tensor, const origin& from) {
    tensor_info info = describe(tensor);
    if (from.lowered) info.dtype = precision_of_full(from.full);
    return info;
  }

  static op_role role(const op_traits& known, const call& current) {
    if (known.is_in_place) return op_role::writes;
    if (known.is_view || known.is_copy || current.op.inputs.empty()) return op_role::as_is;
    return known.only_fp32 && current.op.full == at::kFloat ? op_role::full : op_role::choosable;
  }

  std::int32_t last_writer(const at::Tensor& tensor) const {
    if (writers_.empty() || !tensor.has_storage()) return -1;
    const auto at = writers_.find(tensor.storage().unsafeGetStorageImpl());
    return at == writers_.end() ? -1 : at->second.op;
  }

  void add_result(call& current, const op_traits& known, const at::Tensor& tensor, std::int32_t index) {
    names_.add_result(current.named, tensor);
    if (const auto* node = torch::autograd::impl::grad_fn_unsafe(tensor))
      makers_.insert_or_assign(node, static_cast<std::size_t>(index));
    const auto passed =
        std::ranges::find(current.read, tensor.unsafeGetTensorImpl(), [](const auto& r) { return r.first; });
    const bool same = passed != current.read.end() && !known.is_in_place;
    const bool without = current.op.without_grad && torch::autograd::impl::grad_fn_unsafe(tensor) == nullptr;
    const bool is_low = is_eligible(tensor, device_) && is_below(tensor.scalar_type(), current.op.full);
    const bool makes = known.is_copy || current.read.empty();  // zeros(shape, h.options()) too, in the format of h
    const bool converted =
        under_plan_ && has_lowered_ && is_low && makes && !current.lowers && !current.gives_low && !same;
    unsure_ = unsure_ || converted;
    origin& now = find(tensor);
    now.lowered = is_low && (current.lowers || converted);
    now.full = current.op.full;
    now.producer = index;
    now.without_grad = without;
    now.parameter = same ? now.parameter : -1;
    if (!same) now.value = values_seen_++;
    current.op.outputs.push_back(now.value);
  }

  void add_written(call& current, const op_traits& known, std::int32_t index) {
    for_each_tensor(current.arguments, known.arguments.size(), [&](const at::Tensor& tensor, std::size_t i, int) {
      if (known.arguments[i] != argument_use::written) return;
      add_result(current, known, tensor, index);
      if (!tensor.has_storage()) return;
      c10::StorageImpl* storage = tensor.storage().unsafeGetStorageImpl();
      writers_.insert_or_assign(storage, writer{tensor.storage().getWeakStorageImpl(), index});
    });
  }

  /// Looks whether `tensor` came out of a torch::autograd::Function: it has a node now, but was made while gradients
  /// were off or by no operator that was seen. Code that is not seen also reads what went into the Function, so that is
  /// handed on in FP32. A tensor without elements does not count: torch.utils.checkpoint keeps its inputs by one.
  void look_for_function(const at::Tensor& tensor, const origin& from) {
    const torch::autograd::Node* node = torch::autograd::impl::grad_fn_unsafe(tensor);
    if (node == nullptr || (!has_symbolic_sizes(tensor) && tensor.numel() == 0) ||
        (!from.without_grad && from.producer >= 0))
      return;
    if (from.producer < 0 && is_of_aten(*node)) return;
    for (const torch::autograd::Edge& edge : node->next_edges()) {
      if (const auto maker = makers_.find(edge.function.get()); maker != makers_.end()) hand_on_fp32(maker->second);
    }
    if (from.producer < 0) return;
    const auto made_by = static_cast<std::size_t>(from.producer);
    for (std::size_t i = made_by; keep_fp32(i, ops_[made_by].segment) && i > 0; --i) continue;
    for (std::size_t i = made_by + 1; i < ops_.size() && keep_fp32(i, ops_[made_by].segment); ++i) continue;
  }
  /// Keeps operator `i` in FP32 if it belongs to the Function. Returns: whether it does.
  bool keep_fp32(std::size_t i, std::size_t segment) {
    recorded_op& op = ops_[i];
    if (!op.without_grad || op.segment != segment) return false;
    if (op.role == op_role::choosable) op.role = op_role::full;
    infos_[i].choosable = false;
    infos_[i].author = author_choice::none;
    for (const std::size_t producer : infos_[i].producers) hand_on_fp32(producer);
    return true;
  }
  void hand_on_fp32(std::size_t i) {
    const bool planned = !ops_[i].without_grad && infos_[i].author == author_choice::none;
    if (planned) ops_[i].hands_on_fp32 = infos_[i].hands_on_fp32 = true;
  }

  const parameter_names* parameters_;
  at::DeviceType device_;
  bool under_plan_, tries_low_;
  bool has_lowered_ = false;  // the plan has, so far
  bool unsure_ = false;
  op_names names_;
  twins twins_;
  std::unordered_map<const c10::TensorImpl*, origin> origins_;
  std::unordered_map<const c10::StorageImpl*, writer> writers_;
  // By address, never dereferenced. A new node at an old address makes an operator hand on FP32 without need, no more.
  std::unordered_map<const torch::autograd::Node*, std::size_t> makers_;
  std::unordered_map<const c10::StorageImpl*, std::vector<std::size_t>> views_;
  std::vector<recorded_op> ops_;
  std::vector<op_info> infos_;
  std::uint32_t values_seen_ = 0;
  std::int32_t parameters_seen_ = 0;
};

}  // namespace comp::libtorch::detail
