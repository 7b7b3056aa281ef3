// SPDX-License-Identifier: Apache-2.0
// expect: nothing
#include "whole.hpp"

static_assert(comp::expect_backend<whole::backend>());
static_assert(comp::expect_backend<whole::capable_backend>());
static_assert(comp::expect_policy<whole::policy>());
static_assert(comp::expect_strategy<whole::strategy>());
static_assert(comp::expect_observer<whole::observer>());

// Members for a class's own use are no mistakes, whatever they are called.
struct own_backend : whole::backend {
  void save_state(const std::string& path) const { (void)path; }
  void load_state(const std::string& path) { (void)path; }
  int device() const { return 0; }
  const comp::op_graph& graph() { return operators; }  // LibTorch's is made by its first call
};
struct own_observer : whole::observer {
  void trial_finished(const comp::trial&) {}
  bool should_stop() { return false; }
};
static_assert(comp::expect_backend<own_backend>());
static_assert(comp::expect_observer<own_observer>());
