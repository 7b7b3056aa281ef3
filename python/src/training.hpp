// SPDX-License-Identifier: Apache-2.0
// A Python training as a comp::Backend. Its step is called here. Its batches are kept here as long as a saved state may
// need them again. Its optimizers, and whatever else it names, are saved and put back by Python (comp/_state.py).
// The interpreter's lock is held throughout: what takes time is done by LibTorch, which releases it meanwhile.
#pragma once

#include <c10/util/ScopeExit.h>
#include <torch/csrc/utils/pybind.h>

#include <any>
#include <comp/comp.hpp>
#include <comp_libtorch/comp_libtorch.hpp>
#include <comp_libtorch/support/exceptions.hpp>
#include <comp_libtorch/train/rate_watch.hpp>
#include <comp_simulated/trainer.hpp>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "choices.hpp"
#include "fault.hpp"
#include "ranks.hpp"
#include "regions.hpp"

namespace comp::python {

/// A batch, and the states of Python's random generators after it was drawn, if that changed them.
struct batch {
  py::object value;
  py::object random;
  std::vector<at::Tensor> tensors;  // of the value
};
inline std::int64_t bytes_of(const batch& b) { return libtorch::bytes_of(b.tensors); }
inline std::uint64_t writes_of(const batch& b) { return libtorch::writes_of(b.tensors); }

class batches : public libtorch::replayed_batches<batch> {
 public:
  /// `length`: batches of an epoch; 0: not known.
  batches(puller pull, std::int64_t length, libtorch::replay_options options)
      : replayed_batches{std::move(pull), std::move(options)}, length_{length} {}
  std::int64_t batches_per_epoch() { return length_ > 0 ? length_ : replayed_batches::batches_per_epoch(); }

 private:
  std::int64_t length_;
};

/// Stands in for the optimizers, which are Python's.
class no_optimizer final : public torch::optim::Optimizer {
 public:
  no_optimizer()
      : Optimizer{std::vector<torch::optim::OptimizerParamGroup>{},
                  std::make_unique<torch::optim::OptimizerOptions>()} {}
  torch::Tensor step(LossClosure /*closure*/) override { return {}; }
};

/// The functions that Python gives.
struct callbacks {
  py::function pull;     // () -> (value, generators or None, its tensors), or None at an epoch's end
  py::function step;     // (value, generators or None) -> [(name, loss), ...]
  py::object score;      // () -> float, or None
  py::function save;     // () -> object
  py::function restore;  // (object)
  py::function tensors;  // () -> [tensor, ...]: those that live from step to step in its part of the state
  py::function others;   // () -> [tensor, ...]: more of the state, as far as it is known
  py::function compile;  // (on) -> whether torch.compile has any part of the step, which runs compiled while it is on
  py::object rates;      // () -> [float], the optimizers' learning rates; None if they may differ in a repeated step
  py::function prepare;  // (): has the optimizers keep their moments as the plan says
};

struct job {
  std::vector<std::pair<std::string, parameter_tree::named>> models;  // parameters as they are saved and put back
  std::vector<std::pair<std::string, parameter_tree::named>> read;    // as the forward reads them; FSDP shards those
  callbacks call;
  std::int64_t length = 0;
  libtorch::replay_options keep;
  libtorch::executor_choices choices = libtorch::executor_choices::measured;
  bool protect_blocks = true;
  std::string target;  // a GPU whose times are modelled; empty: this machine's are measured
  bool separate_products = false, exchange = false;
  std::vector<op_info> states = {};  // that the training keeps, as operators
  libtorch::freed_memory freed = libtorch::freed_memory::returned;
  std::optional<c10::Device> states_on;
  std::string about;
  std::shared_ptr<rank_team> ranks;  // null: it trains alone
};

struct recipe {
  any_policy policy;
  any_strategy stage1, stage2;
  search_settings settings;
};

/// A training that can be searched, and trained on with what was found.
class training {
 public:
  virtual ~training() = default;
  virtual outcome search(const recipe& how, observers& listeners) = 0;
  /// `watched`: among `told`; if it asks to stop, what was trained until then is the result.
  virtual training_result train_on(const outcome& found, const post_training& settings, observers& listeners,
                                   watched_training& watched) = 0;
  virtual training_result go_on(training_progress from, const post_training& settings, observers& listeners,
                                watched_training& watched) = 0;
  virtual regions& opened() = 0;
  virtual const op_graph& graph() = 0;
  virtual void set_plan(const plan& p) = 0;
  virtual const plan& current_plan() const = 0;
};

template <bool Validates>
class training_of final : public training {
  using trainer_type = libtorch::trainer<batches, Validates>;
  using modelled_type = simulated::trainer<trainer_type>;

