// SPDX-License-Identifier: Apache-2.0
// Forward and backward of a micro-batch, given to the Device call by call, or, on a Device that can, captured once and
// given as one from then on. What is captured fixes shapes, plan, loss scale and memory; inputs and the counter of
// dropouts are copied into the place where the captured work reads them.
// The first micro-batch under a plan is always given call by call: it makes the memory that stays, and lets the
// libraries choose their algorithms. So is a batch that is not full, and everything where capturing was refused.
// Not here: when to capture (training_step.hpp), the update.
#pragma once

#include <algorithm>
#include <array>
#include <comp/core/error.hpp>
#include <comp_native/batch_upload.hpp>
#include <comp_native/deferral.hpp>
#include <comp_native/loader.hpp>
#include <comp_native/network.hpp>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace comp::native {

/// This work cannot be captured, or not be given as captured; nothing of it was done. It can be given call by call.
struct capture_refused : error {
  using error::error;
};

/// What a Device offers beside Defers:
///   W = D::captured_work, movable only
///   W capture(span<P* const>, uint64 draws, F work)   what `work`, a forward and backward with these parameters, gives
///                              to the Device is not done but kept. draws: of dropouts so far. Throws: capture_refused
///   bool usable(const W&)      false where memory that it works on has moved since
///   void replay(W&, uint64 draws, double* loss)       does it, with the dropouts that come after `draws`; the loss is
///                              deferred. Throws: capture_refused
///   void refill(tensor&, span<const float>); void refill(indices&, span<const int32>)   other values at the same place
template <class D>
concept Captures = Defers<D> &&
    requires(D& d, std::span<typename D::parameter* const> all, typename D::captured_work& work, typename D::tensor& t,
             std::span<const float> values, double* loss) {
  {
    d.capture(all, std::uint64_t{}, [] {})
    } -> std::same_as<typename D::captured_work>;
  { d.usable(work) } -> std::same_as<bool>;
  d.replay(work, std::uint64_t{}, loss);
  d.refill(t, values);
};

/// Call by call.
template <Device D>
class passes {
 public:
  passes(D& device, native::network<D>& network) : device_{device}, network_{network} {}

  /// losses: where the Device writes them, now or when a step ends.
  void plain(const host_batch& batch, double scale, std::span<double> losses) {
    give(uploaded(device_, network_.model(), batch), scale, losses);
  }
  void give(const device_batch<D>& batch, double scale, std::span<double> losses, std::size_t phase = 0) {
    network_.forward(batch, phase, losses);
    network_.backward(batch, scale, phase);
  }

 protected:
  D& device_;
  native::network<D>& network_;
};

/// The micro-batches of a step differ in one thing: the first one's gradients overwrite, the others' are added.
enum class micro_batch : std::uint8_t { first, further };

template <Captures D>
class captured_passes : public passes<D> {
 public:
  using passes<D>::passes;
  using passes<D>::plain;

  /// Requires: a model of one phase, and so of one loss.
  void run(const host_batch& batch, micro_batch which, double scale, std::span<double> loss) {
    const auto at = static_cast<std::size_t>(which);
    if (!refused_.empty() || !whole(batch) || !std::exchange(warm_[at], true)) return plain(batch, scale, loss);
    if (std::exchange(scale_, scale) != scale) works_ = {};
    fill(batch);
    try {
      if (!works_[at] || !device_.usable(*works_[at])) works_[at] = captured(scale);
      device_.replay(*works_[at], network_.draws(), loss.data());
      network_.set_draws(network_.draws() + draws_);
    } catch (const capture_refused& e) {
      refused_ = e.what();
      works_ = {};
      batch_.reset();
      plain(batch, scale, loss);
    }
  }
  /// To be called when plan or parameters change.
  void forget() {
    works_ = {};
    warm_ = {};
    batch_.reset();
    refused_.clear();
  }
  /// Why nothing is captured since forget(); empty: it is.
  const std::string& refused() const { return refused_; }
  bool captures() const { return works_[0].has_value(); }

 private:
  using passes<D>::device_;
  using passes<D>::network_;

  /// One of the model's size, with something to be judged by: a Device refuses others in words.
  bool whole(const host_batch& batch) const {
    const auto counts = [](std::int32_t label) { return label >= 0; };
    return batch.size == network_.model().batch() &&
           (batch.labels.empty() || std::ranges::any_of(batch.labels, counts));
  }
  void fill(const host_batch& batch) {
    if (!batch_) {
      batch_ = uploaded(device_, network_.model(), batch);
      return;
    }
    require_known(network_.model(), batch);
    if (!batch.values.empty()) device_.refill(batch_->values, std::span<const float>{batch.values});
    if (!batch.tokens.empty()) refill_tokens(batch);
    if (!batch.labels.empty()) device_.refill(batch_->labels, std::span<const std::int32_t>{batch.labels});
    if (!batch.targets.empty()) device_.refill(batch_->targets, std::span<const float>{batch.targets});
  }
  void refill_tokens(const host_batch& batch) {
    const token_batch now = tokens_of(network_.model(), batch);
    device_.refill(batch_->tokens, std::span<const std::int32_t>{now.tokens});
    if (now.segments.empty()) return;
    device_.refill(batch_->segments, std::span<const std::int32_t>{now.segments});
    device_.refill(batch_->lengths, std::span<const std::int32_t>{now.lengths});
    if (!now.hidden.empty()) device_.refill(batch_->hidden, std::span<const float>{now.hidden});
  }
  typename D::captured_work captured(double scale) {
    network_.forget();  // what is left of the last step is not part of this one
    const std::uint64_t before = network_.draws();
    double unread = 0;
    try {
      auto work = device_.capture(network_.all(), before, [&] {
        passes<D>::give(*batch_, scale, {&unread, 1});
        network_.forget();
      });
      draws_ = network_.draws() - before;
      network_.set_draws(before);
      return work;
    } catch (...) {
      network_.forget();
      network_.set_draws(before);
      throw;
    }
  }

  std::optional<device_batch<D>> batch_;  // where captured work reads
  std::array<std::optional<typename D::captured_work>, 2> works_;
  std::array<bool, 2> warm_{};  // given call by call before
  double scale_ = 0;
  std::uint64_t draws_ = 0;  // of one forward
  std::string refused_;
};

}  // namespace comp::native
