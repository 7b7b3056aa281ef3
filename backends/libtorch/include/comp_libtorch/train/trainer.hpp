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
#pragma once

#include <comp/core/concepts.hpp>
#include <comp/core/linkage.hpp>
#include <comp/core/stored_state.hpp>
#include <comp/files/plan_file.hpp>
#include <comp_libtorch/plan/executor_choice.hpp>
#include <comp_libtorch/plan/program.hpp>
#include <comp_libtorch/train/data_order.hpp>
#include <comp_libtorch/train/setup.hpp>
#include <comp_libtorch/train/step.hpp>
#include <concepts>
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

class training;
struct saved_training;

/// A place in the batches as a file has it.
struct stored_place {
  double epoch = 0, batch = 0;
};

/// Whether two numbers tell the place in the batches of a source.
template <class Source>
inline constexpr bool stores_place = requires(Source& s) {
  s.position().epoch;
  s.position().batch;
};

/// The batches of a training and the user's step, whatever a batch is.
class any_batches {
 public:
  virtual ~any_batches() = default;
  /// Takes the next batch. Returns: false at the end of an epoch.
  virtual bool next() = 0;
  /// Trains on the batch that was taken.
  virtual void step(libtorch::step& s) = 0;
  virtual void begin_epoch() = 0;
  virtual std::shared_ptr<const void> position() = 0;
  virtual void seek(const void* to) = 0;
  /// Requires: stores_place.
  virtual stored_place place() = 0;
  virtual void go_to(stored_place to) = 0;
  /// Returns: the batches of an epoch; nothing if the source does not say.
  virtual std::optional<std::uint64_t> per_epoch() = 0;
  virtual std::string signature() const = 0;
};

template <BatchSource Source>
struct batches_of final : any_batches {
  using batch_type = typename Source::batch_type;
  using step_function = std::function<void(libtorch::step&, batch_type&)>;
  using position_type = std::remove_cvref_t<decltype(std::declval<Source&>().position())>;

  Source source;
  step_function each_batch;
  std::optional<batch_type> taken = {};

  batches_of(Source from, step_function step) : source{std::move(from)}, each_batch{std::move(step)} {}
  bool next() override { return (taken = source.next()).has_value(); }
  void step(libtorch::step& s) override {
    batch_type batch = *std::exchange(taken, std::nullopt);
    each_batch(s, batch);
  }
  void begin_epoch() override { source.begin_epoch(); }
  std::shared_ptr<const void> position() override { return std::make_shared<const position_type>(source.position()); }
  void seek(const void* to) override { source.seek(*static_cast<const position_type*>(to)); }
  stored_place place() override {
    if constexpr (stores_place<Source>) {
      const auto now = source.position();
      return {static_cast<double>(now.epoch), static_cast<double>(now.batch)};
    } else {
      return {};
    }
  }
  void go_to([[maybe_unused]] stored_place to) override {
    if constexpr (stores_place<Source>) {
      auto now = source.position();
      now.epoch = static_cast<decltype(now.epoch)>(to.epoch);
      now.batch = static_cast<decltype(now.batch)>(to.batch);
      source.seek(now);
    }
  }
  std::optional<std::uint64_t> per_epoch() override {
    if constexpr (requires {
                    { source.batches_per_epoch() } -> std::integral;
                  }) {
      return static_cast<std::uint64_t>(source.batches_per_epoch());
    } else {
      return std::nullopt;
    }
  }
  std::string signature() const override { return source.signature(); }
};

}  // namespace detail

/// All of a trainer that does not depend on what a batch is.
class any_training {
 public:
  /// The whole state of the training. Memory: training_state.hpp.
  struct state {
    std::shared_ptr<const detail::saved_training> kept = {};
    COMP_INLINE std::int64_t bytes() const;
  };
  any_training(const any_training&) = delete;
  any_training& operator=(const any_training&) = delete;

  /// Returns: the operators of a step. The first call trains a step to see them, and undoes it: the user's step
  /// function is called once more than there are steps. Throws: `graph_error` when none was in a region.
  COMP_INLINE const op_graph& graph();
  COMP_INLINE program& executor();

  /// Trains under `p` from now on. A plan with plan::runs_autocast() trains under LibTorch's own autocast alone
  /// (own_autocast()).
  /// Throws: `plan_error` for a plan that does not fit the graph, has a precision that the device lacks, or is marked
  /// as autocast's and differs from what that does.
  COMP_INLINE void set_precision(const plan& p);
  /// Trains under a plan from a file, run as it was best run when it was found. If that was on a machine like this one,
  /// it is not measured again. Returns: sentences on what of the file was not taken.
  COMP_INLINE std::vector<std::string> set_precision(const loaded_plan& from);

  /// Measures how FP32 is best run, on a CPU, for a model with convolutions or another operator that comp has a kernel
  /// for, unless the executor's choices are fixed. The state and the plan are as before.
  /// Returns: FP32 with plan::is_tuned() set; plain FP32 if that is as fast.
  COMP_INLINE plan tuned_fp32();
  /// Returns: how the current plan is run, as far as that was measured or is fixed; nothing for FP32 that is not tuned
  /// and for autocast's.
  COMP_INLINE comp::execution execution() const;

