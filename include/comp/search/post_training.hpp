// SPDX-License-Identifier: Apache-2.0
// Training on with the found plan, guarded: a loss that is not finite or leaves the road puts the last good state back
// and goes on with the next more conservative plan, in the end with all FP32. Nothing that was trained well is lost.
// Source: CoMP paper, section 4.4 ("gradually return to a more conservative plan, even FP32").
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/search/evaluator.hpp>
#include <comp/search/outcome.hpp>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace comp {

struct post_training {
  std::size_t epochs = 1;  // in all, the winner's own epoch counted in
  double diverged =
      0.5;  // an epoch's loss may be so many times |best loss| above the best loss before it counts as diverged
  std::size_t batches = 20;  // of an epoch that must have been trained before divergence is judged

  /// A plan that had to be given up.
  struct fallback {
    std::size_t epoch = 0;  // from 0
    comp::plan from = {}, to = {};
    comp::status why = comp::status::ok;
    std::string message = {};
  };
  struct result {
    std::vector<sample> epochs = {};  // each finished epoch, the winner's own first where it was kept
    std::vector<fallback> fallbacks = {};
    comp::plan plan = {};  // that the last epoch was trained with
  };

  /// Trains `trainer` on from the state that the search left it in.
  /// Throws: `comp::error` when even all FP32 does not train; `interrupted` as a search does.
  template <Backend B, Observer... Observers>
  result run(B& trainer, const outcome& found, Observers&&... observers) const;
};

namespace detail {

/// Judges an epoch so far against the best epoch yet.
class road_guard {
 public:
  road_guard(const post_training& settings, double best_loss) : settings_{settings}, best_loss_{best_loss} {}

  status operator()(const sample& so_far) const {
    if (!std::isfinite(so_far.loss)) return status::not_finite;
    if (static_cast<std::size_t>(so_far.batches) < settings_.batches) return status::ok;
    return judge(so_far);
  }
  status judge(const sample& epoch) const {
    return epoch.loss > best_loss_ + settings_.diverged * std::abs(best_loss_) ? status::diverged : status::ok;
  }

 private:
  post_training settings_;
  double best_loss_;
};

/// While it lives the trainer knows that its epochs are no experiments.
template <Backend B>
class told_of_training {
 public:
  explicit told_of_training(B& trainer) : trainer_{trainer} { tell(true); }
  told_of_training(const told_of_training&) = delete;
  told_of_training& operator=(const told_of_training&) = delete;
  ~told_of_training() {
    try {
      tell(false);
    } catch (...) {  // what ended the training is what its caller hears of
    }
  }

 private:
  void tell([[maybe_unused]] bool on) {
    if constexpr (knows_post_training<B>) trainer_.post_training(on);
  }
  B& trainer_;
};

}  // namespace detail

template <Backend B, Observer... Observers>
post_training::result post_training::run(B& trainer, const outcome& found, Observers&&... observers) const {
  observer_list<std::remove_reference_t<Observers>...> list{observers...};
  outcome log = found;  // numbers go on from the search's
  evaluator<B, decltype(list)> run{trainer, list, log};
  const detail::told_of_training<B> until_the_end{trainer};
  std::vector<comp::plan> ladder = found.fallbacks.empty() ? std::vector{found.plan} : found.fallbacks;
  result got;
  got.plan = found.plan;
  double best_loss = found.baseline.loss;
  if (found.trained_epochs > 0 && found.first_epoch) {
    got.epochs.push_back(*found.first_epoch);
    best_loss = std::fmin(best_loss, found.first_epoch->loss);
  }
  std::size_t rung = 0;
  while (got.epochs.size() < epochs) {
    const detail::road_guard guard{*this, best_loss};
    const trial t = run.next_epoch(stage::training, ladder[rung], guard);
    sample epoch = t.sample;
    if (epoch.ok()) epoch.status = guard.judge(epoch);
    if (epoch.ok()) {
      best_loss = std::fmin(best_loss, epoch.loss);  // NaN: none known before
      got.epochs.push_back(std::move(epoch));
      run.remember_start();
      continue;
    }
    run.to_start();
    require<error>(rung + 1 < ladder.size(),
                   "training in FP32 ended as {} in epoch {}{}{} (there is no more conservative plan): "
                   "check the learning rate and the data{}",
                   name(epoch.status), got.epochs.size(), epoch.message.empty() ? "" : ": ", epoch.message,
                   decltype(run)::restores ? "; the trainer is in its last good state" : "");
    got.fallbacks.push_back({got.epochs.size(), ladder[rung], ladder[rung + 1], epoch.status, epoch.message});
    got.plan = ladder[++rung];
  }
  return got;
}

}  // namespace comp
