// SPDX-License-Identifier: Apache-2.0
// Each part of this program, up to the next empty line, must be refused with the sentences that it expects.
#include <comp/scaling/grad_scaler.hpp>

#include "whole.hpp"

// expect: a Backend's batches_per_epoch needs the form: std::uint64_t batches_per_epoch() const
struct backend_batches_per_epoch_as_text : whole::capable_backend {
  std::string batches_per_epoch() const { return {}; }
};
static_assert(comp::expect_backend<backend_batches_per_epoch_as_text>());

// expect: a Backend's execution needs the form: comp::execution execution()
struct backend_execution_of_text : whole::capable_backend {
  std::string execution() { return {}; }
};
static_assert(comp::expect_backend<backend_execution_of_text>());

// expect: a Backend's hardware needs the form: comp::hardware hardware() const
struct backend_hardware_by_name : whole::capable_backend {
  std::string hardware() const { return "H200"; }
};
static_assert(comp::expect_backend<backend_hardware_by_name>());

// expect: a Backend's batches_in_epoch, steps_per_epoch or batchesPerEpoch is never called: name it batches_per_epoch
struct backend_misnames_batches_per_epoch : whole::backend {
  std::size_t batches_in_epoch() const { return 20; }
};
static_assert(comp::expect_backend<backend_misnames_batches_per_epoch>());

// expect: a Backend's save_state and restore_state (or load_state) are never called: name them save and restore
struct backend_misnames_save : whole::backend {
  int save_state() const { return 0; }
  void restore_state(const int&) {}
};
static_assert(comp::expect_backend<backend_misnames_save>());

// expect: a Backend's own_autocast needs the form: comp::plan own_autocast(comp::precision low)
struct backend_own_autocast_of_nothing : whole::capable_backend {
  comp::plan own_autocast() { return {}; }
};
static_assert(comp::expect_backend<backend_own_autocast_of_nothing>());

// expect: a Backend's tuned_fp32 needs the form: comp::plan tuned_fp32()
struct backend_tuned_fp32_of_precision : whole::capable_backend {
  comp::plan tuned_fp32(comp::precision) { return {}; }
};
static_assert(comp::expect_backend<backend_tuned_fp32_of_precision>());

// expect: a Backend's perturb needs the form: void perturb(std::uint64_t seed)
struct backend_perturb_without_seed : whole::capable_backend {
  void perturb() {}
};
static_assert(comp::expect_backend<backend_perturb_without_seed>());

// expect: a Backend's count_extreme needs the form: std::int64_t count_extreme()
struct backend_count_extreme_of_nothing : whole::capable_backend {
  void count_extreme() {}
};
static_assert(comp::expect_backend<backend_count_extreme_of_nothing>());

// expect: a Backend's post_training needs the form: void post_training(bool on)
struct backend_post_training_without_end : whole::capable_backend {
  void post_training() {}
};
static_assert(comp::expect_backend<backend_post_training_without_end>());

// expect: a Backend's profile needs the form: std::vector<comp::op_time> profile()
struct backend_profile_of_doubles : whole::capable_backend {
  std::vector<double> profile() { return {}; }
};
static_assert(comp::expect_backend<backend_profile_of_doubles>());

// expect: a Backend that saves needs both: state save() and void restore(const state&)
struct backend_restore_of_another_state : whole::capable_backend {
  void restore(const std::string&) {}  // save() gives an int
};
static_assert(comp::expect_backend<backend_restore_of_another_state>());

// expect: a Backend's run_compiled needs the form: bool run_compiled(bool on)
struct backend_run_compiled_of_nothing : whole::capable_backend {
  void run_compiled(bool) {}
};
static_assert(comp::expect_backend<backend_run_compiled_of_nothing>());

// expect: a Backend's second run_epoch needs the form: comp::sample run_epoch(const comp::stop_predicate&)
struct backend_run_epoch_of_numbers : whole::backend {
  using whole::backend::run_epoch;
  comp::sample run_epoch(const std::function<bool(double)>&) { return {}; }
};
static_assert(comp::expect_backend<backend_run_epoch_of_numbers>());

