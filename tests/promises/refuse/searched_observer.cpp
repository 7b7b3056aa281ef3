// SPDX-License-Identifier: Apache-2.0
// expect: an observer needs a member: search_started,
#include <comp/comp.hpp>

#include "whole.hpp"

struct misspelt {
  void done_with(const comp::trial&) {}
};
int main() {
  whole::backend trainer;
  (void)comp::two_stage{comp::policy::pytorch{}}.run(trainer, misspelt{});
}
