// SPDX-License-Identifier: Apache-2.0
// The Device that is an NVIDIA GPU. Products, convolutions, batch norm and pooling are cuBLASLt's, cuDNN's and
// cuSPARSE's; kernels of this backend do the rest.
// FP32 uses no tensor cores. TF32, BF16 and FP16 use them, with sums in FP32. FP8 is for linear layers, with BF16
// between them.
// All work goes to one stream, and only calls that return values to the host wait for it. One thread at a time uses a
// device. Each member only calls the function of its name.
#pragma once

#include <array>
#include <comp/core/hardware.hpp>
#include <comp/core/op_info.hpp>
#include <comp_native/batch_feed.hpp>
#include <comp_native/device.hpp>
#include <comp_native/op/attention.hpp>
#include <cstdint>
#include <memory>
#include <memory_resource>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "attention.hpp"
#include "batch_norm.hpp"
#include "bmm.hpp"
#include "captured_step.hpp"
#include "context.hpp"
#include "conv2d.hpp"
#include "copies_ahead.hpp"
#include "dropout.hpp"
#include "elementwise.hpp"
#include "embedding.hpp"
#include "graph.hpp"
#include "layer_norm.hpp"
#include "layout.hpp"
#include "linear.hpp"
#include "loss.hpp"
#include "optimizer.hpp"
#include "parameter.hpp"
#include "pooling.hpp"
#include "softmax.hpp"
#include "tensor.hpp"
#include "transfer.hpp"

namespace comp::cuda {

class device {
 public:
  using tensor = cuda::tensor;
  using indices = cuda::indices;
  using parameter = cuda::parameter;
  using parameter_state = cuda::parameter_state;
  using sparse_matrix = csr;
  using saved_tensor = cuda::saved_tensor;
  using saved = std::vector<tensor>;
  using parameters = std::span<parameter* const>;

  /// Throws: error for a GPU that is not there, settings_error for settings that cannot be.
  explicit device(const settings& chosen = {})
      : context_{std::make_shared<context>(probe(chosen.gpu), checked(chosen))} {}

  comp::hardware hardware() const { return context_->card().hardware(); }
  std::vector<comp::precision> supported_precisions() const { return context_->card().supported(); }
  /// True if the GPU has p; FP8 only for linear layers.
  bool supports(const op_info& op, comp::precision p) const {
    return context_->card().has(p) && (!is_fp8(p) || op.kind == "linear");
  }
  /// Returns: one sentence for each precision that this GPU's tensor cores lack.
  std::vector<std::string> warnings() const { return context_->card().warnings(); }
  /// Returns: a profiler's range that lasts as long as the returned object (comp_native/ranges.hpp).
  profiler_range range(const char* name) const { return {context_->chosen().ranges, name}; }
  /// Returns: the context, for callers of operators that are functions of this backend and no members here.
  context& shared() { return c(); }

  /// Returns: the element-wise operators so far, their launches, and the memory traffic that fusing saved.
  const fusion_counts& fused() const { return context_->fused(); }

  // Memory and transfer
  tensor upload(std::span<const float> from, const shape& s, comp::precision p) {
    return cuda::upload(c(), from, s, p);
  }
  tensor upload(std::span<const std::uint8_t> from, const shape& s, const tensor& of_bytes) {
    return cuda::upload(c(), from, s, of_bytes);
  }
  indices upload(std::span<const std::int32_t> from, shape s) { return cuda::upload(c(), from, std::move(s)); }
  std::vector<float> download(const tensor& t) { return cuda::download(c(), t); }
  tensor cast(const tensor& t, comp::precision p) {
    require_supported(c(), p);
    return cuda::cast(c(), t, p);
  }
  tensor reshape(const tensor& t, const shape& s) { return cuda::reshape(c(), t, s); }
  void synchronize() { c().synchronize(); }
  std::int64_t live_bytes() const { return context_->pool().live_bytes(); }
  std::int64_t peak_bytes() const { return context_->pool().peak_bytes(); }
  void reset_peak() { context_->pool().reset_peak(); }

