// SPDX-License-Identifier: Apache-2.0
// The main of every test program, linked through test_main_dep.
#define DOCTEST_CONFIG_IMPLEMENT_WITH_MAIN
#include <doctest/doctest.h>
