// SPDX-License-Identifier: Apache-2.0
// What the class itself refuses, before nvcc looks at the calls in searches.cpp. Each part of this program, up to the
// next empty line, must be refused with the sentence that it expects.
#include <comp/comp.hpp>

#include "whole.hpp"

// expect: two_stage needs a policy: comp::two_stage{comp::policy::pytorch{}}
void run_search_without_policy() {
  whole::backend trainer;
  (void)comp::two_stage{}.run(trainer);
}

// expect: strategy::guided does both stages: leave the second strategy out, or give another first one
void make_search_of_two_strategies() {
  (void)comp::two_stage{comp::policy::pytorch{}, comp::strategy::guided{}, comp::strategy::exhaustive{}};
}
