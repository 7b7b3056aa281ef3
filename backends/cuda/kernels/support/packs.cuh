// SPDX-License-Identifier: Apache-2.0
// Packs: loads and stores of several neighbouring elements by one instruction of up to 16 bytes. In registers they are
// FP32.
#pragma once

#include <cstring>

#include "launch.cuh"

namespace comp::cuda {

/// The elements that one instruction moves.
template <class T, int N>
struct alignas(sizeof(T) * N) pack {
  static_assert(sizeof(T) * N <= 16);
  T v[N];
};

#ifdef COMP_SIMT
template <int N, class T>
pack<T, N> load_pack(pointer<const T> from) {
  pack<T, N> p;
  from.read_to(p.v, N, sizeof(p));
  return p;
}
template <int N, class T>
void store_pack(pointer<T> to, const pack<T, N>& p) {
  to.write_from(p.v, N, sizeof(p));
}
#else
template <int Bytes>
struct word_of;
template <>
struct word_of<1> {
  using type = unsigned char;
};
template <>
struct word_of<2> {
  using type = unsigned short;
};
template <>
struct word_of<4> {
  using type = unsigned;
};
template <>
struct word_of<8> {
  using type = uint2;
};
template <>
struct word_of<16> {
  using type = uint4;
};
template <int N, class T>
__device__ __forceinline__ pack<T, N> load_pack(const T* from) {
  const auto word = *reinterpret_cast<const typename word_of<sizeof(T) * N>::type*>(from);
  pack<T, N> p;
  memcpy(&p, &word, sizeof(p));
  return p;
}
template <int N, class T>
__device__ __forceinline__ void store_pack(T* to, const pack<T, N>& p) {
  typename word_of<sizeof(T) * N>::type word;
  memcpy(&word, &p, sizeof(p));
  *reinterpret_cast<decltype(word)*>(to) = word;
}
#endif

template <class T>
COMP_HD float widen(T x) {
  return native::math::load(x);
}
template <class T>
COMP_HD T narrow(float x) {
  T to;
  native::math::store(to, x);
  return to;
}

/// How many of N elements one instruction moves.
template <class T, int N>
inline constexpr int per_access = N* static_cast<int>(sizeof(T)) <= 16 ? N : 16 / static_cast<int>(sizeof(T));

template <int N, class T>
__device__ __forceinline__ void load_all(pointer<const T> from, float (&to)[N]) {
  constexpr int step = per_access<T, N>;
#pragma unroll
  for (int i = 0; i < N; i += step) {
    const pack<T, step> p = load_pack<step, T>(from + i);
#pragma unroll
    for (int j = 0; j < step; ++j) to[i + j] = widen(p.v[j]);
  }
}
template <int N, class T>
__device__ __forceinline__ void store_all(pointer<T> to, const float (&from)[N]) {
  constexpr int step = per_access<T, N>;
#pragma unroll
  for (int i = 0; i < N; i += step) {
    pack<T, step> p;
#pragma unroll
    for (int j = 0; j < step; ++j) p.v[j] = narrow<T>(from[i + j]);
    store_pack<step, T>(to + i, p);
  }
}

/// How many elements a thread works on at once if T is the narrowest type: 4 of FP32, 8 of 16 bits.
template <class T>
inline constexpr int wide = 16 / static_cast<int>(sizeof(T));

/// True if N neighbours at p can be accessed by packs, and for a null pointer, which is never read.
template <int N, class T>
bool fits(const T* p) {
  return reinterpret_cast<std::uintptr_t>(p) % (sizeof(T) * per_access<T, N>) == 0;
}
/// Returns: the first element from which all of the pointers can be accessed in packs of N; -1 if there is none.
template <int N, class... T>
index common_head(const T*... p) {
  for (index head = 0; head < N; ++head) {
    if (((!p || fits<N>(p + head)) && ...)) return head;
  }
  return -1;
}

}  // namespace comp::cuda
