// SPDX-License-Identifier: Apache-2.0
// Contraction sizes, flops and bytes of an ATen operator, from its arguments and its result. An operator without a rule
// counts one flop per element of its result. Views and copies count nothing.
#pragma once

#include <ATen/core/ivalue.h>

#include <algorithm>
#include <comp/core/op_info.hpp>
#include <comp_libtorch/hook/op_traits.hpp>
#include <comp_libtorch/support/tensors.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>

namespace comp::libtorch::detail {

/// Fills in the sizes and flops of a contraction.
class contraction {
 public:
  contraction(op_info& info, std::span<const at::IValue> arguments, const at::Tensor& result)
      : info_{info}, arguments_{arguments}, result_{result} {}

  /// Returns: true if `word` is a contraction whose sizes were filled in.
  bool measure(std::string_view word) {
    if (word == "mm" || word == "bmm" || word == "matmul" || word == "mv" || word == "_sparse_mm") return product(0, 1);
    if (word == "addmm" || word == "baddbmm" || word == "addbmm" || word == "addmv") return product(1, 2);
    if (word == "dot" || word == "vdot") return product(0, 1);
    if (word == "linear") return linear();
    if (word == "scaled_dot_product_attention") return attention();
    if (word == "convolution" || word == "_convolution") return convolution(arguments_[6].toBool(), 8);
    if (word.starts_with("conv_transpose")) return convolution(true, 6);
    if (word == "conv1d" || word == "conv2d" || word == "conv3d") return convolution(false, 6);
    if (word == "mkldnn_rnn_layer") return recurrent(1, 5);
    if (word == "_cudnn_rnn") return recurrent(1, 2);
    return word.ends_with("_cell") && recurrent(2, 4);
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
    const bool folds = b->dim() <= 2 && k > 0;  // all leading axes of a are then rows of one product
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

  /// The channels are those of one group, because a matrix unit gets the channels of one group.
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

  /// Each step of the sequence multiplies by every weight matrix once. The input is (T,B,K) or (B,K). The weights
  /// (4H,K), (4H,H), ... are the arguments from `first` up to `last`.
  bool recurrent(std::size_t first, std::size_t last) {
    const at::Tensor* x = tensor(0);
    if (x == nullptr || x->dim() == 0 || x->size(-1) == 0) return false;
    const std::int64_t rows = x->numel() / x->size(-1);
    std::int64_t weights = 0, n = 0, k = 0;
    for (std::size_t i = first; i < std::min(last, arguments_.size()); ++i) {
      for_each_tensor(arguments_[i], [&](const at::Tensor& weight, int) {
        if (weight.dim() != 2) return;
        if (weights == 0) n = weight.size(0), k = weight.size(1);
        weights += weight.numel();
      });
    }
    return weights > 0 && sizes(rows, n, k, 2 * rows * weights);
  }

  op_info& info_;
  std::span<const at::IValue> arguments_;
  const at::Tensor& result_;
};

/// Sets the bytes of `info` to those of its tensors; floating ones count as FP32.
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
  if (op.is_view || op.is_copy || !result.defined() || has_symbolic_sizes(result)) return;
  count_bytes(info);
  info.flops = result.numel();
  if (op.aten) contraction{info, arguments, result}.measure(op.word);
}

}  // namespace comp::libtorch::detail
