// SPDX-License-Identifier: Apache-2.0
// Judges plans by their losses. FP32 and a candidate train the same batches from the same state, a few at a time, until
// the differences of their losses decide (loss_test.hpp). If equally good trainings differ too much for that, short
// trainings are repeated in pairs. If the candidate is accepted, the training goes on from the state after its batches,
// so that these are not lost; if it is rejected, the trainer goes back to where it was.
// If the backend cannot restore its state, an accepted plan and the candidate take turns on successive batches
// (turns.hpp). If settings.criterion says so, whole epochs are judged, as in the paper (acceptance.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/lost_batches.hpp>
#include <comp/core/statistics.hpp>
#include <comp/core/trial.hpp>
#include <comp/search/losses/acceptance.hpp>
#include <comp/search/losses/loss_test.hpp>
#include <comp/search/losses/paths.hpp>
#include <comp/search/losses/reference_run.hpp>
#include <comp/search/losses/sound_state.hpp>
#include <comp/search/losses/turns.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <cstddef>
#include <functional>
#include <limits>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

namespace comp::detail {

/// Sets the seconds of `t` from their ratio to FP32's, which were measured on the same batches. With too few batches
/// `t` stays as it is. `slowdown`: the plan's ratio to FP32 if the machine became slow in between, so that times of the
/// two moments do not compare. `beside_one`: how many of the plan's batches ran beside one of FP32's.
/// Returns: true if batches differ in length: their times vary under every plan alike.
inline bool pair_times(trial& t, const sample& fp32, double fp32_seconds, const std::optional<double>& slowdown,
                       std::size_t beside_one = 1) {
  const std::vector<double>& fp32_times = fp32.batch_seconds;
  std::vector<double> plan_times;
  for (std::size_t i = 0; i < t.sample.batch_seconds.size(); i += beside_one)
    plan_times.push_back(t.sample.batch_seconds[i]);
  const std::size_t n = std::min(fp32_times.size(), plan_times.size());
  if (!t.sample.ok() || n < 6) return false;
  const std::span<const double> fp32_warm{fp32_times.data() + 1, n - 1}, plan_warm{plan_times.data() + 1, n - 1};
  const paired_speedup ratio = compare_paired(plan_warm, fp32_warm);
  t.seconds = fp32_seconds * ratio.ratio;
  t.bounds = {fp32_seconds * ratio.bounds.low, fp32_seconds * ratio.bounds.high};
  if (slowdown) {  // the two times are of different moments, so there is no interval
    t.seconds = fp32_seconds * *slowdown;
    t.bounds = {t.seconds, t.seconds};
    return false;
  }
  const auto spread = [](std::vector<double> values) {
    const double middle = median(values);
    for (double& v : values) v = std::abs(std::log(v / middle));
    return median(std::move(values));
  };
  std::vector<double> ratios(n - 1);
  std::transform(plan_warm.begin(), plan_warm.end(), fp32_warm.begin(), ratios.begin(), std::divides<>{});
  const double spread_of_times = spread({fp32_warm.begin(), fp32_warm.end()});
  // Noise alone spreads ratios more than times. Few batches must show more: 0.5% of noisy machines look so by chance.
  const double at_least = n < 12 ? 3 : 2;
  return n >= 8 && spread_of_times > 0.05 && spread_of_times > at_least * spread(std::move(ratios));
}

}  // namespace comp::detail

namespace comp {

/// How a plan is judged.
struct loss_question {
  std::string label = {};
  bool quick = false;  // it is one of many, so the fewest batches decide even if settings.level would ask for more
  std::function<bool(double)> affords = {};  // says whether the answer may cost so many more seconds; none: any number
};

/// Judges plans and remembers the answers, so that no plan is judged twice.
class loss_trials {
 public:
  struct result {
    comp::trial trial = {};
    loss_verdict verdict = {};
    bool is_final = true;  // false: a quick answer, which the whole test may change
    bool at_end = true;    // during judge() alone: the trainer is in the state after the plan's batches
    // The state after the batches of an accepted candidate; empty once a plan at least as fast is accepted.
    std::optional<checkpoint> end = {};
  };

