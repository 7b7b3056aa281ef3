// SPDX-License-Identifier: Apache-2.0
// Judges plans by their losses. FP32 and a candidate train the same batches from the same state, a few at a time, until
// the differences of their losses decide (loss_test.hpp). Where one training strays so far from the next that this
// cannot decide, short trainings are repeated in pairs (loss_paths.hpp). The training goes on from where an accepted
// candidate's batches ended, so that these are not lost.
// A backend that cannot restore its state is judged by turns of FP32 and the candidate on the batches that follow
// (turns.hpp). Whole epochs are judged, as in the paper, where settings.criterion says so (epoch_verdict.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/lost_batches.hpp>
#include <comp/search/convergence/acceptance.hpp>
#include <comp/search/convergence/candidate_cut.hpp>
#include <comp/search/convergence/epoch_verdict.hpp>
#include <comp/search/convergence/loss_paths.hpp>
#include <comp/search/convergence/loss_test.hpp>
#include <comp/search/convergence/loss_verdicts.hpp>
#include <comp/search/convergence/paired_times.hpp>
#include <comp/search/convergence/reference_run.hpp>
#include <comp/search/convergence/turns.hpp>
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

namespace comp {

/// Judges plans and remembers the answers, so that no plan is judged twice.
class loss_trials {
 public:
  using place = evaluator::place;
  struct result {
    comp::trial trial = {};
    loss_verdict verdict = {};
    bool settled = true;
    // The state after the batches of an accepted candidate; it is dropped when a faster plan is accepted.
    std::optional<place> end = {};
  };

  /// `smaller`: the plans that are tried in the place of `fp32` where that does not fit in memory.
  loss_trials(evaluator& run, outcome& log, const search_settings& settings, plan fp32, std::vector<plan> smaller = {})
      : run_{run}, log_{log}, settings_{settings}, reference_{run, log, std::move(fp32), std::move(smaller)} {}

  reference_run& reference() { return reference_; }

  /// Runs FP32's first batches, at least as many as each candidate will have. `least`, `most`: batches of a test.
  /// `cut`: when a hopeless candidate is given up.
  void begin(std::size_t least, std::size_t most, const early_cut& cut) {
    least_ = least, most_ = std::max(most, least);
    cut_ = cut;
    if (!by_epochs()) {
      reference_.train_until(least_);
      return;
    }
    const bool by_scores = settings_.criterion == criterion::scores;
    if (by_scores) run_.score_epochs();
    const trial t = reference_.first_to_fit(
        [&](const plan& p) { return run_.epoch(stage::baseline, p, "fp32", detail::finite_status); });
    run_.record(t);
    require_trained(t.sample, t.sample.batches);
    log_.baseline = t.sample;
    if (log_.batches_per_epoch == 0) count_epoch(log_, by_scores, run_.restores());
    require<error>(!by_scores || (t.sample.score && std::isfinite(*t.sample.score)),
                   "FP32's score is not a number after an epoch (plans are to be judged by scores): check validate()");
    if (run_.restores() && !run_.recalled()) epoch_end_ = run_.save();
  }
  /// Tells whether a decision may cost so many more seconds; where it is empty, it may cost any number.
  std::function<bool(double)> affords = {};

  /// Sets the number of batches after which a plan is accepted or rejected by what they say, even if that is little.
  void at_most(std::size_t batches) { most_ = std::max(batches, least_); }
  std::size_t least() const { return least_; }
  /// Tells that a plan lost so many of `batches` that FP32 does not lose. Rare losses need many batches to show: from
  /// now on plans are judged by as many as show such a loss nine times in ten. Plans that were accepted by fewer are
  /// judged again when they are next asked about.
  void expect_lost(std::size_t lost, std::size_t batches) {
    constexpr double nine_in_ten = 2.3;
    const auto planned = static_cast<double>(settings_.planned_epochs * log_.batches_per_epoch);
    const double most = planned > 0 ? std::clamp(planned / 20, 16.0, 256.0) : 256;
    const double enough = nine_in_ten * static_cast<double>(batches) / static_cast<double>(lost);
    least_ = std::max(least_, static_cast<std::size_t>(std::min(enough, most)));
    most_ = std::max(most_, least_);
  }
  /// Returns: true where whole runs are judged, not batches from the same state.
  bool by_epochs() const { return !run_.restores() || settings_.criterion != criterion::batch_losses; }
  /// Returns: true where FP32 and a plan take turns, because batches cannot be repeated (turns.hpp).
  bool by_turns() const { return !run_.restores() && settings_.criterion != criterion::scores; }

  /// Returns: the state after FP32's batches, from which the training goes on where FP32 wins; empty where it is not
  /// known.
  std::optional<place> fp32_end() const { return by_epochs() ? epoch_end_ : reference_.end(); }

