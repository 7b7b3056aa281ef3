// SPDX-License-Identifier: Apache-2.0
#include "embedding.cuh"
#include "support/instantiate.cuh"

namespace comp::cuda {

index embedding_scratch(index n, index width, index entries) {
  const detail::embedding_room room{n, entries};
  constexpr auto floats = [](std::size_t bytes) { return static_cast<index>(bytes / sizeof(float)); };
  const index lists = floats(sizeof(unsigned long long)) * detail::embedding_parts +
                      floats(sizeof(detail::embedding_chunk)) * room.chunks +
                      floats(sizeof(detail::embedding_joint)) * room.joints + floats(sizeof(index)) * n;
  return (lists + 3) / 4 * 4 + room.partials * width;
}

#define COMP_DEFINE(T)                                                                         \
  template void embedding(stream, const float*, const std::int32_t*, T*, index, index, index); \
  template void embedding_backward(stream, const T*, const std::int32_t*, float*, index, index, index, float*);
COMP_FOR_STORAGE(COMP_DEFINE)
#undef COMP_DEFINE

}  // namespace comp::cuda
