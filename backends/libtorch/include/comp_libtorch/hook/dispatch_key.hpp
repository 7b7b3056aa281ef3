// SPDX-License-Identifier: Apache-2.0
// How comp sees a model's operators: one boxed fallback per process, registered for all operators on an Autocast key
// that nobody else uses. That key comes before autograd, so that casts are differentiated. It comes before composites,
// so that an operator is seen as the user wrote it: aten::linear, not addmm.
// The fallback costs nothing while no region is open. A thread is in a region only by opening one itself.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/ops/bernoulli_ops.h>
#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <array>
#include <comp/core/error.hpp>
#include <comp_libtorch/hook/bernoulli.hpp>
#include <comp_libtorch/hook/direct_calls.hpp>
#include <comp_libtorch/hook/listener.hpp>
#include <comp_libtorch/hook/listening.hpp>
#include <optional>
#include <utility>

namespace comp::libtorch::detail {

/// Returns: the key that comes first among those on which no library has a fallback. Out-of-tree devices own these keys
/// once their plugin is loaded. Throws: `error` when all are taken.
inline c10::DispatchKey free_key() {
  using enum c10::DispatchKey;
  for (const auto key : std::array{AutocastPrivateUse1, AutocastIPU, AutocastHPU, AutocastXLA}) {
    if (!c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key)) return key;
  }
  throw error{
      "no dispatch key is free for comp (AutocastPrivateUse1, AutocastIPU, AutocastHPU and AutocastXLA have a fallback "
      "of another library): load comp in a process without those device plugins"};
}

/// The fallback of this process, registered at its first use and never taken away.
class registration {
 public:
  static const registration& once() {
    static const registration only;
    return only;
  }
  c10::DispatchKey key() const { return key_; }

 private:
  registration()
      : key_{free_key()},
        library_{torch::Library::IMPL, "_", key_, __FILE__, __LINE__},
        aten_{torch::Library::IMPL, "aten", key_, __FILE__, __LINE__},
        profiler_{torch::Library::IMPL, "profiler", key_, __FILE__, __LINE__} {
    claimed_key = key_;
    claimed_keys = claimed_keys.add(key_);
    for (const char* mark : {"_record_function_enter", "_record_function_enter_new", "_record_function_exit",
                             "_record_function_exit._RecordFunction"})
      profiler_.impl(mark, torch::CppFunction::makeFallthrough());  // a profiler's marks are not the model's operators
    library_.fallback(torch::CppFunction::makeFromBoxedFunction<&registration::intercept>());
    call_common_operators_directly(aten_);
  }

  static void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const c10::impl::ExcludeDispatchKeyGuard inner_operators_pass{claimed_key};
    if (listener* hears = hearing()) {
      const inner_levels_pass guard;
      return hears->called(op, keys, *stack);
    }
    op.callBoxed(stack);
  }

  c10::DispatchKey key_;
  torch::Library library_;
  torch::Library aten_;
  torch::Library profiler_;
};

/// Random numbers for dropout, on a key of their own that all other operators fall through: so bernoulli_ is found even
/// if another operator calls it, and costs others nothing.
class random_registration {
 public:
  static const random_registration& once() {
    static const random_registration only;
    return only;
  }
  c10::DispatchKey key() const { return key_; }

 private:
  random_registration()
      : key_{key_below(registration::once())},
        library_{torch::Library::IMPL, "_", key_, __FILE__, __LINE__},
        aten_{torch::Library::IMPL, "aten", key_, __FILE__, __LINE__} {
    claimed_keys = claimed_keys.add(key_);
    library_.fallback(torch::CppFunction::makeFallthrough());
    aten_.impl("bernoulli_.float", TORCH_FN(draw));
  }
  static c10::DispatchKey key_below(const registration& /*has the first free one*/) { return free_key(); }

  static at::Tensor& draw(c10::DispatchKeySet keys, at::Tensor& to, double p, std::optional<at::Generator> generator) {
    if (draw_as_aten(to, p, generator)) return to;
    const c10::DispatchKeySet others{c10::DispatchKeySet::FULL_AFTER, once().key()};
    return at::_ops::bernoulli__float::redispatch(keys & others, to, p, std::move(generator));
  }

  c10::DispatchKey key_;
  torch::Library library_;
  torch::Library aten_;
};

}  // namespace comp::libtorch::detail
