// SPDX-License-Identifier: Apache-2.0
// expect: an observer's batch_done needs the form: void batch_done(const comp::trial&, const comp::sample&)
// expect: an observer's trial_done needs the form: void or bool trial_done(const comp::trial&)
#include <comp/comp.hpp>

#include "whole.hpp"

struct faulty {
  void batch_done(const comp::trial&) {}
  void trial_done(const comp::sample&) {}
};
int main() {
  whole::backend trainer;
  faulty observer;
  (void)comp::two_stage{comp::policy::pytorch{}}.run(trainer, observer);
}