 public:
  explicit training_of(job given)
      : given_{std::move(given)},
        trees_{planned::trees_of(given_.models)},
        trainer_{make()},
        modelled_{given_.target.empty() ? nullptr : std::make_unique<modelled_type>(*trainer_, given_.target)},
        regions_{[this](const std::string& segment, bool evaluates) {
                   auto& program = trainer_->executor();
                   return std::unique_ptr<libtorch::region>{evaluates ? new libtorch::region{program.evaluate()}
                                                                      : new libtorch::region{program.enter(segment)}};
                 },
                 [this]() -> libtorch::program& { return trainer_->executor(); }} {
    planned::add_names(trainer_->executor(), given_.read);
    if (given_.ranks != nullptr) regions_.at_end([this] { meet(); });
  }

  outcome search(const recipe& how, observers& listeners) override {
    search_settings settings = how.settings;
    if (modelled_ != nullptr && settings.precisions.empty()) settings.precisions = modelled_->usual_precisions();
    outcome found = on_all<outcome>([&](any_trainer& all) {
      observer_list<observers> list{listeners};
      return comp::detail::run_search(on_machine(how.policy, all.hardware()), how.stage1, how.stage2, settings, all,
                                      list);
    });
    found.graph = graph();
    run_compiled();
    return found;
  }
  training_result train_on(const outcome& found, const post_training& settings, observers& listeners,
                           watched_training& watched) override {
    return trained(listeners, watched, [&](any_trainer& all, any_observer& list) {
      return comp::detail::train_after(settings, all, list, found);
    });
  }
  training_result go_on(training_progress from, const post_training& settings, observers& listeners,
                        watched_training& watched) override {
    return trained(listeners, watched, [&](any_trainer& all, any_observer& list) {
      return comp::detail::train_on(settings, all, list, std::move(from));
    });
  }
  regions& opened() override { return regions_; }
  const op_graph& graph() override {
    return *fault_.out_of([&] { return &trainer_->graph(); });
  }
  void set_plan(const plan& p) override {
    fault_.out_of([&] {
      trainer_->set_precision(p);
      return true;
    });
  }
  const plan& current_plan() const override { return trainer_->executor().current_plan(); }

