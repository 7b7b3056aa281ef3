// SPDX-License-Identifier: Apache-2.0
// A trainer whose losses are another trainer's and whose times are those of a GPU that is not here. A search on it
// finds the plan for that GPU by real losses.
// Use it to choose among plans for a machine that is rented by the hour or not delivered yet.
// Communication and memory are not modelled: peak_bytes is the wrapped trainer's. The speedup is a forecast and no
// measurement: time the found plan on the GPU.
#pragma once

#include <algorithm>
#include <array>
#include <comp/autocast/casts.hpp>
#include <comp/core/concepts.hpp>
#include <comp/core/stored_state.hpp>
#include <comp_simulated/gpu.hpp>
#include <comp_simulated/operator_time.hpp>
#include <cstddef>
#include <cstdint>
#include <set>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

namespace comp::simulated {

struct settings {
  /// Bytes that the optimizer moves per weight and step. AdamW in FP32 reads the weight, its gradient and two moments,
  /// and writes the weight and the moments.
  double optimizer_bytes = 28;
  /// Forwards and backwards in one of the trainer's batches, if it adds up gradients of several.
  double micro_batches = 1;
  /// The operators whose times count, one for each of the trainer's and of the same kinds: those of the large model for
  /// which a small one is trained. Empty: the trainer's own.
  op_graph timed_as = {};
};

namespace detail {

// Even an overload that `requires` rules out makes &trainer::run_epoch (core/unmet.hpp) ambiguous. So it is inherited.
template <class Trainer, bool Stops>
struct epochs {
  sample run_epoch() { return static_cast<Trainer&>(*this).whole_epoch(); }
};
template <class Trainer>
struct epochs<Trainer, true> {
  sample run_epoch() { return static_cast<Trainer&>(*this).whole_epoch(); }
  sample run_epoch(const stop_predicate& stop) { return static_cast<Trainer&>(*this).stopped_epoch(stop); }
};

}  // namespace detail

/// Models comp::Backend and offers what `B` offers, but for what is measured on this machine: execution, post_training
/// and run_compiled. Final, because a capability that `B` lacks must not be found by its name.
template <Backend B>
class trainer final : public detail::epochs<trainer<B>, comp::detail::stops<B>> {
 public:
  /// Keeps a reference to `inner`, which has to live longer. Throws: `settings_error` for a GPU that is not known.
  trainer(B& inner, std::string_view target, const settings& chosen = {})
      : inner_{inner}, gpu_{gpu_named(target)}, model_{gpu_}, settings_{chosen} {}

  decltype(auto) graph() { return inner_.graph(); }
  void set_precision(const plan& p) {
    inner_.set_precision(p);
    begin(p);
  }
  sample run_batch() { return timed(inner_.run_batch(), 1); }
  decltype(auto) save() requires(comp::detail::saves<B>) { return inner_.save(); }
  template <class State>
  void restore(const State& state) requires(comp::detail::saves<B>) {
    inner_.restore(state);
  }

  stored_state store_state() requires(StoresState<B>) { return inner_.store_state(); }
  void load_state(const stored_state& from) requires(StoresState<B>) { inner_.load_state(from); }

  /// Returns: the modelled seconds of one training step under `p`, with casts and the optimizer.
  /// Throws: `plan_error` if `p` does not fit the graph; what operator_model throws.
  double batch_seconds(const plan& p) {
    const op_graph& graph = timed_graph();
    const autocast::typed_plan types = stored(graph, p);
    const autocast::cast_list casts = autocast::casts(graph, types);
    double seconds = optimizer_seconds(graph);
    for (const op_time& t : op_times(graph, p, types)) seconds += t.forward + t.backward;
    for (const autocast::cast& c : casts.forward) {
      // What a product of the backward reads beside the gradient was cast for the forward, if that wants it, too.
      const bool again = c.input && in_backward(graph[c.op].product);
      if (!again || types.plan[c.op] != types.plan[graph[c.op].producers.at(0)]) seconds += cast_seconds(c);
    }
    for (const autocast::cast& c : casts.backward) {
      const auto reads = [&](std::size_t reader) { return !in_backward(graph[reader].product); };
      if (c.readers.empty() || std::any_of(c.readers.begin(), c.readers.end(), reads)) seconds += cast_seconds(c);
    }
    return seconds;
  }

  std::vector<op_time> profile() {
    const op_graph& graph = timed_graph();
    if (plan_.empty()) begin(plan{graph.size()});
    return op_times(graph, plan_, stored(graph, plan_));
  }
  std::vector<op_error> sensitivity(precision p) requires(comp::detail::scores_operators<B>) {
    return inner_.sensitivity(p);
  }
  void perturb(std::uint64_t seed) requires(comp::detail::perturbs<B>) { inner_.perturb(seed); }
  std::int64_t count_extreme() requires(comp::detail::counts_extreme<B>) { return inner_.count_extreme(); }
  std::uint64_t batches_per_epoch() requires(comp::detail::counts_batches<B>) {
    return static_cast<std::uint64_t>(inner_.batches_per_epoch());
  }
  double validate() requires(comp::detail::validates<B>) { return inner_.validate(); }
  std::vector<precision> supported_precisions() const {
    std::vector<precision> both{precision::fp32, precision::bf16, precision::fp16};
    if constexpr (comp::detail::knows_precisions<B>) both = std::as_const(inner_).supported_precisions();
    std::erase_if(both, [&](precision p) { return !computes_in(p, gpu_); });
    return both;
  }
  /// Returns: the low precisions to search if the user names none: of those below 16 bits the ones that trainings are
  /// known to converge in.
  std::vector<precision> usual_precisions() const {
    std::vector<precision> usual{precision::bf16, precision::fp8_e4m3, precision::mxfp8, precision::nvfp4};
    const auto known = supported_precisions();
    std::erase_if(usual, [&](precision p) { return std::find(known.begin(), known.end(), p) == known.end(); });
    return usual;
  }
  bool supports(const op_info& op, precision p) const requires(comp::detail::supports_some<B>) {
    return std::as_const(inner_).supports(op, p);
  }
  plan own_autocast(precision low) requires(comp::detail::has_autocast<B>) { return inner_.own_autocast(low); }
  comp::hardware hardware() const { return modelled(gpu_); }
  std::string signature() const requires(comp::detail::signs<B>) {
    return std::as_const(inner_).signature() + "; " + hardware().name;
  }