  /// `smaller`: the plans that are tried in place of `fp32` if it does not fit in memory.
  loss_trials(evaluator& run, outcome& log, const search_settings& settings, const plan& fp32,
              std::vector<plan> smaller = {})
      : run_{run}, log_{log}, settings_{settings}, reference_{run, log, fp32, std::move(smaller)} {}

  reference_run& reference() { return reference_; }

  /// Runs FP32's first batches, at least as many as each candidate will have. `least`, `most`: batches of a test.
  /// `cut`: when a hopeless candidate is given up.
  void begin(std::size_t least, std::size_t most, const early_cut& cut) {
    min_batches_ = least, max_batches_ = std::max(most, least);
    early_cut_ = cut;
    constexpr std::size_t before_turns = 64;  // in which FP32 shows what it loses, and how long it takes
    if (!judges_whole_runs()) return (void)reference_.train_until(min_batches_);
    if (by_turns() && log_.batches_per_epoch > before_turns) return (void)reference_.train_until(before_turns);
    const bool by_scores = settings_.criterion == criterion::scores;
    const trial t = reference_.train_first_that_fits(
        [&](const plan& p) { return run_.run_epoch(stage::baseline, p, "fp32", detail::cut_if_not_finite); });
    run_.record(t);
    require_trained(run_, t.sample, t.sample.batches);
    log_.baseline = t.sample;
    if (log_.batches_per_epoch == 0) count_epoch(run_, log_, by_scores);
    require<error>(!by_scores || (t.sample.score && std::isfinite(*t.sample.score)),
                   "FP32's score is not a number after an epoch (plans are to be judged by scores): check {}",
                   by_language("validate()", "score"));
    if (run_.restores() && !t.recalled) epoch_end_ = run_.save();
  }

  /// Sets the number of batches after which a plan is accepted or rejected by what they say, even if that is little.
  void set_max_batches(std::size_t batches) { max_batches_ = std::max(batches, min_batches_); }
  std::size_t min_batches() const { return min_batches_; }
  /// Reports that a plan lost `lost` of `batches` batches that FP32 does not lose. Rare lost batches need many batches
  /// to show: from now on plans are judged by as many as show one nine times in ten. Plans that were accepted by fewer
  /// are judged again when they are next asked about.
  void expect_lost(std::size_t lost, std::size_t batches) {
    constexpr double nine_in_ten = 2.3;  // -log(0.1): so many expected, none comes one time in ten (Poisson)
    const auto planned = static_cast<double>(settings_.planned_epochs * log_.batches_per_epoch);
    const double most_batches = planned > 0 ? std::clamp(planned / 20, 16.0, 256.0) : 256;
    const double enough_batches = nine_in_ten * static_cast<double>(batches) / static_cast<double>(lost);
    raise_min_batches(static_cast<std::size_t>(std::min(enough_batches, most_batches)));
  }
  /// From now on plans are judged by `batches` batches at least, and growing harm counts as what it would grow to.
  /// Plans that were accepted by fewer are judged again when they are next asked about.
  void expect_growth(std::size_t batches) {
    raise_min_batches(batches);
    const auto planned = static_cast<double>(settings_.planned_epochs * log_.batches_per_epoch);
    losses_.expect_growth_until(std::max(planned, 1000.0));
  }
  /// From now on no plan is cut because another one is faster: the contest knows how fast each is.
  void keep_slow_plans() { early_cut_.slower_than_best = std::numeric_limits<double>::infinity(); }
  /// Returns: true if whole runs are judged, not batches from the same state.
  bool judges_whole_runs() const { return !run_.restores() || settings_.criterion != criterion::batch_losses; }
  /// Returns: true if FP32 and a plan take turns, because batches cannot be repeated (turns.hpp).
  bool by_turns() const { return !run_.restores() && settings_.criterion != criterion::scores; }

