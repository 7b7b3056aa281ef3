// SPDX-License-Identifier: Apache-2.0
// Loss scaling, which keeps small FP16 gradients from underflowing to zero, for any backend's tensors. The steps of a
// training loop:
//   loss.backward(scaler.loss_factor());                   // for each micro-batch
//   if (!scaler.count_micro_batch()) continue;             // more micro-batches come before the step
//   auto step = scaler.unscale(gradients);                 // only unscaled gradients can be clipped and applied
//   step.clip_norm(1.0);
//   const step_report report = std::move(step).apply([&] { optimizer.step(); });
// With several optimizers, call unscale(gradients, "critic") and step() for each, then update() once.
// A step whose gradients are not finite is skipped, and the report names the tensors. At the lowest scale it also has a
// diagnosis, since a smaller scale cannot help.
// Source: Micikevicius et al. 2018; the algorithm of torch.amp.GradScaler, with Paddle's backoff after several steps.
#pragma once

#include <fmt/core.h>

#include <algorithm>
#include <cmath>
#include <comp/core/error.hpp>
#include <comp/scaling/gradients.hpp>
#include <comp/scaling/settings.hpp>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::scaling {

/// All that a scaler remembers from step to step, and what a checkpoint must hold.
struct state {
  double scale = 65536;
  std::int64_t finite_steps = 0;   // steps in a row with finite gradients, so far
  std::int64_t overflows = 0;      // steps in a row with gradients that are not finite, so far
  std::int64_t skipped = 0;        // all steps that were skipped
  std::int64_t steps = 0;          // all steps, skipped ones included
  std::int64_t micro_batches = 0;  // micro-batches that were accumulated for the next step
  friend bool operator==(const state&, const state&) = default;
};

/// Conversions to and from the JSON values of any library; nlohmann-json finds them by argument-dependent lookup.
void to_json(auto& json, const state& s) {
  json = {{"scale", s.scale}, {"finite_steps", s.finite_steps},  {"overflows", s.overflows}, {"skipped", s.skipped},
          {"steps", s.steps}, {"micro_batches", s.micro_batches}};
}
void from_json(const auto& json, state& s) {
  json.at("scale").get_to(s.scale);
  json.at("finite_steps").get_to(s.finite_steps);
  json.at("overflows").get_to(s.overflows);
  json.at("skipped").get_to(s.skipped);
  json.at("steps").get_to(s.steps);
  json.at("micro_batches").get_to(s.micro_batches);
}

/// Scales losses and unscales gradients, and adapts the scale: it grows after many steps without an overflow, and backs
/// off after an overflow.
class grad_scaler {
 public:
  template <class G>
  class unscaled;

  /// Throws: `settings_error` for constants with which scaling cannot work.
  explicit grad_scaler(settings chosen = {}) : settings_{chosen}, state_{.scale = chosen.initial} {
    require_usable(settings_);
  }

  double scale() const { return state_.scale; }
  /// Returns the factor for the loss of a micro-batch: the scale divided by the number of micro-batches, so that the
  /// accumulated gradients are those of the mean loss.
  double loss_factor() const { return state_.scale / static_cast<double>(settings_.micro_batches); }

  /// Counts a micro-batch; call it after each backward. After one optimizer's step the backward of another one's loss
  /// is counted from the start again.
  /// Returns: whether it was the last one before a step.
  /// Throws: `error` if a step should have come before it.
  bool count_micro_batch() {
    if (anew_ && open_ == 0) {
      state_.micro_batches = 0;
      anew_ = ended_ = false;
    }
    require<error>(state_.micro_batches < settings_.micro_batches,
                   "backward number {} of {} (gradients of so many are accumulated): call unscale() and apply() before "
                   "the next",
                   state_.micro_batches + 1, settings_.micro_batches);
    return ++state_.micro_batches == settings_.micro_batches;
  }
  /// Ends the accumulation early, because the epoch's data have ended. The micro-batches so far then make a step, with
  /// the gradient of their mean loss.
  /// Returns: whether there are any.
  bool end_accumulation() {
    ended_ = state_.micro_batches > 0;
    return ended_;
  }
  /// Returns the factor that turns the scaled gradients of `micro_batches` micro-batches into those of their mean loss.
  double unscale_factor(std::int64_t micro_batches) const {
    return static_cast<double>(settings_.micro_batches) / (state_.scale * static_cast<double>(micro_batches));
  }

