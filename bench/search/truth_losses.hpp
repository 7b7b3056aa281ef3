// SPDX-License-Identifier: Apache-2.0
// Rows about what is lowered and what is not: harm that is found, harm that is not there, and noise of losses.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <search/truth/found.hpp>
#include <search/truth/worlds.hpp>
#include <string>
#include <vector>

#include "truth_row.hpp"

namespace bench {

/// What many searches found, against the true best plans.
struct tally {
  figures part, epochs, tested;
  std::size_t harms = 0, threw = 0, best = 0;  // best: true time within 1% of the best plan's, and no harm

  void add(const truth::world& w, const truth::found& got) {
    const comp::plan best_plan = truth::best_plan(w);
    part.add(truth::part_of_saving(w, got.plan, best_plan));
    epochs.add(got.epochs);
    tested.add(static_cast<double>(got.tested));
    harms += got.harms ? 1 : 0;
    threw += got.ended ? 0 : 1;
    best += !got.harms && got.seconds <= 1.01 * truth::true_seconds(w, best_plan) ? 1 : 0;
  }
  std::string threw_text() const { return threw == 0 ? "" : fmt::format("; {} threw", threw); }
};

tally search_worlds(std::size_t runs, std::uint64_t first_seed, auto make) {
  tally all;
  for (std::size_t i = 0; i < runs; ++i) {
    const truth::world w = make(first_seed + i);
    all.add(w, truth::search_in(w));
  }
  return all;
}

inline std::vector<row> large_graphs(const scale& runs) {
  const tally got = search_worlds(runs(20), 5000, [](std::uint64_t seed) { return truth::large(seed); });
  return {{"500 operators, 20% of the deny operators harmful: part of the harmless saving / epochs spent",
           fmt::format("{:.2f} / {:.1f} (harm in {} of {}{})", got.part.mean(), got.epochs.mean(), got.harms,
                       got.part.size(), got.threw_text()),
           "0.95 / 8, no harm in 19 of 20",
           got.part.mean() >= 0.95 && got.epochs.mean() <= 8 && got.harms <= runs.at_most(1, 20)}};
}

inline std::vector<row> one_harmful(const scale& runs) {
  std::vector<row> rows;
  for (const std::size_t count : {std::size_t{16}, std::size_t{64}}) {
    const tally got =
        search_worlds(runs(60), 6000, [count](std::uint64_t seed) { return truth::one_of_a_kind(seed, count); });
    rows.push_back({fmt::format("one harmful allow operator of {} of a kind: part of the saving", count),
                    fmt::format("{:.2f} (least {:.2f}, harm in {} of {}, {:.1f} epochs, {:.1f} plans{})",
                                got.part.mean(), got.part.least(), got.harms, got.part.size(), got.epochs.mean(),
                                got.tested.mean(), got.threw_text()),
                    "0.95, harm in at most 5%", got.part.mean() >= 0.95 && got.harms <= runs.at_most(3, 60)});
  }
  return rows;
}

inline std::vector<row> all_harmless(const scale& runs) {
  const std::size_t all = runs(200), wanted = all - runs.at_most(10, 200);
  const tally got = search_worlds(all, 7000, truth::noisy_losses);
  return {{"all harmless, an epoch's loss differs by 5% from run to run: best plan found",
           fmt::format("{} of {} (mean part of the saving {:.2f}{})", got.best, all, got.part.mean(), got.threw_text()),
           fmt::format("{}", wanted), got.best >= wanted}};
}

inline std::vector<row> harm_of_5_percent(const scale& runs) {
  const std::size_t all = runs(200), allowed = runs.at_most(10, 200);
  const tally got = search_worlds(all, 8000, truth::raises_by_5_percent);
  return {{"an operator that raises the loss by 5%, 3% from run to run: lowered",
           fmt::format("{} of {} (part of the harmless saving {:.2f}{})", got.harms, all, got.part.mean(),
                       got.threw_text()),
           fmt::format("at most {}", allowed), got.harms <= allowed}};
}

inline std::vector<row> chaos(const scale& runs) {
  const std::size_t all = runs(60);
  figures part;
  std::size_t harms = 0, with_harm = 0;
  for (std::size_t i = 0; i < all; ++i) {
    const truth::world w = truth::chaotic(9000 + i);
    const truth::found got = truth::search_in(w);
    part.add(truth::part_of_saving(w, got.plan, truth::best_plan(w)));
    const auto harmful = truth::harmful_operators(w);
    with_harm += static_cast<std::size_t>(std::count(harmful.begin(), harmful.end(), true));
    harms += got.harms ? 1 : 0;
  }
  const std::size_t good = part.above(0.95);
  return {{"46 operators, bit-reproducible chaos of 0.7%, epochs of 10 batches: part of the harmless saving",
           fmt::format("{:.2f}, at least 0.95 in {} of {}; operators of 5% harm lowered {} of {}", part.mean(), good,
                       all, harms, with_harm),
           "0.95 in 95% of the runs, at most 10% of the harm", 20 * good >= 19 * all && 10 * harms <= with_harm}};
}

inline std::vector<row> pair_harm(const scale& runs) {
  const tally got = search_worlds(runs(60), 10000, truth::pairs);
  return {{"two pairs of operators that harm only together: part of the saving / harm",
           fmt::format("{:.2f} / {} of {} ({:.1f} plans, {:.1f} epochs{})", got.part.mean(), got.harms, got.part.size(),
                       got.tested.mean(), got.epochs.mean(), got.threw_text()),
           "0.95 / at most 5%", got.part.mean() >= 0.95 && got.harms <= runs.at_most(3, 60)}};
}

inline std::vector<row> scores(const scale& runs) {
  const tally got = search_worlds(runs(60), 11000, truth::sensitive);
  return {{"64 operators, 32 sensitive, scores off by up to 3: part of the saving / plans tested",
           fmt::format("{:.2f} / mean {:.1f}, most {:.0f} (harm in {} of {}, {:.1f} epochs{})", got.part.mean(),
                       got.tested.mean(), got.tested.most(), got.harms, got.part.size(), got.epochs.mean(),
                       got.threw_text()),
           "0.95, as many as pay, harm in at most 5%", got.part.mean() >= 0.95 && got.harms <= runs.at_most(3, 60)}};
}

inline std::vector<row> loss_signs(const scale& runs) {
  const tally got = search_worlds(runs(60), 12000, truth::signs);
  return {{"losses negative, crossing zero, growing, several: part of the saving / harm of 15%",
           fmt::format("{:.2f} / {} of {}{}", got.part.mean(), got.harms, got.part.size(), got.threw_text()),
           "0.95 / at most 5%", got.part.mean() >= 0.95 && got.harms <= runs.at_most(3, 60)}};
}

inline std::vector<row> bad_inputs(const scale& runs) {
  const std::size_t all = std::max<std::size_t>(runs(48), 16);
  std::size_t failed = 0;
  for (std::size_t i = 0; i < all; ++i) {
    const truth::world w = truth::bad_input(13008 + i);
    const truth::found got = truth::search_in(w);
    const double fp32 = truth::true_seconds(w, comp::plan{w.graph.size()});
    failed += !got.ended || got.harms || got.seconds > 1.01 * std::min(fp32, got.rule_based) ? 1 : 0;
  }
  return {{"profiles and scores with NaN, zeros or entries missing: threw, harm, or slower than the rules",
           fmt::format("{} of {}", failed, all), "at most 5%", 20 * failed <= all}};
}

inline std::vector<row> huge_graph(const scale& runs) {
  const std::size_t operators = runs.quick ? 10'000 : 100'000;
  const tally got = search_worlds(1, 14000, [&](std::uint64_t seed) { return truth::large(seed, operators); });
  return {{fmt::format("{} operators, 20% of the deny operators harmful: part of the saving / epochs", operators),
           fmt::format("{:.2f} / {:.1f} ({}{})", got.part.mean(), got.epochs.mean(), got.harms > 0 ? "harm" : "no harm",
                       got.threw_text()),
           "0.95 / 20, no harm", got.part.mean() >= 0.95 && got.epochs.mean() <= 20 && got.harms == 0}};
}

}  // namespace bench
