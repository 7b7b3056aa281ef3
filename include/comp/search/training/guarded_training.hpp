// SPDX-License-Identifier: Apache-2.0
// Runs one training after a search, as post_training.hpp describes it.
// Not here: what is suspicious (guard.hpp), when FP32 trains beside the plan (shadow_watch.hpp), which operators are to
// blame (plan_mending.hpp), where a training begins (training_epochs.hpp).
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/lost_batches.hpp>
#include <comp/core/training_progress.hpp>
#include <comp/search/convergence/acceptance.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/post_training.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <comp/search/training/fallbacks.hpp>
#include <comp/search/training/fp32_shadow.hpp>
#include <comp/search/training/guard.hpp>
#include <comp/search/training/plan_mending.hpp>
#include <comp/search/training/shadow_watch.hpp>
#include <comp/search/training/training_epochs.hpp>
#include <comp/search/training/training_record.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp {

namespace detail {

/// Trains epoch by epoch, and decides after each whether the plan is kept.
class guarded_training {
 public:
  guarded_training(const post_training& settings, any_trainer& trainer, any_observer& observers, const outcome& log,
                   const training_progress& from)
      : settings_{settings},
        log_{log},
        run_{trainer, observers, log_},
        observers_{observers},
        loss_sign_{log.higher_is_better ? -1.0 : 1.0},
        plans_{from.ladder, from.rung},
        record_{settings.guard, loss_sign_, from},
        shadow_watch_{settings.guard, settings.epochs, run_, log_, record_, from.audits} {}

  post_training::result run() {
    report_progress();
    while (result().epochs.size() < settings_.epochs) {
      if (settings_.guard.on && can_compare()) shadow_watch_.begin_epoch(plans_.fp32());
      epoch_watch watch{normal(), settings_.guard.on && !plans_.is_most_conservative(), loss_sign_};
      watched_epoch epoch = train_epoch(plans_.current(), watch);
      if (epoch.run.ok() && settings_.guard.on) check_level(epoch);
      if (!epoch.run.ok()) {
        shadow_watch_.drop_shadow();
        answer_bad_epoch(epoch);
      } else {
        finish_epoch(std::move(epoch));
        look_for_slow_harm();
      }
    }
    post_training::result all = record_.take_result();
    all.plan = plans_.current();
    run_.trainer().set_precision(all.plan);
    if (sample* last = all.epochs.empty() ? nullptr : &all.epochs.back(); last && !last->score) {
      // The last epoch was trained for a comparison, which asks for no score.
      if (run_.trainer().has.validate) last->score = run_.trainer().validate();
    }
    return all;
  }

 private:
  struct watched_epoch {
    sample run = {};
    std::vector<double> losses = {};  // the loss of each batch
    shown_harm::sign shown_by = shown_harm::sign::ended;

    std::string message() const {
      if (!run.message.empty()) return run.message;
      if (shown_by == shown_harm::sign::high_losses) return "its loss rose above its recent level, and FP32's did not";
      if (shown_by == shown_harm::sign::ended) return "its loss was not finite in batch after batch, and FP32's was";
      return fmt::format("it lost {} of {} batches, whose loss was not finite, and FP32 clearly fewer",
                         count_lost(losses), losses.size());
    }
  };

  const training_result& result() const { return record_.result(); }
  recent_levels& normal() { return record_.normal(); }
  bool can_compare() const { return run_.restores() && !plans_.is_most_conservative(); }

  // Trains the next epoch, or the rest of one that was begun.
  watched_epoch train_epoch(const plan& p, epoch_watch& watch) {
    const auto cut = [&watch](const sample& so_far) { return watch(so_far); };
    sample run;
    if (!record_.begun()) {
      trial t = run_.run_training_epoch(p, cut);
      t.accepted = accepted(log_.baseline, t.sample, log_.tolerance, log_.higher_is_better);
      run_.record(t);
      run = t.sample;
      if (log_.batches_per_epoch == 0 && run.ok()) log_.batches_per_epoch = run.curve.size();
      if (run.ok()) record_.warn_of_length(run, log_.batches_per_epoch);
    } else {
      const std::size_t left = log_.batches_per_epoch - static_cast<std::size_t>(record_.begun()->batches);
      const trial t = run_.run(stage::training, p, "", [&](const trial& as) {
        sample rest;
        run_.train(as, p, left, rest, cut);
        return rest;
      });
      run_.record(t);
      run = t.sample;
    }
    if (run.ok() && ends_spoilt(watch.losses_of(run))) {
      run.status = status::not_finite;
      run_.restore_kept_state();
    }
    const auto shown_by = run.status == status::diverged ? shown_harm::sign::high_losses : shown_harm::sign::ended;
    return {run, watch.losses_of(run), shown_by};
  }

