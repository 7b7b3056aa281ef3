// SPDX-License-Identifier: Apache-2.0
// Instantiates the templates of a kernel header for each storage: COMP_FOR_STORAGE(M) is M(float) M(bf16) M(fp16).
#pragma once

#define COMP_FOR_STORAGE(M) M(float) M(bf16) M(fp16)
