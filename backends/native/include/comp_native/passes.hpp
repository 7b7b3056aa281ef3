// SPDX-License-Identifier: Apache-2.0
// Runs forward and backward of a micro-batch on the Device: call by call or, on a Device that can capture, recorded
// once and from then on launched as one piece of work (a CUDA graph). That saves the host's time for each call, which
// bounds the speed of small models.
// A capture fixes shapes, plan, loss scale and memory. Inputs and the counter of random draws are copied to the
// addresses that the captured work reads.
// The first micro-batch under a plan always runs call by call: it allocates the memory that stays, and libraries choose
// their algorithms in it. So do batches that are not full, and all batches once capturing was refused.
#pragma once

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

namespace comp::native {

/// Thrown if work cannot be captured, or cannot be launched as captured. Nothing of it was done, so it can be given
/// call by call.
struct capture_refused : error {
  using error::error;
};

/// A Device that can capture. Beside the members of Defers it has
///   W = D::captured_work, movable only
///   W capture(span<P* const>, uint64 draws, F work)
///                              records what `work`, a forward and backward with these parameters, gives to the Device,
///                              instead of doing it. draws: random draws so far. Throws: capture_refused
///   bool usable(const W&)      returns false if memory that the work uses has moved since
///   void replay(W&, uint64 draws, double* loss)
///                              does the work, with the random draws that come after `draws`. The loss is deferred.
///                              Throws: capture_refused
///   void refill(tensor&, const tensor& from); void refill(indices&, const indices& from)
///                              writes other values to the same memory
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

/// Gives work call by call.
template <Device D>
class passes {
 public:
  passes(D& device, native::network<D>& network) : device_{device}, network_{network} {}

  /// Runs forward and backward of a phase. The Device writes the phase's `losses`, now or at the end of the step.
  void plain(const device_batch<D>& batch, double scale, std::span<double> losses, std::size_t phase = 0) {
    network_.forward(batch, phase, losses);
    network_.backward(batch, scale, phase);
  }

 protected:
  D& device_;
  native::network<D>& network_;
};

/// The gradients of a step's first micro-batch overwrite, those of further ones are added. These are two captures.
enum class micro_batch : std::uint8_t { first, further };

template <Captures D>
class captured_passes : public passes<D> {
 public:
  using passes<D>::passes;
  using passes<D>::plain;

  /// Runs forward and backward, captured if possible. Requires: the model has one phase and one loss.
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
  /// Must be called when the plan or the parameters change.
  void forget() {
    works_ = {};
    warm_ = {};
    batch_.reset();
    refused_.clear();
  }
  /// Returns why capturing was refused since forget(); empty if it was not.
  const std::string& refused() const { return refused_; }
  bool captures() const { return works_[0].has_value(); }

 private:
  using passes<D>::device_;
  using passes<D>::network_;

  /// True for a full batch in which at least one label counts. A Device refuses one without any in words, which a
  /// capture could not.
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
    network_.forget();  // releasing the last step's tensors must not become part of the capture
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

  std::optional<device_batch<D>> batch_;  // the memory that captured work reads
  std::array<std::optional<typename D::captured_work>, 2> works_;
  std::array<bool, 2> warm_{};  // whether such a micro-batch was given call by call before
  double scale_ = 0;
  std::uint64_t draws_ = 0;  // random draws of one forward
  std::string refused_;
};

}  // namespace comp::native
