// SPDX-License-Identifier: Apache-2.0
// Runs FP32's batches from the search's start, the reference that all candidates are compared with (loss_0 of the
// paper's algorithm 1). Each batch is run once, and only as many as were asked for. It also runs FP32 with perturbed
// roundings, which shows how much equally good trainings differ.
#pragma once

#include <comp/search/trainer/evaluator.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp {

/// Throws: what the trainer threw in FP32's run `fp32_run`; `error` if it did not end well otherwise. `batches`: how
/// many it has, for the message.
inline void require_trained(const evaluator& run, const sample& fp32_run, std::int64_t batches) {
  if (fp32_run.status == status::failed && run.failure()) std::rethrow_exception(run.failure());
  require<error>(fp32_run.ok(),
                 "FP32 training ended as {}{}{}{} (plans are judged against FP32, which must train): "
                 "check the data, the learning rate and the backend",
                 name(fp32_run.status), batches > 0 ? fmt::format(" after {} batches", batches) : "",
                 fp32_run.message.empty() ? "" : ": ", fp32_run.message);
}

/// Sets the number of batches of an epoch from FP32's epoch, for a trainer without batches_per_epoch().
/// Throws: `settings_error` if plans are judged by scores after an epoch and the length of an epoch is not known.
inline void count_epoch(evaluator& run, outcome& log, bool by_scores) {
  const sample& fp32 = log.baseline;
  if (fp32.batches > 1 || !fp32.curve.empty() || !fp32.batch_seconds.empty()) {
    log.batches_per_epoch = static_cast<std::size_t>(fp32.batches);
    return;
  }
  const std::string unknown =
      "run_epoch() does not say how many batches it trained: set sample.batches, or give the trainer "
      "std::uint64_t batches_per_epoch() const";
  require<settings_error>(!by_scores, "plans are to be judged by scores after an epoch, and {}", unknown);
  if (run.restores()) run.warn(unknown + "; nothing of the search counts as training");
}

/// The reference plan (evaluator::fp32) is FP32, or the most conservative plan that the backend runs. If that does not
/// fit in memory, it is the first plan of `smaller` that does.
class reference_run {
 public:
  reference_run(evaluator& run, outcome& log, const plan& fp32, std::vector<plan> smaller)
      : run_{run}, log_{log}, smaller_plans_{std::move(smaller)}, start_{run.save()} {
    run.set_fp32(fp32);
  }

  const checkpoint& start() const { return start_; }
  const sample& so_far() const { return log_.baseline; }
  /// Returns: the state after the last of its batches; empty if that state is not known, as after a recalled trial.
  const std::optional<checkpoint>& end() const { return end_; }

  /// Makes `p` the reference, whose batches begin anew at the start.
  void replace(const plan& p) {
    run_.set_fp32(p);
    log_.baseline = {};
    end_.reset();
    run_.restore(start_);
  }

  /// Returns: what `train(plan)` gives for the first plan that fits in memory; that plan becomes the reference.
  trial train_first_that_fits(auto train) {
    trial t = train(run_.fp32());
    for (; t.sample.status == status::out_of_memory && !smaller_plans_.empty(); t = train(run_.fp32())) {
      run_.record(t);
      run_.set_fp32(smaller_plans_.front());
      smaller_plans_.erase(smaller_plans_.begin());
    }
    return t;
  }

  /// Trains until the reference has `batches` batches at least. Returns: all of them. The trainer may be left at any
  /// state. Throws: `error` if FP32 does not train.
  const sample& train_until(std::size_t batches) {
    run_.end_search_on_throw([&] {
      while (static_cast<std::size_t>(so_far().batches) < batches) extend(batches);
    });
    return so_far();
  }

  /// Runs `p` from the start with perturbed roundings. The perturbation depends on `seed` alone, from 1 on, so that
  /// plans with the same seed can be compared.
  sample run_perturbed(stage where, const plan& p, std::size_t seed, std::size_t batches) {
    const auto work = [&](const trial& begun) {
      run_.restore(start_);
      run_.trainer().perturb(seed);
      sample perturbed_run;
      run_.train(begun, p, batches, perturbed_run, detail::cut_if_not_finite);
      return perturbed_run;
    };
    trial t;
    run_.end_search_on_throw(
        [&] { t = run_.run_and_record(where, p, "roundings perturbed", work, purpose::perturbed, seed); });
    return t.sample;
  }

  /// Returns: `count` runs of FP32 with perturbed roundings, which show how much equally good trainings differ.
  const std::vector<sample>& run_spread(std::size_t count, std::size_t batches) {
    while (spread_.size() < count)
      spread_.push_back(run_perturbed(stage::baseline, run_.fp32(), spread_.size() + 1, batches));
    return spread_;
  }
  const std::vector<sample>& spread() const { return spread_; }

 private:
  void extend(std::size_t batches) {
    sample all = so_far().batches > 0 ? so_far() : sample{.loss = 0};
    const auto work = [&](const trial& begun) {
      restore_end(begun);
      sample more;
      run_.train(begun, run_.fp32(), batches - static_cast<std::size_t>(all.batches), more, detail::cut_if_not_finite);
      return more;
    };
    const auto run = [&](const plan& p) { return run_.run(stage::baseline, p, "fp32", work); };
    const trial t = so_far().batches > 0 ? run(run_.fp32()) : train_first_that_fits(run);
    const sample& more = t.sample;
    require_trained(run_, more, all.batches + more.batches);
    end_.reset();
    if (run_.restores() && !t.recalled) end_ = run_.save();
    detail::append(all, more);
    log_.baseline = std::move(all);
    run_.record(t);
  }

  void restore_end(const trial& begun) {
    if (end_) {
      run_.restore(*end_);
      return;
    }
    run_.restore(start_);
    sample repeated;
    if (so_far().batches > 0)
      run_.train(begun, run_.fp32(), static_cast<std::size_t>(so_far().batches), repeated, detail::cut_if_not_finite);
  }

  evaluator& run_;
  outcome& log_;
  std::vector<plan> smaller_plans_;  // plans that need less memory, in the order in which they are tried
  checkpoint start_;
  std::optional<checkpoint> end_;
  std::vector<sample> spread_;
};

}  // namespace comp
