// SPDX-License-Identifier: Apache-2.0
// Runs one training after a search, as post_training.hpp describes it.
#pragma once

#include <algorithm>
#include <cassert>
#include <comp/core/error.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/training_progress.hpp>
#include <comp/policy/plan_name.hpp>
#include <comp/search/losses/acceptance.hpp>
#include <comp/search/losses/reference_run.hpp>
#include <comp/search/losses/sound_state.hpp>
#include <comp/search/observers.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/post_training.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <comp/search/trainer/run_samples.hpp>
#include <comp/search/training/fp32_blocks.hpp>
#include <comp/search/training/guard.hpp>
#include <comp/search/training/harm_bisection.hpp>
#include <comp/search/training/plan_changes.hpp>
#include <comp/search/training/shadow.hpp>
#include <comp/search/training/training_record.hpp>
#include <cstddef>
#include <exception>
#include <functional>
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
                   training_progress from)
      : settings_{settings},
        log_{log},
        state_{std::move(from)},
        run_{trainer, observers, log_},
        observers_{observers},
        loss_sign_{loss_sign_of(log)},
        plans_{state_.plans, state_.current},
        record_{settings.guard, state_},
        changes_{settings.epochs, settings.finish, state_},
        shadow_watch_{settings.guard, settings.epochs, run_, record_, state_.checks},
        blocks_{settings.epochs * log.batches_per_epoch, log.tolerance},
        sound_{state_.so_far.epochs.size(), state_.begun} {
    run_.set_fp32(plans_.fp32());
  }

  post_training::result run() {
    try {
      return train();
    } catch (const damaged_training& damage) {  // `since` is counted from the epoch's start
      throw damaged_training{record_.batches() + damage.since};
    }
  }

 private:
  post_training::result train() {
    report_progress();
    while (result().epochs.size() < settings_.epochs) {
      if (change_plan_if_due()) continue;  // its batches may reach the next change, or the end
      if (settings_.guard.on && can_compare()) shadow_watch_.begin_epoch();
      epoch_watch watch{normal(), settings_.guard.on && !plans_.is_most_conservative(), loss_sign_};
      const bool in_block = watches_by_blocks() && blocks_.in_block();
      const comp::plan now = bisection_ ? bisection_->plan() : in_block ? run_.fp32() : plans_.current();
      const std::size_t part = batches_before_change();
      watched_epoch epoch = part > 0 ? train_batches(now, watch, part, "a part of an epoch") : train_epoch(now, watch);
      if (epoch.run.ok() && settings_.guard.on && part == 0) check_level(epoch);
      if (!epoch.run.ok()) {
        shadow_watch_.drop_shadow();
        answer_bad_epoch(epoch);
      } else {
        const std::vector<double> losses = epoch.losses;
        part > 0 ? record_.begin(epoch.run) : record_.add(std::move(epoch.run), epoch.losses);
        keep_progress();
        look_for_slow_harm();
        if (bisection_) {
          bisection_->add(losses);
          if (bisection_->is_over()) give_up_by_blocks();
        } else if (watches_by_blocks() && blocks_.add(losses)) {
          look_for_cause();
        }
      }
    }
    if (bisection_) give_up_by_blocks();
    assert(run_.unchecked().from == nullptr || !checks_states());
    post_training::result all = record_.take_result();
    all.plan = plans_.current();
    run_.trainer().set_precision(all.plan);
    if (sample* last = all.epochs.empty() ? nullptr : &all.epochs.back(); last && !last->score) {
      // The last epoch was trained for a comparison, which asks for no score.
      if (run_.trainer().has.validate) last->score = run_.trainer().validate();
    }
    return all;
  }

  // Trains the next epoch under `p`, or the rest of one that was begun.
  watched_epoch train_epoch(const plan& p, epoch_watch& watch) {
    if (record_.begun()) return train_batches(p, watch, log_.batches_per_epoch - record_.begun_batches(), "");
    trial t = run_.run_epoch(stage::training, p, "", std::ref(watch));
    t.accepted = passes_paper_rule(log_.baseline, t.sample, log_.tolerance, log_.higher_is_better);
    run_.record(t);
    if (log_.batches_per_epoch == 0 && t.sample.ok()) log_.batches_per_epoch = t.sample.curve.size();
    if (t.sample.ok()) record_.warn_of_length(t.sample, log_.batches_per_epoch);
    return judge_end(std::move(t.sample), watch);
  }

  // Trains `batches` batches of an epoch. `label`: empty if they end it.
  watched_epoch train_batches(const plan& p, epoch_watch& watch, std::size_t batches, std::string label) {
    trial t = run_.run_and_record(stage::training, p, std::move(label), [&](const trial& begun) {
      sample part;
      run_.train(begun, p, batches, part, std::ref(watch));
      return part;
    });
    return judge_end(std::move(t.sample), watch);
  }

  watched_epoch judge_end(sample run, const epoch_watch& watch) {
    if (run.ok() && ends_damaged(watch.losses_of(run))) {
      run.status = status::not_finite;
      run_.restore_kept_state();
    }
    const auto shown_by = run.status == status::diverged ? shown_harm::sign::high_losses : shown_harm::sign::ended;
    std::vector<double> losses = watch.losses_of(run);
    return {std::move(run), std::move(losses), shown_by};
  }

  // Returns: true if the weights are damaged: the last batch was lost, and FP32 loses those that follow, too (they are
  // undone). Later batches would then begin from a state that cannot be trained. A trainer that cannot restore its
  // state is judged by its last batches instead.
  bool ends_damaged(const std::vector<double>& losses) {
    if (losses.empty() || std::isfinite(losses.back())) return false;
    if (!run_.restores()) return record_.lost_in_a_row(losses) >= lost_in_a_row_that_damage;
    const auto work = [&](const trial& begun) {
      sample next;
      run_.train(begun, run_.fp32(), static_cast<std::size_t>(probe_batches), next, [](const sample& so_far) {
        return std::isfinite(so_far.curve.back()) ? status::stopped_early : cut_if_not_finite(so_far);
      });
      return next;
    };
    trial t;
    run_.run_and_undo([&] { t = run_.run_and_record(stage::training, run_.fp32(), "fp32 after a lost batch", work); });
    return t.sample.status == status::not_finite;
  }

  const training_result& result() const { return record_.result(); }
  recent_levels& normal() { return record_.normal(); }
  bool checks_states() const { return settings_.guard.on && settings_.guard.evidence > 0; }
  bool can_compare() const { return run_.restores() && !plans_.is_most_conservative(); }

  // Returns: how many batches are left until the plan may change within the epoch; 0: it does not.
  std::size_t batches_before_change() const {
    std::size_t batches = changes_.batches_to_next(record_.batches(), log_.batches_per_epoch);
    if (watches_by_blocks()) {
      const std::size_t next = bisection_ ? bisection_->batches_to_change() : blocks_.batches_to_change();
      batches = std::min(batches > 0 ? batches : next, next);
    }
    return record_.begun_batches() + batches < log_.batches_per_epoch ? batches : 0;
  }

  // Returns: true if FP32 trains blocks among the plan's batches, because it cannot train next to them.
  bool watches_by_blocks() const {
    return checks_states() && !run_.restores() && !plans_.is_most_conservative() && log_.batches_per_epoch > 0;
  }
  // Blocks show that the plan harms. Parts of it take turns if the batches that are left can pay for that.
  void look_for_cause() {
    bisection_.emplace(plans_.current(), plans_.next(), run_.fp32(), blocks_.length());
    const std::size_t end = record_.batches() + least_blocks_left * blocks_.length();
    if (bisection_->is_over() || end > settings_.epochs * log_.batches_per_epoch) return give_up_by_blocks();
    run_.trainer().go_on_under(plans_.next());  // if the training ends meanwhile
  }
  void give_up_by_blocks() {
    give_up(result().epochs.size(), status::diverged,
            fmt::format(
                "slow harm: its loss came to be {:.2g}% +- {:.2g}% above FP32's, which trained {} blocks of batches "
                "among its own",
                100 * blocks_.worst().harm, 200 * blocks_.worst().error, blocks_.blocks()),
            bisection_->found());
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

  // Makes the trainer's state the one that a failed run is undone to, and that the observers are told of.
  void keep_progress() {
    if (const auto fp32 = fp32_in_place_of_damaged()) give_up_damaging_plan(*fp32);
    keep_state();
    report_progress();
  }
  void keep_state() {
    if (run_.unchecked().from == nullptr) sound_ = {result().epochs.size(), record_.begun()};
    run_.remember_start();
  }
  // Checks the state, if that takes no more than a tenth of guard_settings::evidence of the batches since the last
  // check, and when the training ends. Returns: FP32's batches since the last sound state, if the plan's have damaged
  // it.
  std::optional<sample> fp32_in_place_of_damaged() {
    const unchecked_batches& unchecked = run_.unchecked();
    if (unchecked.from == nullptr) return {};
    const double affordable = settings_.guard.evidence / 10 * static_cast<double>(unchecked.count);
    const bool last = result().epochs.size() >= settings_.epochs;
    if (checks_states() && (last || affordable >= probe_batches)) return replace_damaged(run_, stage::training);
    return run_.trainer().count_extreme() > unchecked.extreme ? replace_damaged(run_, stage::training) : std::nullopt;
  }
  // The plan damaged the state, and `fp32` was trained in its place.
  void give_up_damaging_plan(const sample& fp32) {
    const std::size_t epoch = sound_.epoch;
    record_.replace(epoch, sound_.begun, fp32, log_.batches_per_epoch);
    std::string message = fmt::format(
        "the weights or the optimizer's state were damaged although losses were finite, within {} batches, which were trained "
        "again in FP32",
        fp32.batches);
    if (plans_.is_most_conservative()) return record_.warn(std::move(message));  // the plan was given up before
    give_up(epoch, status::not_finite, std::move(message));
  }
  void report_progress() {
    state_.batches_per_epoch = log_.batches_per_epoch;
    observers_.training_progressed(state_);
  }

  // An epoch ended badly, and the state at its start was restored. If its loss was the reason, FP32 trains the epoch,
  // which shows whether the plan is the cause.
  void answer_bad_epoch(const watched_epoch& bad) {
    throw_if_fatal(bad.run, plans_.is_most_conservative());
    if (!can_compare() || (bad.run.status != status::not_finite && bad.run.status != status::diverged)) {
      return give_up(result().epochs.size(), bad.run.status, bad.run.message);
    }
    record_.count_comparison();
    const checkpoint start = run_.save();
    epoch_watch watch{normal(), false, loss_sign_};
    watched_epoch fp32 = train_epoch(run_.fp32(), watch);
    const checkpoint after = run_.save();
    if (fp32_did_better(fp32, bad)) {
      harm_bisection bisection{
          run_, {bad.shown_by, start, bad.losses, fp32.losses, normal().window()}, plans_.current()};
      const auto part = bisection.find_harmless(plans_.next(), seconds_for_bisection(bad.run, fp32.run));
      run_.restore(after);
      give_up(result().epochs.size(), bad.run.status, bad.message(), part);
    } else {  // the epochs before may have damaged the state that both began from
      const std::exception_ptr failure = run_.failure();
      run_.restore(start);
      if (const auto fp32_instead = replace_damaged(run_, stage::training)) {
        give_up_damaging_plan(*fp32_instead);
        keep_state();
        return report_progress();
      }
      if (fp32.run.status == status::failed && failure) std::rethrow_exception(failure);
      throw_if_fatal(fp32.run, fp32.run.status == status::not_finite);
      if (!fp32.run.ok()) return give_up(result().epochs.size(), bad.run.status, bad.run.message);
      run_.restore(after);
      normal().relax();
    }
    record_.add(std::move(fp32.run), fp32.losses);
    keep_progress();
  }
  bool fp32_did_better(const watched_epoch& fp32, const watched_epoch& bad) {
    if (!fp32.run.ok()) return false;
    if (bad.shown_by == shown_harm::sign::ended) return true;
    if (bad.shown_by == shown_harm::sign::lost_batches) return loses_fewer_batches(fp32.losses, bad.losses);
    return is_clearly_better(fp32.losses, bad.losses, normal());
  }

  void look_for_slow_harm() {
    for (auto harm = shadow_watch_.find_harm(); !harm.empty(); harm = shadow_watch_.find_harm()) {
      if (continue_from_fp32(std::move(harm))) return;
      shadow_watch_.require_twice_the_batches();
    }
  }

  // FP32 did better than the plan on the same batches, so its training is kept instead of the plan's. `losses`: those
  // of the plan. Returns: false if FP32 is not better when both are repeated.
  bool continue_from_fp32(std::vector<double> losses) {
    const fp32_shadow shadow = *shadow_watch_.shadow();
    std::vector<double> fp32 = shadow.fp32.losses();
    std::string message =
        fmt::format("{}: in {} batches from epoch {} on its loss came to be {:.2g}% above FP32's on the same batches",
                    shadow.at_beginning ? "slow harm" : "no progress", fp32.size(), shadow.epoch,
                    100 * end_of_path(paired_differences(losses, fp32)).mean);
    const std::size_t last = losses.size() / 3;
    shown_harm harm{shown_harm::sign::high_losses, shadow.start, std::move(losses), std::move(fp32), last};
    harm_bisection bisection{run_, std::move(harm), plans_.current()};
    if (!bisection.repeats()) {
      run_.restore_kept_state();
      return false;
    }
    const auto part =
        bisection.find_harmless(plans_.next(), seconds_for_bisection(record_.last_run(), shadow.fp32.so_far()));
    run_.restore(shadow.fp32.end());
    record_.replace(shadow.epoch, shadow.begun, shadow.fp32.so_far(), log_.batches_per_epoch);
    keep_state();
    give_up(shadow.epoch, status::diverged, std::move(message), part);
    report_progress();
    return true;
  }

  // Returns: the seconds that finding the harmful operators may take: half of what a plan without them may still save.
  double seconds_for_bisection(const sample& plan, const sample& fp32) const {
    const auto batches_left = static_cast<double>((settings_.epochs - result().epochs.size()) * log_.batches_per_epoch);
    return (seconds_per_batch(fp32) - seconds_per_batch(plan)) * batches_left / 2;
  }

  void give_up(std::size_t epoch, status why, std::string message, const std::optional<harmless_part>& part = {}) {
    if (part) message += "; " + part->str(log_.graph);
    bisection_.reset();
    const comp::plan from = plans_.current();
    plans_.give_up(part ? &part->plan : nullptr);
    record_.add_fallback({epoch, from, plans_.current(), why, std::move(message)});
    shadow_watch_.plan_changed(epoch);
    blocks_.restart();
    run_.trainer().go_on_under(plans_.current());
  }

  // Returns: true if that took batches.
  bool change_plan_if_due() {
    if (auto due = changes_.take_due(record_.batches())) {
      // What was given up for its harm is not lowered again.
      const auto is_high = [&](std::size_t i) { return plans_.current()[i] == run_.fp32()[i]; };
      if (!result().fallbacks.empty()) due->plan = mix(due->plan, run_.fp32(), is_high);
      due->batch = record_.batches();  // the search, or FP32 in a comparison, may have trained beyond it
      change_to(*std::move(due));
    }
    return changes_.take_raise(record_.batches(), log_.batches_per_epoch) && try_higher_precision();
  }
  void change_to(later_plan next) {
    if (next.plan == plans_.current()) return;
    bisection_.reset();
    shadow_watch_.drop_shadow();
    if (!only_raises(plans_.current(), next.plan, run_.fp32())) shadow_watch_.plan_changed(result().epochs.size());
    plans_.change_to(next.plan);
    run_.trainer().go_on_under(next.plan);
    record_.add_change(std::move(next));
  }
  // Trains the last part's first batches both with the plan and in a higher precision, and goes on from the better one.
  // Returns: true if it was tried.
  bool try_higher_precision() {
    const plan up = raise_precision(plans_.current(), run_.trainer().supported_precisions(), run_.fp32());
    if (up == plans_.current()) return false;
    const std::size_t now = record_.batches(), all = settings_.epochs * log_.batches_per_epoch;
    const std::size_t batches_left =
        (settings_.epochs - result().epochs.size()) * log_.batches_per_epoch - record_.begun_batches();
    const std::size_t next = changes_.batches_to_next(now, log_.batches_per_epoch);
    const auto evidence = static_cast<std::size_t>(settings_.guard.evidence * static_cast<double>(all));
    const std::size_t most = std::min(next > 0 ? std::min(batches_left, next) : batches_left,
                                      std::max({fewest_to_compare, evidence, batches_left / 4}));
    if (most < fewest_to_compare || !run_.restores()) {
      record_.warn(fmt::format("a higher precision for the last {} batches was not tried ({}): {}", batches_left,
                               run_.restores() ? next > 0 && next < batches_left
                                                     ? "the plan changes after so few that they tell nothing"
                                                     : "so few tell nothing"
                                               : "the trainer cannot restore its state, so nothing can be compared",
                               run_.restores() ? "begin it earlier, or train longer" : "give it save() and restore()"));
      return false;
    }
    shadow_watch_.drop_shadow();
    record_.count_comparison();
    const auto [better, gain] = compare_raised(run_, plans_.current(), up, worth_raising * log_.tolerance, most);
    if (better.ends_lost()) {  // its weights may be damaged; the guard sees it when the plan trains these batches again
      run_.restore_kept_state();
      return false;
    }
    run_.restore(better.end());
    record_.replace(result().epochs.size(), record_.begun(), better.so_far(), log_.batches_per_epoch);
    if (better.plan() == up) {
      change_to({now, up,
                 fmt::format("in {} batches its loss was {:.2g}% +- {:.2g}% {}", better.size(), 100 * gain.mean,
                             200 * gain.error, loss_sign_ < 0 ? "higher" : "lower")});
    }
    keep_progress();
    return true;
  }

  void throw_if_fatal(const sample& run, bool is_fatal) const {
    if (is_fatal && run.status == status::failed && run_.failure()) std::rethrow_exception(run_.failure());
    require<error>(!is_fatal,
                   "training in FP32 ended as {} in epoch {}{}{} (there is no more conservative plan): "
                   "check the learning rate and the data{}",
                   name(run.status), result().epochs.size(), run.message.empty() ? "" : ": ", run.message,
                   run_.restores()
                       ? fmt::format("; the {} is in its last good state", by_language("trainer", "training"))
                       : how_damaged());
  }
  // Returns: since when the training is damaged, if a plan damaged it and the trainer cannot restore its state.
  std::string how_damaged() const {
    const auto& given_up = result().fallbacks;
    if (given_up.empty() || given_up.back().why != status::not_finite) return {};
    return fmt::format(
        "; its weights are damaged since epoch {}, in which the plan \"{}\" lost a batch: begin it anew, and "
        "give the trainer save() and restore()",
        given_up.back().epoch, name(given_up.back().from, log_.graph));
  }

  // A higher precision has to lower the loss by this fraction of the search's tolerance to be worth its time.
  static constexpr double worth_raising = 0.05;
  // Finding the cause of slow harm takes about half as many blocks of batches.
  static constexpr std::size_t least_blocks_left = 16;

  const post_training& settings_;
  outcome log_;              // a copy of the search's outcome, so that trials are numbered on from there
  training_progress state_;  // what the parts below know, and observers are told
  evaluator run_;
  any_observer& observers_;
  double loss_sign_;  // -1 for losses that are maximised
  fallback_plans plans_;
  training_record record_;
  plan_changes changes_;
  shadow_watch shadow_watch_;
  fp32_blocks blocks_;
  std::optional<block_bisection> bisection_ = {};  // while parts of a plan that harms take turns
  struct {
    std::size_t epoch = 0;
    std::optional<sample> begun = {};
  } sound_;  // the last sound state comes after so many epochs, and the part of the next one that is `begun`
};

