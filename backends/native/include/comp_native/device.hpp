// SPDX-License-Identifier: Apache-2.0
// The Device concept: what the native trainer asks of hardware. A Device has memory, parameters and the operators of a
// step, forward and backward. It decides about layouts, library calls and fusion; the trainer decides about precisions,
// casts and the order of calls.
// Every operator computes in the precision of its first tensor argument, accumulates in FP32 or better, and returns
// that precision. Parameters are FP32 masters; the Device keeps copies in low precisions and refreshes them after an
// update.
// Optional parts have headers of their own: steps that need no wait (deferral.hpp), captured steps (passes.hpp),
// attention as one operator (op/attention.hpp), copies beside the work (batch_feed.hpp), names for profilers
// (ranges.hpp).
#pragma once

#include <array>
#include <comp/core/precision.hpp>
#include <concepts>
#include <cstdint>
#include <span>
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
  std::array<std::int64_t, 2> padding = {0, 0};  // average pooling counts it as zeros, as by default in PyTorch
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
inline constexpr float leaky_slope = 0.2F;  // as usual in GANs and GATs

struct activation_traits {
  std::string_view name = {};         // ATen's name
  std::int64_t flops = 0;             // operations for one element, about
  bool backward_reads_input = false;  // false: the backward reads the forward's result
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

/// Fixes the mask of a dropout. The same key gives the same mask on every Device: Philox 4x32-10 (Salmon et al. 2011)
/// with key = seed and counter = (element / 4, draw); an element is kept if its word >= p * 2^32.
struct dropout_key {
  std::uint64_t seed = 0;
  std::uint64_t draw = 0;   // the number of this draw in the training
  bool everywhere = false;  // true: holds for a fused operator, too, which otherwise may draw masks of its own
};

struct sgd_options {
  double learning_rate = 0.01;
  double momentum = 0;
  double weight_decay = 0;
  bool nesterov = false;
};

/// How an optimizer's moments are kept: SGD's velocity is a first moment. BF16 is rounded at random
/// (core/random_rounding.hpp), by a key that the trainer changes from step to step.
struct moment_formats {
  precision first = precision::fp32, second = precision::fp32;
  std::uint64_t key = 0;
};

struct adam_options {
  double learning_rate = 1e-3;
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0;
  bool decoupled = false;  // true: AdamW (Loshchilov and Hutter 2019), false: Adam with L2 decay
};

/// A forward's output with the tensors that it saves for its backward.
template <class Tensor>
struct with_saved {
  Tensor output;
  std::vector<Tensor> saved;
};

/// An optimizer's slots of a parameter, row-major: SGD's velocity, or Adam's two moments. Empty if there is none.
struct parameter_slots {
  std::vector<float> first, second;
};

// The table's lines stay as they are:
// clang-format off
/// A Device. `T` is D::tensor, a cheap handle with shared ownership that has shape() and precision(). `I` is D::indices,
/// the same for int32. `P` is D::parameter, movable only: an FP32 value, an FP32 gradient, optimizer slots, and copies in
/// low precisions. `S` is D::parameter_state, a copy of value and slots. `with_saved` is with_saved<T>.
///
/// Memory and transfer
///   T upload(span<const float>, shape, precision)      rounds to nearest even; FP16 overflows to infinity
///   I upload(span<const int32_t>, shape)
///   vector<float> download(const T&)                   row-major, whatever the layout inside
///   T cast(const T&, precision)                        the same values, rounded; may keep the layout
///   T reshape(const T&, shape)                         row-major meaning; copies only if the layout forces it
///   void synchronize()                                 returns when all work is done (for clocks)
///   double seconds() const                             optional: a clock of its own, in place of the wall clock
///   int64 live_bytes(), peak_bytes(); void reset_peak()
///                                                      of this Device's allocator, scratch memory included
/// Parameters
///   P make_parameter(span<const float>, shape, bool trainable = true)
///   const shape& shape_of(const P&)
///   vector<float> values(const P&), gradient(const P&)
///   void set_values(P&, span<const float>)             row-major
///   void zero_gradient(P&)                             the next backward overwrites instead of adding
///   void set_trainable(P&, bool)                       false: backwards make no gradient of it
///   S snapshot(const P&); void restore(P&, const S&)   value and optimizer slots, bit for bit
///   parameter_slots slots(const P&); void set_slots(P&, const parameter_slots&)
///                                                      optional: for states in files
///   int64 count_not_finite(span<P* const>)             gradient elements that are NaN or infinite
///   double gradient_norm(span<P* const>)               the 2-norm of all gradients together
///   void scale_gradients(span<P* const>, double)
///   void sgd_step(span<P* const>, const sgd_options&)
///   void adam_step(span<P* const>, const adam_options&, int64 step)    steps count from 1
///   void keep_moments(span<P* const>, const moment_formats&)
///                                                      optional: converts the slots, and the steps from here on keep
///                                                      them so
/// Operators. A backward returns the gradients of its tensor inputs in the precision of dy (an empty T if `need_dx` is
/// false), and adds the gradients of parameters to them in FP32.
///   T linear(x (...,K), P& w (N,K), P* b (N))
///   T linear_backward(dy, x, w, b, need_dx, bool need_parameters)
///                                                      need_parameters: gradients of w and b are added
///   T conv2d(x (B,C,H,W), P& w (O,C/g,R,S), P* b (O), conv2d_options)
///   T conv2d_backward(dy, x, w, b, options, need_dx)
///   with_saved batch_norm(x (B,C,H,W) or (B,C), P& gamma, P& beta, P& mean, P& variance, options)
///                                                      in training it updates mean and variance
///   T batch_norm_backward(dy, x, saved, gamma, beta, options)
///   with_saved layer_norm(x (...,C), P& gamma, P& beta, double eps)
///   T layer_norm_backward(dy, x, saved, gamma, beta, eps)
///   T activate(activation, x); T activate_backward(activation, dy, x, y)
///   T dropout(x, double p, dropout_key); T dropout_backward(dy, p, key)
///                                                      kept values are scaled by 1/(1-p)
///   with_saved max_pool2d(x, options); T max_pool2d_backward(dy, x, saved, options)
///   T avg_pool2d(x, options); T avg_pool2d_backward(dy, shape of x, options)
///   T adaptive_avg_pool2d(x, array<int64,2> size); T adaptive_avg_pool2d_backward(dy, shape of x)
///                                                      PyTorch's bins
///   T add(a, b); T mul(a, b)                           of the same shape
///   T sum(span<const T>)                               in FP32, rounded once at the end
///   T embedding(const I& (...), P& w (V,C), precision) -> (...,C)
///   void embedding_backward(dy, indices, w)            deterministic
///   T split_heads(x (B,T,C), int64 heads) -> (B,H,T,C/H); T merge_heads(x (B,H,T,D)) -> (B,T,H*D)
///                                                      views if possible
///   T bmm(a (...,M,K), b (...,K,N), bool transpose_a, bool transpose_b, double alpha)
///                                                      transposes are of the last two axes
///   T softmax(x, bool causal)                          over the last axis; causal: of x (...,T,T), a column beyond the
///                                                      row counts as minus infinity
///   T padded_softmax(x (B,...,T), const I& lengths (B))
///                                                      a column from the example's length on counts as minus infinity;
///                                                      a row without any other column is 0
///   T softmax_backward(dy, y, bool causal = false)     causal: columns beyond the row are not read
///   T log_softmax(x); T log_softmax_backward(dy, y)
///   with_saved cross_entropy(logits (N,V), const I& target (N), double* loss)
///                                                      *loss is the mean over targets >= 0, in FP32
///   T cross_entropy_backward(saved, target, double scale)
///                                                      scale is d(objective)/d(loss); in the precision of the logits
///   void nll_loss(logp (N,V), target, double* loss); T nll_loss_backward(logp, target, scale)
///   void mse_loss(x, target, double* loss); T mse_loss_backward(x, target, scale)
///   void binary_cross_entropy(logits, double target, double* loss)
///                                                      the mean, with one target for all
///   T binary_cross_entropy_backward(logits, target, scale)
///   int64 count_correct(logits (N,V), target)          rows whose largest score is at the target
/// Operators on a graph or another sparse matrix (N,M) with E elements, M = D::sparse_matrix; op/graph.hpp explains them
///   M make_sparse(const host_csr&)                     of a matrix that was checked
///   T sparse_linear(const M&, values (1,E), P& w (M,K)); T sparse_linear_backward(m, dy, values, w, need_dx)
///   T spmm(const M&, x (M,K), P* b (K)); T spmm_backward(m, dy, b, need_dx)
///   with_saved edge_scores(const M&, x (N,H*D), P& source (1,H,D), P& target, double slope)
///   T edge_scores_backward(m, dy, x, saved, source, target, slope)
///   T edge_softmax(const M&, x (E,H)); T edge_softmax_backward(m, dy, y)
///   T weighted_sum(const M&, share (E,H), x (M,H*D), P* b (H*D))
///   array<T,2> weighted_sum_backward(m, dy, share, x, b)
// clang-format on
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

/// A Device that keeps moments in other formats than FP32.
template <class D>
concept KeepsMoments = requires(D& d, std::span<typename D::parameter* const> all, const moment_formats& formats) {
  d.keep_moments(all, formats);
};

/// A Device with formats that round at random. From round_by(key) on, its roundings follow from the key and the order
/// of the operators alone.
template <class D>
concept RoundsAtRandom = requires(D& d, dropout_key key) {
  d.round_by(key);
};

}  // namespace comp::native
