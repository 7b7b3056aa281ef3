// SPDX-License-Identifier: Apache-2.0
// COMP_HD marks the mathematics that loops of the host and kernels of a GPU share: __host__ __device__ under nvcc.
// Always inlined elsewhere, so that it takes the vector unit of the loop that it is called from.
#pragma once

#ifdef __CUDACC__
#define COMP_HD __host__ __device__ __forceinline__
#else
#define COMP_HD __attribute__((always_inline)) inline
#endif
