// SPDX-License-Identifier: Apache-2.0
// LibTorch's logging and doctest both define CHECK; a test means doctest's. Include this in place of either.
#pragma once

#include <doctest/doctest.h>
#include <torch/torch.h>

#undef CHECK
#define CHECK(...) DOCTEST_CHECK(__VA_ARGS__)
