// SPDX-License-Identifier: Apache-2.0
// The Device that computes on this CPU, by oneDNN where it has a good primitive and by loops of this backend elsewhere.
// FP32 runs on any CPU. BF16 runs in oneDNN's BF16 primitives where the CPU has AVX-512, and is otherwise computed in
// FP32 and rounded. FP16 is stored as FP16 and computed in FP32, with real overflow to infinity: it saves memory and
// shows how a training in FP16 converges, but not how fast it would be. Formats below 16 bits are emulated, with the
// same purpose.
// Not here: what each operation means (comp_native/device.hpp).
// A device is used by one thread at a time. It sets OpenMP's number of threads for the thread that makes it.
#pragma once

#include <array>
#include <comp/core/cpu.hpp>
#include <comp_native/device.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "adaptive_pooling.hpp"
#include "attention.hpp"
#include "bmm.hpp"
#include "context.hpp"
#include "conv2d.hpp"
#include "dropout.hpp"
#include "edge_attention.hpp"
#include "elementwise.hpp"
#include "embedding.hpp"
#include "graph.hpp"
#include "hardware.hpp"
#include "linear.hpp"
#include "loss.hpp"
#include "normalization.hpp"
#include "optimizer.hpp"
#include "parameter.hpp"
#include "pooling.hpp"
#include "softmax.hpp"
#include "tensor.hpp"
#include "transfer.hpp"

namespace comp::host {

/// What a user chooses of a device.
struct settings {
  int threads = 0;               // 0: as many as OpenMP would use
  std::size_t memory_limit = 0;  // [bytes] live at once; 0: no limit
  bool native_bf16 = true;       // false: computes BF16 as on a CPU without AVX-512
  /// The least number of keys for which attention without dropout is computed as one operator. With fewer keys it is as
  /// fast operator by operator.
  std::int64_t attention_from = 192;
};

class device {
 public:
  using tensor = host::tensor;
  using indices = host::indices;
  using parameter = host::parameter;
  using parameter_state = host::parameter_state;
  using sparse_matrix = host::sparse_matrix;
  using saved_tensor = host::saved_tensor;
  using saved = std::vector<tensor>;
  using parameters = std::span<parameter* const>;

  explicit device(const settings& chosen = {})
      : context_{std::make_unique<context>(
            context_settings{chosen.memory_limit, chosen.native_bf16, chosen.attention_from})} {
    require<settings_error>(chosen.threads >= 0, "{} threads asked for (a device needs at least one): use 0 for all",
                            chosen.threads);
    if (chosen.threads > 0) set_threads(chosen.threads);
  }

  comp::hardware hardware() const { return this_cpu(threads_of_loops()); }
  std::vector<comp::precision> supported_precisions() const { return host::supported_precisions(); }
  /// Of all operators only linear layers run in formats below 16 bits, as on GPUs.
  bool supports(const op_info& op, comp::precision p) const { return !is_scaled(p) || op.kind == "linear"; }
  void round_by(dropout_key key) { c().roundings = {key.seed, key.draw << 20}; }

  // Memory and transfer
  tensor upload(std::span<const float> from, const shape& s, comp::precision p) {
    return host::upload(c(), from, s, p);
  }
  tensor upload(std::span<const std::uint8_t> from, const shape& s, const tensor& of_bytes) {
    return host::upload(c(), from, s, of_bytes);
  }
  indices upload(std::span<const std::int32_t> from, shape s) { return host::upload(from, std::move(s)); }
  std::vector<float> download(const tensor& t) { return host::download(c(), t); }
  tensor cast(const tensor& t, comp::precision p) { return host::cast(c(), t, p); }
  tensor reshape(const tensor& t, const shape& s) { return host::reshape(c(), t, s); }
  void synchronize() { c().stream.wait(); }
  std::int64_t live_bytes() const { return static_cast<std::int64_t>(context_->memory->live()); }
  std::int64_t peak_bytes() const { return static_cast<std::int64_t>(context_->memory->peak()); }
  void reset_peak() { c().memory->reset_peak(); }
  void trim() { c().memory->trim(); }

  // Clocks, which are off until profile_primitives(true); that also sets them to zero
  void profile_primitives(bool on) { c().profile(on); }
  double primitive_seconds() const { return context_->shares().primitives; }
  const time_shares& shares() const { return context_->shares(); }
  std::size_t primitives_made() const { return context_->primitives_made(); }

