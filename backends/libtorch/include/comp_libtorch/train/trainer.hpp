// SPDX-License-Identifier: Apache-2.0
// A user's own LibTorch training as a comp::Backend with every capability: models, optimizers and batches stay as they
// are, and the step is a function of the user's.
//   comp::libtorch::trainer trainer{{.modules = {{"net", net}}, .optimizers = {&optimizer}}, batches,
//                                   [&](comp::libtorch::step& s, const auto& batch) {
//     auto loss = s.forward([&] { return cross_entropy(net->forward(batch.data), batch.target); });
//     s.backward(loss);
//     s.update(optimizer);
//   }, [&] { return accuracy(net, test); }};                                   // the score may be left out
// The same state and plan give the same losses bit for bit, as far as LibTorch's operators do.
// Not here: the search (comp/search); training with a plan from a file and no trainer (planned_region.hpp).
#pragma once

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <comp/core/concepts.hpp>
#include <comp_libtorch/plan/executor_tuning.hpp>
#include <comp_libtorch/support/exceptions.hpp>
#include <comp_libtorch/support/hardware.hpp>
#include <comp_libtorch/train/batched_training.hpp>
#include <comp_libtorch/train/data_order.hpp>
#include <comp_libtorch/train/evaluation_mode.hpp>
#include <comp_libtorch/train/training_signature.hpp>
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <type_traits>
#include <utility>
#include <vector>

