// SPDX-License-Identifier: Apache-2.0
// Loss scaling for FP16 gradients, on any backend's tensors:
//   loss.backward(scaler.loss_factor());                   // of each micro-batch
//   if (!scaler.count_micro_batch()) continue;             // more of them before a step
//   auto step = scaler.unscale(gradients);                 // clip and apply exist only on what is unscaled
//   step.clip_norm(1.0);
//   const step_report report = std::move(step).apply([&] { optimizer.step(); });
// Several optimizers: unscale(gradients, "critic") and step() for each, then update() once.
// A step whose gradients are not finite is skipped and reported; at the scale's floor the report says which tensors.
// Not here: the arithmetic (a backend's, scaling/gradients.hpp), LibTorch's optimizers
// (comp_libtorch/train/grad_scaler.hpp). Source: Micikevicius et al. 2018; the algorithm of torch.amp.GradScaler, with
// Paddle's backoff after several steps.
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

/// All that a scaler carries from step to step: what a checkpoint holds.
struct state {
  double scale = 65536;
  std::int64_t finite_steps = 0;   // in a row
  std::int64_t overflows = 0;      // in a row
  std::int64_t skipped = 0;        // in all
  std::int64_t steps = 0;          // in all, skipped ones too
  std::int64_t micro_batches = 0;  // that are accumulated already
  friend bool operator==(const state&, const state&) = default;
};

/// For any library's JSON values (nlohmann-json finds them by itself).
template <class Json>
void to_json(Json& json, const state& s) {
  json = {{"scale", s.scale}, {"finite_steps", s.finite_steps},  {"overflows", s.overflows}, {"skipped", s.skipped},
          {"steps", s.steps}, {"micro_batches", s.micro_batches}};
}
template <class Json>
void from_json(const Json& json, state& s) {
  json.at("scale").get_to(s.scale);
  json.at("finite_steps").get_to(s.finite_steps);
  json.at("overflows").get_to(s.overflows);
  json.at("skipped").get_to(s.skipped);
  json.at("steps").get_to(s.steps);
  json.at("micro_batches").get_to(s.micro_batches);
}

class grad_scaler {
 public:
  template <class G>
  class unscaled;

  /// Throws: `settings_error` for constants that cannot work.
  explicit grad_scaler(settings chosen = {}) : settings_{chosen}, state_{.scale = chosen.initial} {
    require_usable(settings_);
  }

  double scale() const { return state_.scale; }
  /// What the loss of a micro-batch is multiplied by: the scale, divided by their number, so that accumulated gradients
  /// are those of the mean loss.
  double loss_factor() const { return state_.scale / static_cast<double>(settings_.micro_batches); }

  /// After each backward. Returns: whether it was the last before a step. After the step of one optimizer the backward
  /// of another one's loss is counted anew. Throws: `error` when the step is due already.
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
  /// The data ended (an epoch): the micro-batches that there are make a step, of their mean.
  /// Returns: whether there are any.
  bool end_accumulation() {
    ended_ = state_.micro_batches > 0;
    return ended_;
  }
  /// What gradients of so many micro-batches are multiplied by to be those of their mean loss.
  double unscale_factor(std::int64_t micro_batches) const {
    return static_cast<double>(settings_.micro_batches) / (state_.scale * static_cast<double>(micro_batches));
  }

  /// Divides the gradients by the scale, once. `optimizer`: whose they are, where there are several.
  /// Returns: what can be clipped and applied.
  /// Throws: `error` before the last micro-batch, or for a second call for an optimizer since the last update.
  template <class G>
  [[nodiscard]] unscaled<G> unscale(G gradients, std::string_view optimizer = {});

  /// Sets the scale for the next step, by what the step() of all optimizers found since the last update.
  /// Throws: `error` when there was none, or one is unscaled and has not stepped.
  void update() {
    require<error>(stepped_ && open_ == 0, "update() {} (the scale is judged by whole steps): call step() first",
                   open_ > 0 ? "before an optimizer's step" : "with no step since the last one");
    judge(finite_);
    forget_round();
  }

  /// Forgets the micro-batches and steps since the last update: their gradients are to be made again.
  void give_up() {
    state_.micro_batches = 0;
    forget_round();
  }

  const state& now() const { return state_; }
  /// A step in the middle is forgotten: its gradients are to be made again.
  /// Throws: `settings_error` for a state that no scaler of these settings can have.
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
  /// Takes constants and state together. Throws: `settings_error` as the constructor and load(state).
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
  /// Grows, backs off or counts.
  void judge(bool finite) {
    ++state_.steps;
    state_.micro_batches = 0;
    if (!finite) ++state_.skipped;
    (finite ? state_.overflows : state_.finite_steps) = 0;
    auto& in_a_row = finite ? state_.finite_steps : state_.overflows;
    if (++in_a_row < (finite ? settings_.growth_interval : settings_.backoff_interval)) return;
    in_a_row = 0;
    if (!settings_.dynamic) return;
    const double wanted = state_.scale * (finite ? settings_.growth : settings_.backoff);
    state_.scale = std::clamp(wanted, settings_.floor, settings_.ceiling);
  }

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

  // Since the last update:
  std::uint64_t round_ = 0;        // number of updates, and of those that were given up
  std::vector<std::string> seen_;  // optimizers whose gradients were unscaled
  std::size_t open_ = 0;           // of them, those that have not stepped
  bool stepped_ = false;           // one has
  bool finite_ = true;             // all gradients were
  bool ended_ = false;             // no more micro-batches come
  bool anew_ = false;              // the next micro-batch is another optimizer's first
};

/// Gradients that were divided by the scale: the only thing that clips and steps. Ends with apply(), or with its life,
/// which gives the step up: then the gradients are to be made again.
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

  /// Makes the norm of all gradients together `largest` where it is larger. Nothing is clipped in a step to be skipped.
  /// Returns: the norm before. Throws: `settings_error` for a norm that is not positive.
  double clip_norm(double largest) {
    require<settings_error>(largest > 0, "clip_norm({}) (gradients are kept below it): make it positive", largest);
    norm_ = static_cast<double>(gradients_.norm());
    if (finite_ && norm_ > largest) gradients_.multiply(largest / norm_);
    return norm_;
  }

  /// Calls `optimizer_step` unless a gradient is not finite, then sets the scale for the next step: step() of the only
  /// or the last optimizer, and update(). Throws: what `optimizer_step` throws; the step is then given up.
  template <std::invocable F>
  step_report apply(F&& optimizer_step) && {
    grad_scaler& scaler = *scaler_;
    step_report report = std::move(*this).step(std::forward<F>(optimizer_step));
    scaler.update();
    return report;
  }

  /// Calls `optimizer_step` unless a gradient of this optimizer is not finite. Others may follow before update().
  /// Throws: as apply(); `error` when the steps since the last update were given up.
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
