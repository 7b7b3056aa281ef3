// SPDX-License-Identifier: Apache-2.0
// The list of all operators, and questions about an operator of unknown type. What each operator is stands in its file
// in op/.
#pragma once

#include <comp_native/op/attention.hpp>
#include <comp_native/op/bmm.hpp>
#include <comp_native/op/conv2d.hpp>
#include <comp_native/op/elementwise.hpp>
#include <comp_native/op/embedding.hpp>
#include <comp_native/op/graph.hpp>
#include <comp_native/op/linear.hpp>
#include <comp_native/op/loss.hpp>
#include <comp_native/op/norm.hpp>
#include <comp_native/op/pool.hpp>
#include <comp_native/op/softmax.hpp>
#include <memory>
#include <tuple>
#include <variant>

namespace comp::native {

/// One operator. Its parameters are in PyTorch's order.
using operation =
    std::variant<op::linear, op::conv2d, op::batch_norm, op::layer_norm, op::activate, op::dropout, op::max_pool2d,
                 op::avg_pool2d, op::adaptive_avg_pool2d, op::flatten, op::add, op::mul, op::embedding, op::bmm,
                 op::softmax, op::log_softmax, op::attention, op::cross_entropy_loss, op::nll_loss, op::mse_loss,
                 op::binary_cross_entropy_loss, op::masked_columns, op::noise, op::detach, op::sparse_linear, op::spmm,
                 op::edge_scores, op::edge_softmax, op::weighted_sum>;

/// Thrown for a model whose operators do not fit together.
struct model_error : error {
  using error::error;
};

/// Returns ATen's name of an operator.
inline std::string_view kind_of(const operation& what) {
  return std::visit([](const auto& o) { return o.kind(); }, what);
}
constexpr bool is_loss(const operation& what) {
  return std::visit(
      []<class O>(const O&) {
        return requires { O::is_loss; };
      },
      what);
}
/// True for a loss over the batch's labels.
constexpr bool reads_labels(const operation& what) {
  return std::visit(
      []<class O>(const O&) {
        return requires { O::reads_labels; };
      },
      what);
}
/// True if each forward of it draws random numbers.
constexpr bool draws(const operation& what) {
  return std::visit(
      []<class O>(const O& o) {
        if constexpr (requires { o.draws(); }) return o.draws();
        return false;
      },
      what);
}
/// True if it reads how many tokens of each example are no padding.
constexpr bool reads_lengths(const operation& what) {
  return std::visit(
      []<class O>(const O& o) {
        if constexpr (requires { o.reads_lengths(); }) return o.reads_lengths();
        return false;
      },
      what);
}
/// True for a view, which moves no data and therefore has its producer's precision and none of its own.
constexpr bool is_view(const operation& what) {
  return std::visit(
      []<class O>(const O&) {
        return requires { O::is_view; };
      },
      what);
}

/// Returns: the sparse matrix that an operator holds; null if it has none.
inline std::shared_ptr<const host_csr> matrix_of(const operation& what) {
  return std::visit(
      []<class O>(const O& o) -> std::shared_ptr<const host_csr> {
        if constexpr (requires { o.matrix; }) return o.matrix;
        return nullptr;
      },
      what);
}

/// Calls `f` with each setting of an operator that neither its kind nor its shapes show.
void for_each_setting(const operation& what, auto f) {
  std::visit(
      [&]<class O>(const O& o) {
        if constexpr (requires { o.settings(); }) {
          std::apply([&](const auto&... each) { (f(each), ...); }, o.settings());
        }
      },
      what);
}

/// Returns the shape of an operator's result.
/// Throws: `model_error`, naming the operator and the shapes, for inputs that do not fit.
inline shape output_shape(std::string_view name, const operation& what, std::span<const shape> inputs) {
  try {
    return std::visit([&](const auto& o) { return o.output(inputs); }, what);
  } catch (const error& refused) {
    throw model_error{fmt::format("\"{}\": {}", name, refused.what())};
  }
}

/// Fills in tensors, contraction sizes, bytes and flops of an op_info. The model fills in name, scopes and producers.
inline void describe(op_info& info, const operation& what, std::span<const shape> inputs,
                     std::span<const shape> parameters, const shape& output) {
  info.kind = kind_of(what);
  const auto add = [&info](std::vector<tensor_info>& to, const shape& extents) {
    to.push_back({.shape = extents});
    info.bytes += 4 * elements(extents);
  };
  for (const shape& extents : inputs) add(info.inputs, extents);
  for (const shape& extents : parameters) add(info.inputs, extents);
  add(info.outputs, output);
  std::visit([&](const auto& o) { o.cost({inputs, parameters, output, info}); }, what);
}

template <class D>
auto forward(const operation& what, const forward_call<D>& c) {
  return std::visit([&](const auto& o) { return o.forward(c); }, what);
}
template <class D>
auto backward(const operation& what, const backward_call<D>& c) {
  return std::visit([&](const auto& o) { return o.backward(c); }, what);
}

}  // namespace comp::native
