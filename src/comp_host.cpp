// SPDX-License-Identifier: Apache-2.0
// Definitions of what host::device declares, for programs that link to this library (comp_host/device.hpp).
#include <comp_host/device_kernels.hpp>

static_assert(!COMP_HOST_HEADER_ONLY, "comp_host is compiled with -DCOMP_HOST_HEADER_ONLY=0");
