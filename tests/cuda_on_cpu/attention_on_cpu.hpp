// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace simt {
inline bool attention_fails = false;  // graphs that were made say so when they run
}
