// SPDX-License-Identifier: Apache-2.0
// All of the LibTorch backend: a user's training as a comp::Backend, plans without a search, autocast and loss scaling.
// Include <comp/comp.hpp> beside it for the search. Guide: docs/libtorch.md.
#pragma once

#include <comp_libtorch/autocast_guard.hpp>
#include <comp_libtorch/checkpoint.hpp>
#include <comp_libtorch/data_order.hpp>
#include <comp_libtorch/grad_scaler.hpp>
#include <comp_libtorch/planned_region.hpp>
#include <comp_libtorch/program.hpp>
#include <comp_libtorch/replayed.hpp>
#include <comp_libtorch/trainer.hpp>
