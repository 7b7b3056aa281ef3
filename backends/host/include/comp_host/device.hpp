// SPDX-License-Identifier: Apache-2.0
// The Device that computes on this CPU, by oneDNN if it has a good primitive and else by loops of this backend.
// FP32 runs on any CPU. BF16 runs in oneDNN's BF16 primitives if the CPU has AVX-512, and is otherwise computed in FP32
// and rounded. FP16 is stored as FP16 and computed in FP32, with real overflow to infinity: it saves memory and shows
// how a training in FP16 converges, but not how fast it would be. Formats below 16 bits are emulated, with the same
// purpose.
// With -DCOMP_HOST_HEADER_ONLY=0 this header declares what calls a kernel (device_kernels.hpp), and src/comp_host.cpp
// has it compiled. A device is used by one thread at a time. It sets OpenMP's number of threads for the thread that
// makes it.
#pragma once

#include <array>
#include <comp/core/cpu.hpp>
#include <comp/core/op_info.hpp>
#include <comp_native/device.hpp>
#include <comp_native/op/attention.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <utility>
#include <vector>

#include "context.hpp"
#include "csr.hpp"
#include "hardware.hpp"
#include "parameter.hpp"
#include "tensor.hpp"

#ifndef COMP_HOST_HEADER_ONLY
#define COMP_HOST_HEADER_ONLY 1
#endif

namespace comp::host {

using native::activation, native::dropout_key, native::adam_options, native::sgd_options;
using native::batch_norm_options, native::conv2d_options, native::pool2d_options;

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
  std::vector<comp::precision> supported_precisions() const;
  /// Of all operators only linear layers run in formats below 16 bits, as on GPUs, and in bf16_fp32.
  bool supports(const op_info& op, comp::precision p) const {
    return !(is_scaled(p) || p == comp::precision::bf16_fp32) || op.kind == "linear";
  }
  void round_by(dropout_key key) { c().roundings = {key.seed, key.draw << 20}; }

  // Memory and transfer
  tensor upload(std::span<const float> from, const shape& s, comp::precision p);
  tensor upload(std::span<const std::uint8_t> from, const shape& s, const tensor& of_bytes);
  indices upload(std::span<const std::int32_t> from, shape s);
  std::vector<float> download(const tensor& t);
  tensor cast(const tensor& t, comp::precision p);
  tensor reshape(const tensor& t, const shape& s);
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
  parameter make_parameter(std::span<const float> from, const shape& s, bool trainable = true);
  const shape& shape_of(const parameter& p) const { return p.extents; }
  std::vector<float> values(const parameter& p);
  std::vector<float> gradient(const parameter& p);
  void set_values(parameter& p, std::span<const float> from);
  void zero_gradient(parameter& p) { p.fresh = true; }
  void set_trainable(parameter& p, bool on) { p.trainable = on; }
  parameter_state snapshot(const parameter& p);
  void restore(parameter& p, const parameter_state& s);
  native::parameter_slots slots(const parameter& p);
  void set_slots(parameter& p, const native::parameter_slots& from);
  std::int64_t count_not_finite(parameters all);
  double gradient_norm(parameters all);
  void scale_gradients(parameters all, double factor);
  void sgd_step(parameters all, const sgd_options& o);
  void adam_step(parameters all, const adam_options& o, std::int64_t step);
  void keep_moments(parameters all, const native::moment_formats& formats);

