// SPDX-License-Identifier: Apache-2.0
// Definitions of what comp's search headers declare, for programs that link to libcomp (core/linkage.hpp).
#include <comp/ranks/follower.hpp>
#include <comp/search/search_run.hpp>
#include <comp/search/trainer/trainer_check.hpp>
#include <comp/search/training/guarded_training.hpp>

static_assert(!COMP_HEADER_ONLY, "libcomp is compiled with -DCOMP_HEADER_ONLY=0");
