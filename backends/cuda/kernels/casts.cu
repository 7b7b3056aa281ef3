// SPDX-License-Identifier: Apache-2.0
#include "casts.cuh"

namespace comp::cuda {

template void cast(stream, std::span<const cast_job<float, bf16>>);
template void cast(stream, std::span<const cast_job<float, fp16>>);
template void cast(stream, std::span<const cast_job<bf16, float>>);
template void cast(stream, std::span<const cast_job<fp16, float>>);
template void cast(stream, std::span<const cast_job<bf16, fp16>>);
template void cast(stream, std::span<const cast_job<fp16, bf16>>);

}  // namespace comp::cuda
