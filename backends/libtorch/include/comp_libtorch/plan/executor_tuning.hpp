// SPDX-License-Identifier: Apache-2.0
// Measures how a plan is best run: with weights cast in each step or kept in low precision, with images as they are or
// channels-last, with ATen's kernels or comp's. Each choice is timed in turns against the default, and is taken only if
// its 95% interval says that it is faster. Plan files carry the result.
#pragma once

#include <c10/util/ScopeExit.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <comp/core/concepts.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/statistics.hpp>
#include <comp/files/json_reader.hpp>
#include <comp/files/plan_file.hpp>
#include <comp_libtorch/kernels/kernels.hpp>
#include <comp_libtorch/plan/executor_choice.hpp>
#include <comp_libtorch/plan/program.hpp>
#include <comp_libtorch/plan/settings.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::libtorch {

/// Has `p` run its plan by `choice` from now on.
inline void use(program& p, const executor_choice& choice) {
  program_settings now = p.settings();
  if (choice_in(now) == choice) return;
  now.weights = choice.weights;
  now.images = choice.images;
  now.kernels.assign(choice.kernels.begin(), choice.kernels.end());
  p.set_settings(now);
}

/// The seconds of a step, and of each of its operators if these were asked for.
struct step_times {
  double seconds = 0;
  std::vector<op_time> operators = {};
};

namespace detail {

/// Returns: the low precision that most operators of `p` have; FP32 if `p` is tuned, nothing if it is plain FP32.
/// The same choices pay for plans that share it.
inline std::optional<precision> prevailing(const plan& p) {
  if (p.is_tuned()) return precision::fp32;
  std::map<precision, std::size_t> counts;
  for (const precision each : p) {
    if (traits(each).bytes < 4) ++counts[each];
  }
  const auto most = std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
  return most == counts.end() ? std::nullopt : std::optional{most->first};
}

/// Returns: whether there is a choice of how `p` is run.
inline bool is_tunable(const plan& p, const op_graph& graph) {
  return (p.count_lowered(graph) > 0 || p.is_tuned()) && !p.runs_autocast();
}

inline const std::string kernel_of = "kernel of ";  // begins the name of a layer's choice in plan files

/// Returns: a choice of a kernel as plan files have it: "matrices: forward, weight gradient".
inline std::string described(const kernel_use& use) {
  std::vector<std::string_view> parts;
  for (std::size_t part = 0; part < use.own->parts.size(); ++part) {
    if ((use.parts >> part & 1U) != 0) parts.push_back(use.own->parts[part].name);
  }
  return fmt::format("{}: {}", use.own->name, fmt::join(parts, ", "));
}
/// Returns: the kernel that a choice of a plan file names; nothing if this version of comp has none of that name.
inline std::optional<kernel_use> kernel_use_from(const execution_choice& choice) {
  if (!choice.name.starts_with(kernel_of)) return {};
  for (const kernel* own : all_kernels) {
    for (unsigned parts = 1; parts < 1U << own->parts.size(); ++parts) {
      const kernel_use use{own, static_cast<kernel_parts>(parts)};
      if (described(use) == choice.value) return use;
    }
  }
  return {};
}

/// Returns: the parts of a kernel that step `step` of a round times together: one of the forward and one of the
/// backward, since these are timed apart.
inline kernel_parts parts_of_step(const kernel& own, std::size_t step) {
  std::size_t forward = 0, backward = 0;  // the steps that have such a part
  kernel_parts chosen = 0;
  for (std::size_t part = 0; part < own.parts.size(); ++part) {
    const kernel_phase phase = own.parts[part].phase;
    const std::size_t at = phase == kernel_phase::forward    ? forward
                           : phase == kernel_phase::backward ? backward
                                                             : std::max(forward, backward);
    if (at == step) chosen = static_cast<kernel_parts>(chosen | 1U << part);
    if (phase != kernel_phase::backward) forward = at + 1;
    if (phase != kernel_phase::forward) backward = at + 1;
  }
  return chosen;
}

inline std::vector<double> seconds_of(const std::vector<op_time>& times, kernel_phase phase) {
  std::vector<double> seconds;
  for (const op_time& each : times) {
    seconds.push_back((phase == kernel_phase::backward ? 0 : each.forward) +
                      (phase == kernel_phase::forward ? 0 : each.backward));
  }
  return seconds;
}

}  // namespace detail

/// Times choices against each other in turns, for one plan, by steps that the caller runs: next() says how the next
/// step is to be run, and add() takes its times, until done(). On a loaded machine times scatter. There are then more
/// rounds, up to a limit, and what is still not clear stays as it was.
/// comp's kernels are timed by their operators. Those that are faster are then timed by whole steps, together with the
/// images that they want.
class choice_measurement {
 public:
  choice_measurement(executor_options options, const tuning_settings& settings)
      : settings_{settings}, options_{std::move(options)} {
    for (const own_operator& each : options_.kernels) {
      while (detail::parts_of_step(*each.own, steps_with_kernels_) != 0) ++steps_with_kernels_;
    }
    times_weights() ? begin(stage::weights, {weight_casts::keep}) : begin_kernels();
  }

