// SPDX-License-Identifier: Apache-2.0
// The concepts that a user's trainer (Backend) and a user's policy (OperatorPolicy) model. A class that lacks something
// does not compile, and the error says in a sentence what is missing.
// A capability is an optional member. A member with a capability's name and another signature is refused: if it were
// ignored, its author would believe that the search uses it.
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

/// How long one operator takes in one training step under the current plan. Unit: [s].
struct op_time {
  double forward = 0;
  double backward = 0;
};

/// The relative error that an operator makes when it alone runs in a low precision: the 2-norm of the difference to
/// FP32's result, divided by the norm of FP32's result. Infinity if a result leaves the format's range.
struct op_error {
  double output = 0;    // error of its outputs, for FP32's inputs
  double gradient = 0;  // error of the gradients of its inputs and parameters, for FP32's gradient of its outputs
};

}  // namespace comp

COMP_DETAIL_NAMES(save)
COMP_DETAIL_NAMES(restore)

// clang-format off
COMP_DETAIL_CAPABILITY(profile, profiles, requires(B& b) { { b.profile() } -> std::same_as<std::vector<op_time>>; })
COMP_DETAIL_CAPABILITY(sensitivity, scores_operators, requires(B& b) { { b.sensitivity(precision::bf16) } -> std::same_as<std::vector<op_error>>; })
COMP_DETAIL_CAPABILITY(perturb, perturbs, requires(B& b) { { b.perturb(std::uint64_t{1}) } -> std::same_as<void>; })
COMP_DETAIL_CAPABILITY(count_extreme, counts_extreme, requires(B& b) { { b.count_extreme() } -> std::integral; })
COMP_DETAIL_CAPABILITY(batches_per_epoch, counts_batches, requires(B& b) { { b.batches_per_epoch() } -> std::integral; })
COMP_DETAIL_CAPABILITY(validate, validates, requires(B& b) { { b.validate() } -> std::same_as<double>; })
COMP_DETAIL_CAPABILITY(supported_precisions, knows_precisions, requires(const B& b) { { b.supported_precisions() } -> std::same_as<std::vector<precision>>; })
COMP_DETAIL_CAPABILITY(supports, supports_some, requires(const B& b, const op_info& op) { { b.supports(op, precision::fp32) } -> std::same_as<bool>; })
COMP_DETAIL_CAPABILITY(own_autocast, has_autocast, requires(B& b) { { b.own_autocast(precision::bf16) } -> std::same_as<plan>; })
COMP_DETAIL_CAPABILITY(tuned_fp32, tunes_fp32, requires(B& b) { { b.tuned_fp32() } -> std::same_as<plan>; })
COMP_DETAIL_CAPABILITY(execution, says_execution, requires(B& b) { { b.execution() } -> std::same_as<comp::execution>; })
COMP_DETAIL_CAPABILITY(hardware, knows_hardware, requires(const B& b) { { b.hardware() } -> std::same_as<comp::hardware>; })
COMP_DETAIL_CAPABILITY(signature, signs, requires(const B& b) { { b.signature() } -> std::same_as<std::string>; })
COMP_DETAIL_CAPABILITY(post_training, knows_post_training, requires(B& b) { { b.post_training(true) } -> std::same_as<void>; })
COMP_DETAIL_CAPABILITY(run_compiled, compiles_steps, requires(B& b) { { b.run_compiled(true) } -> std::same_as<bool>; })
COMP_DETAIL_CAPABILITY(on, knows_machines, requires(const B& p, const comp::hardware& machine) { { p.on(machine) } -> std::same_as<B>; })

// A misspelt capability would never be called, and nothing would tell its author. So a near name is refused, but only
// if the member also has the capability's signature and the class lacks the right name: a trainer may have a
// save_state(path) that is no business of comp's.
COMP_DETAIL_MISNOMER(save, !names_restore<B> && (
  requires(B& b) { b.restore_state(b.save_state()); } || requires(B& b) { b.load_state(b.save_state()); }))
COMP_DETAIL_MISNOMER(batches_per_epoch,
  requires(B& b) { { b.batches_in_epoch() } -> std::integral; } || requires(B& b) { { b.steps_per_epoch() } -> std::integral; } ||
  requires(B& b) { { b.batchesPerEpoch() } -> std::integral; })
COMP_DETAIL_MISNOMER(profile,
  requires(B& b) { { b.profiles() } -> std::same_as<std::vector<op_time>>; } ||
  requires(B& b) { { b.profile_operators() } -> std::same_as<std::vector<op_time>>; } ||
  requires(B& b) { { b.op_times() } -> std::same_as<std::vector<op_time>>; })
COMP_DETAIL_MISNOMER(sensitivity,
  requires(B& b) { { b.sensitivities(precision::bf16) } -> std::same_as<std::vector<op_error>>; } ||
  requires(B& b) { { b.op_errors(precision::bf16) } -> std::same_as<std::vector<op_error>>; })
