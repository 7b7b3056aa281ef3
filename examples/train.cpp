// SPDX-License-Identifier: Apache-2.0
// Trains a model on this CPU and finds its precision plan while it trains. `train --help` lists the options.
// With --backend cuda or libtorch this program becomes train_cuda or train_libtorch in the same folder, which are built
// if CUDA or LibTorch is installed.
#include <comp_host/device.hpp>
#include <comp_native/trainer.hpp>
#include <comp_simulated/trainer.hpp>
#include <vector>

#include "train/jobs.hpp"
#include "train/options.hpp"
#include "train/session.hpp"

namespace {

std::vector<comp::precision> sped_up(const comp::host::device& device) {
  std::vector<comp::precision> found;
  const comp::hardware machine = device.hardware();
  for (const comp::precision p : device.supported_precisions()) {
    if (comp::is_low(p) && comp::host::accelerated(machine, p)) found.push_back(p);
  }
  return found;
}

int run(const train::options& chosen) {
  train::require_model_of(chosen, train::native_models);
  train::require_data(chosen);
  train::job job = train::load_job(chosen);
  train::tell_of_busy_cores();
  comp::host::device device{{.threads = train::threads_of(chosen)}};
  comp::native::trainer<comp::host::device> trainer{device, std::move(job.model), std::move(job.train), job.validation,
                                                    job.settings};
  const auto write_weights = [&](const std::string& path) { comp::write_safetensors(path, trainer.weights()); };
  if (chosen.target.empty()) {
    return train::run_session(chosen, trainer, job.description, sped_up(device), write_weights);
  }
  comp::simulated::trainer modelled{
      trainer, chosen.target, {.micro_batches = static_cast<double>(job.settings.scaling.micro_batches)}};
  return train::run_session(chosen, modelled, job.description, modelled.usual_precisions(), write_weights);
}

constexpr auto no_libtorch =
    "backend libtorch asked for (this build has no LibTorch): ./run demo --backend libtorch fetches it and builds with it, "
    "or configure with -Dlibtorch=enabled -Dlibtorch_path=DIR";
constexpr auto no_cuda =
    "backend cuda asked for (this build has no CUDA): configure with -Dcuda=enabled, which needs the CUDA toolkit and "
    "cuDNN, or use --backend host";

}  // namespace

int main(int argc, char** argv) {
  return train::run_main(argc, argv, [&](const train::options& chosen) {
    if (chosen.backend == "libtorch") train::become("train_libtorch", argv, no_libtorch);
    if (chosen.backend == "cuda") train::become("train_cuda", argv, no_cuda);
    return run(chosen);
  });
}
