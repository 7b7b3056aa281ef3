// SPDX-License-Identifier: Apache-2.0
// expect: the trainer is a temporary (it would be gone with all that it trained): give a variable
#include <comp/comp.hpp>

#include "whole.hpp"

int main() { (void)comp::two_stage{comp::policy::pytorch{}}.run(whole::backend{}); }
