// SPDX-License-Identifier: Apache-2.0
// Composites: operators that ATen makes of others, such as einsum, lstm, tensordot and linalg_multi_dot. LibTorch's
// autocast has no rule for them and casts the products inside them. So a plan has these products one by one, and not
// the composite.
// A trial decides which composites are opened: those that call a product with an autocast rule when they run on tensors
// without memory. A list has those that call one for some arguments only (einsum) or look at data before (cov), which
// the trial has not. Composites with a rule of their own (linear, matmul) stay whole. So do those without such a
// product (dropout, flatten). Kernels below autograd that call products (affine_grid_generator) stay whole, too:
// autograd would not see a cast in them.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <c10/util/ScopeExit.h>

#include <comp_libtorch/hook/casting.hpp>
#include <comp_libtorch/hook/dispatch_key.hpp>
#include <comp_libtorch/hook/op_traits.hpp>
#include <comp_libtorch/support/generators.hpp>
#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

namespace comp::libtorch::detail {

/// Runs `op` so that the operators inside it come to the listener one by one. For a listener that was called with `op`:
/// comp's key is excluded then, and is let in again while `op` runs.
inline void call_opened(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  c10::impl::tls_set_dispatch_key_excluded(claimed_key, false);
  const auto exclude_again = c10::make_scope_exit([] { c10::impl::tls_set_dispatch_key_excluded(claimed_key, true); });
  // `op` itself goes on below comp's key
  op.redispatchBoxed(keys & c10::DispatchKeySet{c10::DispatchKeySet::FULL_AFTER, claimed_key}, &stack);
}

/// Returns: true if autocast has a rule for `op` on `device`. Autocast then does not look inside it.
inline bool has_autocast_rule(const c10::OperatorHandle& op, at::DeviceType device) {
  return op.hasKernelForDispatchKey(at::autocast::get_autocast_dispatch_key_from_device_type(device));
}

/// Returns: true if ATen makes `op` of other operators above autograd, and it neither writes nor views nor copies.
inline bool is_composite(const c10::OperatorHandle& op) {
  const op_traits& known = traits(op);
  return !known.is_in_place && !known.is_view && !known.is_copy &&
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

/// The listener of the trial. It opens composites and throws `product` at the first product with an autocast rule.
class product_finder final : public listener {
 public:
  struct product {};
  explicit product_finder(at::DeviceType device) : device_{device} {}
  void called(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) override {
    const bool ruled = has_autocast_rule(op, device_);
    if (ruled && traits(op).aten && by_name::is_product(traits(op).word)) throw product{};
    if (!ruled && is_composite(op)) return call_opened(op, keys, stack);
    op.callBoxed(stack);
  }

 private:
  at::DeviceType device_;
};

/// Returns: the arguments on top of `stack`, with floating tensors replaced by ones without memory, low ones by FP32:
/// a recording is of the model as written.
inline torch::jit::Stack bare_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                        at::DeviceType device) {
  torch::jit::Stack bare = torch::jit::last(stack, traits(op).arguments.size()).vec();
  replace(
      bare, bare.size(), device, [](const at::Tensor& t) { return t.layout() == at::kStrided; },
      [](const at::Tensor& t) {
        return at::empty_strided(
            t.sizes(), t.strides(),
            t.options().dtype(is_full(t.scalar_type()) ? t.scalar_type() : at::kFloat).device(at::kMeta));
      });
  return bare;
}

/// Returns: whether `op` calls a product with an autocast rule; nothing if it raises before.
inline std::optional<bool> calls_product(const c10::OperatorHandle& op, torch::jit::Stack arguments,
                                         at::DeviceType device) {
  const generator_guard random{device};
  product_finder finder{device};
  try {
    const listening_guard listens{&finder};
    op.callBoxed(arguments);  // comes to `finder`, which opens it
    return false;
  } catch (const product_finder::product&) {
    return true;
  } catch (const std::exception&) {  // the operator needs data, or one format
    return {};
  }
}

/// Returns: true for a composite whose products a plan has one by one. The arguments are on top of `stack`.
inline bool has_products(const c10::OperatorHandle& op, const torch::jit::Stack& stack, at::DeviceType device) {
  if (!is_composite(op) || has_autocast_rule(op, device)) return false;
  if (traits(op).aten && by_name::is_composed_product(traits(op).word)) return true;
  const at::NoGradGuard no_gradients;
  return calls_product(op, bare_arguments(op, stack, device), device).value_or(false);
}

/// Returns: true if a composite with products takes FP32 and refuses a mix of BF16 and FP32 tensors. After a lowered
/// operator it would get such a mix, so its tensors are cast to FP32 before it runs.
inline bool needs_one_format(const c10::OperatorHandle& op, const torch::jit::Stack& stack, at::DeviceType device) {
  const at::NoGradGuard no_gradients;
  torch::jit::Stack mixed = bare_arguments(op, stack, device);
  bool one_is_low = false;
  replace(
      mixed, mixed.size(), at::kMeta, [&](const at::Tensor&) { return !one_is_low; },
      [&](const at::Tensor& t) {
        one_is_low = true;
        return at::_to_copy(t, t.options().dtype(at::kBFloat16));
      });
  return !calls_product(op, std::move(mixed), device) && calls_product(op, bare_arguments(op, stack, device), device);
}

/// Remembers which operators are opened, so that the trial runs once for each. For forwards that are not recorded. Use
/// from several threads is safe.
class known_composites {
 public:
  /// Returns: nothing if `op` is not opened; else whether its tensors must have one format.
  std::optional<bool> find(const c10::OperatorHandle& op, const torch::jit::Stack& stack, at::DeviceType device) {
    {
      const std::lock_guard only_one{mutex_};
      forget_removed();
      if (const auto at = known_.find(op); at != known_.end()) return at->second;
    }
    std::optional<bool> uniform;
    if (has_products(op, stack, device)) uniform = needs_one_format(op, stack, device);
    const std::lock_guard only_one{mutex_};
    return known_.emplace(op, uniform).first->second;
  }
  /// Returns: true if find() makes no trial, because `op` is none that ATen makes of others or was tried before.
  bool knows(const c10::OperatorHandle& op) {
    const std::lock_guard only_one{mutex_};
    forget_removed();
    return !is_composite(op) || known_.contains(op);
  }

 private:
  void forget_removed() {
    if (const auto now = removed_operators(); std::exchange(removed_, now) != now) known_.clear();
  }

  std::mutex mutex_;
  std::unordered_map<c10::OperatorHandle, std::optional<bool>> known_;
  std::uint64_t removed_ = 0;
};

}  // namespace comp::libtorch::detail
