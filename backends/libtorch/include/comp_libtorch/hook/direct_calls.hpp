// SPDX-License-Identifier: Apache-2.0
// Unboxed kernels for the operators that steps call most often. They spare a call the boxing of its arguments, some 200
// ns. Each kernel asks the listener first; a listener that wants the arguments boxed gets them so. Other operators go
// through the fallback: this list changes speed and nothing else.
#pragma once

#include <ATen/Operators.h>
#include <ATen/core/boxing/impl/boxing.h>
#include <torch/library.h>

#include <array>
#include <comp_libtorch/hook/listener.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <type_traits>
#include <utility>

namespace comp::libtorch::detail {

template <class T>
const at::Tensor* tensor_in(const T& argument) {
  if constexpr (std::is_same_v<T, at::Tensor>) return &argument;
  if constexpr (std::is_same_v<T, std::optional<at::Tensor>>) return argument ? &*argument : nullptr;
  return nullptr;
}

/// Returns: the cast if there is one, else the argument.
template <class T>
decltype(auto) chosen(T& argument, const at::Tensor& cast) {
  if constexpr (std::is_same_v<T, const at::Tensor>) {
    return cast.defined() ? cast : argument;
  } else if constexpr (std::is_same_v<T, const std::optional<at::Tensor>>) {
    return cast.defined() ? std::optional<at::Tensor>{cast} : argument;
  } else {
    return (argument);
  }
}

template <class Operator, class Schema = typename Operator::schema>
struct direct_call;

template <class Operator, class Result, class... Arguments>
struct direct_call<Operator, Result(Arguments...)> {
  static Result run(c10::DispatchKeySet keys, Arguments... arguments) {
    const c10::impl::ExcludeDispatchKeyGuard inner_operators_pass{claimed_key};
    std::array<at::Tensor, sizeof...(Arguments)> casts;
    if (listener* hears = present_listener()) {
      const inner_levels_pass guard;
      const std::array<const at::Tensor*, sizeof...(Arguments)> tensors{tensor_in(std::as_const(arguments))...};
      if (!hears->called_directly(handle(), tensors.data(), casts.data())) return run_boxed(keys, arguments...);
      return call(std::index_sequence_for<Arguments...>{}, casts, arguments...);
    }
    return call(std::index_sequence_for<Arguments...>{}, casts, arguments...);
  }

 private:
  static const c10::OperatorHandle& handle() {
    static const auto op = c10::Dispatcher::singleton().findSchemaOrThrow(Operator::name, Operator::overload_name);
    return op;
  }
  template <std::size_t... I, class Casts>
  static Result call(std::index_sequence<I...> /*all*/, const Casts& casts,
                     std::remove_reference_t<Arguments>&... arguments) {
    return Operator::call(chosen(arguments, casts[I])...);
  }
  static Result run_boxed(c10::DispatchKeySet keys, std::remove_reference_t<Arguments>&... arguments) {
    auto stack = c10::impl::boxArgs<const std::remove_cvref_t<Arguments>&...>(arguments...);
    listening->called(handle(), keys, stack);
    if constexpr (std::is_reference_v<Result>) {
      return first(arguments...);  // an in-place operator returns its first argument
    } else {
      return c10::impl::PopResult<Result>::call(stack);
    }
  }
  template <class First, class... Rest>
  static First& first(First& argument, Rest&... /*others*/) {
    return argument;
  }
};

template <class Operator>
void call_directly(torch::Library& aten) {
  const std::string name = Operator::overload_name[0] == '\0'
                               ? std::string{Operator::name}
                               : std::string{Operator::name} + "." + Operator::overload_name;
  aten.impl(name.c_str(), TORCH_FN(direct_call<Operator>::run));
}

template <class... Operators>
void call_all_directly(torch::Library& aten) {
  (call_directly<Operators>(aten), ...);
}

inline void call_common_operators_directly(torch::Library& aten) {
  using namespace at::_ops;
  call_all_directly<conv1d, conv2d, conv3d, conv_transpose2d_input, linear, addmm, mm, bmm, baddbmm, matmul, relu, gelu,
                    at::_ops::tanh, sigmoid, leaky_relu, at::_ops::exp, neg, add_Tensor, sub_Tensor, mul_Tensor,
                    div_Tensor>(aten);
  call_all_directly<add_Scalar, mul_Scalar, div_Scalar, pow_Tensor_Scalar, mean, mean_dim, sum, sum_dim_IntList,
                    softmax_int, log_softmax_int, layer_norm, batch_norm, dropout, embedding, max_pool2d, avg_pool2d,
                    adaptive_avg_pool2d, scaled_dot_product_attention, index_select, scatter_add>(aten);
  call_all_directly<cross_entropy_loss, nll_loss, nll_loss_nd, mse_loss, binary_cross_entropy_with_logits,
                    flatten_using_ints, view, reshape, t, transpose_int, permute, unsqueeze, squeeze_dim, select_int,
                    slice_Tensor, expand, contiguous, relu_, add__Tensor, add__Scalar, mul__Tensor, dropout_>(aten);
}

}  // namespace comp::libtorch::detail