  bool done() const { return stage_ == stage::done; }
  executor_choice next() const {
    if (times_operators()) return with_kernels();
    return times_other() ? other_ : best_.choice;
  }
  /// Returns: the steps that are needed if the first look at the times decides.
  std::size_t least_steps() const {
    const std::size_t contests = (times_weights() ? 1 : 0) + (options_.images ? 1 : 0);
    return 4 * settings_.rounds * contests +
           (options_.kernels.empty() ? 0 : 1 + settings_.rounds * (steps_with_kernels_ + 1));
  }
  /// Returns: whether add() needs the times of operators of the next step.
  bool times_operators() const { return stage_ == stage::kernels; }

  void add(const step_times& step) {
    if (times_operators()) return add_operators(step.operators);
    spent_ += step.seconds;
    if (step_ % 2 == 1) seconds_[times_other()].push_back(step.seconds);
    if (++step_ < 4) return;
    step_ = 0;
    ++round_;
    const paired_speedup so_far = compare_paired(seconds_[0], seconds_[1]);
    if (is_enough(so_far)) conclude(so_far);
  }
  const tuned_choice& best() const { return best_; }

 private:
  enum class stage : std::uint8_t { weights, kernels, images, done };

  bool times_weights() const { return options_.weights && !settings_.quick; }
  /// Returns: whether the next step runs the other choice. A round has two steps of each choice, of which the second is
  /// timed. Every second round begins with the other choice.
  bool times_other() const { return (step_ / 2 == 1) != (round_ % 2 == 1); }

  /// Returns: whether the times decide. They are looked at after 1, 2, 4 times the least number of rounds only, because
  /// each look is a chance to be wrong.
  bool is_enough(const paired_speedup& so_far) const {
    if (round_ < settings_.rounds) return false;
    if (round_ >= settings_.most_rounds || spent_ > settings_.most_seconds) return true;
    std::size_t look = settings_.rounds;
    while (look < round_) look *= 2;
    const bool same = so_far.bounds.low >= 1 - settings_.alike && so_far.bounds.high <= 1 + settings_.alike;
    return look == round_ && (so_far.clearly_faster() || so_far.clearly_slower() || same);
  }

  void conclude(const paired_speedup& measured) {
    (stage_ == stage::weights ? best_.keeping : best_.channels_last) = measured;
    if (measured.clearly_faster()) best_.choice = other_;
    stage_ == stage::images ? begin(stage::done, {}) : begin_kernels();
  }
  void begin_kernels() {
    const stage next = !options_.kernels.empty() ? stage::kernels : options_.images ? stage::images : stage::done;
    begin(next, {best_.choice.weights, options_.images ? memory_format::channels_last : memory_format::as_is});
  }
  void begin(stage next, executor_choice other) {
    stage_ = next;
    other_ = std::move(other);
    round_ = step_ = 0;
    spent_ = 0;
    seconds_[0].clear();
    seconds_[1].clear();
  }

  /// Returns: which step of a round comes next. A round has a step by ATen's kernels, which is the last, and the others
  /// by comp's; it begins with another one each time.
  std::size_t step_of_round() const { return (step_ + round_) % (steps_with_kernels_ + 1); }
  /// Returns: the choice for the next step. The first of all has every part, for kernels prepare themselves in it.
  executor_choice with_kernels() const {
    executor_choice choice = other_;
    for (const own_operator& each : options_.kernels) {
      const auto parts = is_first_ ? static_cast<kernel_parts>((1U << each.own->parts.size()) - 1)
                                   : detail::parts_of_step(*each.own, step_of_round());
      if (parts != 0) choice.kernels[each.layer] = {each.own, parts};
    }
    return choice;
  }

  void add_operators(const std::vector<op_time>& times) {
    if (std::exchange(is_first_, false)) return;
    for (const own_operator& each : options_.kernels) {
      operator_times_[{each.number, step_of_round()}].push_back(times.at(each.number));
    }
    if (++step_ <= steps_with_kernels_) return;
    step_ = 0;
    if (++round_ >= settings_.rounds) conclude_kernels();
  }

