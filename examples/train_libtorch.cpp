// SPDX-License-Identifier: Apache-2.0
// train --backend libtorch: the same job for models that LibTorch trains, whose sources know nothing of comp
// (models/libtorch). `train` becomes this program; its options are the same.
#include <ATen/Parallel.h>

#include <algorithm>
#include <libtorch/jobs.hpp>
#include <libtorch/trainers.hpp>
#include <vector>

#include "train/options.hpp"
#include "train/session.hpp"

namespace {

torch_models::job_options options_of(const train::options& chosen) {
  return {.data = chosen.data,
          .size = chosen.size,
          .batch = static_cast<std::int64_t>(chosen.batch),
          .limit = static_cast<std::int64_t>(chosen.limit),
          .learning_rate = chosen.learning_rate,
          .seed = chosen.seed};
}

/// FP16 is supported on a CPU and slow on most; BF16 is fast where there are instructions for it.
std::vector<comp::precision> sped_up(const comp::hardware& machine) {
  if (machine.kind == comp::device_kind::cuda) return {comp::precision::fp16, comp::precision::bf16};
  std::vector<comp::precision> found;
  const auto has = [&](const char* set) { return std::ranges::find(machine.isa, set) != machine.isa.end(); };
  if (has("avx512_bf16") || has("amx_bf16")) found.push_back(comp::precision::bf16);
  if (has("avx512_fp16") || has("amx_fp16")) found.push_back(comp::precision::fp16);
  return found;
}

int run(const train::options& chosen) {
  train::require_model_of(chosen, train::libtorch_models);
  if (chosen.threads > 0) at::set_num_threads(chosen.threads);
  torch_models::job job = torch_models::make_job(chosen.model, options_of(chosen));
  auto trainer = torch_models::make_trainer(job, chosen.seed);
  return train::run_session(chosen, trainer, job.description, sped_up(trainer.hardware()));
}

}  // namespace

int main(int argc, char** argv) { return train::run_main(argc, argv, run); }
