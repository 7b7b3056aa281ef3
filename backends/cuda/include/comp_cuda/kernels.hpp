// SPDX-License-Identifier: Apache-2.0
// The kernels of backends/cuda/kernels as functions that any host compiler can call: each gives its work to a stream
// and returns. The definitions are there, one header per family, and are compiled once, by nvcc; link them (comp-cuda).
// T is float, bf16 or fp16: storage; all of them compute in FP32. Sizes may be 0. Sums are made in a fixed order.
// Throws, all of them: what check() throws where a launch is refused.
#pragma once

#include <comp_cuda/errors.hpp>
#include <comp_native/device.hpp>
#include <comp_native/math/formats.hpp>
#include <comp_native/math/fp8.hpp>
#include <comp_native/math/philox.hpp>
#include <cstdint>
#include <span>

namespace comp::cuda {

using index = std::int64_t;
using stream = cudaStream_t;
using native::math::bf16;
using native::math::fp16;

// casts.cuh

template <class From, class To>
struct cast_job {
  const From* from;
  To* to;
  index n;
};
/// to = from for each job, in one launch for 48 of them: to the nearest, ties to even. From and To differ.
template <class From, class To>
void cast(stream, std::span<const cast_job<From, To>>);

// bytes.cuh

/// to (rows,width): byte b of a row is of_bytes[row % channels][b], of (channels,256).
void values_of_bytes(stream, const std::uint8_t* from, const float* of_bytes, float* to, index rows, index channels,
                     index width);

// elementwise.cuh, bias.cuh

/// What a step does to the value v of element i.
enum class step_kind : std::uint8_t {
  relu,  // v = f(v)
  gelu,
  gelu_tanh,
  tanh,
  sigmoid,
  elu,
  leaky_relu,
  relu_backward,  // v = its gradient; for both gelus `other` is what f took, else what it gave
  gelu_backward,
  gelu_tanh_backward,
  tanh_backward,
  sigmoid_backward,
  elu_backward,
  leaky_relu_backward,
  add,      // v += other[i]
  mul,      // v *= other[i]
  scale,    // v *= number
  dropout,  // by `mask`
  keep,     // kept[i] = v, rounded
};
template <class T>
struct chain_step {
  step_kind kind;
  const T* other = nullptr;
  T* kept = nullptr;
  float number = 1;
  native::math::dropout_mask mask{};
  const std::uint64_t* draws = nullptr;  // on the device: added to the mask's draw, where it is not null
  bool rounds = false;                   // v is rounded to T after the step, as if it had been stored and loaded
};
inline constexpr int most_steps = 8;
/// to = the steps one after another, of n elements of `from`. Tensors may be the same, or apart; not overlap otherwise.
/// Throws: error for more than 8 steps.
template <class T>
void run_chain(stream, const T* from, T* to, index n, std::span<const chain_step<T>>);
/// to[0], to[1]: a seed that is the mask's own, and 0, for dropouts that are not made here. draws as in chain_step.
void attention_seed(stream, const native::math::dropout_mask&, const std::uint64_t* draws, std::uint64_t* to);
/// y = x + bias, or relu of that: x and y are (rows, width), bias is (width) in FP32. x and y may be the same.
template <class T>
void add_bias(stream, const T* x, const float* bias, T* y, index rows, index width, bool relu = false);

// transpose.cuh

/// to[b][c][r] = from[b][r][c]: `batch` matrices of (rows, columns). from and to are apart.
template <class T>
void transpose(stream, const T* from, T* to, index batch, index rows, index columns);
/// (B,T,H,D) to (B,H,T,D), and back with the two in the middle exchanged: to[b][j][i][:] = from[b][i][j][:].
template <class T>
void swap_middle(stream, const T* from, T* to, index batch, index i, index j, index width);

// softmax.cuh, layer_norm.cuh, edge_softmax.cuh

enum class softmax_kind : std::uint8_t { full, causal, log, padded };
/// padded: of row r only the first lengths[r / rows_each] count.
struct softmax_form {
  softmax_kind kind;
  const std::int32_t* lengths;
  index rows_each;
  softmax_form(softmax_kind of, const std::int32_t* lengths_of = nullptr, index rows_of_each = 1)
      : kind{of}, lengths{lengths_of}, rows_each{rows_of_each} {}
};
/// y = softmax of x (rows, width). causal: x is (..., width, width), what is right of the diagonal counts as -infinity
/// and is not read, nor is what is padded.
/// A row of which nothing counts is 0.
template <class T>
void softmax(stream, const T* x, T* y, index rows, index width, const softmax_form&);
/// dx from dy and what that softmax gave; causal: zeros right of the diagonal. dx may be dy.
template <class T>
void softmax_backward(stream, const T* dy, const T* y, T* dx, index rows, index width, softmax_kind);
/// x and y are (rows, width), gamma and beta (width). mean and inverse_deviation (rows): what the backward needs.
template <class T>
void layer_norm(stream, const T* x, const float* gamma, const float* beta, T* y, float* mean, float* inverse_deviation,
                index rows, index width, double eps);
/// What a layer norm reads in place of x: from, of which `mask` drops where `drops`, and other. Each is rounded.
template <class T>
struct layer_norm_sum {
  const T *from, *other;
  bool drops = false;
  native::math::dropout_mask mask{};
  const std::uint64_t* draws = nullptr;  // as in chain_step
};
/// x = the sum, y = its layer norm.
template <class T>
void layer_norm(stream, const layer_norm_sum<T>&, T* x, const float* gamma, const float* beta, T* y, float* mean,
                float* inverse_deviation, index rows, index width, double eps);
/// addend: what is added to dx after it was rounded; null: nothing.
template <class T>
void layer_norm_backward(stream, const T* dy, const T* x, const float* gamma, const float* mean,
                         const float* inverse_deviation, T* dx, index rows, index width, const T* addend = nullptr);
/// d_gamma and d_beta (width) (+)= their gradients. scratch: column_scratch(rows, width, 2) floats.
template <class T>
void layer_norm_parameters_backward(stream, const T* dy, const T* x, const float* mean, const float* inverse_deviation,
                                    float* d_gamma, float* d_beta, index rows, index width, bool adds, float* scratch);
/// x and y are (edges, heads), begin is (nodes + 1): the edges of node i are begin[i] to begin[i + 1].
template <class T>
void edge_softmax(stream, const T* x, const std::int32_t* begin, T* y, index nodes, index heads);
template <class T>
void edge_softmax_backward(stream, const T* dy, const T* y, const std::int32_t* begin, T* dx, index nodes, index heads);

// edges.cuh: an edge e enters the node row[e] and leaves column[e]; sums over the edges of a node are made from a list
// of them (others: the node at the other end; edge: which edge it is, null: they are counted as they are listed).

/// y (edges,heads) = leaky_relu(target[row] + source[column]), with the slope where that is negative.
template <class T>
void edge_scores(stream, const T* target, const T* source, const std::int32_t* row, const std::int32_t* column, T* y,
                 index edges, index heads, float slope);
/// d_own (nodes,heads) = the gradient of the one of them whose nodes' edges are listed; `other` is the other one.
template <class T>
void edge_scores_backward(stream, const T* dy, const T* own, const T* other, const std::int32_t* begin,
                          const std::int32_t* others, const std::int32_t* edge, T* d_own, index nodes, index heads,
                          float slope);
/// y (nodes,heads,width) = the sums over the edges of share (edges,heads) * x[other] (.,heads,width).
template <class T>
void weighted_sums(stream, const T* share, const T* x, const std::int32_t* begin, const std::int32_t* other,
                   const std::int32_t* edge, T* y, index nodes, index heads, index width);
/// y (edges,heads) = the dot products of a[row] and b[column], both (.,heads,width).
template <class T>
void edge_products(stream, const T* a, const T* b, const std::int32_t* row, const std::int32_t* column, T* y,
                   index edges, index heads, index width);

// losses.cuh

/// *loss: the mean of -log softmax(logits)[target] over targets >= 0, *count: over how many. log_sum and term are
/// (rows): the first is for the backward, the second scratch. A target that is no class makes the loss NaN.
template <class T>
void cross_entropy(stream, const T* logits, const std::int32_t* target, float* log_sum, float* term, double* loss,
                   float* count, index rows, index width);
/// dx = scale / count * (softmax - one at the target).
template <class T>
void cross_entropy_backward(stream, const T* logits, const std::int32_t* target, const float* log_sum,
                            const float* count, T* dx, index rows, index width, double scale);
/// *loss: the mean of -logp[target]. term is scratch (rows).
template <class T>
void nll_loss(stream, const T* logp, const std::int32_t* target, float* term, double* loss, float* count, index rows,
              index width);
template <class T>
void nll_loss_backward(stream, const std::int32_t* target, const float* count, T* dx, index rows, index width,
                       double scale);
/// *loss: the mean of (x - target)^2. scratch: most_partials floats.
template <class T>
void mse_loss(stream, const T* x, const T* target, index n, double* loss, float* scratch);
template <class T>
void mse_loss_backward(stream, const T* x, const T* target, T* dx, index n, double scale);
/// *loss: the mean binary cross entropy of logits x and one target for all. scratch: most_partials floats.
template <class T>
void binary_cross_entropy(stream, const T* x, float target, index n, double* loss, float* scratch);
template <class T>
void binary_cross_entropy_backward(stream, const T* x, float target, T* dx, index n, double scale);
/// *count += the rows whose largest score, the first of equal ones, is at the target.
template <class T>
void count_correct(stream, const T* logits, const std::int32_t* target, int* count, index rows, index width);

// embedding.cuh

/// y[i] = table[at[i]]: table is (entries, width) in FP32, y (n, width). NaN for an index that is not in the table.
template <class T>
void embedding(stream, const float* table, const std::int32_t* at, T* y, index n, index width, index entries);
/// How many floats embedding_backward needs. They lie at a multiple of 16 bytes.
index embedding_scratch(index n, index width, index entries);
/// gradient[at[i]] += dy[i], for i in order; of more than 64 equal indices the sums of 64 each, in order. The caller
/// zeroes the gradient where it begins.
template <class T>
void embedding_backward(stream, const T* dy, const std::int32_t* at, float* gradient, index n, index width,
                        index entries, float* scratch);

// reductions.cuh

inline constexpr index most_partials = 1024;
/// Sums over rows are made in chunks of 256 rows, or of more where 1024 chunks would not do.
constexpr index rows_of_chunk(index rows) { return rows <= 256 * 1024 ? 256 : (rows + 1023) / 1024; }
constexpr index column_chunks(index rows) { return (rows + rows_of_chunk(rows) - 1) / rows_of_chunk(rows); }
/// How many floats of scratch sums over rows need.
constexpr index column_scratch(index rows, index width, int terms) { return column_chunks(rows) * terms * width; }
/// to (+)= the sums of the columns of x (rows, width): the gradient of a bias. scratch: column_scratch(rows, width, 1).
template <class T>
void column_sums(stream, const T* x, float* to, index rows, index width, bool adds, float* scratch);

// adaptive_pooling.cuh

/// `planes` = images x channels of from[0] x from[1] elements, averaged over to[0] x to[1] bins.
struct bin_sizes {
  index planes, channels;
  index from[2], to[2];
  bool channels_last;  // of both sides
};
template <class T>
void adaptive_pooling(stream, const T* x, T* y, const bin_sizes&);
/// dx, the size of what was averaged, from dy.
template <class T>
void adaptive_pooling_backward(stream, const T* dy, T* dx, const bin_sizes&);

// quantize.cuh; T is float or bf16, F is e4m3 or e5m2

/// What sizes of FP8 operands are filled up to, with zeros.
constexpr index fp8_padded(index n) { return (n + 15) / 16 * 16; }
/// The largest magnitudes of parts of x, NaN above all. partial: most_partials floats. Returns: how many it wrote.
template <class T>
index largest_magnitudes(stream, const T* x, index n, float* partial);
/// by_rows (padded rows, padded columns) = x (rows, columns) * largest value of F / largest magnitude; by_columns: the
/// same transposed; either may be null. *inverse: what undoes the factor, in device memory. What is not finite is NaN.
template <class F, class T>
void quantize(stream, const T* x, index rows, index columns, const float* partial, index partials, float* inverse,
              F* by_rows, F* by_columns);
/// to (rows, width) (+)= relu(the first `width` columns of `from`, of rows of `leading`, + bias (width)); bias may be
/// null. `to` is added to where `adds`.
template <class To>
void take_columns(stream, const float* from, index leading, To* to, index rows, index width, const float* bias,
                  bool relu, bool adds);

// gradients.cuh

struct gradient_job {
  float* gradient;
  index n;
};
/// How many floats gradient_norm needs.
index norm_scratch(std::span<const gradient_job>);
/// *norm: the 2-norm over all of them.
void gradient_norm(stream, std::span<const gradient_job>, double* norm, float* scratch);
/// *count += the elements that are NaN or infinite. norm: of all of them, where it is known: if finite, none is looked
/// at.
void count_not_finite(stream, std::span<const gradient_job>, unsigned long long* count, const double* norm = nullptr);
void scale_gradients(stream, std::span<const gradient_job>, double factor);
/// What an update asks of a step whose losses and gradients nobody on the host has seen.
struct step_judgement {
  const double* losses;  // `count` of them
  index count;
  unsigned long long *not_finite, *bad_losses;  // the first is of gradients, and the other is added to it
  double* norm = nullptr;  // of the gradients; then of what `unscale` makes of them. Null: no clipping
  double unscale = 1, largest = 0;
  float* clip = nullptr;  // what brings the norm to `largest` where it is larger, else 1
};
void judge_step(stream, const step_judgement&);

// optimizers.cuh

/// One parameter. first and second: SGD's velocity, or Adam's two moments; null where the rule has none. Low: bf16,
/// fp16.
template <class Low>
struct update_job {
  float* value;
  const float* gradient;
  float *first, *second;
  Low* copy;  // written in the same pass; null: this parameter has no copy in low precision
  index n;
};
/// not_finite: where it is not null and *not_finite > 0 the step is left out; nothing waits on the host for it.
/// factor: of each gradient before the step, the inverse of a loss scale. clip: on the device, another, after it.
struct step_control {
  const unsigned long long* not_finite = nullptr;
  float factor = 1;
  const float* clip = nullptr;
};
/// One step of SGD. Slots start at zero; a parameter without a gradient is left out by the caller.
template <class Low>
void sgd_step(stream, std::span<const update_job<Low>>, const native::sgd_options&, const step_control& = {});
/// step: from 1.
template <class Low>
void adam_step(stream, std::span<const update_job<Low>>, const native::adam_options&, std::int64_t step,
               const step_control& = {});

}  // namespace comp::cuda