  /// Returns: the last answer for `p`; nullptr where it was not judged.
  const result* known(const plan& p) const {
    const auto at = done_.find(p);
    return at == done_.end() ? nullptr : &at->second;
  }

  /// Judges `p`. `quick`: this is one question of many, so the least batches decide even where the level would ask for
  /// more. Such an answer may not be `settled`; it is given again when the whole test is asked for.
  const result& judge(const plan& p, std::string label = {}, bool quick = false) {
    // The quick answer that the whole test now replaces. Its batches count only where batches are scarce; elsewhere the
    // test begins anew, because the plan was chosen for what the old ones said.
    result unsettled;
    if (const auto at = done_.find(p); at != done_.end()) {
      const bool enough = by_epochs() || !at->second.trial.accepted ||
                          static_cast<std::size_t>(at->second.trial.sample.batches) >= least_;
      if (enough && (quick || at->second.settled)) return at->second;
      if (least_ < 16 || !enough) unsettled = std::move(at->second);
      done_.erase(at);
    }
    result judgement = by_turns()    ? judged_in_turns(p, label)
                       : by_epochs() ? judged_epoch(p, label)
                                     : judged(p, label, quick, unsettled);
    while (!quick && !judgement.settled) {
      run_.record(judgement.trial, unsettled.trial.sample.batches);
      unsettled = std::move(judgement);
      judgement = judged(p, label, quick, unsettled);
    }
    if (judgement.trial.accepted && run_.restores() && !recalled_) {
      for (auto& [other, r] : done_) {
        if (r.trial.seconds >= judgement.trial.seconds) r.end.reset();
      }
      judgement.end = run_.save();
      run_.keep();
    } else if (!judgement.trial.accepted) {
      run_.to_kept();
    }
    if (judgement.trial.accepted) best_seconds_ = std::min(best_seconds_, judgement.trial.seconds);
    const bool ran = unsettled.trial.sample.batches == 0 || judgement.trial.repeat != unsettled.trial.repeat;
    if (ran) run_.record(judgement.trial, unsettled.trial.sample.batches);
    return done_.emplace(p, std::move(judgement)).first->second;
  }

  /// Returns: the seconds of a batch under FP32.
  double fp32_seconds() const {
    trial t{.sample = log_.baseline};
    detail::summarise_times(t);
    return t.seconds;
  }

  /// Returns: true where batches differ in length, because their times vary under every plan alike.
  bool lengths_differ() const { return lengths_differ_; }

 private:
  // Judges by batches. `before`: a quick answer, whose batches count; it has none where this is the first question.
  result judged(const plan& p, std::string label, bool quick, const result& before) {
    result judgement{.trial = before.trial};
    slower_.reset();
    sample& got = judgement.trial.sample;
    bool live = true;
    if (static_cast<std::size_t>(got.batches) < most_) {
      const auto more = [&](const trial& begun) { return trained_until_decided(begun, p, quick, before); };
      judgement.trial = run_.run(stage::epochs, p, std::move(label), more, {}, before.trial.sample.seconds);
      live = !run_.recalled();
    } else if ((live = before.end.has_value())) {
      run_.restore(*before.end);
    }
    judgement.verdict.answer = loss_answer::rejected;
    if (got.ok()) {
      const place here = run_.save();
      reference_.train_until(
          static_cast<std::size_t>(got.batches));  // a recalled candidate may have more batches than FP32 has run
      if (!live && !quick && falls_short(got)) {
        judgement.settled = judgement.trial.accepted = false;
        return judgement;
      }
      judgement.verdict = decided(p, got, quick);
      judgement.settled = !quick || judgement.verdict.answer == loss_answer::rejected ||
                          losses_.verdict(got, least_, false).answer == loss_answer::accepted;
      if (live) run_.restore(here);
      recalled_ = !live;
    }
    judgement.trial.accepted = judgement.verdict.answer == loss_answer::accepted;
    pair_times(judgement.trial);
    if (const std::size_t lost = detail::lost_alone(got.curve, log_.baseline.curve); lost > 0)
      expect_lost(lost, got.curve.size());
    return judgement;
  }