  // Parameters
  parameter make_parameter(std::span<const float> from, const shape& s, bool trainable = true) {
    return host::make_parameter(c(), from, s, trainable);
  }
  const shape& shape_of(const parameter& p) const { return p.extents; }
  std::vector<float> values(const parameter& p) { return host::values(c(), p); }
  std::vector<float> gradient(const parameter& p) { return host::gradient(c(), p); }
  void set_values(parameter& p, std::span<const float> from) { host::set_values(c(), p, from); }
  void zero_gradient(parameter& p) { p.fresh = true; }
  void set_trainable(parameter& p, bool on) { p.trainable = on; }
  parameter_state snapshot(const parameter& p) { return host::snapshot(c(), p); }
  void restore(parameter& p, const parameter_state& s) { host::restore(c(), p, s); }
  native::parameter_slots slots(const parameter& p) { return host::slots(c(), p); }
  void set_slots(parameter& p, const native::parameter_slots& from) { host::set_slots(c(), p, from); }
  std::int64_t count_not_finite(parameters all) { return host::count_not_finite(c(), all); }
  double gradient_norm(parameters all) { return host::gradient_norm(c(), all); }
  void scale_gradients(parameters all, double factor) { host::scale_gradients(c(), all, factor); }
  void sgd_step(parameters all, const sgd_options& o) { host::sgd_step(c(), all, o); }
  void adam_step(parameters all, const adam_options& o, std::int64_t step) { host::adam_step(c(), all, o, step); }

  // Operators
  tensor linear(const tensor& x, parameter& w, parameter* b) { return host::linear(c(), x, w, b); }
  tensor linear_backward(const tensor& dy, const tensor& x, parameter& w, parameter* b, bool need_dx,
                         bool need_parameters = true) {
    return host::linear_backward(c(), dy, x, w, b, need_dx, need_parameters);
  }
  tensor conv2d(const tensor& x, parameter& w, parameter* b, const conv2d_options& o) {
    return host::conv2d(c(), x, w, b, o);
  }
  tensor conv2d_backward(const tensor& dy, const tensor& x, parameter& w, parameter* b, const conv2d_options& o,
                         bool need_dx) {
    return host::conv2d_backward(c(), dy, x, w, b, o, need_dx);
  }
  saved_tensor batch_norm(const tensor& x, parameter& gamma, parameter& beta, parameter& mean, parameter& variance,
                          const batch_norm_options& o) {
    return host::batch_norm(c(), x, gamma, beta, mean, variance, o);
  }
  tensor batch_norm_backward(const tensor& dy, const tensor& x, const saved& s, parameter& gamma, parameter& beta,
                             const batch_norm_options& o) {
    return host::batch_norm_backward(c(), dy, x, s, gamma, beta, o);
  }
  saved_tensor layer_norm(const tensor& x, parameter& gamma, parameter& beta, double eps) {
    return host::layer_norm(c(), x, gamma, beta, eps);
  }
  tensor layer_norm_backward(const tensor& dy, const tensor& x, const saved& s, parameter& gamma, parameter& beta,
                             double eps) {
    return host::layer_norm_backward(c(), dy, x, s, gamma, beta, eps);
  }
  tensor activate(activation a, const tensor& x) { return host::activate(c(), a, x); }
  tensor activate_backward(activation a, const tensor& dy, const tensor& x, const tensor& y) {
    return host::activate_backward(c(), a, dy, x, y);
  }
  tensor dropout(const tensor& x, double p, const dropout_key& k) { return host::dropout(c(), x, p, k); }
  tensor dropout_backward(const tensor& dy, double p, const dropout_key& k) {
    return host::dropout_backward(c(), dy, p, k);
  }
  tensor normal(const dropout_key& k, const shape& s, comp::precision p) { return host::normal(c(), k, s, p); }
  saved_tensor max_pool2d(const tensor& x, const pool2d_options& o) { return host::max_pool2d(c(), x, o); }
  tensor max_pool2d_backward(const tensor& dy, [[maybe_unused]] const tensor& x, const saved& s,
                             const pool2d_options& o) {
    return host::max_pool2d_backward(c(), dy, s, o);
  }
  tensor avg_pool2d(const tensor& x, const pool2d_options& o) { return host::avg_pool2d(c(), x, o); }
  tensor places_of(const tensor& x) const { return detail::without_memory(x); }
  tensor avg_pool2d_backward(const tensor& dy, const shape& x, const pool2d_options& o) {
    return host::avg_pool2d_backward(c(), dy, x, o);
  }
  tensor avg_pool2d_backward(const tensor& dy, const tensor& places_of_x, const pool2d_options& o) {
    return host::avg_pool2d_backward(c(), dy, places_of_x, o);
  }
  tensor adaptive_avg_pool2d(const tensor& x, const std::array<std::int64_t, 2>& size) {
    return host::adaptive_avg_pool2d(c(), x, size);
  }
  tensor adaptive_avg_pool2d_backward(const tensor& dy, const shape& x) {
    return host::adaptive_avg_pool2d_backward(c(), dy, x);
  }
  tensor add(const tensor& a, const tensor& b) { return host::add(c(), a, b); }
  tensor mul(const tensor& a, const tensor& b) { return host::mul(c(), a, b); }
  tensor sum(std::span<const tensor> terms) { return host::sum(c(), terms); }
  tensor embedding(const indices& at, parameter& w, comp::precision p) { return host::embedding(c(), at, w, p); }
  void embedding_backward(const tensor& dy, const indices& at, parameter& w) {
    host::embedding_backward(c(), dy, at, w);
  }
  tensor split_heads(const tensor& x, std::int64_t heads) { return host::split_heads(c(), x, heads); }
  tensor merge_heads(const tensor& x) { return host::merge_heads(c(), x); }
  tensor bmm(const tensor& a, const tensor& b, bool transpose_a = false, bool transpose_b = false, double alpha = 1) {
    return host::bmm(c(), a, b, transpose_a, transpose_b, alpha);
  }
  tensor softmax(const tensor& x, bool causal = false) { return host::softmax(c(), x, causal); }
  tensor padded_softmax(const tensor& x, const indices& lengths) { return host::padded_softmax(c(), x, lengths); }
  tensor softmax_backward(const tensor& dy, const tensor& y, bool causal = false) {
    return host::softmax_backward(c(), dy, y, causal);
  }
  std::optional<saved_tensor> attention(const tensor& q, const tensor& k, const tensor& v, const indices& lengths,
                                        const native::attention_options& o, const dropout_key& key) {
    return host::attention(c(), q, k, v, lengths, o, key);
  }
  std::array<tensor, 3> attention_backward(const tensor& dy, const tensor& q, const tensor& k, const tensor& v,
                                           std::span<const tensor> saved, const indices& lengths,
                                           const native::attention_options& o, const dropout_key& key) {
    return host::attention_backward(c(), dy, q, k, v, saved, lengths, o, key);
  }
  tensor log_softmax(const tensor& x) { return host::log_softmax(c(), x); }
  tensor log_softmax_backward(const tensor& dy, const tensor& y) { return host::log_softmax_backward(c(), dy, y); }
  saved_tensor cross_entropy(const tensor& logits, const indices& target, double* loss) {
    return host::cross_entropy(c(), logits, target, loss);
  }
  tensor cross_entropy_backward(const saved& s, const indices& target, double scale) {
    return host::cross_entropy_backward(c(), s, target, scale);
  }
  void nll_loss(const tensor& logp, const indices& target, double* loss) { host::nll_loss(c(), logp, target, loss); }
  tensor nll_loss_backward(const tensor& logp, const indices& target, double scale) {
    return host::nll_loss_backward(c(), logp, target, scale);
  }
  void mse_loss(const tensor& x, const tensor& target, double* loss) { host::mse_loss(c(), x, target, loss); }
  tensor mse_loss_backward(const tensor& x, const tensor& target, double scale) {
    return host::mse_loss_backward(c(), x, target, scale);
  }
  void binary_cross_entropy(const tensor& x, double target, double* loss) {
    host::binary_cross_entropy(c(), x, target, loss);
  }
  tensor binary_cross_entropy_backward(const tensor& x, double target, double scale) {
    return host::binary_cross_entropy_backward(c(), x, target, scale);
  }
  std::int64_t count_correct(const tensor& logits, const indices& target) {
    return host::count_correct(c(), logits, target);
  }

