// SPDX-License-Identifier: Apache-2.0
// One model trained three ways in one process, in turns: LibTorch's FP32, LibTorch's autocast, and comp's plan. The
// first two are the loop that a user has, without comp in it.
#pragma once

#include <ATen/Parallel.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <comp/core/statistics.hpp>
#include <comp_libtorch/autocast_guard.hpp>
#include <comp_libtorch/memory.hpp>
#include <comp_libtorch/optimizer_state.hpp>
#include <functional>
#include <libtorch/jobs.hpp>
#include <libtorch/trainers.hpp>
#include <optional>
#include <string>
#include <vector>

namespace bench {

enum way { fp32, autocast, comp_plan };
inline constexpr std::array<const char*, 3> way_names{"fp32", "autocast", "comp"};

inline double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

/// A step as torch_models::train_step, with the forwards under LibTorch's autocast.
inline std::vector<double> autocast_step(torch_models::job& of, const torch_models::columns& batch) {
  return train_step(of, [&](const torch_models::phase& part) {
    const comp::libtorch::autocast_guard on{at::kCPU, at::kBFloat16};
    return part.loss(batch);
  });
}

/// What a training keeps from step to step [bytes].
inline std::int64_t held_bytes(const torch_models::job& of) {
  std::vector<torch::Tensor> all;
  for (const auto& [name, module] : of.modules) {
    for (const torch::Tensor& t : module->buffers()) all.push_back(t);
    for (const torch::Tensor& t : module->parameters()) all.insert(all.end(), {t, t.grad()});
  }
  for (const auto& optimizer : of.optimizers) comp::libtorch::append_tensors(*optimizer, all);
  return comp::libtorch::bytes_held(all);
}

struct contest {
  std::array<std::vector<double>, 3> seconds = {};  // of a step, in the order of the rounds
  std::array<std::int64_t, 3> peak_bytes = {};

  double of(way w) const { return comp::median(seconds[w]); }
  way better_baseline() const { return of(fp32) <= of(autocast) ? fp32 : autocast; }
  /// How many times as fast `b` is as `a`.
  comp::paired_speedup speedup(way a, way b) const { return comp::compare_paired(seconds[a], seconds[b]); }
};

/// Each turn is one step to get used to it and one that is timed; turns change their order from round to round.
inline contest race(torch_models::job& of, torch_models::job_trainer& trainer, double seconds_at_least,
                    std::size_t rounds_at_most) {
  torch_models::batches source{of.examples(),
                               {.batch = std::min(of.batch, of.examples())},
                               [&of](const torch::Tensor& rows, at::Generator&) { return pick(of, of.train, rows); }};
  const auto plain = [&](auto step) {
    auto batch = source.next();
    if (!batch) batch = source.next();
    step(of, *batch);
  };
  const std::array<std::function<void()>, 3> steps{[&] { plain([](auto& j, auto& b) { train_step(j, b); }); },
                                                   [&] { plain([](auto& j, auto& b) { autocast_step(j, b); }); },
                                                   [&] { trainer.run_batch(); }};
  contest found;
  double spent = 0;
  for (std::size_t round = 0; round < rounds_at_most && (round < 8 || spent < seconds_at_least); ++round) {
    for (std::size_t turn = 0; turn < 3; ++turn) {
      const std::size_t who = (round + turn) % 3;
      spent += seconds_of(steps[who]);
      found.seconds[who].push_back(seconds_of(steps[who]));
      spent += found.seconds[who].back();
    }
  }
  for (std::size_t who = 0; who < 3; ++who) {
    const std::int64_t copies = who == comp_plan ? trainer.executor().kept_bytes() : 0;
    const comp::libtorch::memory_meter meter{at::kCPU, held_bytes(of) + copies};
    steps[who]();
    found.peak_bytes[who] = meter.peak();
  }
  return found;
}

}  // namespace bench
