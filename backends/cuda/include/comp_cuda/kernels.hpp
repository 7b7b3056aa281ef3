// SPDX-License-Identifier: Apache-2.0
// The kernels of backends/cuda/kernels as functions that any host compiler can call. Each launches its kernels on a
// stream and returns. nvcc compiles the definitions once, a header per family, into a library to link (comp-cuda).
// T is the storage: float, bf16 or fp16. All kernels compute in FP32, take sizes of 0, and add in a fixed order.
// All of them throw what check() throws if a launch is refused.
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

/// One tensor to cast.
template <class From, class To>
struct cast_job {
  const From* from;
  To* to;
  index n;
};
/// Casts each job's tensor, to the nearest, ties to even. One launch takes 48 jobs. Requires: From and To differ.
template <class From, class To>
void cast(stream, std::span<const cast_job<From, To>>);

// bytes.cuh

/// Writes the value of each byte to `to` (rows,width). The value of byte b in a row is of_bytes[row % channels][b];
/// of_bytes is (channels,256).
void values_of_bytes(stream, const std::uint8_t* from, const float* of_bytes, float* to, index rows, index channels,
                     index width);

// elementwise.cuh, bias.cuh

/// What a step of an element-wise chain does to the value v of element i.
enum class step_kind : std::uint8_t {
  relu,  // v = f(v)
  gelu,
  gelu_tanh,
  tanh,
  sigmoid,
  elu,
  leaky_relu,
  relu_backward,  // v *= f's derivative; other: f's operand for both gelus, f's result for the rest
  gelu_backward,
  gelu_tanh_backward,
  tanh_backward,
  sigmoid_backward,
  elu_backward,
  leaky_relu_backward,
  add,      // v += other[i]
  mul,      // v *= other[i]
  scale,    // v *= number
  dropout,  // v = 0 or v / (1 - p), by `mask`
  keep,     // kept[i] = v, rounded
};
/// A step and its operands; a kind reads only its own.
template <class T>
struct chain_step {
  step_kind kind;
  const T* other = nullptr;
  T* kept = nullptr;
  float number = 1;
  native::math::dropout_mask mask{};
  const std::uint64_t* draws = nullptr;  // on the device, added to the mask's draw; null: nothing is added
  bool rounds = false;                   // v is rounded to T after the step, as if it had been stored and loaded
};
inline constexpr int most_steps = 8;
/// Applies the steps one after another to the n elements of `from` and writes `to`.
/// Requires: any two tensors are the same or do not overlap. Throws: error for more than most_steps steps.
template <class T>
void run_chain(stream, const T* from, T* to, index n, std::span<const chain_step<T>>);
/// Writes a seed that belongs to the mask to to[0], and 0 to to[1]: the seed and offset of cuDNN's dropouts. draws: as
/// in chain_step.
void attention_seed(stream, const native::math::dropout_mask&, const std::uint64_t* draws, std::uint64_t* to);
/// y = x + bias, or the ReLU of that. x and y are (rows, width) and may be the same; bias is (width) in FP32.
template <class T>
void add_bias(stream, const T* x, const float* bias, T* y, index rows, index width, bool relu = false);

// transpose.cuh

/// Transposes `batch` matrices of (rows, columns): to[b][c][r] = from[b][r][c]. Requires: from and to do not overlap.
template <class T>
void transpose(stream, const T* from, T* to, index batch, index rows, index columns);
/// Exchanges the two axes in the middle: to[b][j][i][:] = from[b][i][j][:], as between (B,T,H,D) and (B,H,T,D).
template <class T>
void swap_middle(stream, const T* from, T* to, index batch, index i, index j, index width);

// softmax.cuh, layer_norm.cuh, edge_softmax.cuh