 private:
  /// Runs `work(trainer)` on this trainer, or on those of all ranks as one. Returns: its result, on all ranks.
  template <class Result, class Work>
  Result on_all(Work work) {
    return fault_.out_of([&]() -> Result {
      if (modelled_ == nullptr) return on_all_of<Result>(trainer_of<trainer_type>{*trainer_}, work);
      return on_all_of<Result>(trainer_of<modelled_type>{*modelled_}, work);
    });
  }
  template <class Result, class Work>
  Result on_all_of(any_trainer&& own, Work work) {
    if (given_.ranks == nullptr) return work(own);
    ranks::team& team = given_.ranks->team();
    try {
      return ranks::detail::together<Result>(own, team, work);
    } catch (const rank_error& e) {
      if (team.leads() || team.broken()) fault_.explain_by(e);  // else it may be about this rank's own exception
      throw;
    }
  }
  /// Ends the first forward of a step on all ranks: in the backward they wait for each other. A rank that fails before
  /// does not get here, and the others leave the step, too.
  void meet() {
    if (!std::exchange(to_meet_, false)) return;
    try {
      (void)given_.ranks->team().maximum({});
    } catch (const ranks::detail::abandoned&) {
      abandoned_ = true;
      throw;
    }
  }
  template <class Train>
  training_result trained(observers& listeners, watched_training& watched, Train train) {
    run_compiled();
    const auto carry_out = [&](const std::string& text) {
      return fault_.kept([&] { return watched.watcher.attr("carry_out")(text).template cast<std::string>(); });
    };
    const auto end = c10::make_scope_exit([&] {
      if (given_.ranks != nullptr) given_.ranks->team().called = {};
    });
    if (given_.ranks != nullptr) given_.ranks->team().called = carry_out;
    return on_all<training_result>([&](any_trainer& all) {
      auto* const leader = dynamic_cast<ranks::detail::leading_trainer*>(&all);
      watched.call = [=](const std::string& text) {
        return leader != nullptr ? leader->call(text) : std::vector{carry_out(text)};
      };
      comp::detail::training_observers<observers> list{listeners};
      try {
        return train(all, list);
      } catch (const interrupted&) {
        if (!watched.stop) throw;
        training_result got = watched.last->so_far;
        got.plan = watched.last->plans[watched.last->current];
        all.set_precision(got.plan);
        return got;
      }
    });
  }

  /// Runs the training's steps compiled, if torch.compile has a part of them.
  void run_compiled() {
    if (modelled_ != nullptr) return;
    fault_.out_of([&] { return trainer_->run_compiled(true); });
  }

  std::unique_ptr<trainer_type> make() {
    libtorch::setup setup{
        .modules = planned::named_modules(given_.models, trees_),
        .optimizers = {&optimizer_},
        .extra = {.save = [this]() -> std::any { return fault_.kept([&] { return given_.call.save(); }); },
                  .restore =
                      [this](const std::any& s) {
                        fault_.whole([&] { given_.call.restore(std::any_cast<const py::object&>(s)); });
                      },
                  .tensors = [this] { return tensors_of(given_.call.tensors); },
                  .others = [this] { return tensors_of(given_.call.others); },
                  .prepare = [this] { fault_.kept([&] { return given_.call.prepare(); }); }},
        .program = {.freed = given_.freed,
                    .protect_blocks = given_.protect_blocks,
                    .emulate = !given_.target.empty(),
                    .separate_products = given_.separate_products,
                    .exchange = given_.exchange,
                    .states = given_.states},
        .choices = given_.choices,
        .scale_loss = libtorch::loss_scaling::never,  // Python's torch.amp.GradScaler does it
        .states_on = given_.states_on,
        .run_compiled = [this](bool on) { return given_.call.compile(on).template cast<bool>(); },  // it raises nothing
        .agree = given_.ranks == nullptr
                     ? libtorch::agreement{}
                     : [this](std::vector<double> own) { return given_.ranks->team().maximum(std::move(own)); },
        .about = given_.about};
    batches from{[this] { return pulled(); }, given_.length, given_.keep};
    const auto step = [this](libtorch::step& s, batch& b) { train(s, b); };
    if constexpr (Validates) {
      return std::make_unique<trainer_type>(std::move(setup), std::move(from), step,
                                            [this] { return fault_.kept([&] { return score(); }); });
    } else {
      return std::make_unique<trainer_type>(std::move(setup), std::move(from), step);
    }
  }

  std::vector<at::Tensor> tensors_of(const py::function& given) {
    return fault_.kept([&] { return given().template cast<std::vector<at::Tensor>>(); });
  }

  std::optional<batch> pulled() {
    return fault_.kept([&]() -> std::optional<batch> {
      const py::object got = given_.call.pull();
      if (got.is_none()) return std::nullopt;
      const auto all = got.cast<py::tuple>();
      return batch{all[0], all[1], all[2].cast<std::vector<at::Tensor>>()};
    });
  }

