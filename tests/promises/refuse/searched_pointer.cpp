// SPDX-License-Identifier: Apache-2.0
// expect: the trainer is given by a pointer (a trainer itself is needed): write *trainer
#include <comp/comp.hpp>

#include "whole.hpp"

int main() {
  whole::backend trainer;
  (void)comp::two_stage{comp::policy::pytorch{}}.run(&trainer);
}