  // Returns: true where the weights are spoilt: the last batch was lost, and FP32 loses those that follow, too (they
  // are undone). The next epoch would then begin from a state that cannot be trained. A trainer that cannot restore is
  // judged by its last batches instead.
  bool ends_spoilt(const std::vector<double>& losses) {
    if (losses.empty() || std::isfinite(losses.back())) return false;
    if (!run_.restores()) return record_.lost_in_a_row(losses) >= lost_in_a_row_that_spoil;
    const checkpoint here = run_.save();
    const trial t = run_.run(stage::training, plans_.fp32(), "fp32 after a lost batch", [&](const trial& as) {
      sample next;
      run_.train(as, plans_.fp32(), static_cast<std::size_t>(lost_in_a_row_that_spoil), next, [](const sample& so_far) {
        return std::isfinite(so_far.curve.back()) ? status::stopped_early : cut_if_not_finite(so_far);
      });
      return next;
    });
    run_.record(t);
    run_.restore(here);
    return t.sample.status == status::not_finite;
  }

  // Looks at an epoch's last level, and at its lost batches, once more when it has ended.
  void check_level(watched_epoch& epoch) {
    const bool high = normal().suspects(finite_of(epoch.losses), true);
    if (!high && (plans_.is_most_conservative() || !normal().loses_many(epoch.losses))) return;
    if (plans_.is_most_conservative()) return record_.warn_of_level(epoch.losses);
    epoch.run.status = high ? status::diverged : status::not_finite;
    epoch.shown_by = high ? shown_harm::sign::high_losses : shown_harm::sign::lost_batches;
    run_.restore_kept_state();
  }

  void finish_epoch(watched_epoch epoch) {
    record_.add(std::move(epoch.run), epoch.losses);
    run_.remember_start();
    report_progress();
  }
  void report_progress() {
    training_progress now = record_.progress();
    now.ladder = plans_.all();
    now.rung = plans_.rung();
    now.audits = shadow_watch_.state();
    now.batches_per_epoch = log_.batches_per_epoch;
    now.baseline_loss = log_.baseline.loss;
    now.tolerance = log_.tolerance;
    now.higher_is_better = log_.higher_is_better;
    observers_.training_progressed(now);
  }

  // An epoch ended badly, and the state at its start was restored. Where its loss was the reason, FP32 trains the
  // epoch, which shows whether the plan is to blame.
  void answer_bad_epoch(const watched_epoch& bad) {
    throw_if_fatal(bad.run, plans_.is_most_conservative());
    if (!can_compare() || (bad.run.status != status::not_finite && bad.run.status != status::diverged)) {
      return give_up(result().epochs.size(), bad.run.status, bad.run.message);
    }
    record_.count_comparison();
    const checkpoint start = run_.save();
    epoch_watch watch{normal(), false, loss_sign_};
    watched_epoch fp32 = train_epoch(plans_.fp32(), watch);
    throw_if_fatal(fp32.run, fp32.run.status == status::not_finite);
    if (!fp32.run.ok()) return give_up(result().epochs.size(), bad.run.status, bad.run.message);
    using sign = shown_harm::sign;
    const bool fp32_is_better = bad.shown_by == sign::ended ? true
                                : bad.shown_by == sign::lost_batches
                                    ? loses_fewer_batches(fp32.losses, bad.losses)
                                    : is_clearly_better(fp32.losses, bad.losses, normal());
    if (fp32_is_better) {
      const checkpoint after = run_.save();
      plan_mending mending{run_,
                           {bad.shown_by, start, bad.losses, fp32.losses, normal().window()},
                           plans_.current(),
                           plans_.fp32(),
                           loss_sign_};
      const auto mended = mending.mend(plans_.next(), seconds_for_mending(bad.run, fp32.run));
      run_.restore(after);
      give_up(result().epochs.size(), bad.run.status, bad.message(), mended);
    } else {
      normal().relax();
    }
    finish_epoch(std::move(fp32));
  }

  void look_for_slow_harm() {
    for (auto harm = shadow_watch_.find_harm(); !harm.empty(); harm = shadow_watch_.find_harm()) {
      if (continue_from_fp32(std::move(harm))) return;
      shadow_watch_.doubt();
    }
  }