  /// Divides the gradients by the scale. `optimizer` says whose gradients they are, if there are several optimizers.
  /// Returns: the unscaled gradients, which can be clipped and applied.
  /// Throws: `error` before the last micro-batch, or for a second call for an optimizer since the last update, which
  /// would divide its gradients twice.
  template <class G>
  [[nodiscard]] unscaled<G> unscale(G gradients, std::string_view optimizer = {});

  /// Sets the scale for the next step, after the step() of all optimizers: it is an overflow if one of them had
  /// gradients that are not finite.
  /// Throws: `error` if no optimizer stepped since the last update, or one has unscaled gradients and did not step.
  void update() {
    require<error>(stepped_ && open_ == 0, "update() {} (the scale is judged by whole steps): call step() first",
                   open_ > 0 ? "before an optimizer's step" : "with no step since the last one");
    judge(finite_);
    forget_round();
  }

  /// Forgets the micro-batches and steps since the last update, because their gradients will be computed again.
  void give_up() {
    state_.micro_batches = 0;
    forget_round();
  }

  const state& now() const { return state_; }
  /// Puts back a state, for instance from a checkpoint. A step that has begun is forgotten; its gradients will be
  /// computed again.
  /// Throws: `settings_error` for a state that no scaler with these settings can have.
  void load(const state& from) {
    const bool possible = std::isfinite(from.scale) && from.scale >= settings_.floor && from.scale <= settings_.ceiling;
    const auto counts = {from.finite_steps, from.overflows, from.skipped, from.steps, from.micro_batches};
    require<settings_error>(
        possible && *std::min_element(counts.begin(), counts.end()) >= 0 && from.skipped <= from.steps &&
            from.micro_batches <= settings_.micro_batches,
        "a scaler's state with scale {}, {} of {} steps skipped, {} micro-batches (out of range for "
        "these settings): save it again, or load it with the settings that it was saved with",
        from.scale, from.skipped, from.steps, from.micro_batches);
    state_ = from;
    forget_round();
  }
  const settings& constants() const { return settings_; }
  /// Replaces constants and state together, or neither of them if one is refused.
  /// Throws: `settings_error` as the constructor and load(state) do.
  void load(const settings& chosen, const state& from) {
    grad_scaler scaler{chosen};
    scaler.load(from);
    settings_ = chosen;
    load(from);
  }

 private:
  void forget_round() {
    ++round_;
    seen_.clear();
    open_ = 0;
    finite_ = true;
    stepped_ = ended_ = anew_ = false;
  }
  /// Counts a step, and changes the scale after enough finite steps, or overflows, in a row.
  void judge(bool finite) {
    ++state_.steps;
    state_.micro_batches = 0;
    if (!finite) ++state_.skipped;
    (finite ? state_.overflows : state_.finite_steps) = 0;
    auto& in_a_row = finite ? state_.finite_steps : state_.overflows;
    if (++in_a_row < (finite ? settings_.growth_interval : settings_.backoff_interval)) return;
    in_a_row = 0;
    if (!settings_.dynamic) return;
    const double next = state_.scale * (finite ? settings_.growth : settings_.backoff);
    state_.scale = std::clamp(next, settings_.floor, settings_.ceiling);
  }

  /// Returns a sentence for a step that was skipped at the lowest scale; empty at a higher one.
  std::string diagnose(const step_report& report) const {
    if (report.scale > settings_.floor) return {};
    std::string names;
    for (const std::string& name : report.not_finite) names += (names.empty() ? " of " : ", ") + name;
    return fmt::format(
        "gradients{} are not finite at the lowest loss scale, {} (it is the model that overflows, not the "
        "scale): give those operators FP32, or train with a smaller learning rate",
        names, settings_.floor);
  }

  settings settings_;
  state state_;

  // A round is what happens between two updates. Its number lets unscaled gradients notice that their round was given
  // up.
  std::uint64_t round_ = 0;
  std::vector<std::string> seen_;  // optimizers whose gradients were unscaled in this round
  std::size_t open_ = 0;           // how many of them have not stepped yet
  bool stepped_ = false;           // whether an optimizer has stepped in this round
  bool finite_ = true;             // whether all gradients of this round were finite
  bool ended_ = false;             // whether the data ended, so that no more micro-batches come
  bool anew_ = false;              // whether the next micro-batch is the first of another optimizer's loss
};

