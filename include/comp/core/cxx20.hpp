// SPDX-License-Identifier: Apache-2.0
// Ends a compilation for a standard before C++20 with one sentence. g++ 12 compiles for C++17 unless it is told
// otherwise, and would report thousands of errors. The headers that all others include have this one first.
#pragma once

#if __cplusplus < 202002L
#error comp needs C++20: compile with -std=c++20
#include <comp needs C++20>  // a header that cannot be found ends the compilation; an #error alone does not
#endif