// expect: a Backend that saves needs both: state save() and void restore(const state&)
struct backend_save_without_restore : whole::backend {
  int save() const { return 0; }
};
static_assert(comp::expect_backend<backend_save_without_restore>());

// expect: a Backend's sensitivity needs the form: std::vector<comp::op_error> sensitivity(comp::precision)
struct backend_sensitivity_of_doubles : whole::capable_backend {
  std::vector<double> sensitivity(comp::precision) { return {}; }
};
static_assert(comp::expect_backend<backend_sensitivity_of_doubles>());

// expect: a Backend's signature needs the form: std::string signature() const
struct backend_signature_as_number : whole::capable_backend {
  std::size_t signature() const { return 0; }
};
static_assert(comp::expect_backend<backend_signature_as_number>());

// expect: a Backend's supported_precisions needs the form: std::vector<comp::precision> supported_precisions() const
struct backend_supported_precisions_not_const : whole::capable_backend {
  std::vector<comp::precision> supported_precisions() { return {}; }
};
static_assert(comp::expect_backend<backend_supported_precisions_not_const>());

// expect: a Backend's supports needs the form: bool supports(const comp::op_info&, comp::precision) const
struct backend_supports_in_precisions : whole::capable_backend {
  std::vector<comp::precision> supports(const comp::op_info&) const { return {}; }
};
static_assert(comp::expect_backend<backend_supports_in_precisions>());

// expect: a Backend's validate needs the form: double validate()
struct backend_validate_in_float : whole::capable_backend {
  float validate() { return 0; }
};
static_assert(comp::expect_backend<backend_validate_in_float>());

// expect: a Backend needs: const comp::op_graph& graph()
struct backend_without_graph : whole::backend {
  void graph() = delete;
};
static_assert(comp::expect_backend<backend_without_graph>());

// expect: a Backend needs: comp::sample run_batch()
struct backend_without_run_batch : whole::backend {
  void run_batch() = delete;
};
static_assert(comp::expect_backend<backend_without_run_batch>());

// expect: a Backend needs: comp::sample run_epoch()
struct backend_without_run_epoch : whole::backend {
  double run_epoch() { return 0; }  // a number cannot say "out of memory"
};
static_assert(comp::expect_backend<backend_without_run_epoch>());

// expect: a Backend needs: void set_precision(const comp::plan&)
struct backend_without_set_precision : whole::backend {
  void set_precision(const std::string&) {}  // hides the right one
};
static_assert(comp::expect_backend<backend_without_set_precision>());

// expect: Gradients need: double norm()
struct gradients_without_norm {
  bool unscale(double factor);
  void multiply(double factor);
  std::vector<std::string> not_finite();
};
static_assert(comp::scaling::expect_gradients<gradients_without_norm>());

// expect: an observer's batch_done needs the form: void batch_done(const comp::trial&, const comp::sample&)
struct observer_batch_done : whole::observer {
  void batch_done(const comp::trial&, float) {}
};
static_assert(comp::expect_observer<observer_batch_done>());

// expect: an observer's search_finished, search_ended or on_search_done is never called: name it search_done
struct observer_misnames_search_done {
  void on_search_done(const comp::outcome&) {}
};
static_assert(comp::expect_observer<observer_misnames_search_done>());

// expect: an observer's trial_finished, trial_ended or on_trial_done is never called: name it trial_done
struct observer_misnames_trial_done {
  void search_done(const comp::outcome&) {}
  void trial_finished(const comp::trial&) {}
};
static_assert(comp::expect_observer<observer_misnames_trial_done>());

// expect: an observer's recall needs the form: std::optional<comp::trial> recall(const comp::trial&)
struct observer_recall : whole::observer {
  comp::trial recall(const comp::trial& wanted) { return wanted; }
};
static_assert(comp::expect_observer<observer_recall>());

// expect: an observer's search_done needs the form: void search_done(const comp::outcome&)
struct observer_search_done : whole::observer {
  void search_done(const comp::plan&) {}
};
static_assert(comp::expect_observer<observer_search_done>());