/// Gradients that were divided by the scale. Clipping and stepping exist only here, so that scaled gradients cannot be
/// clipped by mistake. apply() or step() ends it; if it is destroyed before, the step is given up and its gradients
/// have to be computed again.
template <class G>
class [[nodiscard]] grad_scaler::unscaled {
  static_assert(expect_gradients<G>());

 public:
  unscaled(unscaled&& from) noexcept
      : scaler_{std::exchange(from.scaler_, nullptr)},
        round_{from.round_},
        gradients_{from.gradients_},
        finite_{from.finite_},
        norm_{from.norm_} {}
  unscaled& operator=(unscaled&&) = delete;
  ~unscaled() {
    if (scaler_ != nullptr && scaler_->round_ == round_) scaler_->give_up();
  }

  bool finite() const { return finite_; }

  /// Scales all gradients together down to the norm `largest` if their norm is larger. Does nothing if the step will be
  /// skipped.
  /// Returns: the norm before.
  /// Throws: `settings_error` for a norm that is not positive.
  double clip_norm(double largest) {
    require<settings_error>(largest > 0, "clip_norm({}) (gradients are kept below it): make it positive", largest);
    norm_ = static_cast<double>(gradients_.norm());
    if (finite_ && norm_ > largest) gradients_.multiply(largest / norm_);
    return norm_;
  }

  /// Calls `optimizer_step` unless a gradient is not finite, then sets the scale for the next step: step() and update()
  /// in one, for the only or the last optimizer.
  /// Throws: what `optimizer_step` throws; the step is then given up.
  template <std::invocable F>
  step_report apply(F&& optimizer_step) && {
    grad_scaler& scaler = *scaler_;
    step_report report = std::move(*this).step(std::forward<F>(optimizer_step));
    scaler.update();
    return report;
  }

  /// Calls `optimizer_step` unless a gradient of this optimizer is not finite. Other optimizers may follow before
  /// update().
  /// Throws: as apply() does; `error` if the steps since the last update were given up.
  template <std::invocable F>
  step_report step(F&& optimizer_step) && {
    require<error>(
        scaler_->round_ == round_,
        "step() with gradients of a step that was given up (they are to be made again): unscale() the new ones");
    step_report report{.skipped = !finite_, .scale = scaler_->scale(), .norm = norm_};
    if (finite_)
      std::forward<F>(optimizer_step)();
    else
      report.not_finite = gradients_.not_finite();
    if (report.skipped) report.diagnosis = scaler_->diagnose(report);
    scaler_->stepped_ = scaler_->anew_ = true;
    scaler_->finite_ = scaler_->finite_ && finite_;
    --std::exchange(scaler_, nullptr)->open_;
    return report;
  }

 private:
  friend class grad_scaler;
  unscaled(grad_scaler& scaler, G gradients)
      : scaler_{&scaler}, round_{scaler.round_}, gradients_{std::move(gradients)} {
    finite_ = gradients_.unscale(scaler.unscale_factor(scaler.state_.micro_batches));
    ++scaler.open_;
  }

  grad_scaler* scaler_;
  std::uint64_t round_;
  G gradients_;
  bool finite_ = false;
  double norm_ = 0;
};

template <class G>
grad_scaler::unscaled<G> grad_scaler::unscale(G gradients, std::string_view optimizer) {
  require<error>(
      std::find(seen_.begin(), seen_.end(), optimizer) == seen_.end(),
      "unscale() of gradients{}{} that are unscaled (they would be divided by {} twice): apply() the step, or "
      "step() and update(), first",
      optimizer.empty() ? "" : " of ", optimizer, state_.scale);
  require<error>(
      state_.micro_batches == settings_.micro_batches || (ended_ && state_.micro_batches > 0),
      "unscale() after {} of {} micro-batches (the gradients are not complete): call count_micro_batch() after "
      "each backward, and unscale() when it returns true",
      state_.micro_batches, settings_.micro_batches);
  seen_.emplace_back(optimizer);
  return unscaled<G>{*this, std::move(gradients)};
}

}  // namespace comp::scaling
