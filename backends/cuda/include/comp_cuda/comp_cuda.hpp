// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: the native trainer's Device on an NVIDIA GPU, and what models of graphs need beside it.
// Not here: the kernels, for those who write their own beside them (kernels.hpp and backends/cuda/kernels).
#pragma once

#include "device.hpp"
#include "graph_attention.hpp"
#include "sparse.hpp"
