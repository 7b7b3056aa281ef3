// SPDX-License-Identifier: Apache-2.0
// What a user's trainer and a user's policy must offer, refused in sentences when they do not.
// A capability is optional; a member of its name with another signature is refused, never ignored.
// Not here: SearchStrategy (core/strategy.hpp) and observers (search/observers.hpp).
#pragma once

#include <comp/core/decision.hpp>
#include <comp/core/execution.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/sample.hpp>
#include <comp/core/unmet.hpp>
#include <concepts>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

namespace comp {

/// Seconds of one operator in one step under the current plan.
struct op_time {
  double forward = 0;
  double backward = 0;
};

/// What lowering one operator alone does to what it computes, relative to the norm of FP32's; infinity where it leaves
/// the format's range.
struct op_error {
  double output = 0;
  double gradient = 0;  // of its inputs and parameters, for the same gradient of its output
};

}  // namespace comp

COMP_DETAIL_NAMES(save)
COMP_DETAIL_NAMES(restore)

// clang-format off
COMP_DETAIL_CAPABILITY(profile, profiles, requires(B& b) { { b.profile() } -> std::same_as<std::vector<op_time>>; })
COMP_DETAIL_CAPABILITY(sensitivity, scores_operators, requires(B& b) { { b.sensitivity(precision::bf16) } -> std::same_as<std::vector<op_error>>; })
COMP_DETAIL_CAPABILITY(perturb, perturbs, requires(B& b) { { b.perturb(std::uint64_t{1}) } -> std::same_as<void>; })
COMP_DETAIL_CAPABILITY(batches_per_epoch, counts_batches, requires(B& b) { { b.batches_per_epoch() } -> std::integral; })
COMP_DETAIL_CAPABILITY(validate, validates, requires(B& b) { { b.validate() } -> std::same_as<double>; })
COMP_DETAIL_CAPABILITY(supported_precisions, knows_precisions, requires(const B& b) { { b.supported_precisions() } -> std::same_as<std::vector<precision>>; })
COMP_DETAIL_CAPABILITY(supports, supports_some, requires(const B& b, const op_info& op) { { b.supports(op, precision::fp32) } -> std::same_as<bool>; })
COMP_DETAIL_CAPABILITY(own_autocast, has_autocast, requires(B& b) { { b.own_autocast(precision::bf16) } -> std::same_as<plan>; })
COMP_DETAIL_CAPABILITY(execution, says_execution, requires(B& b) { { b.execution() } -> std::same_as<comp::execution>; })
COMP_DETAIL_CAPABILITY(hardware, knows_hardware, requires(const B& b) { { b.hardware() } -> std::same_as<comp::hardware>; })
COMP_DETAIL_CAPABILITY(signature, signs, requires(const B& b) { { b.signature() } -> std::same_as<std::string>; })
COMP_DETAIL_CAPABILITY(post_training, knows_post_training, requires(B& b) { { b.post_training(true) } -> std::same_as<void>; })
COMP_DETAIL_CAPABILITY(on, knows_machines, requires(const B& p, const comp::hardware& machine) { { p.on(machine) } -> std::same_as<B>; })
// clang-format on

