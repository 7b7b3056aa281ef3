// SPDX-License-Identifier: Apache-2.0
// Worlds for the guard of post-training: healthy trainings that look ill, and plans that go wrong after the search.
#pragma once

#include <cmath>
#include <cstddef>
#include <cstdint>
#include <string_view>
#include <vector>

#include "worlds.hpp"

namespace truth {

enum class health : std::uint8_t {
  lenet,     // a late loss near zero whose batches differ by more than they are
  restarts,  // the learning rate goes up again every eighth epoch, and the loss with it
  growing,   // a generator's
  crossing,  // a critic's
  negative,
  several  // a GAN's two
};
inline constexpr std::string_view health_names[] = {"lenet",         "warm restarts", "growing",
                                                    "crossing zero", "negative",      "several"};

/// Nothing harms. `faster`: low precision is faster, so a plan is found; else it is slower, and FP32 is what trains.
inline world healthy(std::uint64_t seed, health which, bool faster) {
  draw random{seed};
  const graph_settings graph{.shape = drawn_shape(random), .operators = 8 + random.below(9)};
  const range slow{1.2, 2};
  world w =
      harmless(random, graph, faster ? cost_settings{} : cost_settings{.allow = slow, .deny = slow, .other = slow});
  if (which == health::negative) give_signs(w.losses, sign::negative);
  if (which == health::growing) give_signs(w.losses, sign::growing);
  if (which == health::crossing) give_signs(w.losses, sign::crossing);
  if (which == health::several) give_signs(w.losses, sign::several);
  if (which == health::restarts) {
    w.losses.curve = [](double epoch) {
      const double since = std::fmod(epoch, 8), best = 0.1 + 0.9 * std::exp(-epoch / 10);
      return best * (1 + 1.5 * std::exp(-since));
    };
    w.losses.wander = 0.02;
  }
  if (which == health::lenet) {
    w.batches = 200;
    w.losses.curve = [](double epoch) { return 2.3 / (1 + std::pow(epoch / 0.3, 1.7)) + 1e-4; };
    w.losses.noise = 2;
    w.losses.wander = 0.15;
  }
  return w;
}

inline world guarded(draw& random) {
  const graph_settings graph{.shape = drawn_shape(random), .operators = 8 + random.below(9), .allow = 0.5};
  world w = harmless(random, graph, {.deny = {0.5, 0.9}, .other = {0.5, 0.9}, .cast = 0.05});
  w.losses.curve = [](double epoch) { return 0.05 + 1.95 * std::exp(-epoch / 3); };
  w.losses.floor = 0.05;
  w.losses.wander = 0.01;
  return w;
}

/// One or two operators that make the training diverge some epochs after the search.
inline world diverges_late(std::uint64_t seed) {
  draw random{seed};
  world w = guarded(random);
  w.losses.onset = w.batches * (4 + random.below(12));
  w.losses.growth = random.between(0.02, 0.2);
  const std::vector<std::size_t> all = operators_of(w.graph, [](const comp::op_info&) { return true; });
  w.losses.diverging = random.some(all, 1 + random.below(2));
  return w;
}

/// One or two operators that hold the loss at 7 times what FP32 ends at, which shows only late.
inline world sits_above(std::uint64_t seed) {
  draw random{seed};
  world w = guarded(random);
  const std::vector<std::size_t> all = operators_of(w.graph, [](const comp::op_info&) { return true; });
  w.losses.sticking = random.some(all, 1 + random.below(2));
  return w;
}

}  // namespace truth
