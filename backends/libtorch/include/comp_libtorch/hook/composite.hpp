// SPDX-License-Identifier: Apache-2.0
// Operators that ATen makes of others (einsum, lstm, tensordot, linalg_multi_dot): LibTorch's autocast has no rule for
// them and casts the products that they are made of, so a plan has those, one by one, and not the composite.
// Which ones is asked, not listed: a composite is opened when a trial on tensors without memory calls a product that
// autocast has a rule for. Composites that have a rule of their own (linear, matmul) stay whole, and so do those
// without such a product (dropout, flatten) or that look at data before it (cov), which the trial has none of.
// Not here: kernels below autograd that call products (affine_grid_generator), where a plan would cast unseen.
#pragma once

#include <ATen/autocast_mode.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/grad_mode.h>
#include <ATen/ops/empty_strided.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

#include <comp_libtorch/hook/casting.hpp>
#include <comp_libtorch/hook/dispatch_key.hpp>
#include <comp_libtorch/hook/op_traits.hpp>
#include <comp_libtorch/hook/probe.hpp>
#include <cstddef>
#include <exception>
#include <mutex>
#include <optional>
#include <unordered_map>
#include <utility>

namespace comp::libtorch::detail {

/// Runs `op` so that the operators that it is made of come to the listener. Called by a listener, of `op`.
inline void call_opened(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
  struct inner_operators_are_seen {
    inner_operators_are_seen() { c10::impl::tls_set_dispatch_key_excluded(claimed_key, false); }
    ~inner_operators_are_seen() { c10::impl::tls_set_dispatch_key_excluded(claimed_key, true); }
  } const while_it_runs;
  op.redispatchBoxed(keys & c10::DispatchKeySet{c10::DispatchKeySet::FULL_AFTER, claimed_key}, &stack);
}

/// True where autocast has a rule for `op` on `device`, so that it does not look into it.
inline bool has_autocast_rule(const c10::OperatorHandle& op, at::DeviceType device) {
  return op.hasKernelForDispatchKey(at::autocast::get_autocast_dispatch_key_from_device_type(device));
}

/// Made of other operators, above autograd.
inline bool is_composite(const c10::OperatorHandle& op) {
  const op_traits& known = traits(op);
  return !known.writes && !known.views && !known.makes &&
         op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

/// Runs operators, and ends with an exception at the first product that autocast has a rule for.
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

/// The arguments on top of `stack` with floating tensors that have no memory and are in FP32, as a recording has them.
inline torch::jit::Stack bare_arguments(const c10::OperatorHandle& op, const torch::jit::Stack& stack,
                                        at::DeviceType device) {
  torch::jit::Stack bare{stack.end() - static_cast<std::ptrdiff_t>(traits(op).arguments.size()), stack.end()};
  replace(
      bare, bare.size(), device, [](const at::Tensor& t) { return t.layout() == at::kStrided; },
      [](const at::Tensor& t) {
        return at::empty_strided(t.sizes(), t.strides(), t.options().dtype(at::kFloat).device(at::kMeta));
      });
  return bare;
}

/// True when `op` calls a product that autocast has a rule for.
inline bool calls_product(const c10::OperatorHandle& op, torch::jit::Stack arguments, at::DeviceType device) {
  const generator_guard random{device};
  product_finder finder{device};
  try {
    const listening_guard listens{&finder};
    op.callBoxed(arguments);  // comes to `finder`, which opens it
  } catch (const product_finder::product&) {
    return true;
  } catch (const std::exception&) {  // does not run without data: it stays whole
  }
  return false;
}

/// True for a composite whose products a plan should have one by one; its arguments are on top of `stack`.
inline bool has_products(const c10::OperatorHandle& op, const torch::jit::Stack& stack, at::DeviceType device) {
  if (!is_composite(op) || has_autocast_rule(op, device)) return false;
  const at::NoGradGuard no_gradients;
  return calls_product(op, bare_arguments(op, stack, device), device);
}

/// True where a composite with products refuses tensors of which one is in BF16 and others are in FP32, as they are
/// when an operator before it was lowered: they go back to FP32 then.
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
  return !calls_product(op, std::move(mixed), device);
}

/// Which operators are opened, each asked once, for forwards that are not recorded. Of any thread.
class known_composites {
 public:
  /// Nothing where `op` is not opened; else whether it takes tensors of one format only.
  std::optional<bool> find(const c10::OperatorHandle& op, const torch::jit::Stack& stack, at::DeviceType device) {
    {
      const std::lock_guard only_one{mutex_};
      if (const auto at = known_.find(op); at != known_.end()) return at->second;
    }
    std::optional<bool> uniform;
    if (has_products(op, stack, device)) uniform = needs_one_format(op, stack, device);
    const std::lock_guard only_one{mutex_};
    return known_.emplace(op, uniform).first->second;
  }

 private:
  std::mutex mutex_;
  std::unordered_map<c10::OperatorHandle, std::optional<bool>> known_;
};

}  // namespace comp::libtorch::detail
