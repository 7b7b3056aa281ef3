// SPDX-License-Identifier: Apache-2.0
// One launch over n elements: in packs if the addresses are aligned, one by one at the ends and if they are not.
// A functor has `template <int N> __device__ void at(index i) const`, which works on the elements i to i + N.
#pragma once

#include "packs.cuh"

namespace comp::cuda {

/// Works on the elements [0, head) and on those after the last whole pack one by one.
template <int N, class F>
__global__ void __launch_bounds__(block_size) over_elements(F f, index n, index head) {
  const index step = static_cast<index>(gridDim.x) * blockDim.x;
  const index me = static_cast<index>(blockIdx.x) * blockDim.x + threadIdx.x;
  const index packs = (n - head) / N;
  for (index p = me; p < packs; p += step) f.template at<N>(head + p * N);
  if constexpr (N > 1) {
    if (me < head) f.template at<1>(me);
    const index tail = head + packs * N;
    if (me < n - tail) f.template at<1>(tail + me);
  }
}

/// head: what common_head() returns for the addresses that f uses; -1: all elements one by one.
template <int N, class F>
void for_elements(stream on, index n, index head, const F& f) {
  if (n == 0) return;
  if (head < 0) return launch(on, {blocks_for(n), block_size}, over_elements<1, F>, f, n, index{0});
  const index first = head < n ? head : n;
  launch(on, {blocks_for((n + N - 1) / N), block_size}, over_elements<N, F>, f, n, first);
}

}  // namespace comp::cuda
