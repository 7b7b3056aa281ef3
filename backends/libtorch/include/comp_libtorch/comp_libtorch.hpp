// SPDX-License-Identifier: Apache-2.0
// Includes the whole LibTorch backend: a user's training as a comp::Backend, plans without a search, autocast and loss
// scaling. The search itself is <comp/comp.hpp>, the doctor doctor/doctor.hpp. Guide: docs/start/libtorch.md.
#pragma once

#include <comp_libtorch/hook/autocast_guard.hpp>
#include <comp_libtorch/plan/checkpoint.hpp>
#include <comp_libtorch/plan/program.hpp>
#include <comp_libtorch/train/data_order.hpp>
#include <comp_libtorch/train/grad_scaler.hpp>
#include <comp_libtorch/train/planned_region.hpp>
#include <comp_libtorch/train/replayed.hpp>
#include <comp_libtorch/train/trainer.hpp>
