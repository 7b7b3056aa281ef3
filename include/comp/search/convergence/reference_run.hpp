// SPDX-License-Identifier: Apache-2.0
// FP32's batches from the start of the search. The losses of all candidates are compared with theirs, so each batch is
// run once and kept. FP32 is also run with perturbed roundings, which shows how far its own losses stray.
#pragma once

#include <comp/search/trainer/evaluator.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp {

/// Throws: `error` where FP32's run `got` did not end well. `batches`: how many it had trained by then.
inline void require_trained(const sample& got, std::int64_t batches) {
  require<error>(got.ok(),
                 "FP32 training ended as {}{}{}{} (plans are judged against FP32, which must train): "
                 "check the data, the learning rate and the backend",
                 name(got.status), batches > 0 ? fmt::format(" after {} batches", batches) : "",
                 got.message.empty() ? "" : ": ", got.message);
}

/// Sets outcome::batches_per_epoch from FP32's epoch, where the trainer has no batches_per_epoch(). `counts`: true
/// where batches of the search could count as training, of which a warning tells if they do not. Throws:
/// `settings_error` where plans are judged by scores after an epoch and its length is not known.
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

/// The run of the plan that "FP32" stands for: the most conservative plan that runs, or the first of `smaller` that
/// fits in memory.
class reference_run {
 public:
  reference_run(evaluator& run, outcome& log, plan fp32, std::vector<comp::plan> smaller)
      : run_{run}, log_{log}, fp32_{std::move(fp32)}, smaller_{std::move(smaller)}, start_{run.save()} {
    run.stand_for_fp32(fp32_);
  }

  const comp::plan& plan() const { return fp32_; }
  const evaluator::place& start() const { return start_; }
  const sample& seen() const { return log_.baseline; }
  /// Returns: the state in which its batches ended; nothing where it is not known, as after a recalled trial.
  const std::optional<evaluator::place>& end() const { return end_; }

  /// Lets `p` take FP32's place, from the start on.
  void replace(const comp::plan& p) {
    fp32_ = p;
    run_.stand_for_fp32(p);
    log_.baseline = {};
    end_.reset();
    run_.restore(start_);
  }

  /// Returns: what `train(plan)` gives for the first plan that fits in memory.
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

  /// Trains until at least so many batches were run. The state of the trainer is not defined afterwards.
  /// Returns: all batches. Throws: `error` when FP32 does not train.
  const sample& train_until(std::size_t batches) {
    run_.apart([&] {
      while (static_cast<std::size_t>(seen().batches) < batches) extend(batches);
    });
    return seen();
  }

  /// Returns: a run of `p` from the start with perturbed roundings. Plans that ask for the same `seed`, from 1 on, get
  /// the same perturbation, so that they can be compared in pairs.
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

  /// Returns: `count` runs of FP32 with perturbed roundings, which show how far its losses stray by roundings alone.
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
  std::vector<comp::plan> smaller_;  // tried in this order where `fp32_` does not fit in memory
  evaluator::place start_;
  std::optional<evaluator::place> end_;
  std::vector<sample> spread_;
};

}  // namespace comp