enum class softmax_kind : std::uint8_t { full, causal, log, padded };
/// How a softmax is masked. padded: only the first lengths[r / rows_each] columns of row r count.
struct softmax_form {
  softmax_kind kind;
  const std::int32_t* lengths;
  index rows_each;
  softmax_form(softmax_kind of, const std::int32_t* lengths_of = nullptr, index rows_of_each = 1)
      : kind{of}, lengths{lengths_of}, rows_each{rows_of_each} {}
};
/// y = the softmax of each row of x (rows, width). causal: x is (..., width, width), and the columns right of the
/// diagonal do not count. Columns that do not count are as minus infinity and are not read. A row without any that
/// counts is 0.
template <class T>
void softmax(stream, const T* x, T* y, index rows, index width, const softmax_form&);
/// dx from dy and the softmax's result y. causal: dx is 0 right of the diagonal. dx and dy may be the same.
template <class T>
void softmax_backward(stream, const T* dy, const T* y, T* dx, index rows, index width, softmax_kind);
/// x and y are (rows, width), gamma and beta (width), mean and inverse_deviation (rows); the backward reads the last
/// two.
template <class T>
void layer_norm(stream, const T* x, const float* gamma, const float* beta, T* y, float* mean, float* inverse_deviation,
                index rows, index width, double eps);
/// What a layer norm reads in place of x: from + other, with a dropout of `from` if `drops`. The results of the dropout
/// and of the sum are rounded to T, as if they had been stored.
template <class T>
struct layer_norm_sum {
  const T *from, *other;
  bool drops = false;
  native::math::dropout_mask mask{};
  const std::uint64_t* draws = nullptr;  // as in chain_step
};
/// Writes the sum to x and its layer norm to y.
template <class T>
void layer_norm(stream, const layer_norm_sum<T>&, T* x, const float* gamma, const float* beta, T* y, float* mean,
                float* inverse_deviation, index rows, index width, double eps);
/// addend: added to dx after dx was rounded; null: nothing is added.
template <class T>
void layer_norm_backward(stream, const T* dy, const T* x, const float* gamma, const float* mean,
                         const float* inverse_deviation, T* dx, index rows, index width, const T* addend = nullptr);
/// Writes the gradients to d_gamma and d_beta (width), or adds them. scratch: column_scratch(rows, width, 2) floats.
template <class T>
void layer_norm_parameters_backward(stream, const T* dy, const T* x, const float* mean, const float* inverse_deviation,
                                    float* d_gamma, float* d_beta, index rows, index width, bool adds, float* scratch);
/// x and y are (edges, heads), begin is (nodes + 1): the edges of node i are begin[i] to begin[i + 1].
template <class T>
void edge_softmax(stream, const T* x, const std::int32_t* begin, T* y, index nodes, index heads);
template <class T>
void edge_softmax_backward(stream, const T* dy, const T* y, const std::int32_t* begin, T* dx, index nodes, index heads);

// edges.cuh: edge e goes from the node column[e] to the node row[e]. Sums over the edges of node i read the positions
// begin[i] to begin[i + 1] of two lists: others has the node at the other end, edge the edge's number; if edge is null,
// the number is the position.

/// y (edges,heads) = leaky_relu(target[row] + source[column]). slope: of leaky_relu for negative values.
template <class T>
void edge_scores(stream, const T* target, const T* source, const std::int32_t* row, const std::int32_t* column, T* y,
                 index edges, index heads, float slope);
/// d_own (nodes,heads) = the gradient of `own`, which is target or source: the one whose nodes' edges are listed.
/// `other` is the other one.
template <class T>
void edge_scores_backward(stream, const T* dy, const T* own, const T* other, const std::int32_t* begin,
                          const std::int32_t* others, const std::int32_t* edge, T* d_own, index nodes, index heads,
                          float slope);
/// y (nodes,heads,width) = for each node the sum over its edges of share (edges,heads) * x[other] (.,heads,width).
template <class T>
void weighted_sums(stream, const T* share, const T* x, const std::int32_t* begin, const std::int32_t* other,
                   const std::int32_t* edge, T* y, index nodes, index heads, index width);
