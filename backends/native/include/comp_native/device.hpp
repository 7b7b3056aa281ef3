// SPDX-License-Identifier: Apache-2.0
// What the native trainer asks of a Device: memory, parameters and the operators of a step, forward and backward.
// A Device decides layouts, library calls and fusion; the trainer decides precisions, casts and the order of calls.
// Every operator computes in the precision of its first tensor argument, accumulates in FP32 or better, and returns
// that precision; parameters are FP32 masters of which the Device keeps low-precision copies, refreshed after an
// update. What a Device may offer beside it, so that a step needs no wait in its middle or one call: deferral.hpp,
// passes.hpp, op/attention.hpp, ranges.hpp. Models of this concept: comp::host::device (oneDNN),
// comp::cuda::device and the FP64 reference of the tests.
#pragma once

#include <array>
#include <comp/core/precision.hpp>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

namespace comp::native {

using shape = std::vector<std::int64_t>;

constexpr std::int64_t elements(const shape& extents) {
  std::int64_t product = 1;
  for (const auto extent : extents) product *= extent;
  return product;
}

struct conv2d_options {
  std::array<std::int64_t, 2> stride = {1, 1};
  std::array<std::int64_t, 2> padding = {0, 0};
  std::array<std::int64_t, 2> dilation = {1, 1};
  std::int64_t groups = 1;
};

struct pool2d_options {
  std::array<std::int64_t, 2> kernel = {2, 2};
  std::array<std::int64_t, 2> stride = {2, 2};
  std::array<std::int64_t, 2> padding = {0, 0};  // average pooling counts the padding, as PyTorch's default does
};

struct batch_norm_options {
  double eps = 1e-5;
  double momentum = 0.1;  // running = (1 - momentum) running + momentum batch
  bool training = true;   // false: normalise by the running statistics
};

enum class activation : std::uint8_t {
  relu,
  gelu,       // the erf form, PyTorch's default
  gelu_tanh,  // PyTorch's approximate='tanh', GPT-2's
  tanh,
  sigmoid,
  elu,
  leaky_relu  // with leaky_slope
};
inline constexpr float leaky_slope = 0.2F;  // that of GANs and GATs

struct activation_traits {
  std::string_view name = {};         // ATen's
  std::int64_t flops = 0;             // of one element, about
  bool backward_reads_input = false;  // else what the forward gave
};
constexpr activation_traits traits(activation kind) {
  switch (kind) {
    case activation::relu:
      return {"relu", 1, false};
    case activation::gelu:
    case activation::gelu_tanh:
      return {"gelu", 10, true};
    case activation::tanh:
      return {"tanh", 10, false};
    case activation::sigmoid:
      return {"sigmoid", 10, false};
    case activation::elu:
      return {"elu", 10, false};
    case activation::leaky_relu:
      return {"leaky_relu", 2, false};
  }
  return {};
}

/// Fixes the mask of a dropout: the same key gives the same mask on every Device (Philox 4x32-10, Salmon et al. 2011,
/// key = seed, counter = (element / 4, draw); an element is kept where its word >= p * 2^32).
struct dropout_key {
  std::uint64_t seed = 0;
  std::uint64_t draw = 0;   // counts the operators of a training run that drew numbers
  bool everywhere = false;  // true: also of what a Device computes in one, whose masks are its own otherwise
};

struct sgd_options {
  double learning_rate = 0.01;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

struct adam_options {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = false;  // true: AdamW (Loshchilov and Hutter 2019), false: Adam with L2 decay
};

/// What a forward returns beside its output, to be handed to the backward unchanged.
template <class Tensor>
struct with_saved {
  Tensor output;
  std::vector<Tensor> saved;
};

/// An optimizer's memory of a parameter, row-major: SGD's velocity, or Adam's two moments. Empty where there is none.
struct parameter_slots {
  std::vector<float> first, second;
};

/// A Device. `T` is D::tensor: a cheap handle with shared ownership and `shape()`, `precision()`; `I` is D::indices,
/// the same for int32; `P` is D::parameter, movable only: FP32 value, FP32 gradient, optimizer slots, low-precision
/// copies.
///
/// Memory and transfer
///   T upload(span<const float>, shape, precision)         rounds to nearest even; FP16 overflows to infinity
///   I upload(span<const int32_t>, shape)
///   vector<float> download(const T&)                      row-major, whatever the layout inside
///   T cast(const T&, precision)                           same values, rounded; may keep the layout
///   T reshape(const T&, shape)                            row-major meaning; copies only where the layout forces it
///   void synchronize()                                    returns when all work is done (for clocks)
///   double seconds() const                                optional: the clock of one whose time is made up; else the
///   wall's int64 live_bytes(), peak_bytes(); void reset_peak()   of this device's allocator, scratch memory included
/// Parameters
///   P make_parameter(span<const float>, shape, bool trainable = true)
///   const shape& shape_of(const P&); vector<float> values(const P&), gradient(const P&)
///   void set_values(P&, span<const float>)                 row-major
///   void zero_gradient(P&)                                 the next backward overwrites instead of adding
///   void set_trainable(P&, bool)                           false: backwards make none of its gradient
///   S snapshot(const P&); void restore(P&, const S&)       S = D::parameter_state: value and optimizer slots, bit for
///   bit parameter_slots slots(const P&); void set_slots(P&, const parameter_slots&)   optional: for states in files
///   int64 count_not_finite(span<P* const>)                 gradient elements that are NaN or infinite
///   double gradient_norm(span<P* const>)                   2-norm over all of them
///   void scale_gradients(span<P* const>, double)
///   void sgd_step(span<P* const>, const sgd_options&); void adam_step(span<P* const>, const adam_options&, int64 step
///   from 1)
/// Operators; a backward returns the gradient of its tensor inputs (an empty T where `need_dx` is false) in the
/// precision of dy, and adds parameter gradients, in FP32, to the parameters.
///   T linear(x (...,K), P& w (N,K), P* b (N)); T linear_backward(dy, x, w, b, need_dx)
///   T conv2d(x (B,C,H,W), P& w (O,C/g,R,S), P* b (O), conv2d_options); T conv2d_backward(dy, x, w, b, options,
///   need_dx) with_saved batch_norm(x (B,C,H,W) or (B,C), P& gamma, P& beta, P& mean, P& variance, options) (updates
///   mean, variance); T batch_norm_backward(dy, x, saved, gamma, beta, options) with_saved layer_norm(x (...,C), P&
///   gamma, P& beta, double eps); T layer_norm_backward(dy, x, saved, gamma, beta, eps) T activate(activation, x); T
///   activate_backward(activation, dy, x, y) T dropout(x, double p, dropout_key); T dropout_backward(dy, p, key) kept
///   values are scaled by 1/(1-p) with_saved max_pool2d(x, options); T max_pool2d_backward(dy, x, saved, options) T
///   avg_pool2d(x, options); T avg_pool2d_backward(dy, shape of x, options) T adaptive_avg_pool2d(x, array<int64,2>
///   size); T adaptive_avg_pool2d_backward(dy, shape of x)  PyTorch's bins T add(a, b); T mul(a, b) same shapes T
///   sum(span<const T>)                                                         one rounding at the end, FP32 inside T
///   embedding(const I& (...), P& w (V,C), precision) -> (...,C); void embedding_backward(dy, indices, w) deterministic
///   T split_heads(x (B,T,C), int64 heads) -> (B,H,T,C/H); T merge_heads(x (B,H,T,D)) -> (B,T,H*D)   views where
///   possible T bmm(a (...,M,K), b (...,K,N), bool transpose_a, bool transpose_b, double alpha)  transposes mean the
///   last two axes T softmax(x, bool causal) over the last axis; causal: x (...,T,T), column > row counts as -inf; T
///   padded_softmax(x (B,...,T), const I& lengths (B)) a column from the example's length on counts as -inf, a row
///   without any other is 0; T softmax_backward(dy, y, bool causal = false) (causal: nothing there is read) T
///   log_softmax(x); T log_softmax_backward(dy, y) with_saved cross_entropy(logits (N,V), const I& target (N), double*
///   loss)     *loss: mean over targets >= 0, in FP32 T cross_entropy_backward(saved, target, double scale) scale:
///   d(objective)/d(loss), in logits' precision void nll_loss(logp (N,V), target, double* loss); T
///   nll_loss_backward(logp, target, scale) void mse_loss(x, target, double* loss); T mse_loss_backward(x, target,
///   scale) void binary_cross_entropy(logits, double target, double* loss)  the mean of one target for all; T
///   binary_cross_entropy_backward(logits, target, scale) int64 count_correct(logits (N,V), target) argmax equal to the
///   target
/// Along the edges of a graph or another sparse matrix (N,M) with E elements, M = D::sparse_matrix (op/graph.hpp says
/// what each means)
///   M make_sparse(const host_csr&)                         checked before
///   T sparse_linear(const M&, values (1,E), P& w (M,K)); T sparse_linear_backward(m, dy, values, w, need_dx)
///   T spmm(const M&, x (M,K), P* b (K)); T spmm_backward(m, dy, b, need_dx)
///   with_saved edge_scores(const M&, x (N,H*D), P& source (1,H,D), P& target, double slope); T edge_scores_backward(m,
///   dy, x, saved, source, target, slope)
///   T edge_softmax(const M&, x (E,H)); T edge_softmax_backward(m, dy, y)
///   T weighted_sum(const M&, share (E,H), x (M,H*D), P* b (H*D)); array<T,2> weighted_sum_backward(m, dy, share, x, b)
template <class D>
concept Device = requires(D& d, const typename D::tensor& t, typename D::parameter& p) {
  typename D::indices;
  typename D::parameter_state;
  typename D::sparse_matrix;
  { t.shape() } -> std::convertible_to<shape>;
  { t.precision() } -> std::same_as<precision>;
  { d.cast(t, precision::bf16) } -> std::same_as<typename D::tensor>;
  { d.linear(t, p, &p) } -> std::same_as<typename D::tensor>;
  { d.peak_bytes() } -> std::same_as<std::int64_t>;
};

}  // namespace comp::native
