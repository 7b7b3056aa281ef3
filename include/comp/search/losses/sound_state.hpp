// SPDX-License-Identifier: Apache-2.0
// Checks that a training can go on from the state that plans other than FP32 left. Finite losses do not show that,
// because weights or moments may already be NaN, infinite or huge. So FP32 trains a few batches from the state. If
// these look wrong, FP32 trains all batches since the last sound state again, for comparison, because the data may be
// the cause.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <comp/core/lost_batches.hpp>
#include <comp/search/losses/paths.hpp>
#include <comp/search/losses/reference_run.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <comp/search/trainer/run_samples.hpp>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <new>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace comp {

namespace detail {

/// Returns: the warning about a plan that damaged a state.
inline std::string sentence_of_damage(const std::string& label) {
  return fmt::format(
      "\"{}\" damaged the training's weights or its optimizer's state (FP32 trained these batches again): look for values "
      "that its formats cannot hold",
      label);
}

/// What FP32 finds when it trains on from a state.
struct state_probe {
  sample next = {};          // FP32's next batches
  std::int64_t extreme = 0;  // how many values of the state are NaN, infinite or huge; -1: not counted
  bool failed = false;       // FP32's step threw an exception
};

/// FP32's batches that show what a state is: as many as a damaged one loses in a row.
inline constexpr std::int64_t probe_batches = lost_in_a_row_that_damage;

/// Trains FP32 from the trainer's state. The trainer is left after these batches.
inline state_probe probe_state(evaluator& run, const trial& begun) {
  state_probe found{.extreme = run.trainer().count_extreme()};
  try {
    run.train(begun, run.fp32(), static_cast<std::size_t>(probe_batches), found.next, never_cut);
  } catch (const interrupted&) {
    throw;
  } catch (const settings_error&) {
    throw;
  } catch (const out_of_memory&) {  // says nothing of the state
  } catch (const std::bad_alloc&) {
  } catch (const std::exception&) {
    found.failed = true;
  }
  return found;
}

/// Returns: the later half of a probe's losses: damaged moments reach the weights only with the first step.
inline std::span<const double> later_half(std::span<const double> losses) { return losses.last(losses.size() / 2); }

/// Returns: true if FP32 has to show what a state should be. An exception says little of a trainer that counts extreme
/// values: a schedule may have ended. That losses are somewhat high is looked into only if that is cheap, because
/// they may be so after a restart of the learning rate.
inline bool looks_wrong(const state_probe& probe, const checkpoint& here, const outcome& log) {
  constexpr std::size_t cheap = 256;  // batches
  const unchecked_batches& unchecked = here.unchecked;
  if (probe.extreme > unchecked.extreme || probe.next.not_finite > 0) return true;
  if (probe.failed && unchecked.extreme < 0) return true;
  const std::vector<double> losses = finite_of(probe.next.curve);
  const auto later = later_half(losses);
  if (later.empty()) return false;
  if (std::ranges::all_of(later, [&](double loss) { return explodes(log, loss); })) return true;
  if (unchecked.count > cheap) return false;
  const auto are_above = [&](const std::vector<double>& curve) {
    const recent_losses last{curve, loss_sign_of(log)};
    const auto is_above = [&](double loss) { return loss_sign_of(log) * loss > 2 * last.high - last.low; };
    return last.enough && std::ranges::all_of(later, is_above);
  };
  const std::vector<double>& before = unchecked.from->trained.curve;
  return are_above(here.trained.curve) || are_above(before.empty() ? log.baseline.curve : before);
}

/// Returns: true if a state is worse than `fp32`'s, which comes from the same batches, beyond
/// doubt.
inline bool is_damaged(const state_probe& state, const state_probe& fp32, const outcome& log) {
  if (state.extreme > fp32.extreme || (state.failed && !fp32.failed)) return true;
  if (lost_alone(state.next.curve, fp32.next.curve) > 0) return true;
  // FP32 loses the same batches, if any.
  const std::vector<double> path =
      loss_path(finite_of(fp32.next.curve), finite_of(state.next.curve), loss_sign_of(log));
  const double far = blatant_difference({}, log.tolerance, path.size());
  return path.size() >= 2 &&
         std::ranges::all_of(later_half(path), [far](double difference) { return difference > far; });
}

}  // namespace detail

