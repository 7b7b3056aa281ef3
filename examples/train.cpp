// SPDX-License-Identifier: Apache-2.0
// The main job: trains a model on this CPU and finds, while doing so, its precision plan. `train --help` says the rest.
// With --backend libtorch the program train_libtorch beside this one does it, which is built where LibTorch is.
#include <unistd.h>

#include <comp_host/device.hpp>
#include <comp_native/trainer.hpp>
#include <filesystem>
#include <string>
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
  train::require_model_of(chosen, train::host_models);
  train::require_data(chosen);
  train::job job = train::load_job(chosen);
  comp::host::device device{{.threads = chosen.threads}};
  comp::native::trainer<comp::host::device> trainer{device, std::move(job.model), std::move(job.train), job.validation,
                                                    job.settings};
  return train::run_session(chosen, trainer, job.description, sped_up(device));
}

/// Becomes train_libtorch with the same command line. Returns only when that is not there.
void become_train_libtorch(char** argv) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / "train_libtorch";
  execv(program.c_str(), argv);
  comp::require<comp::error>(false,
                             "backend libtorch asked for (this build has no LibTorch): ./run demo --backend libtorch "
                             "fetches it and builds with it, or configure with -Dlibtorch=enabled -Dlibtorch_path=DIR");
}

}  // namespace

int main(int argc, char** argv) {
  return train::run_main(argc, argv, [&](const train::options& chosen) {
    if (chosen.backend == "libtorch") become_train_libtorch(argv);
    return run(chosen);
  });
}
