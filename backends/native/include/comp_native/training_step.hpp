// SPDX-License-Identifier: Apache-2.0
// One step of a training: the gradients of its micro-batches, and the optimizer's update.
// On a Device that defers (deferral.hpp) the whole step is launched before the host reads its numbers, once. On other
// Devices each loss is read before its backward. Losses, weights and the state after a step are the same bit for bit,
// with one exception: if a loss is not finite, the micro-batches after it have moved running statistics.
// A model with several phases (model.hpp) does all of that for each phase, on one batch, and captures nothing.
// Captured steps (training::captured, on a Device that captures: passes.hpp) give the same bits, too. Steps that
// run_batch() makes one by one are never captured: a race sets another plan before each of them, so it would time the
// captures. Which steps of epochs are captured:
//   off        none
//   measured   in the training after a search, if its first steps show that captured ones are faster (small models,
//              bound by launches on the host). A search times plain steps
//   on         every step but a plan's first, in a search and after it, under FP32 and under other plans
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
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace comp::native {

struct step_result {
  std::vector<double> losses = {};  // by phase
  update_report update = {};

  double loss() const {
    double sum = 0;
    for (const double loss : losses) sum += loss;
    return sum;
  }
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
  /// Throws: `settings_error` if captured steps are asked of a Device that cannot capture, if captured steps or
  /// micro-batches are asked for a model of several phases, and for an optimizer of a phase that the model does not
  /// have.
  training_step(D& device, network<D>& network, batch_feed<D>& train, const training& chosen)
      : device_{device}, network_{network}, train_{train}, chosen_{chosen}, passes_{device, network} {
    const std::vector<phase>& phases = network.model().phases;
    require<settings_error>(chosen.captured != capture_mode::on || Captures<D>,
                            "captured = {} (this device gives work call by call only): leave it out",
                            name(chosen.captured));
    require<settings_error>(
        phases.size() == 1 || (chosen.captured != capture_mode::on && chosen.scaling.micro_batches == 1),
        "captured = {}, {} micro-batches for a step of {} phases (each reads what the one before it has "
        "made of the batch): leave them out",
        name(chosen.captured), chosen.scaling.micro_batches, phases.size());
    for (const auto& [of, own] : chosen.optimizer_of) {
      require<settings_error>(std::ranges::find(phases, of, &phase::name) != phases.end(),
                              "an optimizer of phase \"{}\" (model \"{}\" has none of that name): name one of its own",
                              of, network.model().name);
    }
    for (std::size_t k = 0; k < phases.size(); ++k) updates_.emplace_back(chosen, network.model(), k);
  }

  /// Makes the next step: its phases one after the other, on one batch. It may be captured if `captured` is true.
  step_result operator()(bool captured = false) {
    step_result result;
    batch_ = {};
    for (std::size_t k = 0; k < updates_.size() && result.update.not_finite.empty(); ++k) {
      result.losses.push_back(0);
      comp::scaling::grad_scaler& scaler = updates_[k].begin();
      network_.zero_gradients(k);
      update_report of_phase;
      if constexpr (Defers<D>) {
        of_phase = deferred(k, scaler, result.losses.back(), captured);
      } else {
        of_phase = looked_at(k, scaler, result.losses.back());
      }
      result.update.not_finite = std::move(of_phase.not_finite);
      result.update.skipped = result.update.skipped || of_phase.skipped;
    }
    batch_ = {};
    return result;
  }

  /// Sets whether the epochs from here on belong to the training after a search.
  void post_training(bool on) {
    if (measures() && !on) forget();
    post_training_ = on;
  }
  /// Returns whether the next step of an epoch is to be captured.
  bool captures() const {
    if (measures()) return post_training_ && choice_.captured();
    return chosen_.captured == capture_mode::on;
  }
  /// Records the time of the step for which captures() was asked. Unit: [s].
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

  /// Gives moments the formats of the plan, so that what that takes is not timed.
  void keep_moments() {
    for (const scaled_update<D>& update : updates_) update.keep_moments(device_, network_, chosen_.seed);
  }

  /// The updates of each phase.
  std::vector<scaled_update<D>>& updates() { return updates_; }
  const std::vector<scaled_update<D>>& updates() const { return updates_; }
  /// Must be called when the plan changes, because its steps are other work.
  void forget_choice() {
    choice_ = {};
    forget();
  }
  /// Must be called when the plan or the parameters change.
  void forget() {
    batch_ = {};
    if constexpr (Captures<D>) passes_.forget();
  }
  std::string refused() const {
    if constexpr (Captures<D>) return passes_.refused();
    return {};
  }

 private:
  bool measures() const { return Captures<D> && chosen_.captured == capture_mode::measured && updates_.size() == 1; }
  /// Returns the number of micro-batches of the next step. The last step of an epoch has those that are left.
  std::uint64_t micro_batches() const {
    return std::min(static_cast<std::uint64_t>(chosen_.scaling.micro_batches),
                    train_.batches_per_epoch() - train_.at().batch);
  }
  update_report lost(std::size_t phase, double loss) const {
    return {.not_finite = fmt::format("loss {} in step {} (it left the range of its precision): use more FP32", loss,
                                      updates_[phase].taken())};
  }
  /// Returns the batch that a phase reads: the first phase reads the next batch, and the others read the same one.
  const device_batch<D>& batch_for(std::size_t phase) {
    if (phase == 0) batch_.reset();
    if (!batch_) batch_ = train_.next();
    return *batch_;
  }

  /// Makes a phase on a Device that does not defer: the host waits for each loss before its backward.
  update_report looked_at(std::size_t phase, comp::scaling::grad_scaler& scaler, double& loss) {
    const std::uint64_t all = phase == 0 ? micro_batches() : 1;
    for (std::uint64_t i = 0; i < all; ++i) {
      const device_batch<D>& batch = batch_for(phase);
      const double of_batch = network_.forward(batch, phase);
      loss += of_batch / static_cast<double>(all);
      if (!std::isfinite(of_batch)) {
        network_.forget();
        return lost(phase, of_batch);
      }
      network_.backward(batch, scaler.loss_factor(), phase);
      train_.ahead();
      scaler.count_micro_batch();
    }
    scaler.end_accumulation();
    return updates_[phase](device_, network_, chosen_);
  }

  /// A micro-batch whose losses are deferred, with the state to which the training returns if one is not finite.
  struct given {
    std::vector<double> losses = {};
    loader_position position = {};
    std::uint64_t draws = 0;
  };
  /// Makes a phase on a Device that defers: everything is given, and then waited for once. If a loss was not finite,
  /// the batches given after it count as not read.
  update_report deferred(std::size_t phase, comp::scaling::grad_scaler& scaler, double& loss, bool captured) {
    const deferring<D> until_the_end{device_};
    std::vector<given> all(phase == 0 ? micro_batches() : 1);
    for (given& one : all) {
      one.losses.resize(network_.losses_of(phase));
      pass(batch_for(phase), phase, &one == all.data() ? micro_batch::first : micro_batch::further,
           scaler.loss_factor(), one.losses, captured);
      one.position = train_.at();
      one.draws = network_.draws();
      train_.ahead();
    }
    const step_gradients gradients =
        updates_[phase].give(device_, network_, chosen_, scaler.unscale_factor(static_cast<std::int64_t>(all.size())));
    for (const given& one : all) {
      const double of_batch = network<D>::mean_of(one.losses);
      loss += of_batch / static_cast<double>(all.size());
      if (!std::isfinite(of_batch)) {
        train_.seek(one.position);
        network_.set_draws(one.draws);
        return lost(phase, of_batch);
      }
      scaler.count_micro_batch();
    }
    scaler.end_accumulation();
    return updates_[phase].judge(gradients, device_, network_, chosen_);
  }
  void pass(const device_batch<D>& batch, std::size_t phase, [[maybe_unused]] micro_batch which, double scale,
            std::span<double> losses, [[maybe_unused]] bool captured) {
    if constexpr (Captures<D>) {
      if (captured) return passes_.run(batch, which, scale, losses);
    }
    passes_.plain(batch, scale, losses, phase);
  }

  D& device_;
  network<D>& network_;
  batch_feed<D>& train_;
  const training& chosen_;
  std::vector<scaled_update<D>> updates_;
  typename detail::passes_of<D>::type passes_;
  std::optional<device_batch<D>> batch_;  // the batch of the current step
  capture_choice choice_;
  bool post_training_ = false;
};

}  // namespace comp::native
