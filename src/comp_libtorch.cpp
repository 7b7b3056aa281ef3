// SPDX-License-Identifier: Apache-2.0
// Definitions of what the LibTorch backend's headers declare, for programs that link to it (core/linkage.hpp): regions,
// programs and the doctor. What trains is in comp_libtorch_training.cpp.
#include <comp_libtorch/doctor/examining.hpp>
#include <comp_libtorch/hook/open_region.hpp>
#include <comp_libtorch/plan/checkpoint_node.hpp>
#include <comp_libtorch/plan/recorded_program.hpp>

static_assert(!COMP_HEADER_ONLY, "libcomp_libtorch is compiled with -DCOMP_HEADER_ONLY=0");
