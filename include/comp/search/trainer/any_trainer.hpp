// SPDX-License-Identifier: Apache-2.0
// Puts a user's trainer, strategies and policy behind virtual functions, so that the search is compiled once for all of
// them and not once per program. `has` says which optional members a trainer offers; calling one that it lacks gives a
// default.
#pragma once

#include <algorithm>
#include <bitset>
#include <boost/core/demangle.hpp>
#include <comp/core/concepts.hpp>
#include <comp/core/execution.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/strategy.hpp>
#include <comp/strategy/guided.hpp>
#include <concepts>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <type_traits>
#include <typeinfo>
#include <utility>
#include <vector>

namespace comp {

/// Any Backend behind virtual functions.
class any_trainer {
 public:
  struct capabilities {
    bool save = false, stop = false, profile = false, sensitivity = false, perturb = false, batches_per_epoch = false,
         validate = false, supports = false, own_autocast = false, tuned_fp32 = false, signature = false,
         take_back = false;
  };

  virtual ~any_trainer() = default;
  virtual op_graph graph() = 0;
  virtual void set_precision(const plan& p) = 0;
  virtual sample run_batch() = 0;
  /// Trains an epoch. A trainer that cannot stop early never asks `stop`.
  virtual sample run_epoch(const stop_predicate& stop) = 0;
  /// Returns: the state; a null pointer for a trainer that cannot save.
  virtual std::shared_ptr<const void> save() = 0;
  virtual void restore(const void* state) = 0;
  /// Undoes the batches since the last plan other than FP32 was set, for a trainer that can do that and no more (the
  /// loop of online.hpp). Returns: false if it cannot, or if FP32 has trained on soundly since.
  virtual bool take_back() { return false; }
  virtual std::vector<op_time> profile() = 0;
  virtual std::vector<op_error> sensitivity(precision low) = 0;
  virtual void perturb(std::uint64_t seed) = 0;
  /// Returns: how many values of the state are NaN, infinite or huge; -1 for a trainer that does not count them.
  virtual std::int64_t count_extreme() = 0;
  virtual std::size_t batches_per_epoch() = 0;
  virtual double validate() = 0;
  virtual std::vector<precision> supported_precisions() const = 0;
  virtual bool supports(const op_info& op, precision p) const = 0;
  virtual plan own_autocast(precision low) = 0;
  virtual plan tuned_fp32() = 0;
  virtual comp::hardware hardware() const = 0;
  /// Returns: how the trainer runs the plan that is set; empty for a trainer that does not say.
  virtual comp::execution execution() = 0;
  /// Returns: the trainer's signature(); if it has none, the name of its type.
  virtual std::string signature() const = 0;
  virtual void post_training(bool on) = 0;
  virtual bool run_compiled(bool on) = 0;
  /// Says that `p` is known to train: a bad batch under `p` is attributed to the plan before it, as under FP32.
  virtual void trust(const plan& /*p*/) {}
  /// Says that the training after the search goes on under `p`, because it gave the plan before up, or changed it.
  virtual void go_on_under(const plan& /*p*/) {}

  const capabilities has;

 protected:
  explicit any_trainer(capabilities what) : has{what} {}
};

/// Keeps a reference to `trainer`, which has to live longer.
template <Backend B>
class trainer_of final : public any_trainer {
 public:
  explicit trainer_of(B& trainer)
      : any_trainer{{.save = detail::saves<B>,
                     .stop = detail::stops<B>,
                     .profile = can_profile(trainer),
                     .sensitivity = detail::scores_operators<B>,
                     .perturb = detail::perturbs<B>,
                     .batches_per_epoch = detail::counts_batches<B>,
                     .validate = detail::validates<B>,
                     .supports = detail::supports_some<B>,
                     .own_autocast = detail::has_autocast<B>,
                     .tuned_fp32 = detail::tunes_fp32<B>,
                     .signature = detail::signs<B>,
                     .take_back = detail::takes_back<B>}},
        trainer_{trainer} {}

