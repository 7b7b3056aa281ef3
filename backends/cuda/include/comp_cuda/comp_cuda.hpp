// SPDX-License-Identifier: Apache-2.0
// The CUDA backend in one include: the native trainer's Device on an NVIDIA GPU, and the operators of graph models.
#pragma once

#include "device.hpp"
#include "graph_attention.hpp"
#include "sparse.hpp"
