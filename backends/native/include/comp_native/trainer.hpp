// SPDX-License-Identifier: Apache-2.0
// The native trainer: a model, its data and an optimizer on a Device. It is a comp::Backend with every capability.
//   trainer<host::device> t{device, model, train, validation, {.optimizer = sgd(0.1, 0.9)}};
// The same state, seed and plan give the same losses bit for bit, if the Device is deterministic.
#pragma once

#include <algorithm>
#include <comp/core/concepts.hpp>
#include <comp/core/lost_batches.hpp>
#include <comp/core/statistics.hpp>
#include <comp/scaling/grad_scaler.hpp>
#include <comp_native/batch_feed.hpp>
#include <comp_native/capture_choice.hpp>
#include <comp_native/device_capabilities.hpp>
#include <comp_native/moments.hpp>
#include <comp_native/network.hpp>
#include <comp_native/optimizer.hpp>
#include <comp_native/perturbation.hpp>
#include <comp_native/sensitivity.hpp>
#include <comp_native/stored_parameters.hpp>
#include <comp_native/training.hpp>
#include <comp_native/training_step.hpp>
#include <cstdint>
#include <limits>
#include <memory>
#include <range/v3/range/conversion.hpp>
#include <range/v3/view/transform.hpp>
#include <range/v3/view/zip.hpp>
#include <range/v3/view/zip_with.hpp>
#include <string>
#include <utility>
#include <vector>

namespace comp::native {

template <Device D>
class trainer {
 public:
  /// The whole state of a training, which save() returns and restore() takes.
  struct state {
    std::vector<typename D::parameter_state> parameters;  // weights, optimizer slots, running statistics
    std::vector<update_state> updates;                    // by phase
    std::uint64_t draws = 0;                              // random draws of dropout and noise
    loader_position position = {};
    std::shared_ptr<void> counted = {};  // subtracts its memory, while it lives, from what the training is said to need
  };

  /// Batches have the model's batch size. Throws: `error` if model and data do not fit together; `settings_error`.
  trainer(D& device, native::model m, data_source train, const data_source& validation, training settings = {})
      : device_{device},
        settings_{std::move(settings)},
        network_{device, with_moments<D>(std::move(m), settings_), settings_.seed},
        train_{device,
               network_.model(),
               std::move(train),
               {.batch = network_.model().batch(),
                .seed = mix_seed(settings_.seed, 1),
                .shuffle = settings_.shuffle,
                .keep_last = settings_.keep_last,
                .threads = settings_.loading_threads.value_or(loading_threads_of(device))}},
        validation_{device,
                    network_.model(),
                    validation,
                    {.batch = batch_within(validation, network_.model().batch()),
                     .shuffle = false,
                     .keep_last = true,
                     .goes_on = false,
                     .threads = settings_.loading_threads.value_or(loading_threads_of(device))}},
        step_{device, network_, train_, settings_} {
    require_usable(settings_);
    require_fit(network_.model(), train_.source().layout());
    require_fit(network_.model(), validation_.source().layout());
    for (const std::string& name : settings_.score.reads) {
      const auto& nodes = network_.model().nodes;
      const auto at = std::ranges::find(nodes, name, &node::name);
      require<settings_error>(at != nodes.end(),
                              "a score of \"{}\" (model \"{}\" has no such operator): name one of its own", name,
                              network_.model().name);
      scored_.push_back(static_cast<std::size_t>(at - nodes.begin()));
    }
  }

  const op_graph& graph() const { return network_.graph(); }
  const native::model& model() const { return network_.model(); }
  native::network<D>& network() { return network_; }
  /// Returns: why steps under this plan are not captured although they should be; empty if they are, or should not be.
  std::string capture_refused() const { return step_.captured_steps().refused; }
  /// Returns what capture_mode::measured found for steps under this plan.
  capture_report captured_steps() const { return step_.captured_steps(); }
  /// true: the epochs from here on train with the found plan, and their steps may be captured if that is faster.
  /// false: epochs are compared by their times again, so that all plans are run the same way.
  void post_training(bool on) { step_.post_training(on); }
  /// A batch is a step of as many micro-batches as `training::scaling` says; the last one of an epoch may have fewer.
  std::uint64_t batches_per_epoch() const {
    return (train_.batches_per_epoch() + micro_batches() - 1) / micro_batches();
  }