/// y (edges,heads) = the dot products of a[row] and b[column], both (.,heads,width).
template <class T>
void edge_products(stream, const T* a, const T* b, const std::int32_t* row, const std::int32_t* column, T* y,
                   index edges, index heads, index width);

// losses.cuh

/// *loss = the mean of -log softmax(logits)[target] over the targets >= 0; *count = how many these are. log_sum (rows)
/// is for the backward, term (rows) is scratch memory. A target beyond the classes makes the loss NaN.
template <class T>
void cross_entropy(stream, const T* logits, const std::int32_t* target, float* log_sum, float* term, double* loss,
                   float* count, index rows, index width);
/// dx = scale / count * (softmax(logits) - onehot(target)).
template <class T>
void cross_entropy_backward(stream, const T* logits, const std::int32_t* target, const float* log_sum,
                            const float* count, T* dx, index rows, index width, double scale);
/// *loss = the mean of -logp[target]. term (rows) is scratch memory.
template <class T>
void nll_loss(stream, const T* logp, const std::int32_t* target, float* term, double* loss, float* count, index rows,
              index width);
template <class T>
void nll_loss_backward(stream, const std::int32_t* target, const float* count, T* dx, index rows, index width,
                       double scale);
/// *loss = the mean of (x - target)^2. scratch: most_partials floats.
template <class T>
void mse_loss(stream, const T* x, const T* target, index n, double* loss, float* scratch);
template <class T>
void mse_loss_backward(stream, const T* x, const T* target, T* dx, index n, double scale);
/// *loss = the mean binary cross entropy of the logits x with one target for all. scratch: most_partials floats.
template <class T>
void binary_cross_entropy(stream, const T* x, float target, index n, double* loss, float* scratch);
template <class T>
void binary_cross_entropy_backward(stream, const T* x, float target, T* dx, index n, double scale);
/// *count += how many rows have their largest score at the target; of equal scores the first counts.
template <class T>
void count_correct(stream, const T* logits, const std::int32_t* target, int* count, index rows, index width);

// embedding.cuh

/// y[i] = table[at[i]]. table is (entries, width) in FP32, y is (n, width). A row for an index outside of the table is
/// NaN.
template <class T>
void embedding(stream, const float* table, const std::int32_t* at, T* y, index n, index width, index entries);
/// Returns: how many floats embedding_backward needs as scratch memory, aligned to 16 bytes.
index embedding_scratch(index n, index width, index entries);
/// gradient[at[i]] += dy[i], in the order of i. If an index occurs more than 64 times, its rows are first added in
/// groups of 64, and then the groups in order. The caller sets a new gradient to 0.
template <class T>
void embedding_backward(stream, const T* dy, const std::int32_t* at, float* gradient, index n, index width,
                        index entries, float* scratch);

// reductions.cuh

inline constexpr index most_partials = 1024;  // the most partial sums of a reduction to one number
/// Returns: how many rows are in each chunk of a sum over rows: 256, or more if that would make over 1024 chunks.
constexpr index rows_of_chunk(index rows) { return rows <= 256 * 1024 ? 256 : (rows + 1023) / 1024; }
constexpr index column_chunks(index rows) { return (rows + rows_of_chunk(rows) - 1) / rows_of_chunk(rows); }
/// Returns: how many floats of scratch memory `terms` sums over rows need.
constexpr index column_scratch(index rows, index width, int terms) { return column_chunks(rows) * terms * width; }
/// Writes the column sums of x (rows, width) to `to`, or adds them: the gradient of a bias.
/// scratch: column_scratch(rows, width, 1) floats.
template <class T>
void column_sums(stream, const T* x, float* to, index rows, index width, bool adds, float* scratch);

// adaptive_pooling.cuh

/// The sizes of an adaptive pooling.
struct bin_sizes {
  index planes, channels;  // planes: images x channels
  index from[2], to[2];    // rows and columns of a plane, and of its bins
  bool channels_last;      // the order of both sides
};
template <class T>
void adaptive_pooling(stream, const T* x, T* y, const bin_sizes&);
/// dx, which has the size of the averaged tensor, from dy.
template <class T>
void adaptive_pooling_backward(stream, const T* dy, T* dx, const bin_sizes&);