  void conclude_kernels() {
    for (const own_operator& each : options_.kernels) {
      const std::vector<op_time>& aten = operator_times_[{each.number, steps_with_kernels_}];
      std::vector<double> saved(aten.size());  // [s] in each round, by the parts that are faster by comp's kernel
      kernel_parts faster = 0;
      for (std::size_t part = 0; part < each.own->parts.size(); ++part) {
        const auto bit = static_cast<kernel_parts>(1U << part);
        const kernel_phase phase = each.own->parts[part].phase;
        std::size_t step = 0;
        while ((detail::parts_of_step(*each.own, step) & bit) == 0) ++step;
        const auto before = detail::seconds_of(aten, phase);
        const auto after = detail::seconds_of(operator_times_[{each.number, step}], phase);
        if (!(compare_paired(before, after).bounds.low > 1 + settings_.alike)) continue;
        faster |= bit;
        for (std::size_t i = 0; i < saved.size(); ++i) saved[i] += before[i] - after[i];
      }
      if (faster == 0) continue;
      other_.kernels[each.layer] = {each.own, faster};
      const auto before = detail::seconds_of(aten, kernel_phase::both);
      auto after = before;
      for (std::size_t i = 0; i < after.size(); ++i) after[i] = std::max(after[i] - saved[i], 0.01 * after[i]);
      best_.kernels[each.layer] = compare_paired(before, after);
    }
    if (options_.images || !(settings_.quick || other_.kernels.empty())) return begin(stage::images, other_);
    best_.choice = other_;
    begin(stage::done, {});
  }

  tuning_settings settings_;
  executor_options options_;
  std::size_t steps_with_kernels_ = 0;  // of a round
  executor_choice other_;               // what is timed against the best so far
  tuned_choice best_ = {};
  stage stage_ = stage::weights;
  std::size_t round_ = 0, step_ = 0;
  double spent_ = 0;
  std::vector<double> seconds_[2] = {};
  bool is_first_ = true;  // no operators were timed yet
  std::map<std::pair<std::size_t, std::size_t>, std::vector<op_time>> operator_times_ = {};  // by step of a round
};

/// Runs `batch()`, which trains a step and returns its seconds. Returns: its times, with those of operators if
/// `by_operator`.
template <class Batch>
step_times timed_step(program& p, bool by_operator, Batch batch) {
  p.profile(by_operator);
  const auto end = c10::make_scope_exit([&] { p.profile(false); });
  const double seconds = batch();
  return {seconds, by_operator ? p.times() : std::vector<op_time>{}};
}

/// Measures the plan that is set. `choose(choice)` switches to it; `batch(true)` trains a step and returns its times,
/// `batch(false)` those of the whole step only.
template <class Choose, class Batch>
tuned_choice measured_choice(choice_measurement measurement, Choose choose, Batch batch) {
  while (!measurement.done()) {
    choose(measurement.next());
    measurement.add(batch(measurement.times_operators()));
  }
  choose(measurement.best().choice);
  return measurement.best();
}

/// Returns: the choices as plan files have them.
inline execution execution_of(const tuned_choice& tuned) {
  const auto gain = [](bool taken, const paired_speedup& other) { return taken ? other : inverse(other); };
  const bool keeps = tuned.choice.weights == weight_casts::keep;
  const bool last = tuned.choice.images == memory_format::channels_last;
  const bool of_images = last || tuned.choice.kernels.empty();  // else the kernels alone were timed
  execution all{
      {"weights", keeps ? "keep" : "cast", gain(keeps, tuned.keeping)},
      {"images", last ? "channels_last" : "as_is", of_images ? gain(last, tuned.channels_last) : paired_speedup{}}};
  for (const auto& [layer, use] : tuned.choice.kernels) {
    const auto measured = tuned.kernels.find(layer);
    all.push_back({detail::kernel_of + layer, detail::described(use),
                   measured == tuned.kernels.end() ? paired_speedup{} : measured->second});
  }
  return all;
}

/// Puts the choices of a plan file into `to`, if the plan was found on a machine like `here`. Returns: sentences on
/// what was not taken.
inline std::vector<std::string> apply(const loaded_plan& from, const hardware& here, tuned_choice& to) {
  if (from.execution.empty()) return {};
  if (from.made_for != here) {
    return {fmt::format(
        "how the plan is best run was measured on other hardware (what was faster there may be slower here): the "
        "defaults are used{}",
        by_language("; measure here with planned_choices::measured", ""))};
  }
  std::vector<std::string> unknown;
  for (const execution_choice& choice : from.execution) {
    const auto is = [&](std::string_view name, std::string_view value) {
      return choice.name == name && choice.value == value;
    };
    if (is("weights", "keep") || is("weights", "cast")) {
      const bool keeps = choice.value == "keep";
      to.choice.weights = keeps ? weight_casts::keep : weight_casts::cast;
      to.keeping = keeps ? choice.gain : inverse(choice.gain);
    } else if (is("images", "channels_last") || is("images", "as_is")) {
      const bool last = choice.value == "channels_last";
      to.choice.images = last ? memory_format::channels_last : memory_format::as_is;
      to.channels_last = last ? choice.gain : inverse(choice.gain);
    } else if (const auto use = detail::kernel_use_from(choice)) {
      const std::string layer = choice.name.substr(detail::kernel_of.size());
      to.choice.kernels[layer] = *use;
      to.kernels[layer] = choice.gain;
    } else {
      unknown.push_back(
          fmt::format("the plan was run with {} = {} (this version of comp has no such choice): the default is used",
                      in_quotes(choice.name), in_quotes(choice.value)));
    }
  }
  return unknown;
}

}  // namespace comp::libtorch
