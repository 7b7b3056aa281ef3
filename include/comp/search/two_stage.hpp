// SPDX-License-Identifier: Apache-2.0
// The two-stage search: policy, strategies and settings in, a plan out that is never slower than FP32 or the rule-based
// plans beyond noise, and whose loss is accepted.
// Use: comp::two_stage search{policy, stage1, stage2}; comp::outcome best = search.run(trainer, observers...);
// Source: CoMP paper, section 3; what is added to it: design.md, section 4.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/autocast/rule_plan.hpp>
#include <comp/core/concepts.hpp>
#include <comp/search/candidate_space.hpp>
#include <comp/search/contest.hpp>
#include <comp/search/evaluator.hpp>
#include <comp/search/fallbacks.hpp>
#include <comp/search/observers.hpp>
#include <comp/search/reasons.hpp>
#include <comp/search/segments.hpp>
#include <comp/search/settings.hpp>
#include <comp/search/signature.hpp>
#include <comp/search/stage_one.hpp>
#include <comp/search/stage_two.hpp>
#include <comp/strategy/greedy.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp {

template <Backend B, OperatorPolicy P, SearchStrategy S1, SearchStrategy S2, class Observers>
class search_run;

/// The settings of a search; copy it, keep it, run it on any number of trainers.
template <OperatorPolicy P, SearchStrategy S1 = strategy::greedy, SearchStrategy S2 = strategy::greedy>
struct two_stage {
  P policy = {};
  S1 stage1 = {};  // judged by epochs
  S2 stage2 = {};  // judged by batches
  search_settings settings = {};

  /// Searches the plan for `trainer`, which is left in the winner's state: with its first epoch trained where
  /// outcome.trained_epochs says 1, else at the start.
  /// Throws: `settings_error`, `space_error` before anything is run; `comp::error` when FP32 itself does not train;
  /// `interrupted` when an observer asked to stop; what observers throw.
  template <Backend B, Observer... Observers>
  outcome run(B& trainer, Observers&&... observers) const {
    observer_list<std::remove_reference_t<Observers>...> list{observers...};
    return search_run<B, P, S1, S2, decltype(list)>{*this, trainer, list}();
  }
};

template <class P>
two_stage(P) -> two_stage<P>;
template <class P, class S1>
two_stage(P, S1) -> two_stage<P, S1>;
template <class P, class S1, class S2>
two_stage(P, S1, S2) -> two_stage<P, S1, S2>;
template <class P, class S1, class S2>
two_stage(P, S1, S2, search_settings) -> two_stage<P, S1, S2>;

/// One search on one trainer. Made by two_stage::run.
template <Backend B, OperatorPolicy P, SearchStrategy S1, SearchStrategy S2, class Observers>
class search_run {
  using settings_type = two_stage<P, S1, S2>;
  using evaluator_type = evaluator<B, Observers>;
  using epoch_type = finished_epoch<typename evaluator_type::state>;

 public:
  search_run(const settings_type& chosen, B& trainer, Observers& observers)
      : chosen_{chosen}, settings_{chosen.settings}, trainer_{trainer}, observers_{observers} {}

  outcome operator()() {
    prepare();
    evaluator_type run{trainer_, observers_, log_};
    run_ = &run;
    train_baseline();
    std::optional<epoch_type> best = search_by_epochs();
    const plan found = search_by_batches(best);
    hold_final_contest(found, best);
    settle(best);
    observers_.search_done(log_);
    return std::move(log_);
  }

 private:
  // Everything that can be refused before the first epoch is refused here.
  void prepare() {
    settings_.check();
    log_.graph = trainer_.graph();
    log_.tolerance = settings_.tolerance;
    if constexpr (detail::knows_hardware<B>) log_.hardware = trainer_.hardware();
    log_.precisions = searched_precisions(trainer_, settings_);
    lows_.assign(log_.precisions.begin() + 1, log_.precisions.end());
    fp32_ = plan{log_.graph.size()};
    require<graph_error>(!log_.graph.empty(),
                         "the model has no operators (there is nothing to plan): record a forward first");
    candidates_ = make_candidate_space(chosen_.policy, log_.graph, log_.hardware, lows_, settings_.epochs_tie);
    if (settings_.stages != stages::batches_only) (void)chosen_.stage1.start(candidates_.space);
    segments_.assign(log_.graph.size(), segment_kind::decided);
    const search_info info{log_.graph, log_.hardware, search_signature(trainer_, log_, settings_), settings_.tolerance,
                           epochs_at_most()};
    observers_.search_started(info);
  }

