// SPDX-License-Identifier: Apache-2.0
// expect: the trainer is const (it cannot train): give one that is not
#include <comp/comp.hpp>

#include "whole.hpp"

int main() {
  const whole::backend trainer;
  (void)comp::post_training{}.run(trainer, comp::outcome{});
}
