// SPDX-License-Identifier: Apache-2.0
// One training after a search, as post_training.hpp describes it.
// Not here: what is suspicious (guard.hpp).
#pragma once

#include <algorithm>
#include <comp/core/training_progress.hpp>
#include <comp/search/evaluator.hpp>
#include <comp/search/guard.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/post_training.hpp>
#include <comp/search/training_epochs.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp {

namespace detail {

/// Where a training stands when its search has ended: epochs that the search trained are behind it.
inline training_progress progress_after(const outcome& search, const guard_settings& guard) {
  const double worse = search.higher_is_better ? -1 : 1;
  training_progress now{.ladder = search.fallbacks.empty() ? std::vector{search.plan} : search.fallbacks,
                        .batches_per_epoch = search.batches_per_epoch,
                        .baseline_loss = search.baseline.loss,
                        .tolerance = search.tolerance,
                        .higher_is_better = search.higher_is_better};
  recent_levels normal{guard};
  normal.learn(made_lower_better(search.baseline.curve, worse));
  const std::size_t epoch = search.batches_per_epoch, behind = epoch > 0 ? search.trained_batches : 0;
  for (std::size_t at = 0; at + epoch <= behind && epoch > 0; at += epoch) {
    now.so_far.epochs.push_back(part_of(search.trained, at, at + epoch));
    normal.learn(made_lower_better(now.so_far.epochs.back().curve, worse));
  }
  if (epoch > 0 && behind % epoch > 0) now.begun = part_of(search.trained, behind - behind % epoch, behind);
  now.normal = normal.state();
  return now;
}

/// One training after a search.
class guarded_training {
 public:
  guarded_training(const post_training& settings, any_trainer& trainer, any_observer& observers, const outcome& log,
                   training_progress from)
      : settings_{settings},
        log_{log},
        run_{trainer, observers, log_},
        observers_{observers},
        normal_{settings.guard, std::move(from.normal)},
        audits_{from.audits},
        worse_{log.higher_is_better ? -1.0 : 1.0},
        ladder_{std::move(from.ladder)},
        rung_{from.rung},
        begun_{std::move(from.begun)},
        got_{std::move(from.so_far)} {
    for (const sample& epoch : got_.epochs) means_.push_back(worse_ * epoch.loss);
  }

  post_training::result operator()() {
    tell();
    while (got_.epochs.size() < settings_.epochs) {
      const bool audited = settings_.guard.on && can_compare() && !begun_ && audits_.due(got_.epochs.size(), means_);
      epoch_watch watch{normal_, settings_.guard.on && !safest(), worse_};
      watched epoch = train(ladder_[rung_], watch);
      if (epoch.run.ok() && settings_.guard.on && normal_.suspects(epoch.losses, true)) {
        if (safest()) {
          tell_of(epoch.losses);
        } else {
          epoch.run.status = status::diverged;
          run_.to_kept();
        }
      }
      if (!epoch.run.ok()) {
        mend(epoch);
      } else if (audited) {
        audit(std::move(epoch));
      } else {
        finish(std::move(epoch));
      }
    }
    got_.plan = ladder_[rung_];
    run_.trainer().set_precision(got_.plan);
    if (sample* last = got_.epochs.empty() ? nullptr : &got_.epochs.back(); last && !last->score) {
      if (run_.trainer().has.validate) last->score = run_.trainer().validate();  // all were the search's
    }
    return std::move(got_);
  }

 private:
  bool safest() const { return rung_ + 1 >= ladder_.size(); }
  bool can_compare() const { return run_.restores() && !safest(); }

  struct watched {
    sample run = {};
    std::vector<double> losses = {};  // of each batch
  };

  // The next epoch, or the rest of the one that was begun.
  watched train(const plan& p, epoch_watch& watch) {
    const sample run = train_until(p, [&watch](const sample& so_far) { return watch(so_far); });
    return {run, watch.losses_of(run)};
  }
  template <class Cut>
  sample train_until(const plan& p, Cut cut) {
    if (!begun_) return run_.next_epoch(stage::training, p, cut).sample;
    const std::size_t left = log_.batches_per_epoch - static_cast<std::size_t>(begun_->batches);
    const trial t = run_.run(stage::training, p, "", [&](const trial& as) {
      sample got;
      run_.train(as, p, left, got, cut);
      return got;
    });
    run_.record(t);
    return t.sample;
  }

  void finish(watched epoch) {
    if (begun_) {
      append(*begun_, epoch.run);
      begun_->score = epoch.run.score;
      epoch.run = *std::exchange(begun_, std::nullopt);
    }
    normal_.learn(epoch.losses);
    means_.push_back(worse_ * epoch.run.loss);
    got_.epochs.push_back(std::move(epoch.run));
    run_.remember_start();
    tell();
  }
  void tell() {
    observers_.training_progressed({.so_far = got_,
                                    .ladder = ladder_,
                                    .rung = rung_,
                                    .begun = begun_,
                                    .normal = normal_.state(),
                                    .audits = audits_.state(),
                                    .batches_per_epoch = log_.batches_per_epoch,
                                    .baseline_loss = log_.baseline.loss,
                                    .tolerance = log_.tolerance,
                                    .higher_is_better = log_.higher_is_better});
  }