inline void require_part(double finish) {
  require<settings_error>(finish >= 0 && finish <= 1,
                          "post_training::finish is {} (a part of the training, from 0 to 1, is wanted): give 0.1 for "
                          "its last tenth",
                          finish);
}

COMP_INLINE training_result train_after(const post_training& settings, any_trainer& trainer, any_observer& observers,
                                        const outcome& search) {
  require_part(settings.finish);
  const op_graph graph = trainer.graph();
  require<plan_error>(
      search.graph.size() == 0 || search.graph.fingerprint() == graph.fingerprint(),
      "the outcome is of another model (of {} operators, the trainer's has {}; names, kinds, shapes and "
      "edges must agree): train on with the outcome of this trainer's search",
      search.graph.size(), graph.size());
  require_fits(search.plan, graph);
  require_in_order(search.later, graph);
  const switch_on notice{[&](bool on) { trainer.post_training(on); }};  // its epochs are no experiments
  training_progress from = progress_after(search, settings.guard);
  from.checks.known = evidence_of_search(search);
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
  require_part(settings.finish);
  const outcome log = search_behind(trainer.graph(), from);
  const switch_on notice{[&](bool on) { trainer.post_training(on); }};  // its epochs are no experiments
  return guarded_training{settings, trainer, observers, log, std::move(from)}.run();
}

COMP_INLINE outcome train_before_known(any_trainer& trainer, outcome known, const search_settings& settings) {
  constexpr std::size_t most = 64;
  known.graph = trainer.graph();
  require_fits(known.plan, known.graph);
  require_in_order(known.later, known.graph);
  const plan fp32 = as_written(known.graph);
  known.hardware = trainer.hardware();
  known.batches_per_epoch = trainer.batches_per_epoch();
  known.fallbacks = {known.plan};
  if (known.plan != fp32) known.fallbacks.push_back(fp32);
  known.tolerance = settings.tolerance;
  known.floor = settings.floor;
  known.higher_is_better = settings.direction == loss_direction::higher_is_better;
  observer_list<> nobody;
  evaluator run{trainer, nobody, known};
  run.set_fp32(fp32);
  const auto train = [&](const trial& begun) {
    sample first{.loss = 0};
    run.train(begun, fp32, std::clamp<std::size_t>(known.batches_per_epoch, 1, most), first, cut_if_not_finite);
    return first;
  };
  known.baseline = run.run_and_record(stage::baseline, fp32, "fp32", train).sample;
  require_trained(run, known.baseline, 0);
  return known;
}

}  // namespace detail

}  // namespace comp