  // Parameters
  parameter make_parameter(std::span<const float> from, const shape& s, bool trainable = true) {
    return cuda::make_parameter(c(), from, s, trainable);
  }
  const shape& shape_of(const parameter& p) const { return p.extents; }
  std::vector<float> values(const parameter& p) { return cuda::values(c(), p); }
  std::vector<float> gradient(const parameter& p) { return cuda::gradient(c(), p); }
  void set_values(parameter& p, std::span<const float> from) { cuda::set_values(c(), p, from); }
  void zero_gradient(parameter& p) { p.fresh = true; }
  void set_trainable(parameter& p, bool on) { p.trainable = on; }
  parameter_state snapshot(const parameter& p) { return cuda::snapshot(c(), p); }
  void restore(parameter& p, const parameter_state& s) { cuda::restore(c(), p, s); }
  native::parameter_slots slots(const parameter& p) { return cuda::slots(c(), p); }
  void set_slots(parameter& p, const native::parameter_slots& from) { cuda::set_slots(c(), p, from); }
  std::int64_t count_not_finite(parameters all) { return cuda::count_not_finite(c(), all); }
  double gradient_norm(parameters all) { return cuda::gradient_norm(c(), all); }
  void scale_gradients(parameters all, double factor) { cuda::scale_gradients(c(), all, factor); }
  void sgd_step(parameters all, const sgd_options& o) { cuda::sgd_step(c(), all, o, report().control()); }
  void adam_step(parameters all, const adam_options& o, std::int64_t step) {
    cuda::adam_step(c(), all, o, step, report().control());
  }

  // Deferred and captured steps: comp_native/deferral.hpp, passes.hpp
  using captured_work = captured_step;
  void defer_losses(bool on) { report().defer(on); }
  void guard_update(parameters all, const native::update_guard& by) { c().part<step_report>().guard(all, by); }
  native::step_gradients end_step() { return c().part<step_report>().end(); }
  template <class F>
  captured_work capture(parameters all, std::uint64_t draws, F&& work) {
    return cuda::capture(c(), all, draws, std::forward<F>(work));
  }
  bool usable(const captured_work& work) { return cuda::usable(c(), work); }
  void replay(captured_work& work, std::uint64_t draws, double* loss) { cuda::replay(c(), work, draws, loss); }
  void refill(tensor& t, const tensor& from) { cuda::refill(c(), t, from); }
  void refill(indices& t, const indices& from) { cuda::refill(c(), t, from); }

  // Batches copied ahead: comp_native/batch_feed.hpp
  using arriving = cuda::arriving;
  int loading_threads() const { return cuda::loading_threads(); }
  std::pmr::memory_resource& staging_memory() { return c().part<copies_ahead>().staging_memory(); }
  template <class T>
  arriving copy_ahead(std::span<const T> from) {
    return cuda::copy_ahead(c(), from);
  }
  void await_copies() { c().part<copies_ahead>().wait(); }
  tensor arrived(arriving from, const shape& s) { return cuda::arrived(c(), std::move(from), s); }
  tensor arrived(arriving from, const shape& s, const tensor& of_bytes) {
    return cuda::arrived(c(), std::move(from), s, of_bytes);
  }
  indices arrived_indices(arriving from, shape s) { return cuda::arrived_indices(c(), std::move(from), std::move(s)); }