  /// Trains from the beginning of an epoch to its end. An epoch that run_batch() began is left.
  COMP_INLINE sample run_epoch(const stop_predicate& stop = [](const sample&) { return false; });
  /// Trains the next batch; after an epoch's last the next epoch begins.
  COMP_INLINE sample run_batch();

  /// Returns: the whole state of the training, which restore() puts back.
  COMP_INLINE state save();
  COMP_INLINE void restore(const state& from);
  /// Returns: how many values of weights, pending gradients, buffers, optimizers' states and what the user adds
  /// (extra_state) are NaN, infinite or above 1e7.
  COMP_INLINE std::int64_t count_extreme();

  COMP_INLINE std::vector<precision> supported_precisions() const;
  /// Of all operators only linear layers run in formats below 16 bits, as on GPUs; if these are not emulated, only
  /// layers of sizes that the units take. Gradients travel in 16 bits or 32.
  COMP_INLINE bool supports(const op_info& op, precision p) const;
  COMP_INLINE comp::hardware hardware() const;
  /// Returns: models, weights (which tell the seed that made them), data, optimizers and settings, in words, as they
  /// were when the trainer was made.
  COMP_INLINE std::string signature() const;

  /// Returns: the seconds of each operator in a step under the current plan, medians of a few steps. The state is as
  /// before.
  COMP_INLINE std::vector<op_time> profile();

  /// Returns: what lowering each operator alone does to its output and gradients, measured in the next step; 0 for
  /// those that no plan lowers, infinity for one that LibTorch does not run in `low`. The state and the plan are as
  /// before.
  /// Throws: `settings_error` for a precision that the device lacks.
  COMP_INLINE std::vector<op_error> sensitivity(precision low);

  /// Returns: what LibTorch's own autocast to `low` gives each operator, as seen in a step under it, which is undone.
  /// The plan is marked, so that set_precision() trains under that autocast. Throws: `error` if the step does not run
  /// under it.
  COMP_INLINE plan own_autocast(precision low);

  /// Has steps run compiled from now on, or operator by operator, by setup::run_compiled. Returns: whether a compiler
  /// has any part of a step. A step shows it, so the graph has to be known.
  COMP_INLINE bool run_compiled(bool on);

  /// Moves each weight by about half a unit in its last place, at random: see perturbation.hpp. restore() undoes it.
  COMP_INLINE void perturb(std::uint64_t seed);

  /// Returns: the batches of an epoch, as the source says or counted; 0: not known (a loader too large to be read
  /// ahead).
  COMP_INLINE std::uint64_t batches_per_epoch();

  /// Measures how the current plan is best run, and runs it so from now on. Returns: the choice; nothing for autocast's
  /// plan, which LibTorch runs. The state is as before.
  COMP_INLINE tuned_choice tune();

 protected:
  COMP_INLINE any_training(setup given, std::unique_ptr<detail::any_batches> batches, std::function<double()> score);
  COMP_INLINE ~any_training();
  COMP_INLINE detail::any_batches& any_source();
  COMP_INLINE double score();
  COMP_INLINE stored_state stored();
  COMP_INLINE void load(const stored_state& from);

 private:
  std::unique_ptr<detail::training> training_;
};

/// A training with a score. Only this has the member validate(), because the search calls it if it is there.
class validated_training : public any_training {
 public:
  /// Returns: the user's score, of the models in evaluation mode and without gradients, under the plan; higher is
  /// better.
  double validate() { return score(); }

 protected:
  using any_training::any_training;
};

template <BatchSource Source, bool Validates = false>
class trainer : public std::conditional_t<Validates, validated_training, any_training> {
  using training = std::conditional_t<Validates, validated_training, any_training>;

 public:
  using batch_type = typename Source::batch_type;
  using step_function = std::function<void(step&, batch_type&)>;
  using score_function = std::function<double()>;

  /// Throws: `settings_error`. Nothing is run before the graph is asked for.
  trainer(setup given, Source batches, step_function each_batch, score_function score = {})
      : training{std::move(given),
                 std::make_unique<detail::batches_of<Source>>(std::move(batches), std::move(each_batch)),
                 std::move(score)} {}
  Source& batches() { return static_cast<detail::batches_of<Source>&>(this->any_source()).source; }

  /// Returns: the state for a file (StoresState), in which an epoch and a batch tell the place in the batches. Throws:
  /// `error` for a training with state that cannot be stored.
  stored_state store_state() requires detail::stores_place<Source> { return this->stored(); }
  /// Throws: `error`, naming what differs, for the state of another trainer.
  void load_state(const stored_state& stored) requires detail::stores_place<Source> { this->load(stored); }
};

template <class Source, class Step>
trainer(setup, Source, Step) -> trainer<Source, false>;
template <class Source, class Step, class Score>
trainer(setup, Source, Step, Score) -> trainer<Source, true>;

}  // namespace comp::libtorch

#if COMP_HEADER_ONLY
#include <comp_libtorch/train/training.hpp>
#endif
