// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <ctime>

/// Seconds of processor time of this program so far, over all its threads: what a test may bound on a machine whose
/// other programs it does not know.
inline double processor_seconds() { return static_cast<double>(std::clock()) / CLOCKS_PER_SEC; }