  double score() {
    try {
      return given_.call.score().template cast<double>();
    } catch (const py::error_already_set& e) {
      throw_if_the_plan_failed(e, true);
      throw;
    }
  }

  void train(libtorch::step& s, const batch& b) {
    const std::size_t entered = regions_.entered();
    regions_.forget_failure();
    to_meet_ = true;
    abandoned_ = false;
    const auto rates = [&] { return given_.call.rates().template cast<std::vector<double>>(); };
    const bool watches = !given_.call.rates.is_none();
    fault_.kept([&] {
      try {
        if (watches) rates_.begin(rates());
        const py::object losses = given_.call.step(b.value, b.random);
        for (const auto& [name, loss] : losses.cast<std::vector<std::pair<std::string, at::Tensor>>>())
          s.report(name, loss);
        if (watches) rates_.end(rates(), s.number());
      } catch (const py::error_already_set& e) {
        regions_.abandon_all();
        to_meet_ = false;
        if (abandoned_) throw ranks::detail::abandoned{};
        throw_if_the_plan_failed(e, regions_.failed());
        throw;
      }
      to_meet_ = false;
      return true;
    });
    const bool left = !regions_.open();
    regions_.abandon_all();
    require<error>(left, "step {} ended in the plan's region (it is left at the end of its `with`): use `with`",
                   s.number());
    require<error>(regions_.entered() > entered,
                   "step {} never entered the plan (nothing would be lowered): write `with plan:` around the forward, "
                   "where `with torch.autocast(...):` would be",
                   s.number());
    trainer_->executor().end_step();
  }

  /// Turns what the user's step raises into a failure of the plan that is set. The search goes on if FP32 does not
  /// raise it. On ranks, which have to agree, only exceptions that a low precision may cause are the plan's: any out of
  /// a region, and outside of regions those that calculations raise.
  void throw_if_the_plan_failed(const py::error_already_set& e, bool in_region) {
    const auto& executor = trainer_->executor();
    const auto is_any_of = [&](auto... types) { return (e.matches(types) || ...); };
    const py::object own = py::module_::import("comp._comp");
    if (!e.matches(PyExc_Exception) || is_any_of(own.attr("SettingsError"), own.attr("Interrupted"))) return;
    if (given_.ranks != nullptr) {
      const bool calculated =
          is_any_of(PyExc_RuntimeError, PyExc_ArithmeticError, PyExc_AssertionError, PyExc_TypeError, PyExc_ValueError);
      if (executor.is_recording() || !executor.changes() || !(in_region || calculated)) return;
    }
    const std::string message = libtorch::detail::first_line(std::string{py::str(e.value())});
    const bool memory = e.matches(py::module_::import("torch").attr("OutOfMemoryError")) ||
                        libtorch::detail::says_out_of_memory(message);
    if (memory && executor.changes()) throw out_of_memory{message};
    if (e.matches(PyExc_RuntimeError)) throw step_error{message, std::current_exception()};
    throw step_error{fmt::format("{}: {}", std::string{py::str(e.type().attr("__name__"))}, message),
                     std::current_exception()};
  }

  job given_;
  fault fault_;
  no_optimizer optimizer_;
  libtorch::detail::rate_watch rates_{"give the search state=[scheduler]"};
  std::vector<std::shared_ptr<parameter_tree>> trees_;
  std::unique_ptr<trainer_type> trainer_;
  std::unique_ptr<modelled_type> modelled_;  // null: its times are this machine's
  regions regions_;
  bool to_meet_ = false, abandoned_ = false;  // in this step
};

inline std::unique_ptr<training> make_training(job given) {
  if (given.call.score.is_none()) return std::make_unique<training_of<false>>(std::move(given));
  return std::make_unique<training_of<true>>(std::move(given));
}

}  // namespace comp::python
