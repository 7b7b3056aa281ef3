// SPDX-License-Identifier: Apache-2.0
// Definitions of what the LibTorch backend's headers declare, for programs that link to it (core/linkage.hpp). One unit: a
// second one would read torch's headers, which take half of the time, once more.
#include <comp_libtorch/doctor/examining.hpp>
#include <comp_libtorch/hook/open_region.hpp>
#include <comp_libtorch/plan/checkpoint_node.hpp>
#include <comp_libtorch/plan/recorded_program.hpp>
#include <comp_libtorch/train/listed_plan.hpp>
#include <comp_libtorch/train/optimizer_gradients.hpp>
#include <comp_libtorch/train/step_parts.hpp>
#include <comp_libtorch/train/training.hpp>

static_assert(!COMP_HEADER_ONLY, "libcomp_libtorch is compiled with -DCOMP_HEADER_ONLY=0");
