// SPDX-License-Identifier: Apache-2.0
// The members of host::device that call a kernel: compiled in each program, or once in a library (device.hpp).
#pragma once

#include "adaptive_pooling.hpp"
#include "attention.hpp"
#include "bmm.hpp"
#include "conv2d.hpp"
#include "device.hpp"
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
#include "pooling.hpp"
#include "softmax.hpp"
#include "transfer.hpp"

#if COMP_HOST_HEADER_ONLY
#define COMP_DEVICE_INLINE inline
#else
#define COMP_DEVICE_INLINE
#endif

namespace comp::host {

COMP_DEVICE_INLINE std::vector<comp::precision> device::supported_precisions() const {
  return host::supported_precisions();
}
COMP_DEVICE_INLINE tensor device::upload(std::span<const float> from, const shape& s, comp::precision p) {
  return host::upload(c(), from, s, p);
}
COMP_DEVICE_INLINE tensor device::upload(std::span<const std::uint8_t> from, const shape& s, const tensor& of_bytes) {
  return host::upload(c(), from, s, of_bytes);
}
COMP_DEVICE_INLINE indices device::upload(std::span<const std::int32_t> from, shape s) {
  return host::upload(from, std::move(s));
}
COMP_DEVICE_INLINE std::vector<float> device::download(const tensor& t) { return host::download(c(), t); }
COMP_DEVICE_INLINE tensor device::cast(const tensor& t, comp::precision p) { return host::cast(c(), t, p); }
COMP_DEVICE_INLINE tensor device::reshape(const tensor& t, const shape& s) { return host::reshape(c(), t, s); }
COMP_DEVICE_INLINE parameter device::make_parameter(std::span<const float> from, const shape& s, bool trainable) {
  return host::make_parameter(c(), from, s, trainable);
}
COMP_DEVICE_INLINE std::vector<float> device::values(const parameter& p) { return host::values(c(), p); }
COMP_DEVICE_INLINE std::vector<float> device::gradient(const parameter& p) { return host::gradient(c(), p); }
COMP_DEVICE_INLINE void device::set_values(parameter& p, std::span<const float> from) {
  host::set_values(c(), p, from);
}
COMP_DEVICE_INLINE parameter_state device::snapshot(const parameter& p) { return host::snapshot(c(), p); }
COMP_DEVICE_INLINE void device::restore(parameter& p, const parameter_state& s) { host::restore(c(), p, s); }
COMP_DEVICE_INLINE native::parameter_slots device::slots(const parameter& p) { return host::slots(c(), p); }
COMP_DEVICE_INLINE void device::set_slots(parameter& p, const native::parameter_slots& from) {
  host::set_slots(c(), p, from);
}
COMP_DEVICE_INLINE std::int64_t device::count_not_finite(parameters all) { return host::count_not_finite(c(), all); }
COMP_DEVICE_INLINE double device::gradient_norm(parameters all) { return host::gradient_norm(c(), all); }
COMP_DEVICE_INLINE void device::scale_gradients(parameters all, double factor) {
  host::scale_gradients(c(), all, factor);
}
COMP_DEVICE_INLINE void device::sgd_step(parameters all, const sgd_options& o) { host::sgd_step(c(), all, o); }
COMP_DEVICE_INLINE void device::adam_step(parameters all, const adam_options& o, std::int64_t step) {
  host::adam_step(c(), all, o, step);
}
COMP_DEVICE_INLINE void device::keep_moments(parameters all, const native::moment_formats& formats) {
  host::keep_moments(c(), all, formats);
}
COMP_DEVICE_INLINE tensor device::linear(const tensor& x, parameter& w, parameter* b) {
  return host::linear(c(), x, w, b);
}
COMP_DEVICE_INLINE tensor device::linear_backward(const tensor& dy, const tensor& x, parameter& w, parameter* b,
                                                  bool need_dx, bool need_parameters) {
  return host::linear_backward(c(), dy, x, w, b, need_dx, need_parameters);
}
COMP_DEVICE_INLINE tensor device::conv2d(const tensor& x, parameter& w, parameter* b, const conv2d_options& o) {
  return host::conv2d(c(), x, w, b, o);
}
COMP_DEVICE_INLINE tensor device::conv2d_backward(const tensor& dy, const tensor& x, parameter& w, parameter* b,
                                                  const conv2d_options& o, bool need_dx) {
  return host::conv2d_backward(c(), dy, x, w, b, o, need_dx);
}
COMP_DEVICE_INLINE saved_tensor device::batch_norm(const tensor& x, parameter& gamma, parameter& beta, parameter& mean,
                                                   parameter& variance, const batch_norm_options& o) {
  return host::batch_norm(c(), x, gamma, beta, mean, variance, o);
}
COMP_DEVICE_INLINE tensor device::batch_norm_backward(const tensor& dy, const tensor& x, const saved& s,
                                                      parameter& gamma, parameter& beta, const batch_norm_options& o) {
  return host::batch_norm_backward(c(), dy, x, s, gamma, beta, o);
}
COMP_DEVICE_INLINE saved_tensor device::layer_norm(const tensor& x, parameter& gamma, parameter& beta, double eps) {
  return host::layer_norm(c(), x, gamma, beta, eps);
}
COMP_DEVICE_INLINE tensor device::layer_norm_backward(const tensor& dy, const tensor& x, const saved& s,
                                                      parameter& gamma, parameter& beta, double eps) {
  return host::layer_norm_backward(c(), dy, x, s, gamma, beta, eps);
}
COMP_DEVICE_INLINE tensor device::activate(activation a, const tensor& x) { return host::activate(c(), a, x); }
COMP_DEVICE_INLINE tensor device::activate_backward(activation a, const tensor& dy, const tensor& x, const tensor& y) {
  return host::activate_backward(c(), a, dy, x, y);
}
COMP_DEVICE_INLINE tensor device::dropout(const tensor& x, double p, const dropout_key& k) {
  return host::dropout(c(), x, p, k);
}
COMP_DEVICE_INLINE tensor device::dropout_backward(const tensor& dy, double p, const dropout_key& k) {
  return host::dropout_backward(c(), dy, p, k);
}
COMP_DEVICE_INLINE tensor device::normal(const dropout_key& k, const shape& s, comp::precision p) {
  return host::normal(c(), k, s, p);
}
COMP_DEVICE_INLINE saved_tensor device::max_pool2d(const tensor& x, const pool2d_options& o) {
  return host::max_pool2d(c(), x, o);
}
COMP_DEVICE_INLINE tensor device::max_pool2d_backward(const tensor& dy, [[maybe_unused]] const tensor& x,
                                                      const saved& s, const pool2d_options& o) {
  return host::max_pool2d_backward(c(), dy, s, o);
}
COMP_DEVICE_INLINE tensor device::avg_pool2d(const tensor& x, const pool2d_options& o) {
  return host::avg_pool2d(c(), x, o);
}
COMP_DEVICE_INLINE tensor device::places_of(const tensor& x) const { return detail::without_memory(x); }
COMP_DEVICE_INLINE tensor device::avg_pool2d_backward(const tensor& dy, const shape& x, const pool2d_options& o) {
  return host::avg_pool2d_backward(c(), dy, x, o);
}
COMP_DEVICE_INLINE tensor device::avg_pool2d_backward(const tensor& dy, const tensor& places_of_x,
                                                      const pool2d_options& o) {
  return host::avg_pool2d_backward(c(), dy, places_of_x, o);
}
COMP_DEVICE_INLINE tensor device::adaptive_avg_pool2d(const tensor& x, const std::array<std::int64_t, 2>& size) {
  return host::adaptive_avg_pool2d(c(), x, size);
}
COMP_DEVICE_INLINE tensor device::adaptive_avg_pool2d_backward(const tensor& dy, const shape& x) {
  return host::adaptive_avg_pool2d_backward(c(), dy, x);
}
COMP_DEVICE_INLINE tensor device::add(const tensor& a, const tensor& b) { return host::add(c(), a, b); }
COMP_DEVICE_INLINE tensor device::mul(const tensor& a, const tensor& b) { return host::mul(c(), a, b); }
COMP_DEVICE_INLINE tensor device::sum(std::span<const tensor> terms) { return host::sum(c(), terms); }
COMP_DEVICE_INLINE tensor device::embedding(const indices& at, parameter& w, comp::precision p) {
  return host::embedding(c(), at, w, p);
}
COMP_DEVICE_INLINE void device::embedding_backward(const tensor& dy, const indices& at, parameter& w) {
  host::embedding_backward(c(), dy, at, w);
}
COMP_DEVICE_INLINE tensor device::split_heads(const tensor& x, std::int64_t heads) {
  return host::split_heads(c(), x, heads);
}
COMP_DEVICE_INLINE tensor device::merge_heads(const tensor& x) { return host::merge_heads(c(), x); }
COMP_DEVICE_INLINE tensor device::bmm(const tensor& a, const tensor& b, bool transpose_a, bool transpose_b,
                                      double alpha) {
  return host::bmm(c(), a, b, transpose_a, transpose_b, alpha);
}
COMP_DEVICE_INLINE tensor device::softmax(const tensor& x, bool causal) { return host::softmax(c(), x, causal); }
COMP_DEVICE_INLINE tensor device::padded_softmax(const tensor& x, const indices& lengths) {
  return host::padded_softmax(c(), x, lengths);
}
COMP_DEVICE_INLINE tensor device::softmax_backward(const tensor& dy, const tensor& y, bool causal) {
  return host::softmax_backward(c(), dy, y, causal);
}
COMP_DEVICE_INLINE std::optional<saved_tensor> device::attention(const tensor& q, const tensor& k, const tensor& v,
                                                                 const indices& lengths,
                                                                 const native::attention_options& o,
                                                                 const dropout_key& key) {
  return host::attention(c(), q, k, v, lengths, o, key);
}
COMP_DEVICE_INLINE std::array<tensor, 3> device::attention_backward(const tensor& dy, const tensor& q, const tensor& k,
                                                                    const tensor& v, std::span<const tensor> saved,
                                                                    const indices& lengths,
                                                                    const native::attention_options& o,
                                                                    const dropout_key& key) {
  return host::attention_backward(c(), dy, q, k, v, saved, lengths, o, key);
}
COMP_DEVICE_INLINE tensor device::log_softmax(const tensor& x) { return host::log_softmax(c(), x); }
COMP_DEVICE_INLINE tensor device::log_softmax_backward(const tensor& dy, const tensor& y) {
  return host::log_softmax_backward(c(), dy, y);
}
COMP_DEVICE_INLINE saved_tensor device::cross_entropy(const tensor& logits, const indices& target, double* loss) {
  return host::cross_entropy(c(), logits, target, loss);
}
COMP_DEVICE_INLINE tensor device::cross_entropy_backward(const saved& s, const indices& target, double scale) {
  return host::cross_entropy_backward(c(), s, target, scale);
}
COMP_DEVICE_INLINE void device::nll_loss(const tensor& logp, const indices& target, double* loss) {
  host::nll_loss(c(), logp, target, loss);
}
COMP_DEVICE_INLINE tensor device::nll_loss_backward(const tensor& logp, const indices& target, double scale) {
  return host::nll_loss_backward(c(), logp, target, scale);
}
COMP_DEVICE_INLINE void device::mse_loss(const tensor& x, const tensor& target, double* loss) {
  host::mse_loss(c(), x, target, loss);
}
COMP_DEVICE_INLINE tensor device::mse_loss_backward(const tensor& x, const tensor& target, double scale) {
  return host::mse_loss_backward(c(), x, target, scale);
}
COMP_DEVICE_INLINE void device::binary_cross_entropy(const tensor& x, double target, double* loss) {
  host::binary_cross_entropy(c(), x, target, loss);
}
COMP_DEVICE_INLINE tensor device::binary_cross_entropy_backward(const tensor& x, double target, double scale) {
  return host::binary_cross_entropy_backward(c(), x, target, scale);
}
COMP_DEVICE_INLINE std::int64_t device::count_correct(const tensor& logits, const indices& target) {
  return host::count_correct(c(), logits, target);
}
COMP_DEVICE_INLINE sparse_matrix device::make_sparse(const native::host_csr& from) { return host::make_sparse(from); }
COMP_DEVICE_INLINE tensor device::sparse_linear(const sparse_matrix& m, const tensor& values, parameter& w) {
  return host::sparse_linear(c(), m, values, w);
}
COMP_DEVICE_INLINE tensor device::sparse_linear_backward(const sparse_matrix& m, const tensor& dy, const tensor& values,
                                                         parameter& w, bool need_dx) {
  return host::sparse_linear_backward(c(), m, dy, values, w, need_dx);
}
COMP_DEVICE_INLINE tensor device::spmm(const sparse_matrix& m, const tensor& x, parameter* b) {
  return host::spmm(c(), m, x, b);
}
COMP_DEVICE_INLINE tensor device::spmm_backward(const sparse_matrix& m, const tensor& dy, parameter* b, bool need_dx) {
  return host::spmm_backward(c(), m, dy, b, need_dx);
}
COMP_DEVICE_INLINE saved_tensor device::edge_scores(const sparse_matrix& m, const tensor& x, parameter& source,
                                                    parameter& target, double slope) {
  return host::edge_scores(c(), m, x, source, target, slope);
}
COMP_DEVICE_INLINE tensor device::edge_scores_backward(const sparse_matrix& m, const tensor& dy, const tensor& x,
                                                       const saved& s, parameter& source, parameter& target,
                                                       double slope) {
  return host::edge_scores_backward(c(), m, dy, x, s, source, target, slope);
}
COMP_DEVICE_INLINE tensor device::edge_softmax(const sparse_matrix& m, const tensor& x) {
  return host::edge_softmax(c(), m, x);
}
COMP_DEVICE_INLINE tensor device::edge_softmax_backward(const sparse_matrix& m, const tensor& dy, const tensor& y) {
  return host::edge_softmax_backward(c(), m, dy, y);
}
COMP_DEVICE_INLINE tensor device::weighted_sum(const sparse_matrix& m, const tensor& share, const tensor& x,
                                               parameter* b) {
  return host::weighted_sum(c(), m, share, x, b);
}
COMP_DEVICE_INLINE std::array<tensor, 2> device::weighted_sum_backward(const sparse_matrix& m, const tensor& dy,
                                                                       const tensor& share, const tensor& x,
                                                                       parameter* b) {
  return host::weighted_sum_backward(c(), m, dy, share, x, b);
}

}  // namespace comp::host
