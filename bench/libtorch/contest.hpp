// SPDX-License-Identifier: Apache-2.0
// One model trained four ways in one process, in turns: LibTorch's FP32, LibTorch's autocast, what a careful user makes
// of that by hand, and comp's plan. The first two are the loop that a user has, with LibTorch's optimizer and memory as
// they are. By hand: autocast, weights and images channels-last, a fused optimizer pass, freed memory kept. The memory
// is switched with each turn, which begins with a step that is not timed.
#pragma once

#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <bench/seconds.hpp>
#include <comp/core/statistics.hpp>
#include <comp_libtorch/hook/autocast_guard.hpp>
#include <comp_libtorch/support/memory.hpp>
#include <comp_libtorch/train/fused_optimizer.hpp>
#include <comp_libtorch/train/optimizer_state.hpp>
#include <functional>
#include <libtorch/jobs.hpp>
#include <libtorch/trainers.hpp>
#include <vector>

namespace bench {

enum way { fp32, autocast, by_hand, comp_plan };
inline constexpr std::array all_ways{fp32, autocast, by_hand, comp_plan};
inline constexpr std::array<const char*, 4> way_names{"fp32", "autocast", "by hand", "comp"};

inline double page_faults() {
  rusage used{};
  getrusage(RUSAGE_SELF, &used);
  return static_cast<double>(used.ru_minflt);
}

/// A step as torch_models::train_step, with the forwards under LibTorch's autocast.
inline std::vector<double> autocast_step(torch_models::job& of, const torch_models::columns& batch) {
  return train_step(of, [&](const torch_models::phase& part) {
    const comp::libtorch::autocast_guard on{at::kCPU, at::kBFloat16};
    return part.loss(batch);
  });
}

/// Weights of convolutions lie channels-last from now on.
inline void make_channels_last(const torch_models::job& of) {
  for (const auto& [name, module] : of.modules) {
    for (torch::Tensor& p : module->parameters()) {
      if (p.dim() == 4) p.set_data(p.detach().contiguous(at::MemoryFormat::ChannelsLast));
    }
  }
}
/// Requires: make_channels_last(of).
inline std::vector<double> by_hand_step(torch_models::job& of, torch_models::columns batch) {
  for (torch::Tensor& column : batch) {
    if (column.dim() == 4) column = column.contiguous(at::MemoryFormat::ChannelsLast);
  }
  return train_step(
      of,
      [&](const torch_models::phase& part) {
        const comp::libtorch::autocast_guard on{at::kCPU, at::kBFloat16};
        return part.loss(batch);
      },
      [](torch::optim::Optimizer& optimizer) { (void)comp::libtorch::fused_step(optimizer); });
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
  std::array<std::vector<double>, 4> seconds = {};  // of a step, in the order of the rounds
  std::array<std::vector<double>, 4> faults = {};   // of pages, in the same steps
  std::array<std::int64_t, 4> peak_bytes = {};

  double of(way w) const { return comp::median(seconds[w]); }
  /// How many times as fast `b` is as `a`.
  comp::paired_speedup speedup(way a, way b) const { return comp::compare_paired(seconds[a], seconds[b]); }
};

/// `peer`: the job that is trained by hand, another instance of `of`. Each turn is one step to get used to it and one
/// that is timed; turns change their order from round to round.
inline contest race(torch_models::job& of, torch_models::job& peer, torch_models::job_trainer& trainer,
                    double seconds_at_least, std::size_t rounds_at_most) {
  torch_models::batches source{of.examples(),
                               {.batch = std::min(of.batch, of.examples())},
                               [&of](const torch::Tensor& rows, at::Generator&) { return pick(of, of.train, rows); }};
  const auto plain = [&](auto step) {
    auto batch = source.next();
    if (!batch) batch = source.next();
    step(*batch);
  };
  make_channels_last(peer);
  const std::array<std::function<void()>, 4> steps{
      [&] { plain([&](auto& b) { train_step(of, b); }); }, [&] { plain([&](auto& b) { autocast_step(of, b); }); },
      [&] { plain([&](auto& b) { by_hand_step(peer, b); }); }, [&] { trainer.run_batch(); }};
  const auto prepare = [&](std::size_t who) {
    comp::libtorch::keep_freed_memory(who == by_hand || who == comp_plan);
    return seconds_of(steps[who]);
  };
  contest found;
  double spent = 0;
  for (std::size_t round = 0; round < rounds_at_most && (round < 8 || spent < seconds_at_least); ++round) {
    for (std::size_t turn = 0; turn < steps.size(); ++turn) {
      const std::size_t who = (round + turn) % steps.size();
      spent += prepare(who);
      const double faults = page_faults();
      found.seconds[who].push_back(seconds_of(steps[who]));
      found.faults[who].push_back(page_faults() - faults);
      spent += found.seconds[who].back();
    }
  }
  for (std::size_t who = 0; who < steps.size(); ++who) {
    prepare(who);
    const std::int64_t copies = who == comp_plan ? trainer.executor().kept_bytes() : 0;
    const comp::libtorch::memory_meter meter{at::kCPU, held_bytes(who == by_hand ? peer : of) + copies};
    steps[who]();
    found.peak_bytes[who] = meter.peak();
  }
  return found;
}

}  // namespace bench
