// SPDX-License-Identifier: Apache-2.0
// Contraction sizes, flops and bytes of an ATen operator, from its arguments and its result.
// What no rule knows counts one flop per element of its result, and nothing for a view.
#pragma once

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <comp/core/op_info.hpp>
#include <comp_libtorch/op_traits.hpp>
#include <comp_libtorch/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

namespace comp::libtorch::detail {

class contraction {
 public:
  contraction(op_info& info, std::span<const at::IValue> arguments, const at::Tensor& result)
      : info_{info}, arguments_{arguments}, result_{result} {}

  /// True when `word` is a contraction whose sizes were filled in.
  bool measure(std::string_view word) {
    if (word == "mm" || word == "bmm" || word == "matmul" || word == "mv" || word == "_sparse_mm") return product(0, 1);
    if (word == "addmm" || word == "baddbmm" || word == "addbmm" || word == "addmv") return product(1, 2);
    if (word == "dot" || word == "vdot") return product(0, 1);
    if (word == "linear") return linear();
    if (word == "einsum") return einsum();
    if (word == "scaled_dot_product_attention") return attention();
    if (word == "convolution" || word == "_convolution") return convolution(arguments_[6].toBool(), 8);
    if (word.starts_with("conv_transpose")) return convolution(true, 6);
    if (word == "conv1d" || word == "conv2d" || word == "conv3d") return convolution(false, 6);
    if (word == "lstm" || word == "gru" || word == "rnn_tanh" || word == "rnn_relu") return recurrent(2);
    return word.ends_with("_cell") && recurrent(2);
  }

 private:
  const at::Tensor* tensor(std::size_t i) const {
    const bool there = i < arguments_.size() && arguments_[i].isTensor() && arguments_[i].toTensor().defined();
    return there ? &arguments_[i].toTensor() : nullptr;
  }
  bool sizes(std::int64_t m, std::int64_t n, std::int64_t k, std::int64_t flops) {
    info_.m = m;
    info_.n = n;
    info_.k = k;
    info_.flops = flops;
    return true;
  }

  bool product(std::size_t left, std::size_t right) {
    const at::Tensor *a = tensor(left), *b = tensor(right);
    if (a == nullptr || b == nullptr || a->dim() == 0 || b->dim() == 0) return false;
    const std::int64_t k = a->size(-1), n = b->dim() == 1 ? 1 : b->size(-1);
    const bool folds = b->dim() <= 2 && k > 0;  // then all leading axes of a are rows of one product
    const std::int64_t m = a->dim() == 1 ? 1 : folds ? a->numel() / k : a->size(-2);
    if (a->layout() != at::kStrided) {
      return sizes(m, n, k, 2 * n * (a->layout() == at::kSparse ? a->_nnz() : a->values().numel()));
    }
    return sizes(m, n, k, 2 * result_.numel() * k);
  }

  bool linear() {
    const at::Tensor *x = tensor(0), *weight = tensor(1);
    if (x == nullptr || weight == nullptr || x->dim() == 0 || x->size(-1) == 0) return false;
    const std::int64_t k = x->size(-1), m = x->numel() / k, n = weight->dim() == 2 ? weight->size(0) : 1;
    return sizes(m, n, k, 2 * m * n * k);
  }

  bool attention() {
    const at::Tensor *q = tensor(0), *k = tensor(1), *v = tensor(2);
    if (q == nullptr || k == nullptr || v == nullptr || q->dim() < 2 || k->dim() < 2) return false;
    const std::int64_t rows = q->size(-2), columns = k->size(-2), width = q->size(-1);
    const std::int64_t batches = rows * width == 0 ? 0 : q->numel() / (rows * width);
    return sizes(rows, columns, width, 2 * batches * rows * columns * (width + v->size(-1)));
  }