  // FP32 does better beside the plan, so its training is kept instead of the plan's, from where the two parted.
  // `losses`: those of the plan. Returns: false where FP32 is not better when both are repeated.
  bool continue_from_fp32(std::vector<double> losses) {
    const fp32_shadow shadow = *shadow_watch_.shadow();
    std::vector<double> fp32 = make_lower_better(shadow.so_far().curve, loss_sign_);
    std::string message =
        fmt::format("{}: in {} batches from epoch {} on its loss came to be {:.2g}% above FP32's on the same batches",
                    shadow.watches_beginning() ? "slow harm" : "no progress", fp32.size(), shadow.epoch(),
                    100 * end_of_path(paired_differences(losses, fp32)).mean);
    const std::size_t last = losses.size() / 3;
    shown_harm harm{shown_harm::sign::high_losses, shadow.start(), std::move(losses), std::move(fp32), last};
    plan_mending mending{run_, std::move(harm), plans_.current(), plans_.fp32(), loss_sign_};
    if (!mending.repeats()) {
      run_.restore_kept_state();
      return false;
    }
    const auto mended = mending.mend(plans_.next(), seconds_for_mending(result().epochs.back(), shadow.so_far()));
    run_.restore(shadow.end());
    record_.replace(shadow.epoch(), shadow.begun(), shadow.so_far(), log_.batches_per_epoch);
    run_.remember_start();
    give_up(shadow.epoch(), status::diverged, std::move(message), mended);
    report_progress();
    return true;
  }

  // Returns: the seconds that finding the operators to blame may take: half of what a plan without them may still save.
  double seconds_for_mending(const sample& plan, const sample& fp32) const {
    const auto left = static_cast<double>((settings_.epochs - result().epochs.size()) * log_.batches_per_epoch);
    return (seconds_per_batch(fp32) - seconds_per_batch(plan)) * left / 2;
  }

  void give_up(std::size_t epoch, status why, std::string message, const std::optional<mended_plan>& mended = {}) {
    if (mended) message += "; " + mended->str(log_.graph);
    const comp::plan from = plans_.current();
    plans_.give_up(mended ? &mended->plan : nullptr);
    record_.add_fallback({epoch, from, plans_.current(), why, std::move(message)});
    shadow_watch_.plan_given_up(epoch);
  }

  void throw_if_fatal(const sample& ended, bool is_fatal) const {
    require<error>(!is_fatal,
                   "training in FP32 ended as {} in epoch {}{}{} (there is no more conservative plan): "
                   "check the learning rate and the data{}",
                   name(ended.status), result().epochs.size(), ended.message.empty() ? "" : ": ", ended.message,
                   run_.restores() ? "; the trainer is in its last good state" : "");
  }

  const post_training& settings_;
  outcome log_;  // a copy of the search's outcome, so that trials are numbered on from there
  evaluator run_;
  any_observer& observers_;
  double loss_sign_;  // -1 for losses that are maximised
  plan_ladder plans_;
  training_record record_;
  shadow_watch shadow_watch_;
};

COMP_INLINE training_result train_after(const post_training& settings, any_trainer& trainer, any_observer& observers,
                                        const outcome& search) {
  const op_graph graph = trainer.graph();
  require<plan_error>(
      search.graph.size() == 0 || search.graph.fingerprint() == graph.fingerprint(),
      "the outcome is of another model (of {} operators, the trainer's has {}; names, kinds, shapes and "
      "edges must agree): train on with the outcome of this trainer's search",
      search.graph.size(), graph.size());
  require_fits(search.plan, graph);
  const post_training_notice until_the_end{trainer};
  training_progress from = progress_after(search, settings.guard);
  if (const std::size_t trained = from.so_far.epochs.size(); trained > settings.epochs) {
    from.so_far.warnings.push_back(
        fmt::format("the search's {} batches are {} epochs of {}, more than the {} that were asked for: a search costs "
                    "least where epochs are long",
                    search.trained_batches, trained, search.batches_per_epoch, settings.epochs));
  }
  return guarded_training{settings, trainer, observers, search, std::move(from)}.run();
}

COMP_INLINE training_result train_on(const post_training& settings, any_trainer& trainer, any_observer& observers,
                                     training_progress from) {
  const outcome log = search_behind(trainer.graph(), from);
  const post_training_notice until_the_end{trainer};
  return guarded_training{settings, trainer, observers, log, std::move(from)}.run();
}

}  // namespace detail

}  // namespace comp
