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
#include <type_traits>
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

// Members in a capability's form under a name near to its own, which nobody would ever call. A name alone says nothing: a
// trainer may have a save_state(path) for itself.
namespace comp::detail {
template <class B>
inline constexpr bool misnames_save = !names_save<B> && !names_restore<B> && (
  requires(B& b) { b.restore_state(b.save_state()); } || requires(B& b) { b.load_state(b.save_state()); });
template <class B>
inline constexpr bool misnames_batches_per_epoch = !names_batches_per_epoch<B> && (
  requires(B& b) { { b.batches_in_epoch() } -> std::integral; } || requires(B& b) { { b.steps_per_epoch() } -> std::integral; } ||
  requires(B& b) { { b.batchesPerEpoch() } -> std::integral; });
template <class B>
inline constexpr bool misnames_profile = !names_profile<B> && (
  requires(B& b) { { b.profiles() } -> std::same_as<std::vector<op_time>>; } ||
  requires(B& b) { { b.profile_operators() } -> std::same_as<std::vector<op_time>>; } ||
  requires(B& b) { { b.op_times() } -> std::same_as<std::vector<op_time>>; });
template <class B>
inline constexpr bool misnames_sensitivity = !names_sensitivity<B> && (
  requires(B& b) { { b.sensitivities(precision::bf16) } -> std::same_as<std::vector<op_error>>; } ||
  requires(B& b) { { b.op_errors(precision::bf16) } -> std::same_as<std::vector<op_error>>; });
template <class B>
inline constexpr bool misnames_supported_precisions = !names_supported_precisions<B> && (
  requires(const B& b) { { b.supported_precision() } -> std::same_as<std::vector<precision>>; } ||
  requires(const B& b) { { b.supportedPrecisions() } -> std::same_as<std::vector<precision>>; });
template <class B>
inline constexpr bool misnames_supports = !names_supports<B> && (
  requires(const B& b, const op_info& op) { { b.supports_precision(op, precision::fp32) } -> std::same_as<bool>; } ||
  requires(const B& b, const op_info& op) { { b.is_supported(op, precision::fp32) } -> std::same_as<bool>; });
template <class B>
inline constexpr bool misnames_own_autocast = !names_own_autocast<B> && (
  requires(B& b) { { b.autocast(precision::bf16) } -> std::same_as<plan>; } ||
  requires(B& b) { { b.ownAutocast(precision::bf16) } -> std::same_as<plan>; });
template <class B>
inline constexpr bool misnames_hardware = !names_hardware<B> && (
  requires(const B& b) { { b.machine() } -> std::same_as<comp::hardware>; } ||
  requires(const B& b) { { b.device() } -> std::same_as<comp::hardware>; } ||
  requires(const B& b) { { b.get_hardware() } -> std::same_as<comp::hardware>; });
template <class B>
inline constexpr bool misnames_post_training = !names_post_training<B> && (
  requires(B& b) { b.set_post_training(true); } || requires(B& b) { b.postTraining(true); });
template <class P>
inline constexpr bool misnames_on = !names_on<P> && (
  requires(const P& p, const comp::hardware& machine) { { p.on_machine(machine) } -> std::same_as<P>; } ||
  requires(const P& p, const comp::hardware& machine) { { p.on_hardware(machine) } -> std::same_as<P>; } ||
  requires(const P& p, const comp::hardware& machine) { { p.for_hardware(machine) } -> std::same_as<P>; });
}  // namespace comp::detail
// clang-format on

