// SPDX-License-Identifier: Apache-2.0
// expect: comp needs C++20: compile with -std=c++20
// expect: fatal error:
#include <comp/comp.hpp>

int main() { return comp::plan{}.empty() ? 0 : 1; }