COMP_DETAIL_MISNOMER(supported_precisions,
  requires(const B& b) { { b.supported_precision() } -> std::same_as<std::vector<precision>>; } ||
  requires(const B& b) { { b.supportedPrecisions() } -> std::same_as<std::vector<precision>>; })
COMP_DETAIL_MISNOMER(supports,
  requires(const B& b, const op_info& op) { { b.supports_precision(op, precision::fp32) } -> std::same_as<bool>; } ||
  requires(const B& b, const op_info& op) { { b.is_supported(op, precision::fp32) } -> std::same_as<bool>; })
COMP_DETAIL_MISNOMER(own_autocast,
  requires(B& b) { { b.autocast(precision::bf16) } -> std::same_as<plan>; } ||
  requires(B& b) { { b.ownAutocast(precision::bf16) } -> std::same_as<plan>; })
COMP_DETAIL_MISNOMER(hardware,
  requires(const B& b) { { b.machine() } -> std::same_as<comp::hardware>; } ||
  requires(const B& b) { { b.device() } -> std::same_as<comp::hardware>; } ||
  requires(const B& b) { { b.get_hardware() } -> std::same_as<comp::hardware>; })
COMP_DETAIL_MISNOMER(post_training, requires(B& b) { b.set_post_training(true); } || requires(B& b) { b.postTraining(true); })
COMP_DETAIL_MISNOMER(on,
  requires(const B& p, const comp::hardware& machine) { { p.on_machine(machine) } -> std::same_as<B>; } ||
  requires(const B& p, const comp::hardware& machine) { { p.on_hardware(machine) } -> std::same_as<B>; } ||
  requires(const B& p, const comp::hardware& machine) { { p.for_hardware(machine) } -> std::same_as<B>; })
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
concept takes_back = requires(B& b) {
  b.take_back();
};
template <class B>
inline constexpr bool fits_save = !(names_save<B> || names_restore<B>) || saves<B>;
template <class B>
concept stops = requires(B& b, const stop_predicate& stop) {
  { b.run_epoch(stop) } -> std::same_as<sample>;
};
// The address of an overloaded member is ambiguous, so this is false if a class has a second run_epoch. That one must
// then take a stop_predicate, because comp would never call an overload of another form.
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

// Compilers quote one source line of a failed assertion, so each sentence has to stay on one line:
// clang-format off
/// Checks that `B` models Backend, and says what is missing if it does not: each failed assertion is one sentence.
/// `Aloud` = false asks only for the answer, for the concept itself.
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
  static_assert(!Aloud || fits_count_extreme<B>, "a Backend's count_extreme needs the form: std::int64_t count_extreme()");
  static_assert(!Aloud || fits_batches_per_epoch<B>, "a Backend's batches_per_epoch needs the form: std::uint64_t batches_per_epoch() const");
  static_assert(!Aloud || fits_validate<B>, "a Backend's validate needs the form: double validate()");
  static_assert(!Aloud || fits_supported_precisions<B>, "a Backend's supported_precisions needs the form: std::vector<comp::precision> supported_precisions() const");
  static_assert(!Aloud || fits_supports<B>, "a Backend's supports needs the form: bool supports(const comp::op_info&, comp::precision) const");
  static_assert(!Aloud || fits_own_autocast<B>, "a Backend's own_autocast needs the form: comp::plan own_autocast(comp::precision low)");
  static_assert(!Aloud || fits_tuned_fp32<B>, "a Backend's tuned_fp32 needs the form: comp::plan tuned_fp32()");
  static_assert(!Aloud || fits_execution<B>, "a Backend's execution needs the form: comp::execution execution()");
  static_assert(!Aloud || fits_hardware<B>, "a Backend's hardware needs the form: comp::hardware hardware() const");
  static_assert(!Aloud || fits_signature<B>, "a Backend's signature needs the form: std::string signature() const");
  static_assert(!Aloud || fits_post_training<B>, "a Backend's post_training needs the form: void post_training(bool on)");
  static_assert(!Aloud || fits_run_compiled<B>, "a Backend's run_compiled needs the form: bool run_compiled(bool on)");
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
         fits_profile<B> && fits_sensitivity<B> && fits_perturb<B> && fits_count_extreme<B> && fits_batches_per_epoch<B> && fits_validate<B> &&
         fits_supported_precisions<B> && fits_supports<B> && fits_own_autocast<B> && fits_tuned_fp32<B> && fits_execution<B> &&
         fits_hardware<B> && fits_signature<B> && fits_post_training<B> && fits_run_compiled<B> && !misnames_save<B> &&
         !misnames_batches_per_epoch<B> && !misnames_profile<B> && !misnames_sensitivity<B> && !misnames_supported_precisions<B> &&
         !misnames_supports<B> && !misnames_own_autocast<B> && !misnames_hardware<B> && !misnames_post_training<B>;
}

