// SPDX-License-Identifier: Apache-2.0
// A training loop with its batches and the user's step function: single steps, their undoing, and the recording of the
// graph. Users meet it as comp::libtorch::trainer.
#pragma once

#include <c10/util/ScopeExit.h>

#include <comp/core/concepts.hpp>
#include <comp_libtorch/support/exceptions.hpp>
#include <comp_libtorch/support/generators.hpp>
#include <comp_libtorch/train/data_order.hpp>
#include <comp_libtorch/train/training_loop.hpp>
#include <concepts>
#include <cstdint>
#include <functional>
#include <optional>
#include <type_traits>
#include <utility>
#include <vector>

namespace comp::libtorch {

template <BatchSource Source>
class batched_training {
 public:
  using batch_type = typename Source::batch_type;
  using step_function = std::function<void(step&, batch_type&)>;

  /// The whole state of the training. Memory: training_state.hpp.
  struct state {
    training_state training = {};
    std::remove_cvref_t<decltype(std::declval<Source&>().position())> position = {};
    std::int64_t bytes() const { return training.bytes(); }
  };

  batched_training(setup given, Source batches, step_function each_batch)
      : loop{std::move(given)}, source{std::move(batches)}, step_{std::move(each_batch)} {}

  state save() { return {loop.save(), source.position()}; }
  void restore(const state& from) {
    loop.restore(from.training);
    source.seek(from.position);
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

  /// Trains the next batch; nothing at an epoch's end.
  std::optional<step_result> next_step() {
    std::optional<batch_type> batch = source.next();
    if (!batch) return std::nullopt;
    return loop.train([&](step& s) { step_(s, *batch); });
  }
  /// Trains the next batch, of the next epoch after an epoch's end.
  std::optional<step_result> next_step_of_any_epoch() {
    auto result = next_step();
    if (!result) result = next_step();
    require<error>(result.has_value(), "epoch without a batch (there is nothing to train on): check the data");
    return result;
  }

  sample run_epoch(const stop_predicate& stop) {
    source.begin_epoch();
    sample got = loop.run(0, stop, [this] { return next_step(); });
    require<error>(got.batches > 0, "epoch without a batch (there is nothing to train on): check the data");
    return got;
  }
  sample run_batch() {
    return loop.run(
        1, [](const sample&) { return false; }, [this] { return next_step_of_any_epoch(); });
  }

  /// Trains a step to see its operators, and undoes it; nothing where that is done.
  /// Throws: `graph_error` when none was in a region.
  void record() {
    program& executor = loop.executor();
    if (executor.recorded()) return;
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
    require<graph_error>(!executor.graph().empty(),
                         "a step without operators of the plan's (nothing was in a region): call the model inside "
                         "step.forward([&] {{ ... }})");
    loop.set_plan(plan{executor.graph().size()});
  }

  /// Times the operators of a few steps.
  std::vector<op_time> profiled() {
    program& executor = loop.executor();
    (void)next_step_of_any_epoch();  // pays for what is made once
    executor.profile(true);
    try {
      for (int i = 0; i < loop.given().profile_steps; ++i) (void)next_step_of_any_epoch();
    } catch (...) {
      executor.profile(false);
      throw;
    }
    executor.profile(false);
    return executor.times();
  }

  /// Compares operators in `low` while a step is trained in FP32. The state and the plan are as before.
  std::vector<op_error> compared(precision low) {
    program& executor = loop.executor();
    const plan before = loop.current();
    detail::operator_errors errors{executor.graph().size(), low, loop.device()};
    const auto stop = [&] {
      executor.compare(nullptr);
      loop.set_plan(before);
    };
    try {
      undone([&] {
        loop.set_plan(plan{executor.graph().size()});
        executor.compare(&errors);
        (void)next_step_of_any_epoch();
      });
    } catch (...) {
      stop();
      throw;
    }
    stop();
    return errors.errors();
  }

  /// What LibTorch's autocast to `low` gives each operator, seen in a step under it. The state and the plan are as
  /// before.
  plan seen_autocast(precision low) {
    program& executor = loop.executor();
    const plan before = loop.current();
    plan seen{executor.graph().size()};
    const auto stop = c10::make_scope_exit([&] {
      executor.watch_autocast(nullptr);
      loop.set_plan(before);
    });
    undone([&] {
      loop.set_plan(plan{executor.graph().size()});
      executor.watch_autocast(&seen, low);
      (void)next_step_of_any_epoch();
    });
    return seen.as_autocast();
  }

  /// As the source says, or counted: a source that goes back gives an epoch's batches without their being trained.
  std::int64_t batches_per_epoch() {
    if constexpr (requires {
                    { source.batches_per_epoch() } -> std::integral;
                  }) {
      return static_cast<std::int64_t>(source.batches_per_epoch());
    } else {
      if (!counted_) counted_ = count_batches();
      return *counted_;
    }
  }

  training_loop loop;
  Source source;

 private:
  std::int64_t count_batches() {
    const auto here = source.position();
    const auto random = generator_states::save(loop.device(), loop.given().generators);
    const auto go_back = [&] {
      source.seek(here);
      random.restore(loop.device(), loop.given().generators);
    };
    std::int64_t count = 0;
    try {
      source.begin_epoch();
      while (source.next()) ++count;
    } catch (...) {
      go_back();
      throw;
    }
    go_back();
    return count;
  }

  step_function step_;
  std::optional<std::int64_t> counted_;
};

}  // namespace comp::libtorch