  /// Throws: `plan_error` for a plan that does not fit the model, has a precision that the Device lacks, or one in
  /// which the Device does not run the operator.
  void set_precision(const plan& p) {
    require_runs(device_, graph(), p);
    if (p != network_.precisions()) step_.forget_choice();
    network_.set_precision(p);
    for (auto& update : step_.updates()) update.scale(std::ranges::find(p, precision::fp16) != p.end());
  }

  /// Trains the whole data set once, from the beginning of an epoch. The rest of an epoch that run_batch() began is
  /// skipped.
  sample run_epoch() {
    return run_epoch([](const sample&) { return false; });
  }
  sample run_epoch(const stop_predicate& stop) {
    if (train_.at().batch != 0) train_.seek({train_.at().epoch + 1, 0});
    return run(batches_per_epoch(), stop);
  }
  /// Trains the next batch in the epoch's order. Behind the last one the next epoch begins.
  sample run_batch() {
    return run(1, [](const sample&) { return false; });
  }

  state save() {
    const auto snapshot = [this](auto& parameter) { return device_.snapshot(parameter); };
    const std::int64_t before = device_.live_bytes();
    state result{network_.parameters() | ranges::views::transform(snapshot) | ranges::to<std::vector>(),
                 {},
                 network_.draws(),
                 train_.at()};
    for (const auto& update : step_.updates()) result.updates.push_back(update.state());
    const std::int64_t held = std::max<std::int64_t>(device_.live_bytes() - before, 0);
    *held_by_states_ += held;
    result.counted = {nullptr, [all = held_by_states_, held](void*) { *all -= held; }};
    return result;
  }
  void restore(const state& from) {
    require<error>(
        from.parameters.size() == network_.parameters().size() && from.updates.size() == step_.updates().size(),
        "state of {} parameters for a model of {} (it is another model's): save and restore one trainer",
        from.parameters.size(), network_.parameters().size());
    network_.forget();  // comes first: after a step that ran out of memory there would be none left to restore into
    step_.forget();
    for (auto&& [parameter, saved] : ranges::views::zip(network_.parameters(), from.parameters)) {
      device_.restore(parameter, saved);
    }
    network_.set_draws(from.draws);
    train_.seek(from.position);
    for (std::size_t k = 0; k < from.updates.size(); ++k) step_.updates()[k].load(from.updates[k]);
  }

  /// Returns the weights and running statistics, by the names of the model's parameters.
  std::vector<named_tensor> weights() { return stored_weights(device_, network_); }
  /// Returns the whole state in a form for files. In another process with the same signature() the same losses follow.
  stored_state store_state() requires StoresSlots<D> {
    const auto number = [](auto count) { return static_cast<double>(count); };
    stored_state result{stored_parameters(device_, network_),
                        {{"dropouts", number(network_.draws())},
                         {"epoch", number(train_.at().epoch)},
                         {"batch", number(train_.at().batch)}}};
    for (std::size_t k = 0; k < step_.updates().size(); ++k) {
      result.numbers.merge(stored_update(step_.updates()[k].state(), name_of(k)));
    }
    return result;
  }
  /// Puts such a state back.
  /// Throws: `error`, naming what differs, for the state of another trainer; nothing is changed then.
  void load_state(const stored_state& from) requires StoresSlots<D> {
    std::vector<scaled_update<D>> updates = step_.updates();
    for (std::size_t k = 0; k < updates.size(); ++k) updates[k].load(update_from(from, name_of(k)));
    const std::uint64_t draws = stored_count(from, "dropouts");
    const loader_position before = train_.at();
    train_.seek({stored_count(from, "epoch"), stored_count(from, "batch")});
    network_.forget();
    step_.forget();
    try {
      load_parameters(device_, network_, from.tensors);
    } catch (...) {
      train_.seek(before);
      throw;
    }
    step_.updates() = std::move(updates);
    network_.set_draws(draws);
  }

