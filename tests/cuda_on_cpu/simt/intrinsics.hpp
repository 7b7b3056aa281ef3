// SPDX-License-Identifier: Apache-2.0
// The device functions that kernels call, under CUDA's names: barriers, votes, shuffles, atomics, a little mathematics.
// expf, fmaxf and their like come from <math.h>.
#pragma once

#include <math.h>

#include <bit>
#include <type_traits>

#include "pointers.hpp"
#include "shared_memory.hpp"
#include "waits.hpp"

inline void __syncthreads(simt::place at = simt::place::current()) { simt::wait_for_block("__syncthreads", at); }
inline void __syncwarp(unsigned mask = 0xffffffffU, simt::place at = simt::place::current()) {
  simt::wait_for_warp("__syncwarp", mask, 0, at);
}

namespace simt {

inline unsigned ballot(const char* call, unsigned mask, bool vote, const place& at) {
  wait_for_warp(call, mask, vote, at);
  unsigned votes = 0;
  for (unsigned lane = 0; lane < warp_size; ++lane) {
    const bool there = (mask >> lane & 1U) && self().warp() * warp_size + lane < state.in->threads.size();
    if (there && lane_value<bool>(lane, call, at)) votes |= 1U << lane;
  }
  return votes;
}
/// `source` picks the lane from (lane, width); out of the segment: the own value.
template <class T, class Source>
T shuffle(const char* call, unsigned mask, const T& v, int width, const place& at, Source source) {
  if (width < 1 || width > 32 || !std::has_single_bit(static_cast<unsigned>(width))) {
    fail(std::string{call} + " at " + text(at) + " with a width of " + std::to_string(width));
  }
  wait_for_warp(call, mask, v, at);
  const int lane = static_cast<int>(self().lane()), first = lane / width * width, from = source(lane, first);
  return lane_value<T>(static_cast<unsigned>(from < 0 ? lane : from), call, at);
}

}  // namespace simt

inline unsigned __ballot_sync(unsigned mask, int v, simt::place at = simt::place::current()) {
  return simt::ballot("__ballot_sync", mask, v != 0, at);
}
template <class T>
T __shfl_sync(unsigned mask, T v, int lane, int width = 32, simt::place at = simt::place::current()) {
  return simt::shuffle("__shfl_sync", mask, v, width, at, [=](int, int first) { return first + (lane & (width - 1)); });
}
template <class T>
T __shfl_xor_sync(unsigned mask, T v, int bits, int width = 32, simt::place at = simt::place::current()) {
  return simt::shuffle("__shfl_xor_sync", mask, v, width, at, [=](int lane, int first) {
    const int from = lane ^ bits;
    return from < first + width ? from : -1;
  });
}
template <class T>
T __shfl_up_sync(unsigned mask, T v, unsigned by, int width = 32, simt::place at = simt::place::current()) {
  return simt::shuffle("__shfl_up_sync", mask, v, width, at, [=](int lane, int first) {
    const int from = lane - static_cast<int>(by);
    return from >= first ? from : -1;
  });
}

// Returns: the value before.
template <class T>
T atomicAdd(const simt::pointer<T>& p, std::type_identity_t<T> v) {
  return p.update([=](T old) { return static_cast<T>(old + v); });
}

inline int __popc(unsigned v) { return std::popcount(v); }
inline float __fmul_rn(float a, float b) { return a * b; }
inline float __fadd_rn(float a, float b) { return a + b; }