  // Along the edges of a graph or another sparse matrix
  sparse_matrix make_sparse(const native::host_csr& from) { return host::make_sparse(from); }
  tensor sparse_linear(const sparse_matrix& m, const tensor& values, parameter& w) {
    return host::sparse_linear(c(), m, values, w);
  }
  tensor sparse_linear_backward(const sparse_matrix& m, const tensor& dy, const tensor& values, parameter& w,
                                bool need_dx) {
    return host::sparse_linear_backward(c(), m, dy, values, w, need_dx);
  }
  tensor spmm(const sparse_matrix& m, const tensor& x, parameter* b) { return host::spmm(c(), m, x, b); }
  tensor spmm_backward(const sparse_matrix& m, const tensor& dy, parameter* b, bool need_dx) {
    return host::spmm_backward(c(), m, dy, b, need_dx);
  }
  saved_tensor edge_scores(const sparse_matrix& m, const tensor& x, parameter& source, parameter& target,
                           double slope) {
    return host::edge_scores(c(), m, x, source, target, slope);
  }
  tensor edge_scores_backward(const sparse_matrix& m, const tensor& dy, const tensor& x, const saved& s,
                              parameter& source, parameter& target, double slope) {
    return host::edge_scores_backward(c(), m, dy, x, s, source, target, slope);
  }
  tensor edge_softmax(const sparse_matrix& m, const tensor& x) { return host::edge_softmax(c(), m, x); }
  tensor edge_softmax_backward(const sparse_matrix& m, const tensor& dy, const tensor& y) {
    return host::edge_softmax_backward(c(), m, dy, y);
  }
  tensor weighted_sum(const sparse_matrix& m, const tensor& share, const tensor& x, parameter* b) {
    return host::weighted_sum(c(), m, share, x, b);
  }
  std::array<tensor, 2> weighted_sum_backward(const sparse_matrix& m, const tensor& dy, const tensor& share,
                                              const tensor& x, parameter* b) {
    return host::weighted_sum_backward(c(), m, dy, share, x, b);
  }

 private:
  context& c() { return *context_; }
  std::unique_ptr<context> context_;
};

static_assert(native::Device<device> && native::Attends<device>);

}  // namespace comp::host
