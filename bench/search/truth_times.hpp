// SPDX-License-Identifier: Apache-2.0
// Rows about the speed of what is found, and about what finding it costs.
#pragma once

#include <fmt/format.h>

#include <cstddef>
#include <search/truth/found.hpp>
#include <search/truth/worlds.hpp>
#include <utility>
#include <vector>

#include "truth_row.hpp"

namespace bench {

inline std::vector<row> slower_than_rules(const scale& runs) {
  std::vector<row> rows;
  for (const double noise : {0.1, 0.2}) {
    const std::size_t all = runs(200), allowed = runs.at_most(4, 200);
    figures over;
    for (std::size_t i = 0; i < all; ++i) {
      const truth::found got = truth::search_in(truth::noisy_times(1000 + i, noise));
      over.add(got.seconds / got.rule_based);
    }
    rows.push_back(
        {fmt::format("chosen plan truly over 1% slower than the rule-based one, {:.0f}% noise of times", 100 * noise),
         fmt::format("{} of {} (mean time {:.3f} of the rule-based plan's, worst {:.3f})", over.above(1.01), all,
                     over.mean(), over.most()),
         fmt::format("at most {}", allowed), over.above(1.01) <= allowed});
  }
  return rows;
}

inline std::vector<row> over_the_optimum(const scale& runs) {
  figures over;
  for (std::size_t i = 0; i < runs(60); ++i) {
    const truth::world w = truth::small_dag(2000 + i);
    over.add(truth::search_in(w).seconds / truth::true_seconds(w, truth::best_plan(w)));
  }
  return {{fmt::format("time over the true optimum, {} DAGs of 12 operators, casts of 0.3", over.size()),
           fmt::format("mean {:.3f}, worst {:.3f}", over.mean(), over.most()), "mean 1.01, worst 1.05",
           over.mean() <= 1.01 && over.most() <= 1.05}};
}

inline std::vector<row> batch_lengths(const scale& runs) {
  const std::size_t all = runs(60);
  std::size_t fp32 = 0;
  figures speed;
  for (std::size_t i = 0; i < all; ++i) {
    const truth::world w = truth::lengths(3000 + i);
    const truth::found got = truth::search_in(w);
    fp32 += got.plan.count_low() == 0 ? 1 : 0;
    speed.add(truth::true_seconds(w, comp::plan{w.graph.size()}) / got.seconds);
  }
  return {{"batches of lognormal length (0.3), true 1.19x: FP32 chosen",
           fmt::format("{} of {} (mean true speed-up {:.3f})", fp32, all, speed.mean()), "0", fp32 == 0}};
}

inline std::vector<row> cost_of_search(const scale& runs) {
  std::vector<row> rows;
  for (const auto& [batches, goal] : {std::pair{std::size_t{150}, 0.01}, std::pair{std::size_t{10}, 0.02}}) {
    figures cost, part;
    for (std::size_t i = 0; i < runs(60); ++i) {
      const truth::world w = truth::usual(4000 + i, batches);
      const truth::found got = truth::search_in(w);
      cost.add(got.cost);
      part.add(truth::part_of_saving(w, got.plan, truth::best_plan(w)));
    }
    rows.push_back({fmt::format("true cost of the search as part of 100 epochs of {} batches", batches),
                    fmt::format("mean {:.2f}%, worst {:.2f}% (part of the saving {:.2f})", 100 * cost.mean(),
                                100 * cost.most(), part.mean()),
                    fmt::format("at most {:.0f}% in each", 100 * goal), cost.most() <= goal});
  }
  return rows;
}

}  // namespace bench