  /// Returns: the state after FP32's batches, from which the training goes on if FP32 wins; empty if it is not known.
  std::optional<checkpoint> fp32_end() const { return judges_whole_runs() ? epoch_end_ : reference_.end(); }

  /// Returns: the last answer for `p`; nullptr if it was not judged.
  const result* find(const plan& p) const {
    const auto at = results_.find(p);
    return at == results_.end() ? nullptr : &at->second;
  }

  /// Judges `p`. A quick answer may not be `is_final`; a call that is not quick then runs the whole test.
  const result& judge(const plan& p, const loss_question& asked = {}) {
    // The whole test replaces a quick answer. The quick answer's batches count if it has too few, or if a test may have
    // fewer than 16. Else the test begins anew, because the plan was chosen for what these batches showed.
    result quick_answer;
    if (const auto at = results_.find(p); at != results_.end()) {
      if (run_.rejects(p)) reject(at->second);
      const bool has_enough_batches = judges_whole_runs() || !at->second.trial.accepted ||
                                      static_cast<std::size_t>(at->second.trial.sample.batches) >= min_batches_;
      if (has_enough_batches && (asked.quick || at->second.is_final)) return at->second;
      if (min_batches_ < 16 || !has_enough_batches) quick_answer = std::move(at->second);
      results_.erase(at);
    }
    result judgement = by_turns()            ? judge_in_turns(p, asked.label)
                       : judges_whole_runs() ? judge_whole_epoch(p, asked.label)
                                             : judge_same_batches(p, asked, quick_answer);
    while (!asked.quick && !judgement.is_final) {
      run_.record(judgement.trial, quick_answer.trial.sample.batches);
      quick_answer = std::move(judgement);
      judgement = judge_same_batches(p, asked, quick_answer);
    }
    if (judgement.trial.accepted && judgement.at_end && !leaves_sound(judgement.trial)) run_.reject(p);
    if (run_.rejects(p)) reject(judgement);
    if (judgement.trial.accepted && run_.restores() && judgement.at_end) {
      for (auto& [other, earlier] : results_) {
        if (earlier.trial.seconds >= judgement.trial.seconds) earlier.end.reset();
      }
      judgement.end = run_.save();
      run_.keep_state();
    } else if (!judgement.trial.accepted) {
      run_.restore_kept_state();
    }
    // A quick answer that was judged again without a further batch is recorded already.
    const bool ran = quick_answer.trial.sample.batches == 0 || judgement.trial.repeat != quick_answer.trial.repeat;
    if (ran) run_.record(judgement.trial, quick_answer.trial.sample.batches);
    return results_.emplace(p, std::move(judgement)).first->second;
  }

  /// Returns: the seconds of a batch under FP32.
  double fp32_seconds() const {
    trial t{.sample = log_.baseline};
    detail::summarise_times(t);
    return t.seconds;
  }

  /// Returns: true if batches differ in length: their times vary under every plan alike.
  bool lengths_differ() const { return lengths_differ_; }

 private:
  // Returns: the seconds of a batch under the fastest plan that is accepted now; infinity if there is none.
  double fastest_seconds() const {
    double least = std::numeric_limits<double>::infinity();
    for (const auto& [plan, earlier] : results_) {
      if (earlier.trial.accepted) least = std::min(least, earlier.trial.seconds);
    }
    return least;
  }

  // Returns: true if the state after an accepted candidate's batches is sound, as far as that costs no batch.
  bool leaves_sound(const trial& t) {
    return ends_lost(t.sample) ? leave_sound(run_, t.stage) : leave_finite(run_, t.stage);
  }
  static void reject(result& judgement) {
    judgement.trial.accepted = false;
    judgement.verdict.answer = loss_answer::rejected;
    judgement.end.reset();
  }