  /// Returns: a score, higher is better: `training::score` if the user gave one, else the share of validation examples
  /// that are classified right or, for models of tokens and models that predict values, minus the mean loss.
  double validate() {
    double loss = 0;
    std::int64_t correct = 0, judged = 0;
    std::vector<std::vector<float>> outputs(scored_.size());
    validation_.seek({});
    for (std::uint64_t i = 0; i < validation_.batches_per_epoch(); ++i) {
      const device_batch<D> batch = validation_.next();
      const auto result = or_forgotten([&] { return network_.evaluate(batch, i, scored_); });
      const std::int64_t here = network_.model().reads_labels() ? batch.judged : batch.size;
      loss += result.loss * static_cast<double>(here);
      correct += result.correct;
      judged += here;
      for (std::size_t k = 0; k < outputs.size(); ++k) {
        outputs[k].insert(outputs[k].end(), result.outputs[k].begin(), result.outputs[k].end());
      }
    }
    if (settings_.score.score) return settings_.score.score(outputs);
    return (network_.model().classifies() ? static_cast<double>(correct) : -loss) / static_cast<double>(judged);
  }

  std::vector<precision> supported_precisions() const { return precisions_of(device_); }
  /// Returns whether the Device runs `op` in `p`; true if it does not say.
  bool supports(const op_info& op, precision p) const { return runs_in(device_, op, p); }
  comp::hardware hardware() const { return hardware_of(device_); }
  std::string signature() const {
    return fmt::format("{} {:016x} | model's options {:016x} | {} | {} | batch {} | {}", network_.model().name,
                       graph().fingerprint(), hash_of_options(network_.model()), train_.source().signature(),
                       validation_.source().signature(), network_.model().batch(), text(settings_));
  }

  /// Returns the seconds of each operator in one step under the current plan, without casts: medians of a few steps
  /// after a first one that does not count. A step begins only when its batch and the next one are loaded, so that the
  /// loader does not disturb it. The state is the same afterwards.
  std::vector<op_time> profile() {
    std::vector<std::vector<double>> forward(graph().size()), backward(graph().size());
    undone([&] {
      network_.measure(true);
      for (int i = 0; i <= settings_.profile_steps; ++i) {
        train_.rest();
        step_();
        for (std::size_t op = 0; i > 0 && op < graph().size(); ++op) {
          const auto times = static_cast<double>(micro_batches());
          forward[op].push_back(times * network_.times()[op].forward);
          backward[op].push_back(times * network_.times()[op].backward);
        }
      }
    });
    const auto medians = [](const auto& f, const auto& b) { return op_time{median(f), median(b)}; };
    return ranges::views::zip_with(medians, forward, backward) | ranges::to<std::vector>();
  }

  /// Returns the error of each operator when it alone is lowered, on the next batch; 0 if it cannot be lowered to
  /// `low`. The state is the same afterwards.
  /// Throws: `settings_error` for a precision that the Device lacks.
  std::vector<op_error> sensitivity(precision low) {
    const auto known = supported_precisions();
    require<settings_error>(std::ranges::find(known, low) != known.end(),
                            "sensitivity in {} (this device computes in {}): choose one of those", name(low),
                            names_of(known));
    const double scale = step_.updates().front().state().scale.scale,
                 least = settings_.scaling.dynamic ? std::min(scale, 1.0) : scale;
    std::vector<op_error> errors;
    undone([&] {
      const device_batch<D> batch = train_.next();
      errors = sensitivity_of(device_, network_, batch, low, scale, least,
                              [&](const op_info& op) { return supports(op, low); });
    });
    for (std::size_t i = 0; i < errors.size(); ++i) {
      if (graph()[i].is_state && supports(graph()[i], low)) errors[i].gradient = traits(low).half_ulp / 2;
    }
    return errors;
  }

  /// Moves each weight at random by about half a unit in its last place (perturbation.hpp). restore() undoes it.
  void perturb(std::uint64_t seed) {
    network_.forget();
    step_.forget();
    perturb_weights(device_, network_.trainable(), seed);
  }