/// Replaces a damaged state by the one that FP32 reaches from the last sound state in as many batches. Returns: these
/// batches; nothing if the state is sound, which is then trusted. Costs four of FP32's batches, and nothing if FP32
/// alone made the state or the trainer cannot restore one. `keep`: the four count as training if nothing looks wrong.
/// Throws: what FP32's step throws from the sound state.
inline std::optional<sample> replace_damaged(evaluator& run, stage where, bool keep = false) {
  const unchecked_batches unchecked = run.unchecked();
  if (unchecked.from == nullptr) return {};
  checkpoint here = run.save();
  sample fp32_instead;
  const trial t = run.run_and_record(
      where, run.fp32(), "fp32 from this state",
      [&](const trial& begun) {
        sample result{.loss = 0};
        const detail::state_probe found = detail::probe_state(run, begun);
        const bool wrong = detail::looks_wrong(found, here, run.log());
        keep = keep && !wrong && found.next.batches == detail::probe_batches;
        if (wrong) {
          run.restore(*unchecked.from);
          run.train(begun, run.fp32(), unchecked.count, fp32_instead, detail::never_cut);
          const checkpoint fp32 = run.save();
          if (detail::is_damaged(found, detail::probe_state(run, begun), run.log())) {
            here = fp32;
            result.status = status::not_finite;
          }
        }
        if (std::isfinite(found.next.loss)) result.loss = found.next.loss;
        result.batches = found.next.batches;
        result.seconds = found.next.seconds;
        return result;
      },
      purpose::check);
  if (t.sample.status == status::failed) require_trained(run, t.sample, t.sample.batches);
  if (!keep || !t.sample.ok() || t.recalled) run.restore(here);
  run.trust_state();
  return t.sample.status == status::not_finite ? std::optional{std::move(fp32_instead)} : std::nullopt;
}

/// Returns: true if the trainer's state was sound; it is sound now in any case, as replace_damaged() says.
inline bool leave_sound(evaluator& run, stage where, bool keep = false) { return !replace_damaged(run, where, keep); }

/// Call it when a search ends. Trains FP32 once more if a run failed and FP32 has not trained since: if FP32 fails,
/// too, the trainer is at fault and not the plan. Throws: `error` with the trainer's message.
inline void require_fp32_trains(evaluator& run) {
  const std::vector<trial>& trials = run.log().trials;
  const auto failed = [](const trial& t) { return t.sample.status == status::failed && trains(t.purpose); };
  const auto of_fp32 = [&](const trial& t) { return t.sample.ok() && t.plan == run.fp32(); };
  const auto last = std::find_if(trials.rbegin(), trials.rend(), failed);
  if (last == trials.rend() || std::any_of(trials.rbegin(), last, of_fp32)) return;
  run.timed(stage::baseline, [&] {
    run.run_and_undo([&] {
      require_trained(run, run.run_batch(stage::baseline, run.fp32(), "fp32 after a run that failed").sample, 0);
    });
    run.trainer().set_precision(run.log().plan);
  });
}

/// Call it when a search ends. If a plan lost the last batches of a trainer that cannot restore its state, FP32 trains
/// on, until a loss is finite. Throws: `damaged_training` if none is.
inline void require_undamaged(evaluator& run) {
  if (!run.lost_since()) return;
  while (run.lost_since()) (void)run.run_batch(stage::baseline, run.fp32(), "fp32 after a lost batch");
  run.trainer().set_precision(run.log().plan);
}

/// As leave_sound(), if the trainer counts more extreme values in its state than in the last sound state; else the
/// state is taken for sound, which costs no batch.
inline bool leave_finite(evaluator& run, stage where) {
  const unchecked_batches& unchecked = run.unchecked();
  return unchecked.from == nullptr || run.trainer().count_extreme() <= unchecked.extreme || leave_sound(run, where);
}

}  // namespace comp
