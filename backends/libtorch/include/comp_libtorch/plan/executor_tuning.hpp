// SPDX-License-Identifier: Apache-2.0
// Measures how a plan is best run: with weights cast in each step or kept in low precision, with images as they are or
// channels-last. Each choice is timed in turns against the default, and is taken only where its 95% interval says that
// it is faster. Plan files carry the result.
// When it is measured: docs/decisions.md, "LibTorch: the executor's choices". Not here: what the choices mean
// (settings.hpp).
#pragma once

#include <algorithm>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/statistics.hpp>
#include <comp/files/json_reader.hpp>
#include <comp/files/plan_file.hpp>
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

struct executor_choice {
  weight_casts weights = weight_casts::cast;
  memory_format images = memory_format::as_is;
  friend bool operator==(const executor_choice&, const executor_choice&) = default;
};
inline executor_choice choice_in(const program_settings& s) { return {s.weights, s.images}; }

/// Has `p` run its plan by `choice` from now on.
inline void use(program& p, const executor_choice& choice) {
  program_settings now = p.settings();
  if (choice_in(now) == choice) return;
  now.weights = choice.weights;
  now.images = choice.images;
  p.set_settings(now);
}

/// The best choice, and how many times as fast a batch was with kept memory and with channels-last as without; NaN
/// where that was not tried.
struct tuned_choice {
  executor_choice choice = {};
  paired_speedup keeping = {};
  paired_speedup channels_last = {};
};

struct tuning_settings {
  std::size_t rounds = 7;  // at least; in each both choices have a batch to get used to it and a batch that is timed
  std::size_t most_rounds = 28;       // at most, as long as the interval says neither faster nor slower
  double most_seconds = 60;           // [s] for one choice, once it has its `rounds`
  double alike = 0.01;                // an interval within 1 +- this is clear, too: the choice does not matter
  std::int64_t shortest_epoch = 150;  // [batches]: with fewer, measuring costs more than it can give back in a search
  std::int64_t trained_with = 500;    // [batches] in a row: then a plan is measured itself in any case
  double hopeless = 1.5;              // times FP32's batch: a plan that is slower is not measured
};

namespace detail {

inline bool lowers(const op_graph& graph, const plan& p, std::string_view part_of_kind) {
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (is_low(p[i]) && graph[i].kind.find(part_of_kind) != std::string::npos) return true;
  }
  return false;
}

/// Returns: the low precision that most operators of `p` have; nothing for FP32. The same choices pay for plans that
/// share it.
inline std::optional<precision> prevailing(const plan& p) {
  std::map<precision, std::size_t> counts;
  for (const precision each : p) {
    if (traits(each).bytes < 4) ++counts[each];
  }
  const auto most = std::ranges::max_element(counts, {}, [](const auto& entry) { return entry.second; });
  return most == counts.end() ? std::nullopt : std::optional{most->first};
}

inline paired_speedup inverse(const paired_speedup& other) {
  return {1 / other.ratio, {1 / other.bounds.high, 1 / other.bounds.low}};
}

}  // namespace detail

/// Times choices against each other in turns, for one plan, by steps that the caller runs: next() says how the next
/// step is to be run, and add() takes its seconds, until done(). On a loaded machine times scatter. There are then more
/// rounds, up to a limit, and what is still not clear stays as it was.
class choice_measurement {
 public:
  choice_measurement(const op_graph& graph, const plan& p, const tuning_settings& settings)
      : settings_{settings}, convolves_{detail::lowers(graph, p, "conv")}, other_{weight_casts::keep} {}

  bool done() const { return stage_ == stage::done; }
  executor_choice next() const { return times_other() ? other_ : best_.choice; }
  void add(double seconds) {
    spent_ += seconds;
    if (step_ % 2 == 1) seconds_[times_other()].push_back(seconds);
    if (++step_ < 4) return;
    step_ = 0;
    ++round_;
    const paired_speedup so_far = compare_paired(seconds_[0], seconds_[1]);
    if (is_enough(so_far)) conclude(so_far);
  }
  const tuned_choice& best() const { return best_; }

 private:
  enum class stage : std::uint8_t { weights, images, done };

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
    stage_ = stage_ == stage::weights && convolves_ ? stage::images : stage::done;
    other_ = {best_.choice.weights, memory_format::channels_last};
    round_ = 0;
    spent_ = 0;
    seconds_[0].clear();
    seconds_[1].clear();
  }

  tuning_settings settings_;
  bool convolves_;
  executor_choice other_;  // what is timed against the best so far
  tuned_choice best_ = {};
  stage stage_ = stage::weights;
  std::size_t round_ = 0, step_ = 0;
  double spent_ = 0;
  std::vector<double> seconds_[2] = {};
};

/// Measures the plan that is set. `choose(choice)` switches to it; `batch()` trains a step and returns its seconds.
template <class Choose, class Batch>
tuned_choice measured_choice(const op_graph& graph, const plan& p, const tuning_settings& settings, Choose choose,
                             Batch batch) {
  choice_measurement measurement{graph, p, settings};
  while (!measurement.done()) {
    choose(measurement.next());
    measurement.add(batch());
  }
  choose(measurement.best().choice);
  return measurement.best();
}

/// Returns: the choices as plan files have them.
inline execution execution_of(const tuned_choice& tuned) {
  const auto gain = [](bool taken, const paired_speedup& other) { return taken ? other : detail::inverse(other); };
  const bool keeps = tuned.choice.weights == weight_casts::keep;
  const bool last = tuned.choice.images == memory_format::channels_last;
  return {{"weights", keeps ? "keep" : "cast", gain(keeps, tuned.keeping)},
          {"images", last ? "channels_last" : "as_is", gain(last, tuned.channels_last)}};
}

/// Puts the choices of a plan file into `to`, if the plan was found on a machine like `here`. Returns: sentences on
/// what was not taken.
inline std::vector<std::string> apply(const loaded_plan& from, const hardware& here, tuned_choice& to) {
  if (from.execution.empty()) return {};
  if (from.made_for != here) {
    return {
        "how the plan is best run was measured on other hardware (what was faster there may be slower here): the "
        "defaults are used; measure here with planned_choices::measured"};
  }
  std::vector<std::string> unknown;
  for (const execution_choice& choice : from.execution) {
    const auto is = [&](std::string_view name, std::string_view value) {
      return choice.name == name && choice.value == value;
    };
    if (is("weights", "keep") || is("weights", "cast")) {
      const bool keeps = choice.value == "keep";
      to.choice.weights = keeps ? weight_casts::keep : weight_casts::cast;
      to.keeping = keeps ? choice.gain : detail::inverse(choice.gain);
    } else if (is("images", "channels_last") || is("images", "as_is")) {
      const bool last = choice.value == "channels_last";
      to.choice.images = last ? memory_format::channels_last : memory_format::as_is;
      to.channels_last = last ? choice.gain : detail::inverse(choice.gain);
    } else {
      unknown.push_back(
          fmt::format("the plan was run with {} = {} (this version of comp has no such choice): the default is used",
                      in_quotes(choice.name), in_quotes(choice.value)));
    }
  }
  return unknown;
}

}  // namespace comp::libtorch