  // Operators
  tensor linear(const tensor& x, parameter& w, parameter* b);
  tensor linear_backward(const tensor& dy, const tensor& x, parameter& w, parameter* b, bool need_dx,
                         bool need_parameters = true);
  tensor conv2d(const tensor& x, parameter& w, parameter* b, const conv2d_options& o);
  tensor conv2d_backward(const tensor& dy, const tensor& x, parameter& w, parameter* b, const conv2d_options& o,
                         bool need_dx);
  saved_tensor batch_norm(const tensor& x, parameter& gamma, parameter& beta, parameter& mean, parameter& variance,
                          const batch_norm_options& o);
  tensor batch_norm_backward(const tensor& dy, const tensor& x, const saved& s, parameter& gamma, parameter& beta,
                             const batch_norm_options& o);
  saved_tensor layer_norm(const tensor& x, parameter& gamma, parameter& beta, double eps);
  tensor layer_norm_backward(const tensor& dy, const tensor& x, const saved& s, parameter& gamma, parameter& beta,
                             double eps);
  tensor activate(activation a, const tensor& x);
  tensor activate_backward(activation a, const tensor& dy, const tensor& x, const tensor& y);
  tensor dropout(const tensor& x, double p, const dropout_key& k);
  tensor dropout_backward(const tensor& dy, double p, const dropout_key& k);
  tensor normal(const dropout_key& k, const shape& s, comp::precision p);
  saved_tensor max_pool2d(const tensor& x, const pool2d_options& o);
  tensor max_pool2d_backward(const tensor& dy, const tensor& x, const saved& s, const pool2d_options& o);
  tensor avg_pool2d(const tensor& x, const pool2d_options& o);
  tensor places_of(const tensor& x) const;
  tensor avg_pool2d_backward(const tensor& dy, const shape& x, const pool2d_options& o);
  tensor avg_pool2d_backward(const tensor& dy, const tensor& places_of_x, const pool2d_options& o);
  tensor adaptive_avg_pool2d(const tensor& x, const std::array<std::int64_t, 2>& size);
  tensor adaptive_avg_pool2d_backward(const tensor& dy, const shape& x);
  tensor add(const tensor& a, const tensor& b);
  tensor mul(const tensor& a, const tensor& b);
  tensor sum(std::span<const tensor> terms);
  tensor embedding(const indices& at, parameter& w, comp::precision p);
  void embedding_backward(const tensor& dy, const indices& at, parameter& w);
  tensor split_heads(const tensor& x, std::int64_t heads);
  tensor merge_heads(const tensor& x);
  tensor bmm(const tensor& a, const tensor& b, bool transpose_a = false, bool transpose_b = false, double alpha = 1);
  tensor softmax(const tensor& x, bool causal = false);
  tensor padded_softmax(const tensor& x, const indices& lengths);
  tensor softmax_backward(const tensor& dy, const tensor& y, bool causal = false);
  std::optional<saved_tensor> attention(const tensor& q, const tensor& k, const tensor& v, const indices& lengths,
                                        const native::attention_options& o, const dropout_key& key);
  std::array<tensor, 3> attention_backward(const tensor& dy, const tensor& q, const tensor& k, const tensor& v,
                                           std::span<const tensor> saved, const indices& lengths,
                                           const native::attention_options& o, const dropout_key& key);
  tensor log_softmax(const tensor& x);
  tensor log_softmax_backward(const tensor& dy, const tensor& y);
  saved_tensor cross_entropy(const tensor& logits, const indices& target, double* loss);
  tensor cross_entropy_backward(const saved& s, const indices& target, double scale);
  void nll_loss(const tensor& logp, const indices& target, double* loss);
  tensor nll_loss_backward(const tensor& logp, const indices& target, double scale);
  void mse_loss(const tensor& x, const tensor& target, double* loss);
  tensor mse_loss_backward(const tensor& x, const tensor& target, double scale);
  void binary_cross_entropy(const tensor& x, double target, double* loss);
  tensor binary_cross_entropy_backward(const tensor& x, double target, double scale);
  std::int64_t count_correct(const tensor& logits, const indices& target);

  // Along the edges of a graph or another sparse matrix
  sparse_matrix make_sparse(const native::host_csr& from);
  tensor sparse_linear(const sparse_matrix& m, const tensor& values, parameter& w);
  tensor sparse_linear_backward(const sparse_matrix& m, const tensor& dy, const tensor& values, parameter& w,
                                bool need_dx);
  tensor spmm(const sparse_matrix& m, const tensor& x, parameter* b);
  tensor spmm_backward(const sparse_matrix& m, const tensor& dy, parameter* b, bool need_dx);
  saved_tensor edge_scores(const sparse_matrix& m, const tensor& x, parameter& source, parameter& target, double slope);
  tensor edge_scores_backward(const sparse_matrix& m, const tensor& dy, const tensor& x, const saved& s,
                              parameter& source, parameter& target, double slope);
  tensor edge_softmax(const sparse_matrix& m, const tensor& x);
  tensor edge_softmax_backward(const sparse_matrix& m, const tensor& dy, const tensor& y);
  tensor weighted_sum(const sparse_matrix& m, const tensor& share, const tensor& x, parameter* b);
  std::array<tensor, 2> weighted_sum_backward(const sparse_matrix& m, const tensor& dy, const tensor& share,
                                              const tensor& x, parameter* b);

 private:
  context& c() { return *context_; }
  std::unique_ptr<context> context_;
};

static_assert(native::Device<device> && native::Attends<device> && native::KeepsMoments<device>);

}  // namespace comp::host

#if COMP_HOST_HEADER_ONLY
#include "device_kernels.hpp"
#endif
