// SPDX-License-Identifier: Apache-2.0
// Says in a sentence each what is wrong with a trainer or a policy, and what makes the result of a search doubtful;
// nothing if all is well. A sentence is only given for what a sound trainer never does, so some faults stay unnoticed.
// search/check.hpp and the search itself ask.
#pragma once

#include <algorithm>
#include <cctype>
#include <cmath>
#include <comp/core/lost_batches.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/statistics.hpp>
#include <comp/policy/nearest.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

namespace comp::detail {

using problem = std::optional<std::string>;

inline problem problem_of_names(const op_graph& graph) {
  std::unordered_map<std::string_view, std::size_t> first_of;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    const auto [at, is_new] = first_of.try_emplace(graph[i].name, i);
    if (!is_new)
      return fmt::format(
          "operators {} and {} are both named \"{}\" (plan files, warm starts and reports go by names): "
          "give each operator a name of its own",
          at->second, i, graph[i].name);
  }
  return {};
}

/// Returns: the kind without what is spelt in different ways (case, and separators within): "LayerNorm" and
/// "layer-norm" become "layernorm". Underscores at an end have a meaning in ATen: "exp_" works in place, "_softmax" is
/// not softmax.
inline std::string bare_letters(std::string_view kind) {
  std::string letters;
  kind = policy::without_overload(kind);
  for (std::size_t i = 0; i < kind.size(); ++i) {
    const bool within = i > 0 && i + 1 < kind.size();
    if (within && (kind[i] == '_' || kind[i] == '-' || kind[i] == ' ')) continue;
    letters += static_cast<char>(std::tolower(static_cast<unsigned char>(kind[i])));
  }
  return letters;
}

/// Reports kinds that look misspelt, and a policy that lists none of the kinds. A policy that is not about ATen's kinds
/// is not checked.
inline problem problem_of_kinds(const any_policy& policy, const op_graph& graph) {
  const auto has_opinion = [&](const op_info& op) {
    const decision by_policy = policy.classify(op);
    return by_policy.fixed || by_policy.category != category::follow;
  };
  const auto knows_kind = [&](std::string_view kind) { return has_opinion(op_info{.kind = std::string{kind}}); };
  if (!knows_kind("linear") && !knows_kind("conv2d") && !knows_kind("matmul")) return {};
  std::map<std::string_view, bool> kinds;  // true: the policy has an opinion of an operator of this kind
  for (const op_info& op : graph) {
    if (op.choosable) kinds[op.kind] = kinds[op.kind] || has_opinion(op);
  }
  const bool none_is_known = std::none_of(kinds.begin(), kinds.end(), [](const auto& kind) { return kind.second; });
  std::string unknown;
  for (const auto& [kind, is_known] : kinds) {
    if (is_known) continue;
    policy::nearest_word near{policy::without_overload(kind)};
    for (const auto* table : {&policy::pytorch_lists::cuda(), &policy::pytorch_lists::cpu()}) {
      for (const auto& entry : table->all()) {
        const std::string_view word = policy::without_overload(entry.first);
        const bool same_letters = bare_letters(word) == bare_letters(kind);
        if (same_letters && knows_kind(word))
          return fmt::format("operator kind \"{}\" is on no list of the policy (\"{}\" is): call it that", kind, word);
        if (none_is_known) near.offer(word);
      }
    }
    if (unknown.size() > 120) continue;
    const std::string hint =
        !near.word().empty() && knows_kind(near.word()) ? fmt::format(", near \"{}\"", near.word()) : "";
    unknown += fmt::format("{}\"{}\"{}", unknown.empty() ? "" : "; ", kind, hint);
  }
  if (!none_is_known || kinds.empty()) return {};
  return fmt::format(
      "no operator kind is on a list of the policy: {} (its rules would lower nothing): name kinds as ATen "
      "does, \"linear\" or \"conv2d\", or give a policy that knows these",
      unknown);
}

inline constexpr const char* sentence_of_no_precisions =
    "supported_precisions() gave none (a search needs to know what it may try): name what the trainer computes in, or leave "
    "the member out";

/// Checks what run_batch() gave, before anything is filled in.
inline problem problem_of_sample(const sample& batch) {
  const auto bad_time = [](double seconds) { return !(seconds > 0) || !std::isfinite(seconds); };
  if (batch.seconds < 0 || !std::isfinite(batch.seconds))
    return fmt::format(
        "run_batch() gave {} as its seconds (times decide which plan wins): give the wall time of the "
        "batch, end - begin, or leave 0 and comp takes the time itself",
        batch.seconds);
  if (const auto at = std::find_if(batch.batch_seconds.begin(), batch.batch_seconds.end(), bad_time);
      at != batch.batch_seconds.end())
    return fmt::format(
        "run_batch() gave {} as batch_seconds[{}] (times decide which plan wins): give the wall time of the "
        "batch, or leave batch_seconds empty",
        *at, at - batch.batch_seconds.begin());
  if (batch.batches > 1)
    return fmt::format("run_batch() says that it trained {} batches (it is asked for the next one): set batches to 1",
                       batch.batches);
  if (batch.curve.size() > 1 || batch.batch_seconds.size() > 1)
    return fmt::format(
        "run_batch() gave {} losses and {} times (a batch has one of each): give those of this batch alone",
        batch.curve.size(), batch.batch_seconds.size());
  return {};
}

