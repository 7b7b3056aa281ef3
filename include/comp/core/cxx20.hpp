// SPDX-License-Identifier: Apache-2.0
// Ends a compilation for an older standard, the default of g++ 12, with one sentence: it could only give thousands of
// errors. Included first by what all others are built on.
#pragma once

#if __cplusplus < 202002L
#error comp needs C++20: compile with -std=c++20
#include <comp needs C++20>  // ends it: an #error alone does not
#endif
