// SPDX-License-Identifier: Apache-2.0
// One of two files of a program that both include everything: a definition that is not inline would collide.
#include <comp/comp.hpp>

comp::plan plan_from_the_other_file();

int main() { return plan_from_the_other_file() == comp::parse_plan("011") ? 0 : 1; }