namespace comp {

namespace detail {
template <class B>
concept gives_graph = requires(B& b) {
  { b.graph() } -> std::convertible_to<const op_graph&>;
};
template <class B>
concept takes_plans = requires(B& b, const plan& p) {
  b.set_precision(p);
};
template <class B>
concept runs_epochs = requires(B& b) {
  { b.run_epoch() } -> std::same_as<sample>;
};
template <class B>
concept runs_batches = requires(B& b) {
  { b.run_batch() } -> std::same_as<sample>;
};
template <class B>
concept saves = requires(B& b) {
  b.restore(std::as_const(b).save());
}
|| requires(B& b) { b.restore(b.save()); };
template <class B>
inline constexpr bool fits_save = !(names_save<B> || names_restore<B>) || saves<B>;
template <class B>
concept stops = requires(B& b, const stop_predicate& stop) {
  { b.run_epoch(stop) } -> std::same_as<sample>;
};
// One run_epoch, or one that stops: an overload in another form would never be called.
template <class B>
concept has_one_run_epoch = requires {
  &B::run_epoch;
};
template <class P>
concept classifies = requires(const P& p, const op_info& op) {
  { p.classify(op) } -> std::same_as<decision>;
};
template <class B>
inline constexpr bool fits_second_run_epoch = has_one_run_epoch<B> || stops<B>;
}  // namespace detail

// A sentence stays on one line:
// clang-format off
/// True for a Backend. For another class it does not compile, and the errors say, a sentence each, what is missing.
template <class B, bool Aloud = true>
constexpr bool expect_backend() {
  using namespace detail;
  static_assert(!Aloud || gives_graph<B>, "a Backend needs: const comp::op_graph& graph()");
  static_assert(!Aloud || takes_plans<B>, "a Backend needs: void set_precision(const comp::plan&)");
  static_assert(!Aloud || runs_epochs<B>, "a Backend needs: comp::sample run_epoch()");
  static_assert(!Aloud || runs_batches<B>, "a Backend needs: comp::sample run_batch()");
  static_assert(!Aloud || fits_second_run_epoch<B>, "a Backend's second run_epoch needs the form: comp::sample run_epoch(const comp::stop_predicate&)");
  static_assert(!Aloud || fits_save<B>, "a Backend that saves needs both: state save() and void restore(const state&)");
  static_assert(!Aloud || fits_profile<B>, "a Backend's profile needs the form: std::vector<comp::op_time> profile()");
  static_assert(!Aloud || fits_sensitivity<B>, "a Backend's sensitivity needs the form: std::vector<comp::op_error> sensitivity(comp::precision)");
  static_assert(!Aloud || fits_perturb<B>, "a Backend's perturb needs the form: void perturb(std::uint64_t seed)");
  static_assert(!Aloud || fits_batches_per_epoch<B>, "a Backend's batches_per_epoch needs the form: std::uint64_t batches_per_epoch() const");
  static_assert(!Aloud || fits_validate<B>, "a Backend's validate needs the form: double validate()");
  static_assert(!Aloud || fits_supported_precisions<B>, "a Backend's supported_precisions needs the form: std::vector<comp::precision> supported_precisions() const");
  static_assert(!Aloud || fits_supports<B>, "a Backend's supports needs the form: bool supports(const comp::op_info&, comp::precision) const");
  static_assert(!Aloud || fits_own_autocast<B>, "a Backend's own_autocast needs the form: comp::plan own_autocast(comp::precision low)");
  static_assert(!Aloud || fits_execution<B>, "a Backend's execution needs the form: comp::execution execution()");
  static_assert(!Aloud || fits_hardware<B>, "a Backend's hardware needs the form: comp::hardware hardware() const");
  static_assert(!Aloud || fits_signature<B>, "a Backend's signature needs the form: std::string signature() const");
  static_assert(!Aloud || fits_post_training<B>, "a Backend's post_training needs the form: void post_training(bool on)");
  static_assert(!Aloud || !misnames_save<B>, "a Backend's save_state and restore_state (or load_state) are never called: name them save and restore");
  static_assert(!Aloud || !misnames_batches_per_epoch<B>, "a Backend's batches_in_epoch, steps_per_epoch or batchesPerEpoch is never called: name it batches_per_epoch");
  static_assert(!Aloud || !misnames_profile<B>, "a Backend's profiles, profile_operators or op_times is never called: name it profile");
  static_assert(!Aloud || !misnames_sensitivity<B>, "a Backend's sensitivities or op_errors is never called: name it sensitivity");
  static_assert(!Aloud || !misnames_supported_precisions<B>, "a Backend's supported_precision or supportedPrecisions is never called: name it supported_precisions");
  static_assert(!Aloud || !misnames_supports<B>, "a Backend's supports_precision or is_supported is never called: name it supports");
  static_assert(!Aloud || !misnames_own_autocast<B>, "a Backend's autocast or ownAutocast is never called: name it own_autocast");
  static_assert(!Aloud || !misnames_hardware<B>, "a Backend's machine, device or get_hardware is never called: name it hardware");
  static_assert(!Aloud || !misnames_post_training<B>, "a Backend's set_post_training or postTraining is never called: name it post_training");
  return gives_graph<B> && takes_plans<B> && runs_epochs<B> && runs_batches<B> && fits_second_run_epoch<B> && fits_save<B> &&
         fits_profile<B> && fits_sensitivity<B> && fits_perturb<B> && fits_batches_per_epoch<B> && fits_validate<B> &&
         fits_supported_precisions<B> && fits_supports<B> && fits_own_autocast<B> && fits_execution<B> && fits_hardware<B> &&
         fits_signature<B> && fits_post_training<B> && !misnames_save<B> && !misnames_batches_per_epoch<B> &&
         !misnames_profile<B> && !misnames_sensitivity<B> && !misnames_supported_precisions<B> &&
         !misnames_supports<B> && !misnames_own_autocast<B> && !misnames_hardware<B> && !misnames_post_training<B>;
}

/// True for a trainer that a search, a check or a training can be given: a Backend that can be changed and lives on. Else it
/// does not compile, and the error says why. `T`: as it is deduced for a parameter T&&.
template <class T>
constexpr bool expect_trainer() {
  using B = std::remove_reference_t<T>;
  constexpr bool pointer = !detail::gives_graph<B> && requires(B& b) { *b; };
  constexpr bool temporary = !pointer && !std::is_lvalue_reference_v<T>;
  constexpr bool constant = !pointer && !temporary && std::is_const_v<B>;
  static_assert(!pointer, "the trainer is given by a pointer (a trainer itself is needed): write *trainer");
  static_assert(!temporary, "the trainer is a temporary (it would be gone with all that it trained): give a variable");
  static_assert(!constant, "the trainer is const (it cannot train): give one that is not");
  if constexpr (pointer || temporary || constant) {
    return false;
  } else {
    return expect_backend<B>();
  }
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
  using namespace detail;
  static_assert(!Aloud || std::copyable<P>, "an OperatorPolicy needs: to be copyable");
  static_assert(!Aloud || classifies<P>, "an OperatorPolicy needs: comp::decision classify(const comp::op_info&) const");
  static_assert(!Aloud || fits_on<P>, "an OperatorPolicy's on needs the form: its own type on(const comp::hardware&) const");
  static_assert(!Aloud || !misnames_on<P>, "an OperatorPolicy's on_machine, on_hardware or for_hardware is never called: name it on");
  return std::copyable<P> && classifies<P> && fits_on<P> && !misnames_on<P>;
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
