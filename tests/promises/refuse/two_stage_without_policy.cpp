// SPDX-License-Identifier: Apache-2.0
// expect: two_stage needs a policy: comp::two_stage{comp::policy::pytorch{}}
#include <comp/comp.hpp>

#include "whole.hpp"

int main() {
  whole::backend trainer;
  (void)comp::two_stage{}.run(trainer);
}
