// SPDX-License-Identifier: Apache-2.0
// train --backend libtorch: trains LibTorch's models of models/libtorch, whose sources know nothing of comp. `train`
// becomes this program, which has the same options.
#include <ATen/Parallel.h>

#include <comp_simulated/trainer.hpp>
#include <libtorch/jobs.hpp>
#include <libtorch/trainers.hpp>
#include <sstream>
#include <string>
#include <utility>
#include <vector>

#include "train/options.hpp"
#include "train/session.hpp"

namespace {

torch_models::job_options options_of(const train::options& chosen) {
  return {.data = chosen.data,
          .size = chosen.size,
          .weights = chosen.weights,
          .batch = static_cast<std::int64_t>(chosen.batch),
          .limit = static_cast<std::int64_t>(chosen.limit),
          .side = chosen.side,
          .learning_rate = chosen.learning_rate,
          .seed = chosen.seed};
}

/// Returns: the precisions that the machine has instructions for. LibTorch also runs others on a CPU, but slowly.
std::vector<comp::precision> sped_up(const comp::hardware& machine) {
  std::vector<comp::precision> found;
  for (const auto p : {comp::precision::fp16, comp::precision::bf16}) {
    if (comp::has_unit(p, machine)) found.push_back(p);
  }
  return found;
}

/// Writes the weights so that torch::load(module, path) reads them. Several modules are archives within the file, each
/// under its name.
void write_weights(const torch_models::job& from, const std::string& path) {
  torch::serialize::OutputArchive all;
  for (const auto& [name, module] : from.modules) {
    if (from.modules.size() == 1) {
      module->save(all);
    } else {
      torch::serialize::OutputArchive one;
      module->save(one);
      all.write(name, one);
    }
  }
  std::ostringstream text;
  all.save_to(text);
  comp::detail::write_file(path, text.str());
}

int run(const train::options& chosen) {
  train::require_model_of(chosen, train::libtorch_models);
  if (const int threads = train::threads_of(chosen)) at::set_num_threads(threads);
  torch_models::job job = train::naming(chosen.weights.empty() ? "--data" : "--data or --weights",
                                        [&] { return torch_models::make_job(chosen.model, options_of(chosen)); });
  comp::libtorch::setup setup = torch_models::setup_of(job);
  setup.program.separate_products = train::separates_products(chosen);
  if (chosen.scaling == "off") setup.scale_loss = comp::libtorch::loss_scaling::never;
  auto trainer = torch_models::make_trainer(job, std::move(setup), chosen.seed);
  const auto write = [&](const std::string& path) { write_weights(job, path); };
  if (chosen.target.empty())
    return train::run_session(chosen, trainer, job.description, sped_up(trainer.hardware()), write);
  comp::simulated::trainer modelled{trainer, chosen.target};
  return train::run_session(chosen, modelled, job.description, modelled.usual_precisions(), write);
}

}  // namespace

int main(int argc, char** argv) { return train::run_main(argc, argv, run); }