/// Returns: the sentence about an epoch of another length. `had`: its batches, "12" or "more than 7". `declared`: what
/// batches_per_epoch() says.
inline std::string sentence_of_wrong_length(std::string_view had, std::size_t declared) {
  return fmt::format("an epoch had {} batches ({} says {}, by which the search's batches count as epochs): give {}",
                     had, by_language("batches_per_epoch()", "len(data) or batches_per_epoch"), declared,
                     by_language("the number that run_epoch() trains", "batches_per_epoch"));
}

/// Checks restore(). `first`, `again`: losses of the same batches from a state, and after that state was put back; at
/// least one of each, and two of one. The amount by which a batch moves the loss tells a state that was not put back
/// from mere roundings.
inline problem problem_of_restore(std::span<const double> first, std::span<const double> again) {
  const std::span<const double> longer = first.size() < 2 ? again : first;
  if (first.empty() || again.empty() || longer.size() < 2) return {};
  if (!std::isfinite(first[0]) || !std::isfinite(again[0]) || !std::isfinite(longer[1])) return {};
  const double difference = std::abs(again[0] - first[0]), moved_by_training = std::abs(longer[1] - longer[0]);
  const double scale = std::max({std::abs(first[0]), std::abs(longer[1]), std::abs(again[0])});
  if (difference <= std::max(1e-5 * scale, moved_by_training / 10)) return {};
  return fmt::format(
      "{} the same batch in FP32 gave loss {:.8g}, before it {:.8g} (plans are compared on the same batches from the "
      "same state, or every plan would seem to train): {}",
      by_language("after restore()", "put back,"), again[0], first[0],
      by_language("save and restore weights, optimizer, random generators and the place in the data",
                  "give the search state=[...] with what else the step changes"));
}

/// Returns: true if batches under a plan with operators in `low` have the same losses as FP32's, to the last bit, and
/// take the same time, so that set_precision() seems to be ignored.
inline bool changes_nothing(const sample& fp32, const sample& low) {
  const std::size_t n = std::min(fp32.curve.size(), low.curve.size());
  if (n < 2 || !low.ok() ||
      !std::equal(low.curve.begin(), low.curve.begin() + static_cast<std::ptrdiff_t>(n), fp32.curve.begin()))
    return false;
  const std::size_t times_of_both = std::min(fp32.batch_seconds.size(), low.batch_seconds.size());
  if (times_of_both < 2) return true;  // the first batch pays for what is made once, and is left out
  const std::span<const double> a{fp32.batch_seconds}, b{low.batch_seconds};
  const paired_speedup times = compare_paired(a.subspan(1, times_of_both - 1), b.subspan(1, times_of_both - 1));
  return !times.clearly_faster() && !times.clearly_slower() && times.ratio > 0.8 && times.ratio < 1.25;
}
inline std::string sentence_of_ignored(precision low) {
  return fmt::format("plans in {} changed neither a loss, to the last bit, nor the time ({}, or leave {} out of {}",
                     name(low),
                     by_language("so set_precision() has no effect in it): look at what it does with plan[i]",
                                 "so it has no effect in this step): look whether the forward is inside `with plan:`"),
                     name(low), by_language("supported_precisions()", "precisions"));
}

// Finds what makes the result of a search doubtful, in what the search saw anyway, and says it in a sentence each.

/// Returns: a sentence for each precision in which no plan changed a loss or a time.
inline std::vector<std::string> problems_of_ignored_precisions(const outcome& result) {
  std::map<precision, bool> changed_nothing;
  for (const trial& t : result.trials) {
    if (t.stage != stage::losses || !t.sample.ok() || t.sample.curve.size() < 2) continue;
    std::set<precision> lows;
    for (std::size_t i = 0; i < t.plan.size(); ++i) {
      if (is_lowered(result.graph[i], t.plan[i])) lows.insert(t.plan[i]);
    }
    if (lows.size() != 1 || t.purpose != purpose::judge) continue;
    const auto at = changed_nothing.try_emplace(*lows.begin(), true).first;
    at->second = at->second && changes_nothing(result.baseline, t.sample);
  }
  std::vector<std::string> sentences;
  for (const auto& [low, nothing] : changed_nothing) {
    if (nothing) sentences.push_back(sentence_of_ignored(low));
  }
  return sentences;
}