  // Trains the candidate on from the batches that it has in `before`. FP32's batches are run in between where they are
  // missing.
  sample trained_until_decided(const trial& begun, const plan& p, bool quick, const result& before) {
    sample got = before.trial.sample;
    run_.restore(before.end ? *before.end : reference_.start());
    const auto had = static_cast<std::size_t>(got.batches);
    if (had > 0 && !before.end) {
      sample again;
      run_.train(begun, p, had, again, detail::any_status);
    }
    for (std::size_t n = had > 0 ? std::min(next_look(had), most_) : least_; got.ok();
         n = std::min(next_look(n), most_)) {
      if (static_cast<std::size_t>(reference_.seen().batches) < n) {
        const place here = run_.save();
        reference_.train_until(n);
        run_.restore(here);
      }
      const candidate_cut slow{cut_, log_.baseline, best_seconds_, losses_.worse()};
      bool hopeless = false;
      const auto look = [&](const sample& so_far) {
        hopeless = losses_.harm_beyond_doubt(so_far);
        status s = slow(so_far);
        if (s == status::stopped_early && slower_) s = status::ok;
        return hopeless && s == status::ok ? status::stopped_early : s;
      };
      run_.train(begun, p, n, got, look);
      if (got.status == status::stopped_early && !hopeless && !slower_ && is_the_machine(begun, got)) {
        got.status = status::ok;
        run_.train(begun, p, n, got, look);
      }
      // Harm in the losses is a rejection, not a failure of the run.
      if (hopeless && got.status == status::stopped_early) {
        got.status = status::ok;
        break;
      }
      if (!got.ok() || n >= most_ || quick || enough(got)) break;
    }
    return got;
  }

  // Returns: true where more batches would not change the answer.
  bool enough(const sample& got) {
    loss_answer now = losses_.verdict(got, least_, false).answer;
    if (now == loss_answer::accepted || losses_.wander(got)) return true;
    if (now == loss_answer::go_on && static_cast<std::size_t>(got.batches) < 2 * least_) return false;
    // FP32's own spread may turn a rejection around, or be the reason that nothing is decided
    const place here = run_.save();
    reference_.spread(1, least_);
    run_.restore(here);
    now = losses_.verdict(got, least_, false).answer;
    return now != loss_answer::go_on || losses_.fp32_strays();
  }

  // Returns: true for a recalled run that has too few batches, because the search that recorded it had another
  // tolerance or level. A run of more than half of `most_` was ended by its budget and is taken as it is.
  bool falls_short(const sample& got) {
    return 2 * static_cast<std::size_t>(got.batches) <= most_ && !losses_.harm_beyond_doubt(got) && !enough(got);
  }

  // A plan seems slow beside FP32's batches, which ran a while ago. Runs FP32 again and returns true where the machine
  // became slow instead. This is not done for a strategy's candidates (they have a limit beside the best candidate,
  // too), which may well be slow.
  bool is_the_machine(const trial& begun, const sample& got) {
    if (std::isfinite(cut_.slower_than_best)) return false;
    const auto quickest = [](const sample& s) {
      return *std::min_element(s.batch_seconds.begin() + 1, s.batch_seconds.end());
    };
    const place here = run_.save();
    run_.restore(reference_.start());
    sample again;
    run_.train(begun, reference_.plan(), 4, again, detail::any_status);
    run_.restore(here);
    if (again.batch_seconds.size() < 2) return false;  // the search was asked to stop
    const double slower = quickest(got) / quickest(again);
    if (slower < cut_.slower_than_fp32) slower_ = slower;
    return slower_.has_value();
  }

  // Returns: what the batches say. Before a plan is rejected, FP32 with perturbed roundings shows what roundings alone
  // do, unless the harm is beyond doubt.
  loss_verdict decided(const plan& p, const sample& got, bool quick) {
    const bool strayed = !quick && losses_.wander(got);
    // FP32's own spread has pushed the line that far up
    const auto vague = [&](const loss_verdict& v) { return v.line > 2 * settings_.tolerance; };
    const loss_verdict now = losses_.verdict(got, least_, false), end = losses_.verdict(got, least_, true);
    if (!losses_.harm_beyond_doubt(got)) {
      if (!strayed && now.answer == loss_answer::accepted && (quick || (clear(now) && !vague(now)))) return now;
      if (!strayed && clear(end) && end.answer == loss_answer::accepted && reference_.spread().empty()) return end;
      reference_.spread(1, least_);
      for (std::size_t runs = 2; runs <= 4 && !quick && is_close(losses_.verdict(got, least_, false)); ++runs)
        reference_.spread(runs, least_);
    }
    if (losses_.harm_beyond_doubt(got)) {
      loss_verdict harm = losses_.verdict(got, least_, true);
      harm.answer = loss_answer::rejected;
      return harm;
    }
    const loss_verdict known = losses_.verdict(got, least_, false);
    const bool repeat =
        (losses_.fp32_strays() || strayed || vague(known)) && known.answer != loss_answer::rejected && !quick;
    return repeat ? by_repeats(p, got) : losses_.verdict(got, least_, true);
  }

