// SPDX-License-Identifier: Apache-2.0
// Positives, and optional members one at a time; each fault has its program in tests/promises/refuse.
#include "promises/refuse/whole.hpp"

namespace {

static_assert(comp::Backend<whole::backend>);
static_assert(comp::Backend<whole::capable_backend>);
static_assert(comp::OperatorPolicy<whole::policy>);
static_assert(comp::SearchStrategy<whole::strategy>);
static_assert(comp::Observer<whole::observer>);
static_assert(!comp::Backend<int>);
static_assert(!comp::OperatorPolicy<int>);
static_assert(!comp::SearchStrategy<int>);

struct backend_by_value : whole::backend {
  comp::op_graph graph() { return {}; }
};
static_assert(comp::Backend<backend_by_value>);  // convertible to const op_graph& is enough

struct saves_without_const : whole::backend {  // a trainer that must flush a device to save
  int save() { return 0; }
  void restore(const int&) {}
};
static_assert(comp::Backend<saves_without_const>);

struct only_validates : whole::backend {
  double validate() { return 0; }
};
static_assert(comp::Backend<only_validates>);

struct counts_in_int : whole::backend {
  int batches_per_epoch() { return 0; }
};
static_assert(comp::Backend<counts_in_int>);  // any whole number, const or not

struct scores_in_one_precision : whole::backend {
  std::vector<comp::op_error> sensitivity() { return {}; }
};
static_assert(!comp::Backend<scores_in_one_precision>);

struct perturbs_and_tells : whole::backend {
  bool perturb(std::uint64_t) { return true; }
};
static_assert(!comp::Backend<perturbs_and_tells>);

struct counts_by_argument : whole::backend {
  std::uint64_t batches_per_epoch(int) { return 0; }
};
static_assert(!comp::Backend<counts_by_argument>);

struct final_backend final : whole::backend {
  double validate() { return 0; }
};
static_assert(comp::Backend<final_backend>);  // whether a final class has a member is found another way

struct final_backend_with_a_fault final : whole::backend {
  float validate() { return 0; }
};
static_assert(!comp::Backend<final_backend_with_a_fault>);

struct returns_nothing : whole::observer {
  void trial_done(const comp::trial&) {}
};
static_assert(comp::Observer<returns_nothing>);  // void or bool

struct overloaded : whole::backend {  // two of one name, one of them right
  double validate() { return 0; }
  double validate(int) { return 0; }
};
static_assert(comp::Backend<overloaded>);

struct runs_epochs_by_number : whole::backend {
  using whole::backend::run_epoch;
  comp::sample run_epoch(int) { return {}; }
};
static_assert(!comp::Backend<runs_epochs_by_number>);
struct stops_in_any_way : whole::backend {
  comp::sample run_epoch() { return {}; }
  comp::sample run_epoch(auto&&) { return {}; }
};
static_assert(comp::Backend<stops_in_any_way>);
struct may_be_verbose : whole::backend {
  comp::sample run_epoch(bool = false) { return {}; }
};
static_assert(comp::Backend<may_be_verbose>);

struct not_an_observer {
  int number;
};
static_assert(!comp::Observer<not_an_observer>);  // a misspelt member looks like this

}  // namespace
