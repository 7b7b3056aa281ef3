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
#include <comp_libtorch/hook/op_traits.hpp>
#include <optional>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

/// Returns: the two keys that come first among those on which no library has a fallback. Out-of-tree devices own these
/// keys once their plugin is loaded. Throws: `error` when less than two are free.
inline std::array<c10::DispatchKey, 2> free_keys() {
  using enum c10::DispatchKey;
  std::vector<c10::DispatchKey> keys{AutocastPrivateUse1, AutocastIPU, AutocastHPU, AutocastXLA};
  std::erase_if(keys, [](auto key) { return c10::Dispatcher::singleton().hasBackendFallbackForDispatchKey(key); });
  require<error>(
      keys.size() >= 2,
      "{} dispatch keys are free for comp, which needs two (of AutocastPrivateUse1, AutocastIPU, AutocastHPU "
      "and AutocastXLA the others have a fallback of another library): load comp in a process without those "
      "device plugins",
      keys.size());
  return {keys[0], keys[1]};
}

/// The fallback of this process, registered at its first use and never taken away. Random numbers for dropout have a
/// key of their own that all other operators fall through: so bernoulli_ is found even if another operator calls it,
/// and costs others nothing.
class registration {
 public:
  static const registration& once() {
    static const registration only;
    return only;
  }
  c10::DispatchKey random_key() const { return keys_[1]; }

 private:
  registration() {
    claimed_key = keys_[0];
    claimed_keys = c10::DispatchKeySet{keys_[0], keys_[1]};
    for (const char* mark : {"_record_function_enter", "_record_function_enter_new", "_record_function_exit",
                             "_record_function_exit._RecordFunction"})
      profiler_.impl(mark, torch::CppFunction::makeFallthrough());  // a profiler's marks are not the model's operators
    all_.fallback(torch::CppFunction::makeFromBoxedFunction<&registration::intercept>());
    call_common_operators_directly(aten_);
    all_random_.fallback(torch::CppFunction::makeFallthrough());
    random_.impl("bernoulli_.float", TORCH_FN(draw));
  }

  static torch::Library library(const char* of, c10::DispatchKey key) {
    return {torch::Library::IMPL, of, key, __FILE__, __LINE__};
  }

  static void intercept(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
    const c10::impl::ExcludeDispatchKeyGuard inner_operators_pass{claimed_key};
    if (listener* hears = present_listener()) {
      refresh_traits(op);
      const inner_levels_pass guard;
      return hears->called(op, keys, *stack);
    }
    op.callBoxed(stack);
  }

  static at::Tensor& draw(c10::DispatchKeySet keys, at::Tensor& to, double p, std::optional<at::Generator> generator) {
    if (draw_as_aten(to, p, generator)) return to;
    const c10::DispatchKeySet others{c10::DispatchKeySet::FULL_AFTER, once().random_key()};
    return at::_ops::bernoulli__float::redispatch(keys & others, to, p, std::move(generator));
  }

  std::array<c10::DispatchKey, 2> keys_ = free_keys();
  torch::Library all_ = library("_", keys_[0]), aten_ = library("aten", keys_[0]),
                 profiler_ = library("profiler", keys_[0]);
  torch::Library all_random_ = library("_", keys_[1]), random_ = library("aten", keys_[1]);
};

}  // namespace comp::libtorch::detail
