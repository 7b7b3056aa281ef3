// SPDX-License-Identifier: Apache-2.0
// Makes the definitions of a kernel header for each type that tensors are stored in: COMP_FOR_STORAGE(M) is M(float),
// M(bf16), M(fp16).
#pragma once

#define COMP_FOR_STORAGE(M) M(float) M(bf16) M(fp16)