/// Reports recorded runs that might be of another training. `first_losses`: the losses at this training's start are
/// known, and tell it apart.
inline problem problem_of_ledger(const any_trainer& trainer, const outcome& result, bool first_losses) {
  if (trainer.has.signature || result.recalled == 0 || first_losses) return {};
  return fmt::format(
      "{} of {} runs came from a ledger, and only model, type and machine say that they are of this training (its trainer "
      "has no signature(), and no first losses to go by): give it std::string signature() const, with data, batch size, "
      "optimizer and seed",
      result.recalled, result.trials.size());
}

/// Reports batches whose loss was not finite. `fp32`: the plan that losses are judged against.
inline problem problem_of_lost_batches(const outcome& result, const plan& fp32) {
  std::int64_t lost = 0, batches = 0;
  for (const trial& t : result.trials) {
    if (t.plan == fp32 || !trains(t.purpose)) continue;
    lost += t.sample.not_finite, batches += t.sample.batches;
  }
  if (lost + result.baseline.not_finite == 0) return {};
  return fmt::format(
      "losses were not finite in {} of {} batches under FP32 and {} of {} under other plans (these were left out, and "
      "plans that lose more than FP32 are refused): look at the data of such a batch",
      result.baseline.not_finite, result.baseline.batches, lost, batches);
}

/// Returns: a sentence for each exception that ended a run.
inline std::vector<std::string> problems_of_failed_runs(const outcome& result) {
  struct failure {
    std::size_t runs = 0;
    const trial* first = nullptr;
  };
  std::map<std::string, failure> failures;
  for (const trial& t : result.trials) {
    if (t.sample.status != status::failed || !trains(t.purpose)) continue;
    failure& failed = failures[t.sample.message];
    if (failed.runs++ == 0) failed.first = &t;
  }
  std::vector<std::string> sentences;
  for (const auto& [message, failed] : failures) {
    sentences.push_back(fmt::format(
        "{} of {} runs failed with \"{}\", first run {}{}{} (a plan that fails is not taken): look at what the {} does "
        "there",
        failed.runs, result.trials.size(), message, failed.first->number, failed.first->label.empty() ? "" : ", ",
        failed.first->label, by_language("trainer", "step")));
  }
  return sentences;
}

/// Reports losses that do not show that the model learns. Under such losses every plan looks as good as FP32.
inline problem problem_of_learning(const outcome& result) {
  const std::vector<double>& curve =
      result.trained.curve.size() > result.baseline.curve.size() ? result.trained.curve : result.baseline.curve;
  const std::vector<double> losses = finite_of(curve);
  if (losses.size() < 4) return {};
  const auto [least, most] = std::minmax_element(losses.begin(), losses.end());
  if (*most - *least <= 1e-12 * std::abs(*most)) {
    return fmt::format(
        "the loss is {:.6g} in each of {} batches (nothing is shown of plans whose losses cannot differ): look whether the "
        "weights are trained, and what {}",
        *most, losses.size(), by_language("sample.loss is set to", "the step returns"));
  }
  constexpr std::size_t enough_batches = 30;
  if (losses.size() < enough_batches) return {};
  const std::size_t third = losses.size() / 3;
  const std::span<const double> all{losses};
  const double first = mean_of(all.first(third)), last = mean_of(all.last(third));
  double squared_deviations = 0;
  for (std::size_t i = 0; i < third; ++i) {
    squared_deviations += (losses[i] - first) * (losses[i] - first);
    squared_deviations += (losses[losses.size() - 1 - i] - last) * (losses[losses.size() - 1 - i] - last);
  }
  const double standard_error = std::sqrt(squared_deviations / static_cast<double>(third * (third - 1)));
  if (result.baseline.losses.size() > 1) return {};  // those of a GAN may rise, while its parts take turns in winning
  const double improvement = (result.higher_is_better ? last - first : first - last) / standard_error;
  if (improvement < -6) {
    return fmt::format(
        "the loss gets worse: from {:.4g} to {:.4g} in {} batches ({} says that a {} one is better): set {}, "
        "or look at the learning rate",
        first, last, losses.size(), setting("direction"), result.higher_is_better ? "higher" : "lower",
        setting("direction"));
  }
  // A training is suspected only if an improvement by 3e-5 of the loss per batch would stand out from the noise.
  const double largest_error = 3e-5 * static_cast<double>(losses.size());
  if (improvement < 1 && standard_error < largest_error * std::max(std::abs(first), std::abs(last))) {
    return fmt::format(
        "the loss did not get better in {} batches: from {:.4g} to {:.4g} (where nothing is learned no plan can be seen to "
        "keep it): look whether the weights are trained, or search where they are",
        losses.size(), first, last);
  }
  return {};
}