  op_graph graph() override { return trainer_.graph(); }
  void set_precision(const plan& p) override { trainer_.set_precision(p); }
  sample run_batch() override { return trainer_.run_batch(); }
  sample run_epoch([[maybe_unused]] const stop_predicate& stop) override {
    if constexpr (detail::stops<B>) return trainer_.run_epoch(stop);
    return trainer_.run_epoch();
  }
  std::shared_ptr<const void> save() override {
    if constexpr (detail::saves<B>) {
      using state = std::remove_cvref_t<decltype(trainer_.save())>;
      return std::make_shared<const state>(trainer_.save());
    }
    return {};
  }
  void restore([[maybe_unused]] const void* state) override {
    if constexpr (detail::saves<B>)
      trainer_.restore(*static_cast<const std::remove_cvref_t<decltype(trainer_.save())>*>(state));
  }
  bool take_back() override {
    if constexpr (detail::takes_back<B>) return trainer_.take_back();
    return false;
  }
  std::vector<op_time> profile() override {
    if constexpr (detail::profiles<B>) return trainer_.profile();
    return {};
  }
  std::vector<op_error> sensitivity([[maybe_unused]] precision low) override {
    if constexpr (detail::scores_operators<B>) return trainer_.sensitivity(low);
    return {};
  }
  void perturb([[maybe_unused]] std::uint64_t seed) override {
    if constexpr (detail::perturbs<B>) trainer_.perturb(seed);
  }
  std::int64_t count_extreme() override {
    if constexpr (detail::counts_extreme<B>) return static_cast<std::int64_t>(trainer_.count_extreme());
    return -1;
  }
  std::size_t batches_per_epoch() override {
    if constexpr (detail::counts_batches<B>) return static_cast<std::size_t>(trainer_.batches_per_epoch());
    return 0;
  }
  double validate() override {
    if constexpr (detail::validates<B>) return trainer_.validate();
    return 0;
  }
  std::vector<precision> supported_precisions() const override {
    if constexpr (detail::knows_precisions<B>) return std::as_const(trainer_).supported_precisions();
    return {precision::fp32, precision::bf16, precision::fp16, precision::fp64};
  }
  bool supports([[maybe_unused]] const op_info& op, [[maybe_unused]] precision p) const override {
    if constexpr (detail::supports_some<B>) return std::as_const(trainer_).supports(op, p);
    return true;
  }
  plan own_autocast([[maybe_unused]] precision low) override {
    if constexpr (detail::has_autocast<B>) return trainer_.own_autocast(low);
    return {};
  }
  plan tuned_fp32() override {
    if constexpr (detail::tunes_fp32<B>) return trainer_.tuned_fp32();
    return {};
  }
  comp::execution execution() override {
    if constexpr (detail::says_execution<B>) return trainer_.execution();
    return {};
  }
  comp::hardware hardware() const override {
    if constexpr (detail::knows_hardware<B>) return std::as_const(trainer_).hardware();
    return {};
  }
  std::string signature() const override {
    if constexpr (detail::signs<B>) return std::as_const(trainer_).signature();
    return "type " + boost::core::demangle(typeid(B).name());
  }
  void post_training([[maybe_unused]] bool on) override {
    if constexpr (detail::knows_post_training<B>) trainer_.post_training(on);
  }
  bool run_compiled([[maybe_unused]] bool on) override {
    if constexpr (detail::compiles_steps<B>) return trainer_.run_compiled(on);
    return false;
  }
  void trust([[maybe_unused]] const plan& p) override {
    if constexpr (requires { trainer_.trust(p); }) trainer_.trust(p);
  }
  void go_on_under([[maybe_unused]] const plan& p) override {
    if constexpr (requires { trainer_.go_on_under(p); }) trainer_.go_on_under(p);
  }

