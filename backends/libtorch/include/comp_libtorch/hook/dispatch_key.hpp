// SPDX-License-Identifier: Apache-2.0
// How comp sees a model's operators: one boxed fallback per process, registered for all operators on an Autocast key
// that nobody else uses. That key comes before autograd, so that casts are differentiated. It comes before composites,
// so that an operator is seen as the user wrote it: aten::linear, not addmm.
// The fallback costs nothing while no region is open. A thread is in a region only by opening one itself.
#pragma once

#include <c10/core/impl/LocalDispatchKeySet.h>
#include <torch/library.h>

#include <array>
#include <comp/core/error.hpp>
#include <comp_libtorch/hook/direct_calls.hpp>
#include <comp_libtorch/hook/listener.hpp>

namespace comp::libtorch::detail {

/// Returns: the first key on which no library has a fallback. Out-of-tree devices own these keys once their plugin is
/// loaded. Throws: `error` when all are taken.
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
    for (const char* mark : {"_record_function_enter", "_record_function_enter_new", "_record_function_exit",
                             "_record_function_exit._RecordFunction"})
      profiler_.impl(mark, torch::CppFunction::makeFallthrough());  // a profiler's marks are not the model's operators
    library_.fallback(torch::CppFunction::makeFromBoxedFunction<&registration::intercept>());
    call_common_operators_directly(aten_);
  }

  static void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const c10::impl::ExcludeDispatchKeyGuard inner_operators_pass{claimed_key};
    if (listening != nullptr) return listening->called(op, keys, *stack);
    require_no_backward();  // autograd's engine and at::launch take the caller's keys to threads without a listener
    op.callBoxed(stack);
  }

  c10::DispatchKey key_;
  torch::Library library_;
  torch::Library aten_;
  torch::Library profiler_;
};

/// While it lives, the operators of this thread go to `to`. Its end restores exactly what was before, so guards nest.
class listening_guard {
 public:
  explicit listening_guard(listener* to)
      : key_{registration::once().key()},
        before_{listening},
        was_included_{c10::impl::tls_is_dispatch_key_included(key_)},
        was_excluded_{c10::impl::tls_is_dispatch_key_excluded(key_)} {
    c10::impl::tls_set_dispatch_key_excluded(key_, false);
    c10::impl::tls_set_dispatch_key_included(key_, true);
    listening = to;
  }
  ~listening_guard() {
    c10::impl::tls_set_dispatch_key_included(key_, was_included_);
    c10::impl::tls_set_dispatch_key_excluded(key_, was_excluded_);
    listening = before_;
  }
  listening_guard(const listening_guard&) = delete;
  listening_guard& operator=(const listening_guard&) = delete;

 private:
  c10::DispatchKey key_;
  listener* before_;
  bool was_included_;
  bool was_excluded_;
};

}  // namespace comp::libtorch::detail