  void raise_min_batches(std::size_t batches) {
    min_batches_ = std::max(min_batches_, batches);
    max_batches_ = std::max(max_batches_, min_batches_);
  }

  // Judges by batches. `before`: a quick answer, whose batches count; it has none if this is the first question.
  result judge_same_batches(const plan& p, const loss_question& asked, const result& before) {
    result judgement{.trial = before.trial};
    slow_machine_ratio_.reset();
    sample& candidate = judgement.trial.sample;
    if (static_cast<std::size_t>(candidate.batches) < max_batches_) {
      const auto run_more = [&](const trial& begun) { return train_until_decided(begun, p, asked.quick, before); };
      judgement.trial =
          run_.run(stage::losses, p, asked.label, run_more, purpose::judge, {}, before.trial.sample.seconds);
      judgement.at_end = !judgement.trial.recalled;
    } else {
      judgement.at_end = before.end.has_value();
      if (before.end) run_.restore(*before.end);
    }
    judgement.verdict.answer = loss_answer::rejected;
    if (candidate.ok()) {
      const checkpoint here = run_.save();
      // A recalled candidate may have more batches than FP32 has run.
      reference_.train_until(static_cast<std::size_t>(candidate.batches));
      if (!judgement.at_end && !asked.quick && recalled_too_few(candidate)) {
        judgement.is_final = judgement.trial.accepted = false;
        return judgement;
      }
      judgement.verdict = decide(p, candidate, asked);
      judgement.is_final = !asked.quick || judgement.verdict.answer == loss_answer::rejected ||
                           losses_.judge_so_far(candidate, min_batches_).answer == loss_answer::accepted;
      if (judgement.at_end) run_.restore(here);
    }
    judgement.trial.accepted = judgement.verdict.answer == loss_answer::accepted;
    pair_times(judgement.trial);
    if (const std::size_t lost = detail::lost_alone(candidate.curve, log_.baseline.curve); lost > 0)
      expect_lost(lost, candidate.curve.size());
    return judgement;
  }

  // Trains the candidate on from the batches that it has in `before`. FP32's batches are run in between if they are
  // missing.
  sample train_until_decided(const trial& begun, const plan& p, bool quick, const result& before) {
    sample candidate = before.trial.sample;
    run_.restore(before.end ? *before.end : reference_.start());
    const auto had_batches = static_cast<std::size_t>(candidate.batches);
    if (had_batches > 0 && !before.end) {
      sample again;
      run_.train(begun, p, had_batches, again, detail::never_cut);
    }
    const auto next = [&](std::size_t n) {  // a look reads all losses, so looks become rarer
      const std::size_t more = n < 16 ? 2 : n < 32 ? 8 : n < 64 ? 16 : n / 2;
      return std::min(n + more, n < min_batches_ ? min_batches_ : max_batches_);
    };
    const auto is_enough = [&](std::size_t n) {
      if (n < min_batches_) return losses_.judge_so_far(candidate, min_batches_).answer == loss_answer::rejected;
      return n >= max_batches_ || quick || is_decided(candidate);
    };
    for (std::size_t n = had_batches > 0 ? next(had_batches) : std::min<std::size_t>(min_batches_, 16); candidate.ok();
         n = next(n)) {
      if (static_cast<std::size_t>(reference_.so_far().batches) < n)
        run_.run_and_undo([&] { reference_.train_until(n); });
      if (!train_unless_harmful(begun, p, n, candidate) || is_enough(n)) break;
    }
    return candidate;
  }

