// SPDX-License-Identifier: Apache-2.0
// What loss scaling and clipping need of all gradients.
#include "gradients.cuh"

namespace comp::cuda {

index norm_scratch(std::span<const gradient_job> jobs) {
  index blocks = 0;
  for (const auto& j : jobs) blocks += (j.n + piece - 1) / piece;
  return blocks;
}
void gradient_norm(stream on, std::span<const gradient_job> jobs, double* norm, float* scratch) {
  const auto entries = detail::gradient_entries(jobs);
  const index blocks = for_tables<detail::gradient_entry>(entries, [&](const auto& table, unsigned some, index before) {
    launch(on, {dim3{some}, block_size}, detail::gradient_squares<4>, table, scratch + before);
  });
  launch(on, {1, block_size}, detail::sum_of_partials<double>, scratch, blocks, 1.0, true, norm);
}
void count_not_finite(stream on, std::span<const gradient_job> jobs, unsigned long long* count, const double* norm) {
  const auto entries = detail::gradient_entries(jobs);
  for_tables<detail::gradient_entry>(entries, [&](const auto& table, unsigned some, index) {
    launch(on, {dim3{some}, block_size}, detail::gradients_not_finite<4>, table, count, norm);
  });
}
void scale_gradients(stream on, std::span<const gradient_job> jobs, double factor) {
  const auto entries = detail::gradient_entries(jobs);
  for_tables<detail::gradient_entry>(entries, [&](const auto& table, unsigned some, index) {
    launch(on, {dim3{some}, block_size}, detail::gradients_scaled<4>, table, static_cast<float>(factor));
  });
}
void judge_step(stream on, const step_judgement& j) {
  launch(on, {1, 1}, detail::judge,
         detail::judgement{j.losses, j.count, j.not_finite, j.bad_losses, j.norm, j.unscale, j.largest, j.clip});
}

}  // namespace comp::cuda