namespace comp {

namespace detail {
template <class B>
concept saves = requires(B& b) {
  b.restore(std::as_const(b).save());
}
|| requires(B& b) { b.restore(b.save()); };
template <class B>
concept stops = requires(B& b, const stop_predicate& stop) {
  { b.run_epoch(stop) } -> std::same_as<sample>;
};
// One run_epoch, or one that stops: an overload in another form would never be called.
template <class B>
concept has_one_run_epoch = requires {
  &B::run_epoch;
};
}  // namespace detail

// A sentence stays on one line:
// clang-format off
/// True for a Backend. For another class it does not compile, and the errors say, a sentence each, what is missing.
template <class B, bool Aloud = true>
constexpr bool expect_backend() {
  COMP_NEEDS("a Backend needs: const comp::op_graph& graph()",
             requires(B& b) { { b.graph() } -> std::convertible_to<const op_graph&>; });
  COMP_NEEDS("a Backend needs: void set_precision(const comp::plan&)",
             requires(B& b, const plan& p) { b.set_precision(p); });
  COMP_NEEDS("a Backend needs: comp::sample run_epoch()",
             requires(B& b) { { b.run_epoch() } -> std::same_as<sample>; });
  COMP_NEEDS("a Backend needs: comp::sample run_batch()",
             requires(B& b) { { b.run_batch() } -> std::same_as<sample>; });
  COMP_NEEDS("a Backend's second run_epoch needs the form: comp::sample run_epoch(const comp::stop_predicate&)",
             detail::has_one_run_epoch<B> || detail::stops<B>);
  COMP_NEEDS("a Backend that saves needs both: state save() and void restore(const state&)",
             !(detail::names_save<B> || detail::names_restore<B>) || detail::saves<B>);
  COMP_NEEDS("a Backend's profile needs the form: std::vector<comp::op_time> profile()",
             !detail::names_profile<B> || detail::profiles<B>);
  COMP_NEEDS("a Backend's sensitivity needs the form: std::vector<comp::op_error> sensitivity(comp::precision)",
             !detail::names_sensitivity<B> || detail::scores_operators<B>);
  COMP_NEEDS("a Backend's perturb needs the form: void perturb(std::uint64_t seed)",
             !detail::names_perturb<B> || detail::perturbs<B>);
  COMP_NEEDS("a Backend's batches_per_epoch needs the form: std::uint64_t batches_per_epoch() const",
             !detail::names_batches_per_epoch<B> || detail::counts_batches<B>);
  COMP_NEEDS("a Backend's validate needs the form: double validate()",
             !detail::names_validate<B> || detail::validates<B>);
  COMP_NEEDS("a Backend's supported_precisions needs the form: std::vector<comp::precision> supported_precisions() const",
             !detail::names_supported_precisions<B> || detail::knows_precisions<B>);
  COMP_NEEDS("a Backend's supports needs the form: bool supports(const comp::op_info&, comp::precision) const",
             !detail::names_supports<B> || detail::supports_some<B>);
  COMP_NEEDS("a Backend's own_autocast needs the form: comp::plan own_autocast(comp::precision low)",
             !detail::names_own_autocast<B> || detail::has_autocast<B>);
  COMP_NEEDS("a Backend's execution needs the form: comp::execution execution()",
             !detail::names_execution<B> || detail::says_execution<B>);
  COMP_NEEDS("a Backend's hardware needs the form: comp::hardware hardware() const",
             !detail::names_hardware<B> || detail::knows_hardware<B>);
  COMP_NEEDS("a Backend's signature needs the form: std::string signature() const",
             !detail::names_signature<B> || detail::signs<B>);
  COMP_NEEDS("a Backend's post_training needs the form: void post_training(bool on)",
             !detail::names_post_training<B> || detail::knows_post_training<B>);
  return true;
}

/// What trains. Both runs follow the plan that was set last; run_batch trains the next batch, run_epoch the whole data set
/// once; `sample` says what came of it, and `sample.status` what went wrong. Either may throw: the search records a failed
/// trial (out_of_memory: one of that status), restores the state and goes on.
/// Capabilities, used when there:
///   save(), restore(state)      the whole training state (weights, optimiser, random generators, data order): every
///                               candidate then trains the same batches from the same one. Without them FP32 and a candidate
///                               take turns on what follows.
///   run_epoch(stop_predicate)   asked after each batch, so that hopeless candidates are cut
///   profile()                   seconds per operator under the current plan, casts left out; the state must be as before
///   sensitivity(precision)      what lowering each operator alone does to its output and gradient, for all operators in a
///                               pass or two; the state must be as before
///   perturb(seed)               moves each weight by about half a unit in its last place, at random: a training from
///                               there shows by how much two FP32 trainings differ that differ in roundings only
///   batches_per_epoch()         so that batches that a search trained count as a part of the training; without it they
///                               are undone when the search ends
///   validate()                  a score, higher is better
///   supported_precisions()      default: fp32, bf16, fp16
///   supports(op, precision)     false: this operator does not run in this precision, although others may. Default: all
///                               run in all that supported_precisions() lists, and FP32 always does
///   own_autocast(precision)     a plan with plan::runs_autocast() of what a mixed precision of the backend's own gives each
///                               operator: set_precision of it trains under just that. Each search has it as a rival
///   execution()                 how the plan that is set is run, beyond its precisions: goes into the outcome and its plan file
///   hardware()                  default: unknown, sizes alone decide tensor-core use
///   signature()                 everything that makes two searches comparable: data, batch size, optimiser, seed
///   post_training(bool)         true: epochs from here on train with the found plan, and may be measured for what gives
///                               the same losses faster; false: they are compared by their times again, as at the start
template <class B>
concept Backend = expect_backend<B, false>() || unmet<"no Backend: static_assert(comp::expect_backend<T>()) says why">();

/// True for an OperatorPolicy. For another class it does not compile, and the errors say, a sentence each, what is missing.
template <class P, bool Aloud = true>
constexpr bool expect_policy() {
  COMP_NEEDS("an OperatorPolicy needs: to be copyable",
             std::copyable<P>);
  COMP_NEEDS("an OperatorPolicy needs: comp::decision classify(const comp::op_info&) const",
             requires(const P& p, const op_info& op) { { p.classify(op) } -> std::same_as<decision>; });
  COMP_NEEDS("an OperatorPolicy's on needs the form: its own type on(const comp::hardware&) const",
             !detail::names_on<P> || detail::knows_machines<P>);
  return true;
}

/// Which operators may change precision. A small copyable aggregate; `classify` must give the same answer each time.
/// Capability, used when there:
///   on(hardware)                the policy for that machine: a search asks for the one of its backend. Default: itself
template <class P>
concept OperatorPolicy = expect_policy<P, false>() || unmet<"no OperatorPolicy: static_assert(comp::expect_policy<T>()) says why">();
// clang-format on

/// `policy` as it is on `machine`.
template <OperatorPolicy P>
P on_machine(const P& policy, const hardware& machine) {
  if constexpr (detail::knows_machines<P>) return policy.on(machine);
  return policy;
}

}  // namespace comp