  // Trains the candidate until it has `n` batches. Returns: false if it failed, is too slow or harms beyond doubt.
  bool train_unless_harmful(const trial& begun, const plan& p, std::size_t n, sample& candidate) {
    const candidate_cut cut{early_cut_, log_.baseline, fastest_seconds(), losses_.loss_sign()};
    bool blatant_harm = false;
    const auto look = [&](const sample& so_far) {
      blatant_harm = losses_.harm_beyond_doubt(so_far);
      status s = cut(so_far);
      if (s == status::stopped_early && slow_machine_ratio_) s = status::ok;
      return blatant_harm && s == status::ok ? status::stopped_early : s;
    };
    run_.train(begun, p, n, candidate, look);
    if (candidate.status == status::stopped_early && !blatant_harm && !slow_machine_ratio_ &&
        machine_became_slow(begun, candidate)) {
      candidate.status = status::ok;
      run_.train(begun, p, n, candidate, look);
    }
    if (!blatant_harm || candidate.status != status::stopped_early) return candidate.ok();
    candidate.status = status::ok;  // harm in the losses is a rejection, not a failure of the run
    return false;
  }

  // Returns: true if more batches would not change the answer.
  bool is_decided(const sample& candidate) {
    loss_answer now = losses_.judge_so_far(candidate, min_batches_).answer;
    if (now == loss_answer::accepted || losses_.path_wanders(candidate)) return true;
    if (now == loss_answer::go_on && static_cast<std::size_t>(candidate.batches) < 2 * min_batches_) return false;
    // FP32's own spread may turn a rejection around, or be the reason that nothing is decided
    run_.run_and_undo([&] { reference_.run_spread(1, min_batches_); });
    now = losses_.judge_so_far(candidate, min_batches_).answer;
    return now != loss_answer::go_on || losses_.fp32_strays();
  }

  // Returns: true for a recalled run that has too few batches, because the search that recorded it had another
  // tolerance or level. A run of more than half of `max_batches_` was ended by its budget and is taken as it is.
  bool recalled_too_few(const sample& candidate) {
    return 2 * static_cast<std::size_t>(candidate.batches) <= max_batches_ && !losses_.harm_beyond_doubt(candidate) &&
           !is_decided(candidate);
  }

  // A plan seems slow compared with FP32's batches, which ran a while ago. Runs FP32 again and returns true if the
  // machine became slow instead. This is not done while candidates have a limit relative to the best one, as those
  // of a strategy, which may well be slow.
  bool machine_became_slow(const trial& begun, const sample& candidate) {
    if (std::isfinite(early_cut_.slower_than_best)) return false;
    const auto quickest = [](const sample& s) {
      return *std::min_element(s.batch_seconds.begin() + 1, s.batch_seconds.end());
    };
    sample again;
    run_.run_and_undo([&] {
      run_.restore(reference_.start());
      run_.train(begun, run_.fp32(), 4, again, detail::never_cut);
    });
    if (again.batch_seconds.size() < 2) return false;  // the search was asked to stop
    const double slower = quickest(candidate) / quickest(again);
    if (slower < early_cut_.slower_than_fp32) slow_machine_ratio_ = slower;
    return slow_machine_ratio_.has_value();
  }

  // Returns: what the batches say. Before a plan is rejected, FP32 with perturbed roundings shows what roundings alone
  // do, unless the harm is beyond doubt.
  loss_verdict decide(const plan& p, const sample& candidate, const loss_question& asked) {
    const bool quick = asked.quick;
    const bool wanders = !quick && losses_.path_wanders(candidate);
    // The line lies below the tolerance, or above it if FP32's own spread is large (loss_test.hpp).
    const auto line_is_vague = [&](const loss_verdict& v) { return v.line > 2 * settings_.tolerance; };
    const loss_verdict so_far = losses_.judge_so_far(candidate, min_batches_),
                       if_last = losses_.judge_finally(candidate, min_batches_);
    if (p.is_tuned() && !candidate.curve.empty()) {
      if (const auto verdict = judge_as_fp32(candidate, if_last)) return *verdict;
    }
    const auto reject_harm = [&] {
      loss_verdict harm = losses_.judge_finally(candidate, min_batches_);
      harm.answer = loss_answer::rejected;
      return harm;
    };
    if (losses_.harm_beyond_doubt(candidate)) return reject_harm();
    if (!wanders && so_far.answer == loss_answer::accepted &&
        (quick || (is_well_below(so_far) && !line_is_vague(so_far))))
      return so_far;
    if (!wanders && is_well_below(if_last) && if_last.answer == loss_answer::accepted && reference_.spread().empty())
      return if_last;
    reference_.run_spread(1, min_batches_);
    for (std::size_t runs = 2; runs <= 4 && !quick && is_close_to_line(losses_.judge_so_far(candidate, min_batches_));
         ++runs)
      reference_.run_spread(runs, min_batches_);
    if (losses_.harm_beyond_doubt(candidate)) return reject_harm();  // beside more of FP32's spread
    const loss_verdict now = losses_.judge_so_far(candidate, min_batches_);
    const bool repeat =
        (losses_.fp32_strays() || wanders || line_is_vague(now)) && now.answer != loss_answer::rejected && !quick;
    return repeat ? judge_by_repeats(p, candidate, asked) : losses_.judge_finally(candidate, min_batches_);
  }

