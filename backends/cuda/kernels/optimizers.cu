// SPDX-License-Identifier: Apache-2.0
#include "optimizers.cuh"

namespace comp::cuda {

#define COMP_DEFINE(Low)                                                                                             \
  template void sgd_step(stream, std::span<const update_job<Low>>, const native::sgd_options&, const step_control&); \
  template void adam_step(stream, std::span<const update_job<Low>>, const native::adam_options&, std::int64_t,       \
                          const step_control&);
COMP_DEFINE(bf16)
COMP_DEFINE(fp16)
#undef COMP_DEFINE

}  // namespace comp::cuda
