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
#include <comp_libtorch/data_order.hpp>
#include <comp_libtorch/evaluation_mode.hpp>
#include <comp_libtorch/exceptions.hpp>
#include <comp_libtorch/executor_tuning.hpp>
#include <comp_libtorch/hardware.hpp>
#include <comp_libtorch/training_loop.hpp>
#include <comp_libtorch/training_signature.hpp>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
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
 public:
  using batch_type = typename Source::batch_type;
  using step_function = std::function<void(step&, batch_type&)>;
  using score_function = std::function<double()>;

  /// The whole state of the training: what `save` gives and `restore` takes. Memory: training_state.hpp.
  struct state {
    training_state training = {};
    std::remove_cvref_t<decltype(std::declval<Source&>().position())> position = {};
    std::int64_t bytes() const { return training.bytes(); }
  };

  /// Throws: `settings_error`. Nothing is run before the graph is asked for.
  trainer(setup given, Source batches, step_function each_batch, score_function score = {})
      : loop_{std::move(given)},
        source_{std::move(batches)},
        step_{std::move(each_batch)},
        score_{std::move(score)},
        hardware_{probe(loop_.device())},
        signature_{signature_of(loop_.given(), source_.signature())} {}
  trainer(const trainer&) = delete;
  trainer& operator=(const trainer&) = delete;

  /// The operators of a step. Asked for the first time, a step is trained to see them and then undone; the user's step
  /// function is called once more than there are steps.
  const op_graph& graph() {
    record();
    return loop_.executor().graph();
  }
  Source& batches() { return source_; }
  program& executor() { return loop_.executor(); }

  /// Throws: `plan_error` for a plan that does not fit the graph or has a precision that the device lacks.
  void set_precision(const plan& p) {
    record();
    const auto known = supported_precisions();
    for (std::size_t i = 0; i < p.size(); ++i) {
      require<plan_error>(std::ranges::find(known, p[i]) != known.end(),
                          "plan gives operator {} {} (LibTorch on this device has no such precision): choose another",
                          i, name(p[i]));
    }
    if (p != loop_.current()) in_a_row_ = 0;
    loop_.set_plan(p);
    if (loop_.given().choices == executor_choices::measured) use(tuning_.of(p));
  }

  /// Trains from the beginning of an epoch to its end: one that run_batch() began is left.
  sample run_epoch() {
    return run_epoch([](const sample&) { return false; });
  }
  sample run_epoch(const stop_predicate& stop) {
    return translated([&] {
      prepare();
      source_.begin_epoch();
      const sample got = loop_.run(0, stop, [this] { return next_step(); });
      require<error>(got.batches > 0, "epoch without a batch (there is nothing to train on): check the data");
      if (got.ok()) batches_per_epoch_ = got.batches;
      note(got);
      return got;
    });
  }
  /// Trains the next batch; after an epoch's last the next epoch begins.
  sample run_batch() {
    return translated([&] {
      prepare();
      const sample got = loop_.run(
          1, [](const sample&) { return false; }, [this] { return next_step_of_any_epoch(); });
      note(got);
      return got;
    });
  }

  state save() {
    return translated([&] { return state{loop_.save(), source_.position()}; });
  }
  void restore(const state& from) {
    translated([&] { loop_.restore(from.training); });
    source_.seek(from.position);
  }

  std::vector<precision> supported_precisions() const { return libtorch::supported_precisions(hardware_); }
  comp::hardware hardware() const { return hardware_; }
  /// Models, weights (so the seed that made them), data, optimizers and settings as they were when the trainer was
  /// made.
  std::string signature() const { return signature_; }

  /// Seconds of each operator in a step under the current plan, medians of a few steps. The state is as before.
  std::vector<op_time> profile() {
    return translated([&] {
      record();
      std::vector<op_time> times;
      undone([&] { times = profiled(loop_.executor()); });
      return times;
    });
  }

  /// Measures how the current plan is best run, and runs it so from now on. The state is as before.
  tuned_choice tune() {
    return translated([&] {
      record();
      tuned_choice found;
      undone([&] {
        found = measured_choice(
            loop_.executor().graph(), loop_.current(), tuning_.settings(), [this](const executor_choice& c) { use(c); },
            [this] { return batch_seconds(); });
      });
      tuning_.learn(loop_.current(), found.choice);
      return found;
    });
  }

 private:
  friend struct detail::with_validation<trainer>;

  double score() {
    return translated([&] {
      const detail::evaluation_mode mode{loop_.given().modules};
      const at::NoGradGuard no_grad;
      const auto on = loop_.executor().evaluate();
      return score_();
    });
  }

  std::optional<step_result> next_step() {
    std::optional<batch_type> batch = source_.next();
    if (!batch) return std::nullopt;
    return loop_.train([&](step& s) { step_(s, *batch); });
  }
  std::optional<step_result> next_step_of_any_epoch() {
    auto result = next_step();
    if (!result) result = next_step();
    require<error>(result.has_value(), "epoch without a batch (there is nothing to train on): check the data");
    return result;
  }

  /// Runs `work` and puts the state back, come what may.
  template <class F>
  void undone(F work) {
    const state before = save();
    try {
      work();
    } catch (...) {
      restore(before);
      throw;
    }
    restore(before);
  }

  void record() {
    program& executor = loop_.executor();
    if (executor.recorded()) return;
    translated([&] {
      undone([&] {
        executor.record(true);
        try {
          (void)next_step_of_any_epoch();
        } catch (...) {
          executor.record(true);  // half a step is no graph: begin anew, next time
          executor.record(false);
          throw;
        }
        executor.record(false);
      });
    });
    require<graph_error>(!executor.graph().empty(),
                         "a step without operators of the plan's (nothing was in a region): call the model inside "
                         "step.forward([&] {{ ... }})");
    loop_.set_plan(plan{executor.graph().size()});
  }

  template <class Executor>
  std::vector<op_time> profiled(Executor& executor) {
    (void)next_step_of_any_epoch();  // pays for what is made once
    executor.profile(true);
    try {
      for (int i = 0; i < loop_.given().profile_steps; ++i) (void)next_step_of_any_epoch();
    } catch (...) {
      executor.profile(false);
      throw;
    }
    executor.profile(false);
    return executor.times();
  }

  void prepare() {
    record();
    if (loop_.given().choices != executor_choices::measured) return;
    const plan& now = loop_.current();
    if (!tuning_.wants(now, batches_per_epoch_, in_a_row_)) return;
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
    undone([&] {
      first = batch_seconds();
      if (first > limit && first < 4 * limit) second = batch_seconds();
    });
    return first > limit && (first >= 4 * limit || second > limit);
  }

  double batch_seconds() {
    return loop_
        .run(
            1, [](const sample&) { return false; }, [this] { return next_step_of_any_epoch(); })
        .seconds;
  }

  void note(const sample& got) {
    in_a_row_ += got.batches;
    if (got.ok() && loop_.current().count_low() == 0) fp32_seconds_ = median(got.batch_seconds);
  }

  void use(const executor_choice& choice) {
    program_settings now = loop_.executor().settings();
    if (executor_choice{now.weights, now.images} == choice) return;
    now.weights = choice.weights;
    now.images = choice.images;
    loop_.executor().set_settings(now);
  }

  training_loop loop_;
  Source source_;
  step_function step_;
  score_function score_;
  comp::hardware hardware_;
  std::string signature_;
  tuning_memory tuning_{tuning_settings{}};
  std::int64_t batches_per_epoch_ = 0, in_a_row_ = 0;  // under the current plan
  double fp32_seconds_ = 0;                            // of a batch
};

template <class Source, class Step>
trainer(setup, Source, Step) -> trainer<Source, false>;
template <class Source, class Step, class Score>
trainer(setup, Source, Step, Score) -> trainer<Source, true>;

}  // namespace comp::libtorch
