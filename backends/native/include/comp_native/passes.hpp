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
#include <comp_native/deferral.hpp>
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
///   void refill(tensor&, const tensor& from); void refill(indices&, const indices& from)   other values at the same
///   place
template <class D>
concept Captures = Defers<D> &&
    requires(D& d, std::span<typename D::parameter* const> all, typename D::captured_work& work, typename D::tensor& t,
             const typename D::tensor& from, double* loss) {
  {
    d.capture(all, std::uint64_t{}, [] {})
    } -> std::same_as<typename D::captured_work>;
  { d.usable(work) } -> std::same_as<bool>;
  d.replay(work, std::uint64_t{}, loss);
  d.refill(t, from);
};

/// Call by call.
template <Device D>
class passes {
 public:
  passes(D& device, native::network<D>& network) : device_{device}, network_{network} {}

  /// losses: of the phase, where the Device writes them, now or when a step ends.
  void plain(const device_batch<D>& batch, double scale, std::span<double> losses, std::size_t phase = 0) {
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
  void run(const device_batch<D>& batch, micro_batch which, double scale, std::span<double> loss) {
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
  bool whole(const device_batch<D>& batch) const { return batch.judged > 0 && batch.size == network_.model().batch(); }
  void fill(const device_batch<D>& batch) {
    if (!batch_) {
      batch_ = batch;
      return;
    }
    const native::model& m = network_.model();
    if (m.input == input_kind::tokens) {
      device_.refill(batch_->tokens, batch.tokens);  // positions are always the same
      if (m.reads_segments()) device_.refill(batch_->segments, batch.segments);
      if (m.reads_segments()) device_.refill(batch_->lengths, batch.lengths);
      if (m.masks_columns()) device_.refill(batch_->hidden, batch.hidden);
    } else {
      device_.refill(batch_->values, batch.values);
    }
    if (m.predicts_values()) {
      device_.refill(batch_->targets, batch.targets);
    } else if (m.reads_labels()) {
      device_.refill(batch_->labels, batch.labels);
    }
  }
  typename D::captured_work captured(double scale) {
    network_.forget();  // what is left of the last step is not part of this one
    const std::uint64_t before = network_.draws();
    double unread = 0;
    try {
      auto work = device_.capture(network_.all(), before, [&] {
        plain(*batch_, scale, {&unread, 1});
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