  void give_up(status why, std::string message) {
    got_.fallbacks.push_back({got_.epochs.size(), ladder_[rung_], ladder_[rung_ + 1], why, std::move(message)});
    ++rung_;
    audits_.plan_given_up(got_.epochs.size());
  }

  // An epoch ended badly, and the state is that of its start. FP32 trains it where the loss is what was bad.
  void mend(const watched& bad) {
    refuse(bad.run, safest());
    const bool not_finite = bad.run.status == status::not_finite;
    if (!can_compare() || (!not_finite && bad.run.status != status::diverged)) {
      return give_up(bad.run.status, bad.run.message);
    }
    ++got_.compared;
    epoch_watch watch{normal_, false, worse_};
    watched fp32 = train(ladder_.back(), watch);
    refuse(fp32.run, fp32.run.status == status::not_finite);
    if (!fp32.run.ok()) return give_up(bad.run.status, bad.run.message);
    if (not_finite || clearly_better(fp32.losses, bad.losses, normal_)) {
      give_up(bad.run.status, bad.run.message);
    } else {
      normal_.relax();
    }
    finish(std::move(fp32));
  }

  // A whole epoch ended well but brings no progress: would FP32 have?
  void audit(watched epoch) {
    if (epoch.run.curve.empty()) return finish(std::move(epoch));
    ++got_.compared;
    const auto after = run_.save();
    run_.to_kept();
    audit_watch watch{settings_.guard, epoch.run.curve, worse_};
    const sample fp32 = train_until(ladder_.back(), [&watch](const sample& so_far) { return watch(so_far); });
    if (fp32.ok() && watch.convicts(fp32)) {
      give_up(status::diverged,
              fmt::format("no progress: the epoch's loss was {:.4g}, FP32's from the same state {:.4g}", epoch.run.loss,
                          fp32.loss));
      epoch = {fp32, made_lower_better(fp32.curve, worse_)};
    } else {
      audits_.acquitted(got_.epochs.size());
      run_.restore(after);
    }
    finish(std::move(epoch));
  }

  void tell_of(const std::vector<double>& losses) {
    const auto last = std::span{losses}.last(std::min(normal_.window(), losses.size()));
    got_.warnings.push_back(
        fmt::format("FP32's loss is {:.4g} at the end of epoch {} (it was {:.4g} at most in the epochs before): "
                    "where it should not rise, lower the learning rate",
                    worse_ * mean_of(last), got_.epochs.size(), worse_ * normal_.highest()));
    normal_.relax();
  }

  void refuse(const sample& ended, bool refused) const {
    require<error>(!refused,
                   "training in FP32 ended as {} in epoch {}{}{} (there is no more conservative plan): "
                   "check the learning rate and the data{}",
                   name(ended.status), got_.epochs.size(), ended.message.empty() ? "" : ": ", ended.message,
                   run_.restores() ? "; the trainer is in its last good state" : "");
  }

  const post_training& settings_;
  outcome log_;  // numbers go on from the search's
  evaluator run_;
  any_observer& observers_;
  recent_levels normal_;
  audit_times audits_;
  double worse_;  // -1 for losses that are maximised
  std::vector<comp::plan> ladder_;
  std::size_t rung_ = 0;
  std::optional<sample> begun_;
  std::vector<double> means_;
  post_training::result got_;
};

/// What a training that goes on knows of its search.
inline outcome search_behind(const op_graph& graph, const training_progress& from) {
  require<plan_error>(from.rung < from.ladder.size(),
                      "a training on plan {} of a ladder of {} (there is none such): go on from what "
                      "training_progressed() told",
                      from.rung, from.ladder.size());
  for (const plan& p : from.ladder) require_fits(p, graph);
  outcome log{.plan = from.ladder.front(), .graph = graph, .batches_per_epoch = from.batches_per_epoch};
  log.baseline.loss = from.baseline_loss;
  log.tolerance = from.tolerance;
  log.higher_is_better = from.higher_is_better;
  return log;
}

COMP_INLINE training_result train_after(const post_training& settings, any_trainer& trainer, any_observer& observers,
                                        const outcome& search) {
  const post_training_notice until_the_end{trainer};
  training_progress from = progress_after(search, settings.guard);
  if (const std::size_t trained = from.so_far.epochs.size(); trained > settings.epochs) {
    from.so_far.warnings.push_back(
        fmt::format("the search's {} batches are {} epochs of {}, more than the {} that were asked for: a search costs "
                    "least where epochs are long",
                    search.trained_batches, trained, search.batches_per_epoch, settings.epochs));
  }
  return guarded_training{settings, trainer, observers, search, std::move(from)}();
}

COMP_INLINE training_result train_on(const post_training& settings, any_trainer& trainer, any_observer& observers,
                                     training_progress from) {
  const outcome log = search_behind(trainer.graph(), from);
  const post_training_notice until_the_end{trainer};
  return guarded_training{settings, trainer, observers, log, std::move(from)}();
}

}  // namespace detail

}  // namespace comp