  std::size_t epochs_at_most() const {
    if (settings_.stages == stages::batches_only) return 2;
    const auto size = candidates_.space.size();
    return 2 + static_cast<std::size_t>(
                   std::min<std::uint64_t>(size.value_or(1000), 2 + candidates_.space.groups().size()));
  }

  // Stage 0.
  void train_baseline() {
    run_->timed(stage::baseline, [&] {
      const auto cut = [](const sample& so_far) {
        return std::isfinite(so_far.loss) ? status::ok : status::not_finite;
      };
      baseline_.result = run_->epoch(stage::baseline, fp32_, "fp32", cut);
      const sample& got = baseline_.result.sample;
      require<error>(
          got.ok(),
          "FP32 training ended as {} after {} batches{}{} (plans are judged against an FP32 epoch that trains): "
          "check the data, the learning rate and the backend",
          name(got.status), got.batches, got.message.empty() ? "" : ": ", got.message);
      log_.baseline = got;
      if (evaluator_type::restores && !run_->recalled()) baseline_.end = run_->save();
      if (got.batch_seconds.size() < settings_.race.min_rounds) measure_noise(cut);
    });
    if (!evaluator_type::restores) {
      log_.warnings.push_back(
          "the backend cannot save and restore its state: each candidate starts from the weights that the last one left");
    }
  }

  // A backend that times no batches is run once more, to know how far loss and time differ by themselves.
  template <class Cut>
  void measure_noise(Cut cut) {
    const trial again = run_->epoch(stage::baseline, fp32_, "fp32", cut);
    if (!again.sample.ok()) return;
    const double difference =
        std::abs(again.sample.loss - log_.baseline.loss) / std::max(std::abs(log_.baseline.loss), 1e-300);
    if (evaluator_type::restores && difference > settings_.tolerance / 2) {
      log_.tolerance = std::max(settings_.tolerance, 2 * difference);
      log_.warnings.push_back(fmt::format(
          "two FP32 epochs from the same state differ by {:.2g} of the loss: the tolerance was widened to {:.2g}",
          difference, log_.tolerance));
    }
    const auto [quick, slow] = std::minmax(baseline_.result.seconds, again.seconds);
    baseline_.result.bounds = {quick, slow};
    baseline_.result.seconds = (quick + slow) / 2;
  }

  // Stage 1.
  std::optional<epoch_type> search_by_epochs() {
    std::optional<epoch_type> best;
    if (settings_.stages == stages::batches_only || lows_.empty()) return best;
    run_->timed(stage::epochs, [&] {
      best = stage_one<evaluator_type>{*run_, log_, settings_, baseline_}(chosen_.stage1, candidates_);
    });
    return best;
  }

  // Stage 2, on the decided operators of `best`, or of FP32 when that is far faster.
  plan search_by_batches(const std::optional<epoch_type>& best) {
    if (settings_.stages == stages::epochs_only || lows_.empty()) return best ? best->result.plan : fp32_;
    search_space space;
    if (settings_.stages == stages::batches_only) {
      space = space_without_losses();
    } else {
      const bool pays = best && best->result.seconds < settings_.cut.slower_than_fp32 * baseline_.result.seconds;
      auto made =
          make_segment_space(log_.graph, candidates_.roles, pays ? best->result.plan : fp32_, settings_.batches_tie);
      segments_ = std::move(made.kinds);
      space = std::move(made.space);
    }
    plan found = fp32_;
    run_->timed(stage::batches, [&] {
      found = stage_two<evaluator_type>{*run_, settings_.race}(chosen_.stage2, space);
    });
    return found;
  }

  // The paper's ablation: what epochs would decide, and what no list names, by time alone.
  search_space space_without_losses() const {
    group_builder groups;
    std::vector<precision> levels{precision::fp32};
    levels.insert(levels.end(), lows_.begin(), lows_.end());
    plan base = candidates_.space.base();
    for (std::size_t i = 0; i < log_.graph.size(); ++i) {
      const op_role role = candidates_.roles[i];
      if (role == op_role::searched || role == op_role::undecided)
        groups.add(tied_as(log_.graph[i], settings_.batches_tie), levels, i);
    }
    return search_space{std::move(base), groups.take()};
  }

