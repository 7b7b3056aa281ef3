// SPDX-License-Identifier: Apache-2.0
// expect: an OperatorPolicy needs: comp::decision classify(const comp::op_info&) const
#include <comp/comp.hpp>

#include "whole.hpp"

struct faulty {};
int main() {
  whole::backend trainer;
  (void)comp::two_stage{faulty{}}.run(trainer, comp::progress_bar{});
}
