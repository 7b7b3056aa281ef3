// SPDX-License-Identifier: Apache-2.0
// The update of a step: unscales and clips accumulated gradients, and lets the optimizer move the weights unless a
// gradient is not finite.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <comp/scaling/grad_scaler.hpp>
#include <comp_native/deferral.hpp>
#include <comp_native/gradients.hpp>
#include <comp_native/network.hpp>
#include <comp_native/optimizer.hpp>
#include <comp_native/ranges.hpp>
#include <comp_native/training.hpp>
#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace comp::native {

/// Returns "features.conv1.weight, features.conv1.bias and 7 more".
inline std::string first_names(std::span<const std::string> all, std::size_t most = 3) {
  std::string text;
  for (std::size_t i = 0; i < std::min(most, all.size()); ++i) text += (i == 0 ? "" : ", ") + all[i];
  return all.size() <= most ? text : fmt::format("{} and {} more", text, all.size() - most);
}

struct update_report {
  std::string not_finite = {};  // what was not finite and in which step, so that the batch is lost; empty: all was
  bool skipped = false;         // an FP16 gradient overflowed, so that there was no update and the scale gets smaller
};

/// The gradients of an update that the Device has done already, in the form that a scaler asks for. It only reports
/// what the Device found.
template <Device D>
struct deferred_gradients {
  gradients<D> inside;
  step_gradients step;
  bool unscale(double) const { return step.finite; }
  double norm() const { return step.norm; }
  void multiply(double) const {}
  std::vector<std::string> not_finite() { return inside.not_finite(); }
};

/// All that an update remembers from step to step.
struct update_state {
  std::int64_t taken = 0;  // steps that moved the weights
  scaling::state scale = {};
  friend bool operator==(const update_state&, const update_state&) = default;
};

/// The updates of one phase of a step: an optimizer, its steps, and the scale of its losses.
template <Device D>
class scaled_update {
 public:
  scaled_update(const training& chosen, const model& of, std::size_t phase)
      : phase_{phase},
        optimizer_{optimizer_of(chosen, of.phases[phase].name)},
        scaler_{chosen.scaling},
        plain_{unscaled(chosen.scaling)},
        dynamic_{chosen.scaling.dynamic} {}

  /// Sets whether losses are scaled from now on, as they are if the plan has FP16.
  void scale(bool on) { scaled_ = on; }
  update_state state() const { return {taken_, scaler_.now()}; }
  void load(const update_state& from) {
    taken_ = from.taken;
    scaler_.load(from.scale);
  }
  /// Returns how many steps moved the weights.
  std::int64_t taken() const { return taken_; }

  /// Begins a step. Returns: the scaler of its losses, which also counts the backwards.
  scaling::grad_scaler& begin() {
    now().give_up();
    return now();
  }
  /// Ends a step: unscales, clips and updates.
  update_report operator()(D& device, network<D>& network, const training& chosen) {
    [[maybe_unused]] const auto marked = range(device, "update");
    auto step = now().unscale(gradients<D>{device, network, phase_, chosen.clip_norm > 0});
    if (chosen.clip_norm > 0) step.clip_norm(chosen.clip_norm);
    return report_of(std::move(step).apply([&] {
      network.timed_update(phase_, [&] {
        keep_moments(device, network, chosen.seed);
        update(device, network, phase_, optimizer_, chosen.schedule, taken_);
      });
      ++taken_;
    }));
  }
  /// Gives the moments the formats of the plan, if they are operators. A format that changes takes a pass over them, so
  /// this is done before a run is timed; each update does it again, for the key of its roundings.
  void keep_moments([[maybe_unused]] D& device, const network<D>& network, [[maybe_unused]] std::uint64_t seed) const {
    const auto [first, second] = network.moments_of(phase_);
    if (!first && !second) return;
    if constexpr (KeepsMoments<D>) {
      const plan& p = network.precisions();
      const auto keep = [&](auto parameters, std::uint64_t which) {
        device.keep_moments(parameters,
                            {first ? p[first] : precision::fp32, second ? p[second] : precision::fp32,
                             mix_seed(mix_seed(seed, 2 * phase_ + which), static_cast<std::uint64_t>(taken_))});
      };
      keep(network.decaying(phase_), 0);
      keep(network.not_decaying(phase_), 1);
    }
  }

  /// The first half of the same on a Device that defers: gives the update unseen, and waits for it.
  step_gradients give(D& device, network<D>& network, const training& chosen, double unscale) requires Defers<D> {
    [[maybe_unused]] const auto marked = range(device, "update");
    device.guard_update(network.trained_by(phase_), {unscale, chosen.clip_norm});
    update(device, network, phase_, optimizer_, chosen.schedule, taken_);
    return device.end_step();
  }
  /// The second half: tells the scaler what the Device did. Requires: every loss was finite.
  update_report judge(const step_gradients& gradients, D& device, network<D>& network, const training& chosen) {
    auto step = now().unscale(deferred_gradients<D>{{device, network, phase_, false}, gradients});
    if (chosen.clip_norm > 0) step.clip_norm(chosen.clip_norm);
    return report_of(std::move(step).apply([&] { ++taken_; }));
  }

 private:
  update_report report_of(const scaling::step_report& report) const {
    if (!report.skipped) return {};
    if (scaled_ && (report.diagnosis.empty() || !dynamic_)) return {.skipped = true};
    return {.not_finite = fmt::format(
                "gradients of {} not finite in step {}{} (they left the range of their precision): use more FP32",
                first_names(report.not_finite), taken_,
                scaled_ ? fmt::format(" at the lowest loss scale, {}", report.scale) : "")};
  }
  static scaling::settings unscaled(const scaling::settings& like) {
    auto off = scaling::off();
    off.micro_batches = like.micro_batches;
    return off;
  }
  scaling::grad_scaler& now() { return scaled_ ? scaler_ : plain_; }

  std::size_t phase_;
  optimizer optimizer_;
  std::int64_t taken_ = 0;
  scaling::grad_scaler scaler_;
  scaling::grad_scaler plain_;  // for plans without FP16: only counts micro-batches
  bool dynamic_ = true;         // false: the scale cannot get smaller, so an overflow is always just skipped
  bool scaled_ = false;
};

}  // namespace comp::native