/// Checks that an argument can be trained by a search, a check or a post-training: a Backend, given as a variable that is
/// not const. A temporary is refused because the trained weights would be destroyed with it.
/// Requires: `T` is what is deduced for a parameter T&&, so that temporaries and variables differ.
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

/// A trainer. run_batch trains the next batch and run_epoch the whole data set once, both under the plan that was set last.
/// Both return a `sample`; its `status` says what went wrong. Both may throw: the search then records a failed trial
/// (comp::out_of_memory: a trial of that status), restores the state and goes on.
/// Capabilities (optional members):
///   save(), restore(state)      Copy and put back the whole training state: weights, optimiser, random generators, data
///                               order. Every candidate plan then trains the same batches from the same state. Without them
///                               FP32 and a candidate train different batches in turns, which shows far less.
///   run_epoch(stop_predicate)   Asks the predicate after each batch and ends the epoch when it says so. A candidate that
///                               diverged or is hopelessly slow then costs a few batches instead of an epoch.
///   profile()                   Measures the seconds of each operator under the current plan, without casts. The training
///                               state must be the same afterwards.
///   sensitivity(precision)      Measures the error of each operator lowered alone, for all operators in a pass or two. The
///                               training state must be the same afterwards.
///   perturb(seed)               Moves each weight at random by about half a unit in its last place. A training from there
///                               shows how far roundings alone drive two FP32 trainings apart.
///   count_extreme()             Counts the values of the training state that are NaN, infinite or huge (say above 1e7). A
///                               plan whose batches add some that FP32's do not is rejected. Without it, only the losses of
///                               FP32's next batches show them.
///   batches_per_epoch()         Lets the batches that a search trained count as part of the training. Without it they are
///                               undone when the search ends, since nobody knows which epoch they belong to.
///   validate()                  Returns a score; higher is better.
///   supported_precisions()      Lists what the backend computes in. Default: fp32, bf16, fp16.
///   supports(op, precision)     Returns false for an operator that cannot run in this precision, although others can.
///                               Default: each operator runs in each supported precision. FP32 is asked about, too.
///   own_autocast(precision)     Returns the precisions that the backend's own mixed precision (such as torch.autocast) gives
///                               each operator, with plan::runs_autocast() set. set_precision of that plan trains under that
///                               mixed precision itself. Each search has it as a rival.
///   tuned_fp32()                Finds the fastest way to train in FP32, up to the order of sums. Returns FP32 with
///                               plan::is_tuned() set, by which set_precision trains in that way; FP32 without the mark
///                               if the plain way is the fastest. The training state must be the same afterwards. A
///                               search that has no lower precision to choose has it as a rival.
///   execution()                 Says how the current plan is run, beyond its precisions. The outcome and plan files keep it.
///   hardware()                  Default: unknown. Then an operator's sizes alone decide whether it can use matrix units.
///   signature()                 Names all that makes two searches comparable: data, batch size, optimiser, seed.
///   post_training(bool)         true: the epochs that follow train with the found plan, so the backend may measure whether
///                               another way to run it gives the same losses faster. false: times are compared again.
///   run_compiled(bool)          true: steps run compiled from now on, as the training will run them; false: operator by
///                               operator, as before. Returns whether a compiler has any part of a step. Plans are judged
///                               by steps that are not compiled, and compared by the times of compiled ones.
template <class B>
concept Backend = expect_backend<B, false>() || unmet<"no Backend: static_assert(comp::expect_backend<T>()) says why">();

/// Checks that `P` models OperatorPolicy, and says what is missing if it does not, as expect_backend() does.
template <class P, bool Aloud = true>
constexpr bool expect_policy() {
  using namespace detail;
  static_assert(!Aloud || std::copyable<P>, "an OperatorPolicy needs: to be copyable");
  static_assert(!Aloud || classifies<P>, "an OperatorPolicy needs: comp::decision classify(const comp::op_info&) const");
  static_assert(!Aloud || fits_on<P>, "an OperatorPolicy's on needs the form: its own type on(const comp::hardware&) const");
  static_assert(!Aloud || !misnames_on<P>, "an OperatorPolicy's on_machine, on_hardware or for_hardware is never called: name it on");
  return std::copyable<P> && classifies<P> && fits_on<P> && !misnames_on<P>;
}

/// Decides which operators may change precision: the paper's black and white lists are one such policy. A small copyable
/// aggregate; `classify` must give the same answer each time, because a search asks more than once.
/// Capability (optional member):
///   on(hardware)                Returns the policy for that machine. A search asks for the machine of its backend.
///                               Default: the same policy on every machine.
template <class P>
concept OperatorPolicy = expect_policy<P, false>() || unmet<"no OperatorPolicy: static_assert(comp::expect_policy<T>()) says why">();
// clang-format on

/// Returns: the policy for `machine`, which is `policy` itself if it does not depend on the machine.
template <OperatorPolicy P>
P on_machine(const P& policy, const hardware& machine) {
  if constexpr (detail::knows_machines<P>) return policy.on(machine);
  return policy;
}

}  // namespace comp
