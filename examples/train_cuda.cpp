// SPDX-License-Identifier: Apache-2.0
// train --backend cuda: the models of --backend host, trained on an NVIDIA GPU. `train` becomes this program, which has
// the same options.
#include <algorithm>
#include <comp_cuda/comp_cuda.hpp>
#include <comp_native/trainer.hpp>
#include <string>
#include <utility>
#include <vector>

#include "train/jobs.hpp"
#include "train/options.hpp"
#include "train/session.hpp"

namespace {

/// Returns: the precisions of the GPU's tensor cores. Those in which most models converge come first.
std::vector<comp::precision> sped_up(const comp::cuda::capability& card) {
  using enum comp::precision;
  std::vector<comp::precision> found{bf16, fp16, tf32, fp8_e4m3, fp8_e5m2};
  std::erase_if(found, [&](comp::precision p) { return !card.has(p); });
  return found;
}

/// Returns: the mode that --captured names, whose values the command line has checked.
comp::native::capture_mode captures(const std::string& name) {
  using enum comp::native::capture_mode;
  return name == "on" ? on : name == "off" ? off : measured;
}

int run(const train::options& chosen) {
  train::require_model_of(chosen, train::native_models);
  const comp::cuda::capability card = comp::cuda::probe(chosen.gpu);
  for (const std::string& warning : card.warnings()) fmt::print(stderr, "Note: {}\n", warning);
  train::require_data(chosen);
  train::job job = train::load_job(chosen);
  job.settings.captured = captures(chosen.captured);
  comp::cuda::device device{{.gpu = chosen.gpu}};
  comp::native::trainer<comp::cuda::device> trainer{device, std::move(job.model), std::move(job.train), job.validation,
                                                    job.settings};
  const int status = train::run_session(chosen, trainer, job.description, sped_up(card));
  for (const std::string& why : device.attention_in_parts()) fmt::print(stderr, "Note: {}\n", why);
  for (const std::string& why : device.convolutions_by_calls()) fmt::print(stderr, "Note: {}\n", why);
  return status;
}

}  // namespace

int main(int argc, char** argv) { return train::run_main(argc, argv, run); }
