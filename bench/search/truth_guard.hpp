// SPDX-License-Identifier: Apache-2.0
// Rows about training on with what was found: the guard lets healthy trainings alone and catches those that are not.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <iterator>
#include <search/truth/found.hpp>
#include <search/truth/late_worlds.hpp>
#include <vector>

#include "truth_row.hpp"

namespace bench {

inline std::vector<row> healthy_trainings(const scale& runs) {
  std::vector<row> rows;
  for (std::size_t k = 0; k < std::size(truth::health_names); ++k) {
    const auto which = static_cast<truth::health>(k);
    const std::size_t all = runs(20);
    std::size_t fp32 = 0, low = 0;
    for (std::size_t i = 0; i < all; ++i) {
      for (const bool faster : {false, true}) {
        const truth::followed got = truth::train_in(truth::healthy(15000 + i, which, faster), 40);
        const bool ended = !got.finished || got.fallbacks > 0;
        (faster ? low : fp32) += ended ? 1 : 0;
      }
    }
    rows.push_back({fmt::format("healthy training of 40 epochs ended by the guard, {}", truth::health_names[k]),
                    fmt::format("FP32 {} of {}, low plans given up {} of {}", fp32, all, low, all), "0 and 0",
                    fp32 == 0 && low == 0});
  }
  return rows;
}

inline std::vector<row> late_divergence(const scale& runs) {
  const std::size_t all = runs(60);
  std::size_t caught = 0, with_harm = 0;
  figures epochs;
  for (std::size_t i = 0; i < all; ++i) {
    const truth::followed got = truth::train_in(truth::diverges_late(16000 + i), 25);
    if (!got.search.harms) continue;  // the plan holds none of the operators that diverge
    ++with_harm;
    epochs.add(got.diverged);
    caught += got.finished && got.diverged <= 1 && got.last_loss < 0.1 ? 1 : 0;
  }
  return {{"plans that diverge epochs after the search: caught within an epoch, and trained to the end",
           fmt::format("{} of {} (of {} plans; longest divergence {:.2f} epochs)", caught, with_harm, all,
                       with_harm > 0 ? epochs.most() : 0),
           "all", with_harm > 0 && caught == with_harm}};
}

inline std::vector<row> stuck_above(const scale& runs) {
  const std::size_t all = runs(60);
  std::size_t caught = 0, with_harm = 0;
  for (std::size_t i = 0; i < all; ++i) {
    const truth::followed got = truth::train_in(truth::sits_above(17000 + i), 40);
    if (!got.search.harms) continue;
    ++with_harm;
    caught += got.finished && got.last_loss < 0.1 ? 1 : 0;  // FP32 ends at 0.05, the plan at 0.35
  }
  return {{"plans that sit at 7 times FP32's final loss: caught, and trained on to it",
           fmt::format("{} of {} (of {} plans)", caught, with_harm, all), "all", with_harm > 0 && caught == with_harm}};
}

}  // namespace bench