 private:
  friend detail::epochs<trainer, comp::detail::stops<B>>;
  sample whole_epoch() { return timed(inner_.run_epoch(), epoch()); }
  sample stopped_epoch(const stop_predicate& stop) {
    return timed(inner_.run_epoch([&](const sample& so_far) { return stop(timed(so_far, 0)); }), 0);
  }
  double cast_seconds(const autocast::cast& c) const {
    return settings_.micro_batches * model_.moving(static_cast<double>(c.bytes));
  }

  const op_graph& timed_graph() {
    if (!settings_.timed_as.empty()) return checked_timed_as();
    if constexpr (std::is_reference_v<decltype(inner_.graph())>) {
      return inner_.graph();
    } else {
      if (own_.empty()) own_ = inner_.graph();
      return own_;
    }
  }
  const op_graph& checked_timed_as() {
    const op_graph& own = inner_.graph();
    const op_graph& other = settings_.timed_as;
    require<settings_error>(
        other.size() == own.size(),
        "timed_as has {} operators, the trainer {} (each one's time stands for one of the trainer's): "
        "build both models alike, with other sizes",
        other.size(), own.size());
    for (std::size_t i = 0; i < own.size(); ++i) {
      require<settings_error>(
          other[i].kind == own[i].kind,
          "operator {} of timed_as is {}, the trainer's is {} (each one's time stands for one of the "
          "trainer's): build both models alike, with other sizes",
          i, other[i].kind, own[i].kind);
    }
    return other;
  }
  // Returns how many batches an epoch has; 0: not known.
  std::int64_t epoch() {
    if constexpr (comp::detail::counts_batches<B>) return static_cast<std::int64_t>(inner_.batches_per_epoch());
    return 0;
  }
  void begin(const plan& p) {
    batch_seconds_ = batch_seconds(p);
    plan_ = p;
  }
  sample timed(sample run, std::int64_t batches) {
    if (plan_.empty()) begin(plan{timed_graph().size()});
    run.batches =
        std::max({run.batches, static_cast<std::int64_t>(std::max(run.curve.size(), run.batch_seconds.size())),
                  run.batches == 0 ? batches : 0});
    require<error>(
        run.batches > 0 || !run.ok(),
        "an epoch does not say how many batches it has (their times are modelled): set sample.batches, or give "
        "the trainer batches_per_epoch()");
    run.seconds = batch_seconds_ * static_cast<double>(run.batches);
    run.batch_seconds.assign(static_cast<std::size_t>(run.batches), batch_seconds_);
    return run;
  }

  // Returns the formats of the plan's tensors: what formats below 16 bits multiply is BF16 in memory.
  static autocast::typed_plan stored(const op_graph& graph, plan p) {
    for (std::size_t i = 0; i < p.size(); ++i) {
      if (is_scaled(p[i])) p[i] = precision::bf16;
    }
    return autocast::typed(graph, p);
  }
  // An operator without a precision of its own runs in the format of what it reads.
  std::vector<op_time> op_times(const op_graph& graph, const plan& p, const autocast::typed_plan& types) {
    known_.resize(graph.size(), unknown());
    std::vector<op_time> times(graph.size());
    for (std::size_t i = 0; i < graph.size(); ++i) {
      const precision now = computes(graph[i]) ? p[i] : types.written[i];
      op_time& known = known_[i][static_cast<std::size_t>(now)];
      if (known.forward < 0) known = model_(graph[i], now);
      times[i] = {settings_.micro_batches * known.forward, settings_.micro_batches * known.backward};
    }
    return times;
  }
  double optimizer_seconds(const op_graph& graph) const {
    double weights = 0;
    std::set<std::int32_t> counted;
    for (const op_info& op : graph) {
      for (const tensor_info& t : op.inputs) {
        if (t.parameter && (t.leaf < 0 ? !in_backward(op.product) : counted.insert(t.leaf).second))
          weights += detail::elements(t);
      }
    }
    return weights > 0 ? model_.moving(weights * settings_.optimizer_bytes) : 0;
  }

  using each_precision = std::array<op_time, all_precisions.size()>;
  static each_precision unknown() {
    each_precision none;
    none.fill({.forward = -1});
    return none;
  }

  B& inner_;
  gpu gpu_;
  operator_model model_;
  settings settings_;
  op_graph own_ = {};  // of a trainer whose graph() returns a copy
  plan plan_ = {};
  double batch_seconds_ = 0;                // under the plan that is set
  std::vector<each_precision> known_ = {};  // per operator; below 0: not computed yet
};

}  // namespace comp::simulated