  // Returns: true where the difference is so far under the tolerance that FP32's own spread need not be known.
  bool clear(const loss_verdict& v) const { return v.difference < settings_.tolerance / 2; }
  // Returns: true where knowing FP32's own spread better could decide about a difference near the tolerance.
  bool is_close(const loss_verdict& v) const {
    const double off = settings_.tolerance - v.line;
    return v.answer == loss_answer::go_on && std::abs(v.difference - settings_.tolerance) < off;
  }

  // Judges where one training strays too far to tell: repeats short pairs of FP32 and the candidate from the same
  // state, each training with perturbed roundings of its own. The differences of such pairs are independent of each
  // other.
  loss_verdict by_repeats(const plan& p, const sample& got) {
    constexpr std::size_t most = 12, few = 2;
    std::vector<double> differences{mean_difference(log_.baseline, got)};
    for (std::size_t k = 2; k <= most; ++k) {
      if (k > few && affords && !affords(static_cast<double>(least_) * 2 * fp32_seconds())) break;
      const sample fp32 = reference_.spread(k - 1, least_)[k - 2];
      const sample own = reference_.perturbed(stage::epochs, p, k - 1, least_);
      if (!own.ok()) return {.answer = loss_answer::rejected, .difference = std::numeric_limits<double>::infinity()};
      differences.push_back(mean_difference(fp32, own));
      const loss_verdict now = judge_repeats(differences, settings_.tolerance, false);
      if (now.answer != loss_answer::go_on) return now;
    }
    return judge_repeats(differences, settings_.tolerance, true);
  }
  double mean_difference(const sample& fp32, const sample& own) const {
    const std::vector<double> path = loss_path(fp32.curve, own.curve, losses_.worse());
    return mean_of(std::span{path}.first(std::min(least_, path.size())));
  }

  static std::size_t next_look(std::size_t n) { return n + (n < 16 ? 2 : n < 32 ? 8 : n < 64 ? 16 : n / 2); }

  result judged_epoch(const plan& p, std::string label) {
    result judgement;
    run_.restore(reference_.start());
    const candidate_cut cut{cut_, log_.baseline, best_seconds_, losses_.worse()};
    judgement.trial = run_.epoch(stage::epochs, p, std::move(label), cut);
    recalled_ = run_.recalled();
    judgement.verdict = judge_epoch(run_, reference_, settings_, judgement.trial.sample);
    judgement.trial.accepted = judgement.verdict.answer == loss_answer::accepted;
    pair_times(judgement.trial);
    return judgement;
  }

  result judged_in_turns(const plan& p, std::string label) {
    const auto lengths = turn_lengths::of_training(settings_.planned_epochs * log_.batches_per_epoch);
    const auto verdict = [&](const sample& own, const sample& fp32, bool last) {
      return detail::judge_turns(fp32.curve, own.curve, lengths.block, settings_.tolerance, losses_.worse(), last);
    };
    result judgement;
    sample own, fp32;
    judgement.trial = run_.run(stage::epochs, p, std::move(label), [&](const trial& begun) {
      train_in_turns(run_, begun, p, lengths, own, fp32, [&](const sample& a, const sample& b) {
        return verdict(a, b, false).answer != loss_answer::go_on;
      });
      return own;
    });
    recalled_ = run_.recalled();
    const trial turns = run_.run(stage::baseline, run_.fp32(), "fp32 in turns", [&](const trial&) { return fp32; });
    run_.record(turns);
    require_trained(turns.sample, turns.sample.batches);
    judgement.verdict.answer = loss_answer::rejected;
    if (judgement.trial.sample.ok()) judgement.verdict = verdict(judgement.trial.sample, turns.sample, true);
    judgement.trial.accepted = judgement.verdict.answer == loss_answer::accepted;
    lengths_differ_ =
        detail::pair_times(judgement.trial, turns.sample, fp32_seconds(), std::nullopt) || lengths_differ_;
    return judgement;
  }

  void pair_times(trial& t) {
    lengths_differ_ = detail::pair_times(t, log_.baseline, fp32_seconds(), slower_) || lengths_differ_;
  }

  evaluator& run_;
  outcome& log_;
  const search_settings& settings_;
  reference_run reference_;
  const loss_verdicts losses_{log_.baseline, reference_, settings_};
  std::optional<place> epoch_end_;
  std::map<plan, result> done_;
  early_cut cut_ = {};
  std::size_t least_ = 16, most_ = 256;
  double best_seconds_ = std::numeric_limits<double>::infinity();  // seconds of a batch of the fastest accepted plan
  // The judged plan's time relative to FP32's, where the machine became slow in between.
  std::optional<double> slower_ = {};
  bool lengths_differ_ = false, recalled_ = false;
};

}  // namespace comp
