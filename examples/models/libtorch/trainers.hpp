// SPDX-License-Identifier: Apache-2.0
// A job as comp::libtorch::trainer: what a user of LibTorch writes to search a plan, here once for all seven jobs.
#pragma once

#include <comp_libtorch/train/trainer.hpp>
#include <libtorch/job.hpp>
#include <utility>

namespace torch_models {

using batches = comp::libtorch::indexed_batches<columns>;
using job_trainer = comp::libtorch::trainer<batches, true>;

/// Each phase is a segment of the graph, and its loss has the phase's name.
inline void comp_step(comp::libtorch::step& s, job& of, const columns& batch) {
  for (const phase& part : of.phases) {
    const torch::Tensor loss = s.forward(part.name, [&] { return part.loss(batch); });
    of.optimizers[part.optimizer]->zero_grad();  // the backward of another phase may have reached these weights
    s.backward(loss, {.loss = part.name});
    if (of.clip_norm > 0) s.clip(of.clip_norm);
    s.update(*of.optimizers[part.optimizer]);
  }
}

inline comp::libtorch::setup setup_of(const job& of) {
  comp::libtorch::setup bundle;
  for (const auto& [name, module] : of.modules) bundle.modules.emplace_back(name, *module);
  for (const auto& optimizer : of.optimizers) bundle.optimizers.push_back(optimizer.get());
  bundle.about = of.description;
  return bundle;
}

/// Requires: `of` outlives the trainer. seed: of the order of the examples.
inline job_trainer make_trainer(job& of, comp::libtorch::setup given, std::uint64_t seed = 1) {
  const auto gather = [&of](const torch::Tensor& rows, at::Generator&) {
    return pick(of, of.train, rows.to(of.train.front().device()));
  };
  return {std::move(given),
          batches{of.examples(), {.batch = std::min(of.batch, of.examples()), .seed = seed}, gather, of.description},
          [&of](comp::libtorch::step& s, columns& batch) { comp_step(s, of, batch); }, [&of] { return of.score(of); }};
}
inline job_trainer make_trainer(job& of, std::uint64_t seed = 1) { return make_trainer(of, setup_of(of), seed); }

}  // namespace torch_models