  /// Channels are those of one group: they decide what a matrix unit gets.
  bool convolution(bool transposed, std::size_t groups_at) {
    const at::Tensor *x = tensor(0), *weight = tensor(1);
    if (x == nullptr || weight == nullptr || weight->dim() < 2 || weight->size(0) == 0) return false;
    const bool grouped = groups_at < arguments_.size() && arguments_[groups_at].isInt();
    const std::int64_t groups = grouped ? std::max<std::int64_t>(1, arguments_[groups_at].toInt()) : 1;
    const std::int64_t per_group = weight->size(0) / groups, other = weight->size(1);
    info_.channels_in = transposed ? per_group : other;
    info_.channels_out = transposed ? other : per_group;
    info_.flops = 2 * (transposed ? x->numel() : result_.numel()) * (weight->numel() / weight->size(0));
    return true;
  }

  /// Each step of the sequence takes every weight matrix once: input (T,B,K) or (B,K), weights (4H,K), (4H,H), ...
  bool recurrent(std::size_t first_weight) {
    const at::Tensor* x = tensor(0);
    if (x == nullptr || x->dim() == 0 || x->size(-1) == 0) return false;
    const std::int64_t rows = x->numel() / x->size(-1);
    std::int64_t weights = 0, n = 0, k = 0;
    for (std::size_t i = first_weight; i < arguments_.size(); ++i) {
      for_each_tensor(arguments_[i], [&](const at::Tensor& weight, int) {
        if (weight.dim() != 2) return;
        if (weights == 0) n = weight.size(0), k = weight.size(1);
        weights += weight.numel();
      });
    }
    return weights > 0 && sizes(rows, n, k, 2 * rows * weights);
  }

  /// Of two operands with single-letter axes and no ellipsis; others stay unknown.
  bool einsum() {
    if (arguments_.size() < 2 || !arguments_[0].isString() || !arguments_[1].isList()) return false;
    std::string text = arguments_[0].toStringRef();
    std::erase(text, ' ');
    const auto comma = text.find(','), arrow = text.find("->");
    const auto operands = arguments_[1].toListRef();
    if (operands.size() != 2 || comma == std::string::npos || arrow == std::string::npos || comma > arrow) return false;
    const std::string a = text.substr(0, comma), b = text.substr(comma + 1, arrow - comma - 1);
    const std::string out = text.substr(arrow + 2);
    const at::Tensor &left = operands[0].toTensor(), &right = operands[1].toTensor();
    const bool plain =
        left.dim() == static_cast<std::int64_t>(a.size()) && right.dim() == static_cast<std::int64_t>(b.size());
    if (!plain || text.find('.') != std::string::npos) return false;
    const auto has = [](const std::string& letters, char c) { return letters.find(c) != std::string::npos; };
    std::int64_t m = 1, n = 1, k = 1;
    for (std::size_t i = 0; i < a.size(); ++i) {
      if (!has(b, a[i]) && has(out, a[i])) m *= left.size(static_cast<std::int64_t>(i));
      if (has(b, a[i]) && !has(out, a[i])) k *= left.size(static_cast<std::int64_t>(i));
    }
    for (std::size_t i = 0; i < b.size(); ++i) {
      if (!has(a, b[i]) && has(out, b[i])) n *= right.size(static_cast<std::int64_t>(i));
    }
    return sizes(m, n, k, 2 * result_.numel() * k);
  }

  op_info& info_;
  std::span<const at::IValue> arguments_;
  const at::Tensor& result_;
};

/// Bytes are those of the tensors of `info`, floating ones as FP32.
inline void count_bytes(op_info& info) {
  const auto bytes = [](const std::vector<tensor_info>& tensors) {
    std::int64_t sum = 0;
    for (const tensor_info& tensor : tensors) {
      std::int64_t elements = 1;
      for (const auto extent : tensor.shape) elements *= extent;
      sum += elements * (tensor.floating ? 4 : 8);
    }
    return sum;
  };
  info.bytes = bytes(info.inputs) + bytes(info.outputs);
}

/// Fills in sizes, flops and bytes of `info`. Requires: its inputs and outputs are filled in.
inline void measure(op_info& info, const op_traits& op, std::span<const at::IValue> arguments,
                    const at::Tensor& result) {
  if (op.views || op.makes || !result.defined()) return;
  count_bytes(info);
  info.flops = result.numel();
  if (op.aten) contraction{info, arguments, result}.measure(op.word);
}

}  // namespace comp::libtorch::detail
