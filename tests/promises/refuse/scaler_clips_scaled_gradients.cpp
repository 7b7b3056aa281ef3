// SPDX-License-Identifier: Apache-2.0
// expect: no member
#include <comp/scaling/grad_scaler.hpp>

void train(comp::scaling::grad_scaler& scaler) { scaler.clip_norm(1.0); }  // only what unscale() gives can clip
