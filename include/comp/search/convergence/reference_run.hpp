// SPDX-License-Identifier: Apache-2.0
// Runs FP32's batches from the search's start, the reference that all candidates are compared with (loss_0 of the
// paper's algorithm 1). Each batch is run once, and only as many as were asked for. It also runs FP32 with perturbed
// roundings, which shows how much trainings differ that are equally good.
#pragma once

#include <comp/search/trainer/evaluator.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp {

/// Throws: `error` where FP32's run `got` did not end well. `batches`: how many it has, for the message.
inline void require_trained(const sample& got, std::int64_t batches) {
  require<error>(got.ok(),
                 "FP32 training ended as {}{}{}{} (plans are judged against FP32, which must train): "
                 "check the data, the learning rate and the backend",
                 name(got.status), batches > 0 ? fmt::format(" after {} batches", batches) : "",
                 got.message.empty() ? "" : ": ", got.message);
}

/// Sets the number of batches of an epoch from FP32's epoch, for a trainer without batches_per_epoch(). `counts`: the
/// search's batches can be a part of the training. Throws: `settings_error` where plans are judged by scores after an
/// epoch and it is not known how long one is.
inline void count_epoch(outcome& log, bool by_scores, bool counts) {
  const sample& fp32 = log.baseline;
  if (fp32.batches > 1 || !fp32.curve.empty() || !fp32.batch_seconds.empty()) {
    log.batches_per_epoch = static_cast<std::size_t>(fp32.batches);
    return;
  }
  const std::string unknown =
      "run_epoch() does not say how many batches it trained: set sample.batches, or give the trainer "
      "std::uint64_t batches_per_epoch() const";
  require<settings_error>(!by_scores, "plans are to be judged by scores after an epoch, and {}", unknown);
  if (counts) log.warnings.push_back(unknown + "; nothing of the search counts as training");
}

/// The reference plan is FP32, or the most conservative plan that the backend runs. Where that does not fit in memory,
/// it is the first plan of `smaller` that does.
class reference_run {
 public:
  reference_run(evaluator& run, outcome& log, plan fp32, std::vector<comp::plan> smaller)
      : run_{run}, log_{log}, fp32_{std::move(fp32)}, smaller_{std::move(smaller)}, start_{run.save()} {
    run.stand_for_fp32(fp32_);
  }

  const comp::plan& plan() const { return fp32_; }
  const evaluator::place& start() const { return start_; }
  const sample& seen() const { return log_.baseline; }
  /// Returns: the state after the last of its batches; empty where that state is not known, as after a recalled trial.
  const std::optional<evaluator::place>& end() const { return end_; }

  /// Makes `p` the reference, whose batches begin anew at the start.
  void replace(const comp::plan& p) {
    fp32_ = p;
    run_.stand_for_fp32(p);
    log_.baseline = {};
    end_.reset();
    run_.restore(start_);
  }

  /// Returns: what `train(plan)` gives for the first plan that fits in memory; that plan becomes the reference.
  template <class F>
  trial first_to_fit(F train) {
    trial t = train(fp32_);
    for (; t.sample.status == status::out_of_memory && !smaller_.empty(); t = train(fp32_)) {
      run_.record(t);
      fp32_ = std::move(smaller_.front());
      run_.stand_for_fp32(fp32_);
      smaller_.erase(smaller_.begin());
    }
    return t;
  }

  /// Trains until the reference has `batches` batches at least. Returns: all of them. The trainer may be left at any
  /// state. Throws: `error` where FP32 does not train.
  const sample& train_until(std::size_t batches) {
    run_.apart([&] {
      while (static_cast<std::size_t>(seen().batches) < batches) extend(batches);
    });
    return seen();
  }

  /// Runs `p` from the start with perturbed roundings. The perturbation depends on `seed` alone, from 1 on, so that
  /// plans with the same seed can be compared.
  sample perturbed(stage where, const comp::plan& p, std::size_t seed, std::size_t batches) {
    const auto work = [&](const trial& begun) {
      run_.restore(start_);
      run_.trainer().perturb(seed);
      sample got;
      run_.train(begun, p, batches, got, detail::finite_status);
      return got;
    };
    trial t;
    run_.apart([&] {
      t = run_.run(where, p, "roundings perturbed", work, perturbed_repeats + seed);
      run_.record(t);
    });
    return t.sample;
  }

  /// Returns: `count` runs of FP32 with perturbed roundings, which show how much equally good trainings differ.
  const std::vector<sample>& spread(std::size_t count, std::size_t batches) {
    while (spread_.size() < count) spread_.push_back(perturbed(stage::baseline, fp32_, spread_.size() + 1, batches));
    return spread_;
  }
  const std::vector<sample>& spread() const { return spread_; }

 private:
  void extend(std::size_t batches) {
    sample all = seen().batches > 0 ? seen() : sample{.loss = 0};
    const auto work = [&](const trial& begun) {
      go_to_end(begun);
      sample more;
      run_.train(begun, fp32_, batches - static_cast<std::size_t>(all.batches), more, detail::finite_status);
      return more;
    };
    const auto run = [&](const comp::plan& p) { return run_.run(stage::baseline, p, "fp32", work); };
    const trial t = seen().batches > 0 ? run(fp32_) : first_to_fit(run);
    const sample& got = t.sample;
    require_trained(got, all.batches + got.batches);
    end_.reset();
    if (run_.restores() && !run_.recalled()) end_ = run_.save();
    detail::append(all, got);
    log_.baseline = std::move(all);
    run_.record(t);
  }

  void go_to_end(const trial& begun) {
    if (end_) {
      run_.restore(*end_);
      return;
    }
    run_.restore(start_);
    sample again;
    if (seen().batches > 0)
      run_.train(begun, fp32_, static_cast<std::size_t>(seen().batches), again, detail::finite_status);
  }

  evaluator& run_;
  outcome& log_;
  comp::plan fp32_;
  std::vector<comp::plan> smaller_;  // plans that need less memory, in the order in which they are tried
  evaluator::place start_;
  std::optional<evaluator::place> end_;
  std::vector<sample> spread_;
};

}  // namespace comp
