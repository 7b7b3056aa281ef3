// SPDX-License-Identifier: Apache-2.0
// The CUDA backend: the native trainer's Device on an NVIDIA GPU.
// Not here: the kernels, for those who write their own beside them (kernels.hpp and backends/cuda/kernels).
#pragma once

#include "device.hpp"