inline problem problem_of_memory(const outcome& result) {
  if (result.memory_limit == 0 || result.baseline.peak_bytes > 0) return {};
  return fmt::format(
      "the memory limit of {} bytes is not kept ({}", result.memory_limit,
      by_language("the trainer does not say what a batch needs): set sample.peak_bytes",
                  "another allocator than torch's is set, and is not measured): leave memory_limit out"));
}

}  // namespace comp::detail

namespace comp {

// Compares the seconds that a trainer gives its batches with comp's own clock. A trainer may know better if a device
// works on after run_batch() has returned. Over batches of one plan in a row, however, both have to take the same time.

class batch_clock {
 public:
  /// Adds a batch under `p`. `by_trainer`: the seconds that the trainer gave, 0 if it gave none. `by_clock`: those of
  /// comp's clock.
  void add(const plan& p, double by_trainer, double by_clock) {
    const bool same_plan = last_plan_ == p;
    if (by_trainer > 0 && std::isfinite(by_trainer)) {
      if (same_plan) {
        auto& times = times_in_a_row_[p];
        times.by_trainer.push_back(by_trainer);
        times.by_clock.push_back(by_clock);
      } else if (!last_plan_.empty() && std::abs(std::log(by_clock / last_by_clock_)) > clear_log_ratio) {
        ++plan_changes_;
        late_reports_ += std::abs(std::log(by_trainer / last_by_clock_)) < clear_log_ratio / 2 ? 1U : 0U;
      }
    }
    if (!same_plan) last_plan_ = p;
    last_by_clock_ = by_clock;
  }

  /// Returns: how the trainer's times contradict comp's clock, by FP32's batches and those of the plan with most
  /// batches; nothing if they agree.
  std::optional<std::string> find_contradiction(const plan& fp32) const {
    const auto fp32_times = medians_of(fp32);
    if (!fp32_times || fp32_times->by_clock < shortest_batch) return {};
    if (fp32_times->by_trainer / fp32_times->by_clock > 1.5) {
      return fmt::format(
          "run_batch() gives {:.3g} as the seconds of a batch that takes {:.3g} s by comp's clock (times decide which plan "
          "wins): give the wall time in seconds, or leave 0 and comp takes the time itself",
          fp32_times->by_trainer, fp32_times->by_clock);
    }
    if (plan_changes_ >= 2 && late_reports_ * 5 >= plan_changes_ * 4) {
      return "run_batch() gives the seconds of the batch before (after a change of plans they fit that one by comp's clock): "
             "give this batch's, or leave 0 and comp takes the time itself";
    }
    const auto most_timed =
        std::max_element(times_in_a_row_.begin(), times_in_a_row_.end(), [&](const auto& p, const auto& q) {
          return (p.first == fp32 ? 0 : p.second.by_trainer.size()) <
                 (q.first == fp32 ? 0 : q.second.by_trainer.size());
        });
    const auto plan_times = medians_of(most_timed->first);
    if (!plan_times || most_timed->first == fp32) return {};
    const double by_trainer = fp32_times->by_trainer / plan_times->by_trainer,
                 by_clock = fp32_times->by_clock / plan_times->by_clock;
    if (std::abs(std::log(by_trainer / by_clock)) < clear_log_ratio) return {};
    return fmt::format(
        "a plan is {:.2f} times as fast as FP32 by {}, {:.2f} times by comp's clock: {}", by_trainer,
        by_language("the seconds of run_batch()", "what each batch took"), by_clock,
        by_language(
            "look at what is timed (sample.seconds is the wall time of the whole batch, data loading included), or "
            "leave 0 and comp takes the time itself",
            "search again when nothing else runs on the machine"));
  }

 private:
  struct median_times {
    double by_trainer = 0, by_clock = 0;
  };
  struct batch_times {
    std::vector<double> by_trainer = {}, by_clock = {};
  };
  static constexpr double clear_log_ratio = 0.18;   // a ratio's logarithm above which two times differ: a fifth
  static constexpr double shortest_batch = 0.5e-3;  // [s]; shorter ones are mostly calls and clocks

  // Returns: the medians of both times; nothing for few batches, which may be slow by chance.
  std::optional<median_times> medians_of(const plan& p) const {
    const auto at = times_in_a_row_.find(p);
    if (at == times_in_a_row_.end() || at->second.by_trainer.size() < 6) return {};
    return median_times{median(at->second.by_trainer), median(at->second.by_clock)};
  }

  std::map<plan, batch_times> times_in_a_row_ = {};
  plan last_plan_ = {};
  double last_by_clock_ = 0;
  // Changes of plan after which comp's clock shows another time, and how many left the trainer's time unchanged.
  std::size_t plan_changes_ = 0, late_reports_ = 0;
};

}  // namespace comp