  void hold_final_contest(const plan& found, const std::optional<epoch_type>& best) {
    std::vector<racer> entrants;
    const auto enter = [&](const plan& p, std::string label) {
      const auto known = std::ranges::find(entrants, p, &racer::plan);
      if (known == entrants.end()) {
        entrants.push_back({.plan = p, .label = std::move(label)});
      } else if (known->label != label) {
        known->label += " = " + label;
      }
    };
    enter(fp32_, "fp32");
    for (const precision low : lows_) {
      enter(autocast::rule_plan(chosen_.policy, log_.graph, low), fmt::format("rule-based {}", name(low)));
    }
    enter(found, "comp");
    if (best) enter(best->result.plan, "comp stage 1");
    run_->timed(stage::contest, [&] { log_.contest = hold_contest(*run_, settings_.race, std::move(entrants)); });
    for (contestant& c : log_.contest) {
      if (c.plan == fp32_) c.epoch = log_.baseline;
      if (best && c.plan == best->result.plan) c.epoch = best->result.sample;
    }
  }

  // Takes the fastest contestant whose own epoch is accepted; that epoch is training already done.
  void settle(std::optional<epoch_type>& best) {
    for (const std::size_t at : ranking(log_.contest)) {
      contestant& c = log_.contest[at];
      epoch_type epoch = at == 0 ? std::move(baseline_) : epoch_of(c, best);
      c.epoch = epoch.result.sample;
      if (at != 0 && !epoch.result.accepted && settings_.stages != stages::batches_only) {
        log_.warnings.push_back(
            fmt::format("plan {} (\"{}\") was fastest but its epoch was not accepted ({}, loss {:.6g})",
                        shortened(c.plan), c.label, name(epoch.result.sample.status), epoch.result.sample.loss));
        continue;
      }
      crown(c, std::move(epoch));
      return;
    }
  }

  epoch_type epoch_of(const contestant& c, std::optional<epoch_type>& best) {
    if (best && c.plan == best->result.plan) return std::move(*best);
    epoch_type epoch;
    run_->timed(stage::training, [&] {
      epoch.result =
          run_->epoch(stage::training, c.plan, c.label, candidate_cut{without_time_limits(), log_.baseline, 1e300});
    });
    if (evaluator_type::restores && !run_->recalled()) epoch.end = run_->save();
    return epoch;
  }

  early_cut without_time_limits() const {
    early_cut cut = settings_.cut;
    cut.slower_than_fp32 = cut.slower_than_best = 1e300;
    return cut;
  }

  void crown(const contestant& winner, epoch_type epoch) {
    log_.plan = winner.plan;
    log_.speedup = winner.over_fp32.ratio;
    log_.speedup_bounds = winner.over_fp32.bounds;
    log_.first_epoch = epoch.result.sample;
    log_.fallbacks = conservative_ladder(winner.plan, candidates_.decisions);
    if (epoch.end) {
      run_->restore(*epoch.end);
      log_.trained_epochs = 1;
      if (epoch.result.stage != stage::training) {  // that epoch was counted as search; it is training now
        log_.cost(epoch.result.stage).seconds -= epoch.result.sample.seconds;
        log_.cost(stage::training).seconds += epoch.result.sample.seconds;
      }
    } else {
      run_->to_start();
    }
    trainer_.set_precision(winner.plan);
    const bool searched = winner.label.find("comp") != std::string::npos;
    log_.reasons = explain(log_, candidates_, segments_, winner.label, searched);
  }

  static std::string shortened(const plan& p) { return p.size() <= 64 ? p.str() : p.str().substr(0, 61) + "..."; }

  const settings_type& chosen_;
  const search_settings& settings_;
  B& trainer_;
  Observers& observers_;
  evaluator_type* run_ = nullptr;
  outcome log_ = {};
  plan fp32_ = {};
  std::vector<precision> lows_ = {};
  candidate_space candidates_ = {};
  std::vector<segment_kind> segments_ = {};
  epoch_type baseline_ = {};
};

}  // namespace comp
