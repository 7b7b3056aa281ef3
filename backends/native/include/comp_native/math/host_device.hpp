// SPDX-License-Identifier: Apache-2.0
// COMP_HD marks functions that loops of the host and kernels of a GPU share. Under nvcc it is __host__ __device__.
// Elsewhere the function is always inlined, so that it is compiled for the vector unit of the loop that calls it.
#pragma once

#ifdef __CUDACC__
#define COMP_HD __host__ __device__ __forceinline__
#else
#define COMP_HD __attribute__((always_inline)) inline
#endif
