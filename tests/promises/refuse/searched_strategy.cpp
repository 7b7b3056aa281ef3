// SPDX-License-Identifier: Apache-2.0
// expect: a SearchStrategy needs: run start(comp::search_space) const
#include <comp/comp.hpp>

#include "whole.hpp"

struct faulty {};
int main() {
  whole::backend trainer;
  comp::two_stage search{comp::policy::pytorch{}, faulty{}, comp::strategy::greedy{}};
  (void)search.run(trainer, comp::progress_bar{});
}
