// SPDX-License-Identifier: Apache-2.0
// Rows about loops that cannot be asked for a batch (comp::online), beside the search of a trainer that can.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <comp/search/online.hpp>
#include <cstddef>
#include <cstdint>
#include <search/truth/found.hpp>
#include <search/truth/odd_worlds.hpp>
#include <search/truth/worlds.hpp>
#include <vector>

#include "truth_row.hpp"

namespace bench {

/// How a loop trained that searches while it runs.
struct looped {
  double seconds = 0;              // of all batches, those that were undone included
  comp::plan plan = {};            // of the last batch
  std::size_t harmful_in_row = 0;  // the most batches of harmful plans without another one between
};

/// Trains until `batches` batches are in the weights. `times`: the loop times operators, as one does that comp runs.
inline looped train_in_loop(const truth::world& w, std::size_t batches, bool times) {
  truth::profiling<truth::saving<truth::bare_trainer>> trainer{w};
  truth::state kept;
  comp::loop_info about{.precisions = w.precisions, .batches_per_epoch = w.batches};
  about.save = [&] { kept = trainer.save(); };
  about.restore = [&] { trainer.restore(kept); };
  if (times) about.times = [&] { return trainer.profile(); };
  comp::online search{truth::lists{}, trainer.graph(), about};
  looped got;
  std::size_t in_row = 0;
  while (trainer.weights().step < batches) {
    trainer.set_precision(search.plan());
    in_row = truth::does_harm(w, trainer.now()) ? in_row + 1 : 0;
    got.harmful_in_row = std::max(got.harmful_in_row, in_row);
    search.tell(trainer.run_batch());
  }
  got.seconds = trainer.billed().seconds;
  got.plan = trainer.now();
  return got;
}

/// The seconds of as many batches with two_stage and the training after it, on a trainer with all capabilities.
inline double seconds_of_search(const truth::world& w, std::size_t batches) {
  truth::full_trainer trainer{w};
  const comp::outcome found = comp::two_stage<truth::lists>{}.run(trainer);
  const std::size_t rest = batches - std::min<std::size_t>(batches, trainer.weights().step);
  const comp::plan last = comp::post_training{.epochs = rest / w.batches}.run(trainer, found).plan;
  const double missing = static_cast<double>(batches) - static_cast<double>(trainer.weights().step);
  return trainer.billed().seconds + missing * truth::true_seconds(w, last);
}

/// What users train, in epochs of 150 batches: times with 1% to 20% noise on a machine that drifts, a plan's first
/// batch slow. `slow`: an operator does harm of 10% that takes 50 to 300 batches to build up; losses alone show it.
inline truth::world loop_world(std::uint64_t seed, bool slow) {
  truth::draw random{seed};
  const double builds_up = random.between(50, 300);
  truth::world w = slow ? truth::slow_harm(random.bits(), builds_up) : truth::usual(random.bits(), 150);
  w.batches = 150;
  w.noise = random.between(0.01, 0.2);
  w.drift = random.between(0, 0.1);
  w.first_batch = random.between(0.5, 2);
  return w;
}

inline std::vector<row> loops(const scale& runs) {
  constexpr std::size_t batches = 100 * 150;
  std::vector<row> rows;
  for (const bool slow : {false, true}) {
    for (const bool times : {true, false}) {
      const std::size_t all = runs(slow ? 100 : 300);
      std::size_t harms = 0, in_row = 0;
      figures time;
      for (std::size_t i = 0; i < all; ++i) {
        const truth::world w = loop_world((slow ? 35000 : 34000) + i, slow);
        const looped got = train_in_loop(w, batches, times);
        harms += truth::does_harm(w, got.plan) ? 1 : 0;
        in_row = std::max(in_row, got.harmful_in_row);
        time.add(got.seconds / seconds_of_search(w, batches));
      }
      rows.push_back(
          {fmt::format("loops that search while they run, 100 epochs of 150 batches, {}, {}: whole time, of "
                       "that with two_stage / harmful plans at the end",
                       slow ? "slow harm" : "harm at once", times ? "operators timed" : "whole batches alone"),
           fmt::format("mean {:.3f}, worst {:.3f} / {} of {} (at most {} batches of harmful plans in a row)",
                       time.mean(), time.most(), harms, all, in_row),
           "1.03 / 0", time.mean() <= 1.03 && harms == 0});
    }
  }
  return rows;
}

}  // namespace bench