namespace comp::libtorch {

namespace detail {

/// Gives a trainer the member validate(), which the search looks for.
template <class Trainer>
struct with_validation {
  /// The user's score, of the models in evaluation mode and without gradients, under the plan: higher is better.
  double validate() { return static_cast<Trainer&>(*this).score(); }
};
struct without_validation {};

}  // namespace detail

template <BatchSource Source, bool Validates = false>
class trainer : public std::conditional_t<Validates, detail::with_validation<trainer<Source, Validates>>,
                                          detail::without_validation> {
  using training_type = batched_training<Source>;

 public:
  using batch_type = typename training_type::batch_type;
  using step_function = typename training_type::step_function;
  using score_function = std::function<double()>;
  using state = typename training_type::state;

  /// Throws: `settings_error`. Nothing is run before the graph is asked for.
  trainer(setup given, Source batches, step_function each_batch, score_function score = {})
      : training_{std::move(given), std::move(batches), std::move(each_batch)},
        score_{std::move(score)},
        hardware_{probe(training_.loop.device())},
        signature_{signature_of(training_.loop.given(), training_.source.signature())} {
    require_one_rank("a trainer, which compares plans by their times,");
  }
  trainer(const trainer&) = delete;
  trainer& operator=(const trainer&) = delete;

  /// The operators of a step. Asked for the first time, a step is trained to see them and then undone; the user's step
  /// function is called once more than there are steps.
  const op_graph& graph() {
    translated([this] { training_.record(); });
    return executor().graph();
  }
  Source& batches() { return training_.source; }
  program& executor() { return training_.loop.executor(); }

  /// A plan with plan::runs_autocast() trains under LibTorch's own autocast alone: see own_autocast.
  /// Throws: `plan_error` for a plan that does not fit the graph, has a precision that the device lacks, or is marked
  /// as autocast's and differs from what that does.
  void set_precision(const plan& p) {
    require_fits(p, graph());
    const auto known = supported_precisions();
    for (std::size_t i = 0; i < p.size(); ++i) {
      require<plan_error>(std::ranges::find(known, p[i]) != known.end(),
                          "plan gives operator {} {} (LibTorch on this device has no such precision): choose another",
                          i, name(p[i]));
    }
    if (p.runs_autocast()) require_is_autocast(p);
    if (p != training_.loop.current()) in_a_row_ = 0;
    training_.loop.set_plan(p);
    if (!measures() || p.runs_autocast()) return;
    const tuned_choice* tuned = tuning_.of(p);
    use(tuned == nullptr ? executor_choice{} : tuned->choice);
  }
  /// A plan from a file, run as it was best run when it was found: where that was on a machine like this one, it is not
  /// measured again. Returns: sentences on what of the file was not taken.
  std::vector<std::string> set_precision(const loaded_plan& found) {
    tuned_choice given;
    const auto left_out = apply(found, hardware_, given);
    if (!found.execution.empty() && left_out.empty()) tuning_.learn(found.plan, given);
    set_precision(found.plan);
    return left_out;
  }

  /// How the plan that is set is run, as far as that was measured or is fixed; nothing for FP32 and for autocast's.
  comp::execution execution() const {
    const plan& now = training_.loop.current();
    if (now.count_low() == 0 || now.runs_autocast()) return {};
    const program_settings& fixed = training_.loop.executor().settings();
    if (!measures()) return execution_of({.choice = {fixed.weights, fixed.images}});
    const tuned_choice* known = tuning_.of(now);
    return known == nullptr ? comp::execution{} : execution_of(*known);
  }

  /// Trains from the beginning of an epoch to its end: one that run_batch() began is left.
  sample run_epoch() {
    return run_epoch([](const sample&) { return false; });
  }
  sample run_epoch(const stop_predicate& stop) {
    return translated([&] {
      prepare();
      const sample got = training_.run_epoch(stop);
      if (got.ok()) trained_per_epoch_ = got.batches;
      return noted(got);
    });
  }
  /// Trains the next batch; after an epoch's last the next epoch begins.
  sample run_batch() {
    return translated([&] {
      prepare();
      return noted(training_.run_batch());
    });
  }

  /// The whole state of the training, and the training as it was then.
  state save() {
    return translated([&] { return training_.save(); });
  }
  void restore(const state& from) {
    translated([&] { training_.restore(from); });
  }

  std::vector<precision> supported_precisions() const { return libtorch::supported_precisions(hardware_); }
  comp::hardware hardware() const { return hardware_; }
  /// Models, weights (so the seed that made them), data, optimizers and settings as they were when the trainer was
  /// made.
  std::string signature() const { return signature_; }

  /// Seconds of each operator in a step under the current plan, medians of a few steps. The state is as before.
  std::vector<op_time> profile() {
    return translated([&] {
      training_.record();
      std::vector<op_time> times;
      training_.undone([&] { times = training_.profiled(); });
      return times;
    });
  }

  /// What lowering each operator alone does to its output and gradients, in the next step; 0 for those that no plan
  /// lowers, infinity for one that LibTorch does not run in `low`. The state is as before.
  /// Throws: `settings_error` for a precision that the device lacks.
  std::vector<op_error> sensitivity(precision low) {
    const auto known = supported_precisions();
    require<settings_error>(std::ranges::find(known, low) != known.end(),
                            "sensitivity in {} (LibTorch on this device has no such precision): choose another",
                            name(low));
    return translated([&] {
      training_.record();
      return training_.compared(low);
    });
  }

  /// What LibTorch's own autocast to `low` gives each operator, as seen in a step under it, which is undone; marked so
  /// that set_precision trains under that autocast. Throws: `error` where the step does not run under it.
  plan own_autocast(precision low) {
    if (const auto known = autocast_.find(low); known != autocast_.end()) return known->second;
    return translated([&] {
      training_.record();
      return autocast_[low] = training_.seen_autocast(low);
    });
  }

  /// Moves each weight by about half a unit in its last place, at random: see perturbation.hpp. restore() undoes it.
  void perturb(std::uint64_t seed) {
    translated([&] { training_.loop.perturb(seed); });
  }

  /// Steps of an epoch, one for each of its batches; 0: not known (a loader too large to be read ahead).
  std::uint64_t batches_per_epoch() {
    return translated([&] { return static_cast<std::uint64_t>(training_.batches_per_epoch()); });
  }

  /// Measures how the current plan is best run, and runs it so from now on; nothing for autocast's, which LibTorch
  /// runs. The state is as before.
  tuned_choice tune() {
    return translated([&] {
      training_.record();
      if (training_.loop.current().runs_autocast()) return tuned_choice{};
      tuned_choice found;
      training_.undone([&] {
        found = measured_choice(
            executor().graph(), training_.loop.current(), tuning_.settings(),
            [this](const executor_choice& c) { use(c); }, [this] { return batch_seconds(); });
      });
      tuning_.learn(training_.loop.current(), found);
      return found;
    });
  }

 private:
  friend struct detail::with_validation<trainer>;

  double score() {
    return translated([&] {
      const detail::evaluation_mode mode{training_.loop.given().modules};
      const at::NoGradGuard no_grad;
      const auto on = executor().evaluate();
      return score_();
    });
  }

  void require_is_autocast(const plan& p) {
    const auto low = std::ranges::find_if(p, is_low);
    require<plan_error>(low != p.end(),
                        "plan \"...{}\" has no low precision (LibTorch's autocast lowers some operators): search again",
                        autocast_mark);
    const plan real = own_autocast(*low);
    const auto [at, seen] = std::ranges::mismatch(p, real);
    if (at == p.end()) return;
    const auto i = static_cast<std::size_t>(at - p.begin());
    throw plan_error{fmt::format(
        "plan \"...{}\" gives operator {} (\"{}\") {}, LibTorch's autocast {} (it is run by that autocast, so they "
        "must agree): delete \"{}\" from the plan to run it operator by operator, or search again",
        autocast_mark, i, graph()[i].name, name(*at), name(*seen), autocast_mark)};
  }

  bool measures() const { return training_.loop.given().choices == executor_choices::measured; }

  void prepare() {
    training_.record();
    const plan& now = training_.loop.current();
    if (!measures() || now.runs_autocast() || !tuning_.wants(now, trained_per_epoch_, in_a_row_)) return;
    if (hopeless()) {
      tuning_.learn(now, {});
    } else {
      (void)tune();
    }
  }

  /// A batch, or two where the first one pays for what is made once, tell whether measuring is worth its time.
  bool hopeless() {
    const double limit = tuning_.settings().hopeless * fp32_seconds_;
    if (limit <= 0) return false;
    double first = 0, second = 0;
    training_.undone([&] {
      first = batch_seconds();
      if (first > limit && first < 4 * limit) second = batch_seconds();
    });
    return first > limit && (first >= 4 * limit || second > limit);
  }

  double batch_seconds() { return training_.run_batch().seconds; }

  const sample& noted(const sample& got) {
    in_a_row_ += got.batches;
    if (got.ok() && training_.loop.current().count_low() == 0) fp32_seconds_ = median(got.batch_seconds);
    return got;
  }

  void use(const executor_choice& choice) {
    program_settings now = executor().settings();
    if (executor_choice{now.weights, now.images} == choice) return;
    now.weights = choice.weights;
    now.images = choice.images;
    executor().set_settings(now);
  }

  training_type training_;
  score_function score_;
  comp::hardware hardware_;
  std::string signature_;
  std::map<precision, plan> autocast_;  // by its low precision
  tuning_memory tuning_{tuning_settings{}};
  std::int64_t trained_per_epoch_ = 0, in_a_row_ = 0;  // under the current plan
  double fp32_seconds_ = 0;                            // of a batch
};

template <class Source, class Step>
trainer(setup, Source, Step) -> trainer<Source, false>;
template <class Source, class Step, class Score>
trainer(setup, Source, Step, Score) -> trainer<Source, true>;

}  // namespace comp::libtorch
