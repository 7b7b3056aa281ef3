// SPDX-License-Identifier: Apache-2.0
// expect: an observer's trial_finished, trial_ended or on_trial_done is never called: name it trial_done
#include "whole.hpp"

struct faulty {
  void search_done(const comp::outcome&) {}
  void trial_finished(const comp::trial&) {}
};
static_assert(comp::expect_observer<faulty>());