// quantize.cuh; T is float or bf16, F is e4m3 or e5m2

/// Returns: the size that an FP8 operand of size n is padded to, with zeros: cuBLASLt wants multiples of 16.
constexpr index fp8_padded(index n) { return (n + 15) / 16 * 16; }
/// Writes the largest magnitudes of parts of x to partial; NaN counts as larger than all. partial: most_partials
/// floats.
/// Returns: how many parts there are.
template <class T>
index largest_magnitudes(stream, const T* x, index n, float* partial);
/// by_rows (padded rows, padded columns) = x (rows, columns) * largest value of F / largest magnitude of x; by_columns
/// is its transpose. Either may be null. *inverse, on the device, is the factor that undoes the scaling. Values that
/// are not finite become NaN.
template <class F, class T>
void quantize(stream, const T* x, index rows, index columns, const float* partial, index partials, float* inverse,
              F* by_rows, F* by_columns);
/// Writes relu(from + bias) to `to` (rows, width), or adds it, for the first `width` of the `leading` columns of
/// `from`.
/// bias is (width) or null.
template <class To>
void take_columns(stream, const float* from, index leading, To* to, index rows, index width, const float* bias,
                  bool relu, bool adds);

// gradients.cuh

/// The gradient of one parameter, with n elements.
struct gradient_job {
  float* gradient;
  index n;
};
/// Returns: how many floats of scratch memory gradient_norm needs.
index norm_scratch(std::span<const gradient_job>);
/// *norm = the 2-norm of all gradients together.
void gradient_norm(stream, std::span<const gradient_job>, double* norm, float* scratch);
/// *count += how many elements are NaN or infinite. norm: the norm of all gradients on the device, if it is known; if
/// that is finite all elements are, and none is read.
void count_not_finite(stream, std::span<const gradient_job>, unsigned long long* count, const double* norm = nullptr);
void scale_gradients(stream, std::span<const gradient_job>, double factor);
/// What the device finds out about a step before the update, so that the host need not wait for losses and gradients.
struct step_judgement {
  const double* losses;  // on the device, `count` of them
  index count;
  unsigned long long *not_finite, *bad_losses;  // losses that are not finite are added to the one, written to the other
  double* norm = nullptr;           // the norm of the gradients; `unscale` is applied to it. null: no clipping
  double unscale = 1, largest = 0;  // the inverse of the loss scale; the norm to clip to
  float* clip = nullptr;            // written: largest / norm if norm > largest, else 1
};
/// Judges a step: writes bad_losses and clip, and updates not_finite and norm.
void judge_step(stream, const step_judgement&);

// optimizers.cuh

/// One parameter to update. first and second: SGD's velocity, or Adam's two moments; null if the optimizer has none.
/// Low is bf16 or fp16.
template <class Low>
struct update_job {
  float* value;
  const float* gradient;
  float *first, *second;
  Low* copy;  // written in the same pass; null: this parameter has no copy in low precision
  index n;
};
/// What an update reads before it updates. The pointers are to device memory, so that the host need not wait.
struct step_control {
  const unsigned long long* not_finite = nullptr;  // the update is left out if it is above 0; null: never
  float factor = 1;                                // gradients are multiplied by it: the inverse of the loss scale
  const float* clip = nullptr;                     // and then by this; null: no clipping
};
/// One step of SGD for all jobs. Slots start at 0. The caller leaves out parameters without a gradient.
template <class Low>
void sgd_step(stream, std::span<const update_job<Low>>, const native::sgd_options&, const step_control& = {});
/// One step of Adam or AdamW for all jobs. step: the number of the step, from 1.
template <class Low>
void adam_step(stream, std::span<const update_job<Low>>, const native::adam_options&, std::int64_t step,
               const step_control& = {});

}  // namespace comp::cuda