  // Operators
  tensor linear(const tensor& x, parameter& w, parameter* b) { return cuda::linear(c(), x, w, b); }
  tensor linear_backward(const tensor& dy, const tensor& x, parameter& w, parameter* b, bool need_dx,
                         bool need_parameters = true) {
    return cuda::linear_backward(c(), dy, x, w, b, need_dx, need_parameters);
  }
  tensor conv2d(const tensor& x, parameter& w, parameter* b, const conv2d_options& o) {
    return cuda::conv2d(c(), x, w, b, o);
  }
  tensor conv2d_backward(const tensor& dy, const tensor& x, parameter& w, parameter* b, const conv2d_options& o,
                         bool need_dx) {
    return cuda::conv2d_backward(c(), dy, x, w, b, o, need_dx);
  }
  saved_tensor batch_norm(const tensor& x, parameter& gamma, parameter& beta, parameter& mean, parameter& variance,
                          const batch_norm_options& o) {
    return cuda::batch_norm(c(), x, gamma, beta, mean, variance, o);
  }
  tensor batch_norm_backward(const tensor& dy, const tensor& x, const saved& s, parameter& gamma, parameter& beta,
                             const batch_norm_options& o) {
    return cuda::batch_norm_backward(c(), dy, x, s, gamma, beta, o);
  }
  saved_tensor layer_norm(const tensor& x, parameter& gamma, parameter& beta, double eps) {
    return cuda::layer_norm(c(), x, gamma, beta, eps);
  }
  tensor layer_norm_backward(const tensor& dy, const tensor& x, const saved& s, parameter& gamma, parameter& beta,
                             [[maybe_unused]] double eps) {
    return cuda::layer_norm_backward(c(), dy, x, s, gamma, beta);
  }
  tensor activate(activation a, const tensor& x) { return cuda::activate(c(), a, x); }
  tensor activate_backward(activation a, const tensor& dy, const tensor& x, const tensor& y) {
    return cuda::activate_backward(c(), a, dy, x, y);
  }
  tensor dropout(const tensor& x, double p, const dropout_key& k) { return cuda::dropout(c(), x, p, k); }
  tensor dropout_backward(const tensor& dy, double p, const dropout_key& k) {
    return cuda::dropout_backward(c(), dy, p, k);
  }
  saved_tensor max_pool2d(const tensor& x, const pool2d_options& o) { return cuda::max_pool2d(c(), x, o); }
  tensor max_pool2d_backward(const tensor& dy, const tensor& x, const saved& s, const pool2d_options& o) {
    return cuda::max_pool2d_backward(c(), dy, x, s, o);
  }
  tensor avg_pool2d(const tensor& x, const pool2d_options& o) { return cuda::avg_pool2d(c(), x, o); }
  tensor avg_pool2d_backward(const tensor& dy, const shape& x, const pool2d_options& o) {
    return cuda::avg_pool2d_backward(c(), dy, x, o);
  }
  tensor adaptive_avg_pool2d(const tensor& x, const std::array<std::int64_t, 2>& size) {
    return cuda::adaptive_avg_pool2d(c(), x, size);
  }
  tensor adaptive_avg_pool2d_backward(const tensor& dy, const shape& x) {
    return cuda::adaptive_avg_pool2d_backward(c(), dy, x);
  }
  tensor add(const tensor& a, const tensor& b) { return cuda::add(c(), a, b); }
  tensor mul(const tensor& a, const tensor& b) { return cuda::mul(c(), a, b); }
  tensor sum(std::span<const tensor> terms) { return cuda::sum(c(), terms); }
  tensor embedding(const indices& at, parameter& w, comp::precision p) {
    require_supported(c(), p);
    return cuda::embedding(c(), at, w, p);
  }
  void embedding_backward(const tensor& dy, const indices& at, parameter& w) {
    cuda::embedding_backward(c(), dy, at, w);
  }
  tensor split_heads(const tensor& x, std::int64_t heads) { return cuda::split_heads(c(), x, heads); }
  tensor merge_heads(const tensor& x) { return cuda::merge_heads(c(), x); }
  tensor bmm(const tensor& a, const tensor& b, bool transpose_a = false, bool transpose_b = false, double alpha = 1) {
    return cuda::bmm(c(), a, b, transpose_a, transpose_b, alpha);
  }
  tensor softmax(const tensor& x, bool causal = false) { return cuda::softmax(c(), x, causal); }
  tensor padded_softmax(const tensor& x, const indices& lengths) { return cuda::padded_softmax(c(), x, lengths); }
  tensor softmax_backward(const tensor& dy, const tensor& y, bool causal = false) {
    return cuda::softmax_backward(c(), dy, y, causal);
  }
  tensor log_softmax(const tensor& x) { return cuda::log_softmax(c(), x); }
  tensor log_softmax_backward(const tensor& dy, const tensor& y) { return cuda::log_softmax_backward(c(), dy, y); }
  std::optional<saved_tensor> attention(const tensor& q, const tensor& k, const tensor& v, const indices& lengths,
                                        const native::attention_options& o, const dropout_key& key) {
    return cuda::attention(c(), q, k, v, lengths, o, key);
  }
  std::array<tensor, 3> attention_backward(const tensor& dy, const tensor& q, const tensor& k, const tensor& v,
                                           std::span<const tensor> s, const indices& lengths,
                                           const native::attention_options& o, const dropout_key& key) {
    return cuda::attention_backward(c(), dy, q, k, v, s, lengths, o, key);
  }
  /// Returns: a sentence for each case of attention so far that runs operator by operator, with cuDNN's reason.
  std::vector<std::string> attention_in_parts() { return c().part<fused_attention>().why(); }
  /// Returns: a sentence for each pass of a convolution so far that is no graph, with cuDNN's reason.
  std::vector<std::string> convolutions_by_calls() { return c().part<convolution_plans>().why(); }
  saved_tensor cross_entropy(const tensor& logits, const indices& target, double* loss) {
    return cuda::cross_entropy(c(), logits, target, loss);
  }
  tensor cross_entropy_backward(const saved& s, const indices& target, double scale) {
    return cuda::cross_entropy_backward(c(), s, target, scale);
  }
  void nll_loss(const tensor& logp, const indices& target, double* loss) { cuda::nll_loss(c(), logp, target, loss); }
  tensor nll_loss_backward(const tensor& logp, const indices& target, double scale) {
    return cuda::nll_loss_backward(c(), logp, target, scale);
  }
  void mse_loss(const tensor& x, const tensor& target, double* loss) { cuda::mse_loss(c(), x, target, loss); }
  tensor mse_loss_backward(const tensor& x, const tensor& target, double scale) {
    return cuda::mse_loss_backward(c(), x, target, scale);
  }
  void binary_cross_entropy(const tensor& x, double target, double* loss) {
    cuda::binary_cross_entropy(c(), x, target, loss);
  }
  tensor binary_cross_entropy_backward(const tensor& x, double target, double scale) {
    return cuda::binary_cross_entropy_backward(c(), x, target, scale);
  }
  std::int64_t count_correct(const tensor& logits, const indices& target) {
    return cuda::count_correct(c(), logits, target);
  }