 private:
  double now() const { return seconds_of(device_); }
  /// Does `work` and, if it throws, drops what it has left on the Device. Work that still waits to be computed would
  /// hold memory, and would fail again in the next step.
  auto or_forgotten(auto work) {
    try {
      return work();
    } catch (...) {
      network_.forget();
      step_.forget();
      throw;
    }
  }
  /// Runs `work` and puts the state back afterwards, even if it throws.
  void undone(auto work) {
    const state before = save();
    try {
      work();
    } catch (...) {
      network_.measure(false);
      restore(before);
      throw;
    }
    network_.measure(false);
    restore(before);
  }
  /// Returns the name of a phase; empty if the model has only one.
  std::string name_of(std::size_t phase) const {
    const auto& phases = network_.model().phases;
    return phases.size() == 1 ? "" : phases[phase].name;
  }
  /// Adds the losses of a batch to a sample: their sum and, with several phases, each of them. A batch without an
  /// update, because something was not finite, is lost.
  void add_losses(sample& to, const step_result& result) const {
    constexpr double nan = std::numeric_limits<double>::quiet_NaN();
    const bool lost = !result.update.not_finite.empty();
    const std::size_t phases = network_.model().phases.size();
    to.curve.push_back(lost ? nan : result.loss());
    ++to.batches;
    if (phases > 1) to.curves.resize(phases), to.losses.resize(phases);
    for (std::size_t k = 0; k < to.curves.size(); ++k) to.curves[k].push_back(lost ? nan : result.losses[k]);
    if (lost) {
      if (to.not_finite++ == 0) to.message = result.update.not_finite;
      return;
    }
    const auto sound = static_cast<double>(to.batches - to.not_finite);
    if (sound == 1) to.loss = 0;
    to.loss += (to.curve.back() - to.loss) / sound;
    for (std::size_t k = 0; k < to.curves.size(); ++k) to.losses[k] += (to.curves[k].back() - to.losses[k]) / sound;
  }
  std::uint64_t micro_batches() const { return static_cast<std::uint64_t>(settings_.scaling.micro_batches); }

  sample run(std::uint64_t batches, const stop_predicate& stop) {
    sample so_far;
    std::int64_t skipped = 0;
    step_.keep_moments();
    train_.rest();  // after a restore() batches are loaded again, which must not count as time of the plan
    device_.reset_peak();
    const double start = now();
    for (std::uint64_t i = 0; i < batches; ++i) {
      const double batch_start = now();
      const step_result result = or_forgotten([&] { return step_(batches > 1 && step_.captures()); });
      // On a Device that defers, an update runs beside the beginning of the next step, in whose time it counts.
      if (!Defers<D> || i + 1 == batches) device_.synchronize();
      so_far.batch_seconds.push_back(now() - batch_start);
      if (batches > 1) step_.took(so_far.batch_seconds.back());
      add_losses(so_far, result);
      so_far.seconds = now() - start;
      so_far.peak_bytes = device_.peak_bytes() - *held_by_states_;
      skipped += result.update.skipped;
      if (batches == 1 && so_far.not_finite > 0) so_far.loss = result.loss();
      if (so_far.not_finite == static_cast<std::int64_t>(batches) || keeps_losing(so_far)) {
        so_far.status = status::not_finite;
        return so_far;
      }
      if (stop(so_far)) {
        device_.synchronize();
        so_far.status = status::stopped_early;
        break;
      }
    }
    if (skipped > 0 && so_far.message.empty()) {
      std::string scales;
      for (const auto& update : step_.updates()) {
        scales += fmt::format("{}{}", scales.empty() ? "" : " and ", update.state().scale.scale);
      }
      so_far.message = fmt::format("{} steps skipped: FP16 gradients overflowed, loss scale now {}", skipped, scales);
    }
    return so_far;
  }

  D& device_;
  std::shared_ptr<std::int64_t> held_by_states_ = std::make_shared<std::int64_t>(0);
  training settings_;
  native::network<D> network_;
  batch_feed<D> train_;
  batch_feed<D> validation_;
  training_step<D> step_;
  std::vector<std::size_t> scored_;  // the nodes whose outputs `training::score` reads
};

}  // namespace comp::native