  // Tuned FP32 differs from FP32 by roundings alone, unless its kernels are wrong. It is accepted if it stays as near
  // to FP32 as perturbed roundings do, and rejected if its first loss is already off. Returns: nothing in between.
  std::optional<loss_verdict> judge_as_fp32(const sample& candidate, loss_verdict verdict) {
    constexpr double roundings = 1e-4;
    const std::size_t all = candidate.curve.size();
    if (losses_.batches_near_fp32(candidate, roundings) < all) reference_.run_spread(1, min_batches_);
    const bool is_fp32 = losses_.batches_near_fp32(candidate, roundings) == all;
    if (!is_fp32 && losses_.batches_near_fp32(candidate, settings_.tolerance) > 0) return {};
    verdict.answer = is_fp32 ? loss_answer::accepted : loss_answer::rejected;
    return verdict;
  }

  // Returns: true if the difference is so far below the tolerance that FP32's own spread need not be known.
  bool is_well_below(const loss_verdict& v) const { return v.difference < settings_.tolerance / 2; }
  // Returns: true if knowing FP32's own spread better could decide about a difference near the tolerance.
  bool is_close_to_line(const loss_verdict& v) const {
    const double off = settings_.tolerance - v.line;
    return v.answer == loss_answer::go_on && std::abs(v.difference - settings_.tolerance) < off;
  }

  // If one pair of trainings differs too much to tell: repeats short pairs of FP32 and the candidate from the same
  // state, each training with perturbed roundings of its own. The differences of such pairs are independent of each
  // other.
  loss_verdict judge_by_repeats(const plan& p, const sample& candidate, const loss_question& asked) {
    constexpr std::size_t most_pairs = 12, unpaid_pairs = 2;
    std::vector<double> differences{mean_difference(log_.baseline, candidate)};
    for (std::size_t k = 2; k <= most_pairs; ++k) {
      const double seconds = static_cast<double>(min_batches_) * 2 * fp32_seconds();
      if (k > unpaid_pairs && asked.affords && !asked.affords(seconds)) break;
      const sample fp32 = reference_.run_spread(k - 1, min_batches_)[k - 2];
      const sample candidate_repeat = reference_.run_perturbed(stage::losses, p, k - 1, min_batches_);
      if (!candidate_repeat.ok())
        return {.answer = loss_answer::rejected, .difference = std::numeric_limits<double>::infinity()};
      differences.push_back(mean_difference(fp32, candidate_repeat));
      const loss_verdict now = judge_repeats(differences, settings_.tolerance, false);
      if (now.answer != loss_answer::go_on) return now;
    }
    return judge_repeats(differences, settings_.tolerance, true);
  }
  double mean_difference(const sample& fp32, const sample& plan_run) const {
    const std::vector<double> path = loss_path(fp32.curve, plan_run.curve, losses_.loss_sign());
    return mean_of(std::span{path}.first(std::min(min_batches_, path.size())));
  }