  // Operators along the edges of a graph or another sparse matrix
  sparse_matrix make_sparse(const native::host_csr& from) { return csr{c(), from}; }
  tensor sparse_linear(const sparse_matrix& m, const tensor& values, parameter& w) {
    return cuda::sparse_linear(c(), m, values, w);
  }
  tensor sparse_linear_backward(const sparse_matrix& m, const tensor& dy, const tensor& values, parameter& w,
                                bool need_dx) {
    return cuda::sparse_linear_backward(c(), m, dy, values, w, need_dx);
  }
  tensor spmm(const sparse_matrix& m, const tensor& x, parameter* b) { return cuda::spmm(c(), m, x, b); }
  tensor spmm_backward(const sparse_matrix& m, const tensor& dy, parameter* b, bool need_dx) {
    return cuda::spmm_backward(c(), m, dy, b, need_dx);
  }
  saved_tensor edge_scores(const sparse_matrix& m, const tensor& x, parameter& source, parameter& target,
                           double slope) {
    return cuda::edge_scores(c(), m, x, source, target, slope);
  }
  tensor edge_scores_backward(const sparse_matrix& m, const tensor& dy, const tensor& x, const saved& s,
                              parameter& source, parameter& target, double slope) {
    return cuda::edge_scores_backward(c(), m, dy, x, s, source, target, slope);
  }
  tensor edge_softmax(const sparse_matrix& m, const tensor& x) { return cuda::edge_softmax(c(), m, x); }
  tensor edge_softmax_backward(const sparse_matrix& m, const tensor& dy, const tensor& y) {
    return cuda::edge_softmax_backward(c(), m, dy, y);
  }
  tensor weighted_sum(const sparse_matrix& m, const tensor& share, const tensor& x, parameter* b) {
    return cuda::weighted_sum(c(), m, share, x, b);
  }
  std::array<tensor, 2> weighted_sum_backward(const sparse_matrix& m, const tensor& dy, const tensor& share,
                                              const tensor& x, parameter* b) {
    return cuda::weighted_sum_backward(c(), m, dy, share, x, b);
  }

 private:
  context& c() { return context_->be_current(), *context_; }
  step_report& report() { return context_->part<step_report>(); }
  std::shared_ptr<context> context_;
};

static_assert(native::Device<device> && native::Captures<device> && native::CopiesAhead<device> &&
              native::Attends<device>);

}  // namespace comp::cuda