 private:
  // A trainer may know only when it is made whether its operators can be timed.
  static bool can_profile(const B& trainer) {
    if constexpr (requires { trainer.can_profile(); }) return trainer.can_profile();
    return detail::profiles<B>;
  }
  B& trainer_;
};

/// Knows which operators run in which precision. A backend may say that FP8 exists for matrix products only, or that
/// FP32 is missing; no operator gets a wider precision than it is written in, and one in FP64 none below FP32 unless
/// the user asks for it. A precision that an operator lacks is not searched. Plans that would need it, such as a
/// rule's, get the first searched precision that the operator has.
class op_support {
 public:
  op_support() = default;  // every operator is written in FP32, and runs in every precision
  /// `lows`: the searched low precisions, in order of preference. `asked`: the user named them.
  op_support(const any_trainer& trainer, const op_graph& graph, std::span<const precision> lows, bool asked = false)
      : lows_(lows.begin(), lows.end()) {
    if (!trainer.has.supports && widest_written(graph) == precision::fp32) return;
    const auto runs = [&](const op_info& op, precision p) {
      if (p == precision::fp64 && op.as_written != p) return false;
      if (is_low(p) && op.as_written == precision::fp64 && !asked) return false;
      return !trainer.has.supports || trainer.supports(op, p);
    };
    for (const op_info& op : graph) {
      as_written_.push_back(op.as_written);
      auto& unsupported = unsupported_.emplace_back();
      for (const precision p : all_precisions) unsupported.set(static_cast<std::size_t>(p), !runs(op, p));
    }
  }
  bool supports(std::size_t op, precision p) const {
    return unsupported_.empty() || !unsupported_[op].test(static_cast<std::size_t>(p));
  }
  /// Returns: the widest precision that the backend runs operator `op` in, among the one that it is written in and the
  /// searched ones; the former if it has none of them.
  precision widest(std::size_t op) const {
    const precision own = as_written_.empty() ? precision::fp32 : as_written_[op];
    if (supports(op, own)) return own;
    for (const precision p : all_precisions) {
      const bool is_wanted = std::find(lows_.begin(), lows_.end(), p) != lows_.end();
      if (is_wanted && supports(op, p)) return p;
    }
    return own;
  }
  /// Returns: the plan that "FP32" stands for: each operator in its widest precision.
  plan widest(const op_graph& graph) const {
    plan all = as_written(graph);
    for (std::size_t i = 0; i < all.size(); ++i) {
      if (graph[i].choosable) all[i] = widest(i);
    }
    return all;
  }
  /// Returns: `p`, or the precision that operator `op` gets if the backend does not run it in `p`.
  precision substitute(std::size_t op, precision p) const {
    if (supports(op, p)) return p;
    for (const precision low : lows_) {
      if (supports(op, low)) return low;
    }
    return widest(op);
  }
  plan with_substitutes(plan p) const {
    for (std::size_t i = 0; i < p.size(); ++i) p[i] = substitute(i, p[i]);
    return p;
  }

 private:
  std::vector<std::bitset<all_precisions.size()>> unsupported_ = {};  // per operator; empty: nothing is lacking
  std::vector<precision> as_written_ = {};                            // per operator; empty: FP32
  std::vector<precision> lows_ = {};
};

/// Any OperatorPolicy behind std::function; it is an OperatorPolicy itself.
class any_policy {
 public:
  template <class P>
  requires(!std::same_as<P, any_policy> && OperatorPolicy<P>) any_policy(P policy)  // NOLINT: implicit on purpose
      : classify_{[policy](const op_info& op) { return policy.classify(op); }}, on_{[policy](const hardware& machine) {
          return any_policy{on_machine(policy, machine)};
        }} {}

  decision classify(const op_info& op) const { return classify_(op); }
  any_policy on(const hardware& machine) const { return on_(machine); }

 private:
  std::function<decision(const op_info&)> classify_;
  std::function<any_policy(const hardware&)> on_;
};

/// Any SearchStrategy behind std::function; it is a SearchStrategy itself.
class any_strategy {
 public:
  struct run {
    std::function<std::vector<plan>(std::size_t)> ask = {};
    std::function<void(const trial&)> tell = {};
    std::size_t max_plans = 0;  // the most plans that it will ask for; 0: not known
    std::size_t at_most() const { return max_plans; }
  };

  template <class S>
  requires(!std::same_as<S, any_strategy> && SearchStrategy<S>) any_strategy(S strategy)  // NOLINT: implicit on purpose
      : start_{[strategy](search_space over) {
          const auto strategy_run = std::make_shared<detail::run_of<S>>(strategy.start(std::move(over)));
          run started_run{.ask = [strategy_run](std::size_t n) { return strategy_run->ask(n); },
                          .tell = [strategy_run](const trial& result) { strategy_run->tell(result); }};
          if constexpr (requires {
                          { strategy_run->at_most() } -> std::convertible_to<std::size_t>;
                        })
            started_run.max_plans = static_cast<std::size_t>(strategy_run->at_most());
          return started_run;
        }} {
    if constexpr (std::same_as<S, strategy::guided>) guide_ = strategy;
  }

  run start(search_space over) const { return start_(std::move(over)); }
  /// Returns: the settings of strategy::guided, which the search runs itself; nullptr for any other strategy.
  const strategy::guided* guide() const { return guide_ ? &*guide_ : nullptr; }

 private:
  std::function<run(search_space)> start_;
  std::optional<strategy::guided> guide_ = {};
};

}  // namespace comp
