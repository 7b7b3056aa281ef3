// SPDX-License-Identifier: Apache-2.0
// One step of a training: the gradients of its micro-batches, and what the optimizer makes of them.
// On a Device that defers (deferral.hpp) all of it is given before the host looks once at what came out; on others each
// loss is looked at before its backward. Losses, weights and the state after a step are the same bit for bit, but for
// one thing: where a loss is not finite, the micro-batches after it have moved running statistics.
// Captured steps (training::captured, on a Device that captures: passes.hpp) give the same bits too. Steps that
// run_batch() makes one by one never are: a race sets another plan before each of them, and capturing each time would
// be what it times. Of the steps of epochs are captured
//   off        none
//   measured   those of the training after a search, where that is faster: it is where the host gives work more slowly
//              than the Device does it, which small models show and large ones do not. A search times plain steps
//   on         all from a plan's second on, a search's and those after it: FP32's and the plan's alike
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <comp/core/error.hpp>
#include <comp_native/batch_feed.hpp>
#include <comp_native/capture_choice.hpp>
#include <comp_native/network.hpp>
#include <comp_native/passes.hpp>
#include <comp_native/scaled_update.hpp>
#include <comp_native/training.hpp>
#include <cstddef>
#include <cstdint>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace comp::native {

struct step_result {
  double loss = 0;
  update_report update = {};
};

namespace detail {

template <class D>
struct passes_of {
  using type = passes<D>;
};
template <Captures D>
struct passes_of<D> {
  using type = captured_passes<D>;
};

}  // namespace detail

template <Device D>
class training_step {
 public:
  /// Throws: `settings_error` where captured steps are asked of a Device that has none.
  training_step(D& device, network<D>& network, batch_feed<D>& train, const training& chosen)
      : device_{device}, network_{network}, train_{train}, chosen_{chosen}, update_{chosen}, passes_{device, network} {
    require<settings_error>(chosen.captured != capture_mode::on || Captures<D>,
                            "captured = {} (this device gives work call by call only): leave it out",
                            name(chosen.captured));
  }

  /// The next step. captured: it may be.
  step_result operator()(bool captured = false) {
    comp::scaling::grad_scaler& scaler = update_.begin();
    network_.zero_gradients();
    if constexpr (Defers<D>) {
      return deferred(scaler, captured);
    } else {
      return looked_at(scaler);
    }
  }

  /// Whether the epochs from here on are those of the training after a search.
  void post_training(bool on) {
    if (measures() && !on) forget();
    post_training_ = on;
  }
  /// Whether the next step of an epoch is to be captured.
  bool captures() const {
    if (measures()) return post_training_ && choice_.captured();
    return chosen_.captured == capture_mode::on;
  }
  /// Tells how long the step took that captures() was asked for. Unit: [s].
  void took(double seconds) {
    if (!measures() || !post_training_ || (choice_.decided() && !choice_.captured())) return;
    const std::string why = refused();
    if (why.empty()) {
      choice_.took(seconds);
    } else {
      choice_.refuse(why);
    }
    if (choice_.decided() && !choice_.captured()) forget();
  }
  capture_report captured_steps() const {
    capture_report report = choice_.report();
    if (report.refused.empty()) report.refused = refused();
    report.captured = report.captured && report.refused.empty();
    return report;
  }

  scaled_update<D>& update() { return update_; }
  const scaled_update<D>& update() const { return update_; }
  std::int64_t taken() const { return taken_; }
  /// To be called when the plan changes: another one's steps are other work.
  void forget_choice() {
    choice_ = {};
    forget();
  }
  /// To be called when plan or parameters change.
  void forget() {
    if constexpr (Captures<D>) passes_.forget();
  }
  void forget(std::int64_t taken) {
    taken_ = taken;
    forget();
  }
  std::string refused() const {
    if constexpr (Captures<D>) return passes_.refused();
    return {};
  }

 private:
  bool measures() const { return Captures<D> && chosen_.captured == capture_mode::measured; }
  /// Of the next step: the last one of an epoch has those that are left.
  std::uint64_t micro_batches() const {
    return std::min(static_cast<std::uint64_t>(chosen_.scaling.micro_batches),
                    train_.batches_per_epoch() - train_.at().batch);
  }
  std::string words(double loss) const {
    return fmt::format("loss {} in step {} (it left the range of its precision): use more FP32", loss, taken_);
  }

  step_result looked_at(comp::scaling::grad_scaler& scaler) {
    step_result result;
    const std::uint64_t all = micro_batches();
    for (std::uint64_t i = 0; i < all; ++i) {
      const device_batch<D> batch = train_.next();
      const double loss = network_.forward(batch);
      result.loss += loss / static_cast<double>(all);
      if (!std::isfinite(loss)) {
        network_.forget();
        result.update.not_finite = words(loss);
        return result;
      }
      network_.backward(batch, scaler.loss_factor());
      train_.ahead();
      scaler.count_micro_batch();
    }
    scaler.end_accumulation();
    result.update = update_(device_, network_, chosen_, taken_);
    return result;
  }

  /// A micro-batch whose loss is deferred, and where the step would end if that is not finite.
  struct given {
    double loss = 0;
    loader_position position = {};
    std::uint64_t draws = 0;
  };
  step_result deferred(comp::scaling::grad_scaler& scaler, bool captured) {
    const deferring<D> until_the_end{device_};
    std::vector<given> all(micro_batches());
    for (given& one : all) {
      pass(train_.next(), &one == all.data() ? micro_batch::first : micro_batch::further, scaler.loss_factor(),
           one.loss, captured);
      one.position = train_.at();
      one.draws = network_.draws();
      train_.ahead();
    }
    const step_seen seen =
        update_.give(device_, network_, chosen_, taken_, scaler.unscale_factor(static_cast<std::int64_t>(all.size())));
    step_result result;
    for (const given& one : all) {
      result.loss += one.loss / static_cast<double>(all.size());
      if (!std::isfinite(one.loss)) {
        train_.seek(one.position);
        network_.set_draws(one.draws);
        result.update.not_finite = words(one.loss);
        return result;
      }
      scaler.count_micro_batch();
    }
    scaler.end_accumulation();
    result.update = update_.judge(seen, device_, network_, chosen_, taken_);
    return result;
  }
  void pass(const device_batch<D>& batch, [[maybe_unused]] micro_batch which, double scale, double& loss,
            [[maybe_unused]] bool captured) {
    if constexpr (Captures<D>) {
      if (captured) return passes_.run(batch, which, scale, loss);
    }
    passes_.plain(batch, scale, loss);
  }

  D& device_;
  network<D>& network_;
  batch_feed<D>& train_;
  const training& chosen_;
  scaled_update<D> update_;
  typename detail::passes_of<D>::type passes_;
  std::int64_t taken_ = 0;
  capture_choice choice_;
  bool post_training_ = false;
};

}  // namespace comp::native
