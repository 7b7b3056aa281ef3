// SPDX-License-Identifier: Apache-2.0
// The other file: see odr_a.cpp.
#include <comp/comp.hpp>

comp::plan plan_from_the_other_file() { return comp::parse_plan("011"); }