// expect: an observer's search_started needs the form: void search_started(const comp::search_info&)
struct observer_search_started : whole::observer {
  void search_started() {}
};
static_assert(comp::expect_observer<observer_search_started>());

// expect: an observer's stop_requested needs the form: bool stop_requested()
struct observer_stop_requested : whole::observer {
  void stop_requested() {}
};
static_assert(comp::expect_observer<observer_stop_requested>());

// expect: an observer's training_progressed needs the form: void training_progressed(const comp::training_progress&)
struct observer_training_progressed : whole::observer {
  void training_progressed(std::size_t) {}
};
static_assert(comp::expect_observer<observer_training_progressed>());

// expect: an observer's trial_done needs the form: void or bool trial_done(const comp::trial&)
struct observer_trial_done : whole::observer {
  int trial_done(const comp::trial&) { return 0; }
};
static_assert(comp::expect_observer<observer_trial_done>());

// expect: an observer's trial_started needs the form: void trial_started(const comp::trial&)
struct observer_trial_started : whole::observer {
  void trial_started(std::size_t) {}
};
static_assert(comp::expect_observer<observer_trial_started>());

// expect: an observer's warned needs the form: void warned(const std::string&)
struct observer_warned : whole::observer {
  void warned(int) {}
};
static_assert(comp::expect_observer<observer_warned>());

// expect: an OperatorPolicy needs: comp::decision classify(const comp::op_info&) const
struct policy_classify_not_const : whole::policy {
  comp::decision classify(const comp::op_info&) { return {}; }
};
static_assert(comp::expect_policy<policy_classify_not_const>());

// expect: an OperatorPolicy's on_machine, on_hardware or for_hardware is never called: name it on
struct policy_misnames_on : whole::policy {
  policy_misnames_on on_machine(const comp::hardware&) const { return *this; }
};
static_assert(comp::expect_policy<policy_misnames_on>());

// expect: an OperatorPolicy needs: to be copyable
struct policy_not_copyable : whole::policy {
  policy_not_copyable(const policy_not_copyable&) = delete;
};
static_assert(comp::expect_policy<policy_not_copyable>());

// expect: an OperatorPolicy's on needs the form: its own type on(const comp::hardware&) const
struct policy_on_of_a_name : whole::policy {
  policy_on_of_a_name on(const char*) const { return {}; }
};
static_assert(comp::expect_policy<policy_on_of_a_name>());

// expect: an OperatorPolicy needs: comp::decision classify(const comp::op_info&) const
struct policy_without_classify : whole::policy {
  comp::category classify(const comp::op_info&) const { return comp::category::allow; }
};
static_assert(comp::expect_policy<policy_without_classify>());

// expect: no member
void train(comp::scaling::grad_scaler& scaler) { scaler.clip_norm(1.0); }  // only what unscale() gives can clip

// expect: a SearchStrategy needs: settings that are copyable
struct strategy_not_copyable : whole::strategy {
  strategy_not_copyable(const strategy_not_copyable&) = delete;
};
static_assert(comp::expect_strategy<strategy_not_copyable>());

// expect: a SearchStrategy's run needs: std::vector<comp::plan> ask(std::size_t at_most)
struct strategy_run_asks_for_one : whole::strategy {
  struct run : whole::run {
    comp::plan ask(std::size_t) { return {}; }
  };
  run start(comp::search_space) const { return {}; }
};
static_assert(comp::expect_strategy<strategy_run_asks_for_one>());

// expect: a SearchStrategy's run needs: void tell(const comp::trial&)
struct strategy_run_is_told_a_time : whole::strategy {
  struct run : whole::run {
    void tell(double) {}
  };
  run start(comp::search_space) const { return {}; }
};
static_assert(comp::expect_strategy<strategy_run_is_told_a_time>());

// expect: a SearchStrategy needs: run start(comp::search_space) const
struct strategy_without_start : whole::strategy {
  whole::run start(comp::search_space) { return {}; }  // not const: a search would change its settings
};
static_assert(comp::expect_strategy<strategy_without_start>());