  result judge_whole_epoch(const plan& p, std::string label) {
    result judgement;
    run_.restore(reference_.start());
    const candidate_cut cut{early_cut_, log_.baseline, fastest_seconds(), losses_.loss_sign()};
    judgement.trial = run_.run_epoch(stage::losses, p, std::move(label), cut);
    judgement.at_end = !judgement.trial.recalled;
    judgement.verdict = judge_epoch(run_, reference_, settings_, judgement.trial.sample);
    judgement.trial.accepted = judgement.verdict.answer == loss_answer::accepted;
    pair_times(judgement.trial);
    return judgement;
  }

  // Beside the fastest of FP32 and the accepted plans: its batches are training and cost nothing.
  result judge_in_turns(const plan& p, std::string label) {
    const result* beside = nullptr;
    double reference_seconds = fp32_seconds();
    bool any_accepted = false;
    for (const auto& [other, earlier] : results_) {
      if (!earlier.trial.accepted || run_.rejects(other)) continue;
      any_accepted = true;
      if (earlier.trial.seconds < reference_seconds) beside = &earlier, reference_seconds = earlier.trial.seconds;
    }
    const plan reference = beside == nullptr ? run_.fp32() : beside->trial.plan;
    run_.trust(reference);
    const auto lengths = turn_lengths::of_training(settings_.planned_epochs * log_.batches_per_epoch, !any_accepted);
    const auto verdict = [&](const sample& candidate, const sample& other, bool last) {
      return detail::judge_turns(other.curve, candidate.curve, lengths, settings_.tolerance, losses_.loss_sign(), last);
    };
    result judgement;
    sample candidate, other;
    judgement.trial = run_.run(stage::losses, p, std::move(label), [&](const trial& begun) {
      train_in_turns(run_, begun, p, reference, lengths, candidate, other, [&](const sample& a, const sample& b) {
        return verdict(a, b, false).answer != loss_answer::go_on;
      });
      return candidate;
    });
    judgement.at_end = !judgement.trial.recalled;
    const std::string label_of_turns = beside == nullptr ? "fp32 in turns" : "accepted plan in turns";
    trial turns = run_.run_and_record(stage::baseline, reference, label_of_turns, [&](const trial&) { return other; });
    // A ledger may end between the two records.
    if (turns.recalled && !judgement.trial.recalled) turns.sample = std::move(other);
    run_.trust(run_.fp32());
    if (turns.sample.status == status::not_finite && run_.lost_since()) throw damaged_training{*run_.lost_since()};
    if (beside == nullptr) require_trained(run_, turns.sample, turns.sample.batches);
    if (!turns.sample.ok()) run_.reject(reference);
    judgement.verdict.answer = loss_answer::rejected;
    if (judgement.trial.sample.ok() && turns.sample.ok())
      judgement.verdict = verdict(judgement.trial.sample, turns.sample, true);
    judgement.trial.accepted = judgement.verdict.answer == loss_answer::accepted;
    lengths_differ_ = detail::pair_times(judgement.trial, turns.sample, reference_seconds, std::nullopt,
                                         lengths.candidate / lengths.reference) ||
                      lengths_differ_;
    return judgement;
  }

  void pair_times(trial& t) {
    lengths_differ_ = detail::pair_times(t, log_.baseline, fp32_seconds(), slow_machine_ratio_) || lengths_differ_;
  }

  evaluator& run_;
  outcome& log_;
  const search_settings& settings_;
  reference_run reference_;
  loss_verdicts losses_{log_.baseline, reference_, settings_};
  std::optional<checkpoint> epoch_end_;
  std::map<plan, result> results_;
  early_cut early_cut_ = {};
  std::size_t min_batches_ = 16, max_batches_ = 256;
  // The judged plan's time relative to FP32's, if the machine became slow in between.
  std::optional<double> slow_machine_ratio_ = {};
  bool lengths_differ_ = false;
};

}  // namespace comp
