// SPDX-License-Identifier: Apache-2.0
// Rows about worlds that differ from what a search expects (tests/search/truth/odd_worlds.hpp).
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <comp/search/paper_search.hpp>
#include <comp/strategy/delta_debugging.hpp>
#include <comp/strategy/genetic.hpp>
#include <cstddef>
#include <map>
#include <search/truth/found.hpp>
#include <search/truth/odd_worlds.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "truth_row.hpp"

namespace bench {

inline std::vector<row> parts_that_harm(const scale& runs) {
  const std::size_t all = runs(100);
  std::size_t harms = 0, unjudged = 0;
  figures cost, time;
  for (std::size_t i = 0; i < all; ++i) {
    const truth::found got = truth::search_in(truth::harms_apart(20000 + i));
    harms += got.harms ? 1 : 0;
    unjudged += got.judged ? 0 : 1;
    cost.add(got.cost);
    time.add(got.seconds / got.rule_based);
  }
  return {{"100 epochs of 5 to 59 batches, parts of the rules' plan that harm: harmful plans chosen / never judged",
           fmt::format("{} / {} of {} (cost {:.2f}%, time {:.3f} of the rules' plan)", harms, unjudged, all,
                       100 * cost.mean(), time.mean()),
           "0 / 0", harms == 0 && unjudged == 0}};
}

inline std::vector<row> without_room(const scale& runs) {
  const std::size_t all = runs(60), allowed = runs.at_most(3, 60);
  std::size_t harms = 0, threw = 0;
  for (std::size_t i = 0; i < all; ++i) {
    const truth::found got = truth::search_in(truth::no_room(21000 + i));
    harms += got.harms ? 1 : 0;
    threw += got.ended ? 0 : 1;
  }
  return {{"neither FP32 nor the rules' plan fits in memory: harmful plans chosen",
           fmt::format("{} of {}, {} threw", harms, all, threw), fmt::format("at most {}", allowed),
           harms <= allowed && threw == 0}};
}

inline std::vector<row> without_restore(const scale& runs) {
  std::vector<row> rows;
  for (const double epochs : {2.0, 6.0, 30.0}) {
    const std::size_t all = runs(60), allowed = runs.at_most(3, 60);
    std::size_t harms = 0;
    figures part, share, cost;
    for (std::size_t i = 0; i < all; ++i) {
      const truth::world w = truth::falling(22000 + i, epochs);
      const truth::found got = truth::search_bare(w);
      harms += got.harms ? 1 : 0;
      part.add(truth::part_of_saving(w, got.plan, truth::best_plan(w)));
      share.add(got.epochs);
      cost.add(got.cost);
    }
    rows.push_back({fmt::format("four members, no restore, a loss that falls with an e-fold of {:.0f} epochs: harmful "
                                "plans chosen",
                                epochs),
                    fmt::format("{} of {} (part of the harmless saving {:.2f}, {:.1f} epochs, cost {:.2f}%)", harms,
                                all, part.mean(), share.mean(), 100 * cost.mean()),
                    fmt::format("at most {}", allowed), harms <= allowed});
  }
  return rows;
}

inline std::vector<row> slow_harm(const scale& runs) {
  std::vector<row> rows;
  for (const double batches : {100.0, 300.0}) {
    const std::size_t all = runs(40), allowed = runs.at_most(2, 40);
    std::size_t chosen = 0, ended = 0, failed = 0;
    figures cost, time;
    for (std::size_t i = 0; i < all; ++i) {
      const truth::world w = truth::slow_harm(23000 + i, batches);
      const truth::followed got = truth::train_in(w, 100);
      chosen += got.search.harms ? 1 : 0;
      ended += got.damage > 0.01 ? 1 : 0;
      failed += got.finished ? 0 : 1;
      if (!got.search.harms) cost.add(got.cost);
      time.add(truth::true_seconds(w, got.finished ? got.plan : comp::plan{w.graph.size()}) /
               truth::true_seconds(w, truth::best_plan(w)));
    }
    rows.push_back(
        {fmt::format("harm of 10% reached over {:.0f} batches: in the model after 100 epochs", batches),
         fmt::format("{} of {} ({} chosen, {} failed; last plan {:.3f} of the best's time; evidence after harmless "
                     "plans {:.2f}% of the training)",
                     ended, all, chosen, failed, time.mean(), cost.size() > 0 ? 100 * cost.mean() : 0),
         fmt::format("at most {}, 0.5%", allowed), ended <= allowed && failed == 0});
  }
  return rows;
}

inline std::vector<row> one_late(const scale& runs) {
  const std::size_t all = runs(60);
  std::size_t fp32 = 0, failed = 0, harms = 0;
  figures time;
  for (std::size_t i = 0; i < all; ++i) {
    const truth::world w = truth::one_turns_bad(24000 + i);
    const truth::followed got = truth::train_in(w, 60);
    failed += got.finished ? 0 : 1;
    if (!got.finished) continue;
    fp32 += got.plan.count_low() == 0 ? 1 : 0;
    harms += truth::does_harm(w, got.plan) ? 1 : 0;
    time.add(truth::true_seconds(w, got.plan) / truth::true_seconds(w, truth::best_plan(w)));
  }
  return {
      {"one operator that turns bad late: the last plan's time over the best one's without it",
       fmt::format("{:.3f} (all FP32 in {}, with it in {}, {} failed of {})", time.mean(), fp32, harms, failed, all),
       "1.03", time.mean() <= 1.03 && failed == 0}};
}

inline std::vector<row> healthy_evidence(const scale& runs) {
  const std::size_t all = runs(40);
  figures cost;
  std::size_t given_up = 0;
  for (std::size_t i = 0; i < all; ++i) {
    const truth::followed got = truth::train_in(truth::rises(25000 + i, 0), 100);
    cost.add(got.cost);
    given_up += got.fallbacks;
  }
  return {{"harmless plans: what evidence after the search costs of 100 epochs",
           fmt::format("mean {:.2f}%, worst {:.2f}% ({} plans given up of {})", 100 * cost.mean(), 100 * cost.most(),
                       given_up, all),
           "0.5%, none given up", cost.mean() <= 0.005 && given_up == 0}};
}

inline std::vector<row> not_finite(const scale& runs) {
  struct named {
    std::string_view name;
    truth::loss_of_batches which;
  };
  std::vector<row> rows;
  for (const auto& [name, which] : {named{"one early batch, in every plan", truth::loss_of_batches::early},
                                    named{"0.1% of all batches", truth::loss_of_batches::rare},
                                    named{"3% of the low ones", truth::loss_of_batches::low}}) {
    const std::size_t all = runs(60), allowed = which == truth::loss_of_batches::low ? runs.at_most(3, 60) : 0;
    std::size_t failed = 0, harms = 0, kept = 0, given_up = 0;
    figures part;
    for (std::size_t i = 0; i < all; ++i) {
      const truth::world w = truth::not_finite(26000 + i, which);
      const truth::followed got = truth::train_in(w, 20);
      failed += got.finished ? 0 : 1;
      harms += got.search.harms ? 1 : 0;
      kept += got.finished && truth::does_harm(w, got.plan) ? 1 : 0;
      given_up += which != truth::loss_of_batches::low ? got.fallbacks : 0;
      part.add(truth::part_of_saving(w, got.search.plan, truth::best_plan(w)));
    }
    rows.push_back({fmt::format("losses that are NaN, {}: trainings that end / harmful plans after 20 epochs", name),
                    fmt::format("{} / {} of {} ({} chosen, part of the saving {:.2f}, {} harmless plans given up)",
                                failed, kept, all, harms, part.mean(), given_up),
                    fmt::format("0 / {}", allowed), failed == 0 && kept <= allowed});
  }
  return rows;
}

inline std::vector<row> tolerance_line(const scale& runs) {
  std::string curve;
  std::map<std::string, double> accepted;
  const std::size_t all = runs(100);
  for (const double part : {0.0, 0.005, 0.008, 0.01, 0.012, 0.015, 0.02}) {
    std::size_t harms = 0, lowered = 0;
    for (std::size_t i = 0; i < all; ++i) {
      const truth::world w = truth::rises(27000 + i, part);
      const truth::found got = truth::search_in(w);
      harms += got.harms ? 1 : 0;
      lowered += got.seconds <= 1.01 * truth::true_seconds(w, truth::best_plan(truth::rises(27000 + i, 0))) ? 1 : 0;
    }
    const std::size_t count = part > 0 ? harms : lowered;
    curve += fmt::format("{}{:.1f}%: {}", curve.empty() ? "" : ", ", 100 * part, count);
    accepted[fmt::format("{}", part)] = static_cast<double>(count) / static_cast<double>(all);
  }
  return {{fmt::format("an operator that raises the loss by so much: lowered, of {}", all), curve,
           "at most 5% above 1%, at least 95% at 0", accepted["0.012"] <= 0.05 && accepted["0"] >= 0.95}};
}

inline std::vector<row> surprises(const scale& runs) {
  struct named {
    std::string_view name;
    truth::surprise which;
  };
  using enum truth::surprise;
  std::vector<row> rows;
  for (const auto& [name, which] :
       {named{"only all low is fast", together}, named{"low neighbours run as one", fused_low},
        named{"FP32 neighbours run as one", fused_fp32}, named{"a profile up to ten times off", profile_off},
        named{"an inverse profile", profile_inverse}, named{"three low precisions", three_lows},
        named{"the same, casts between them costly", costly_between}}) {
    const std::size_t all = runs(60), wanted = all - runs.at_most(10, 60);
    std::size_t right = 0;
    figures over, cost;
    for (std::size_t i = 0; i < all; ++i) {
      const truth::world w = truth::surprising(28000 + i, which);
      const truth::found got = truth::search_in(w);
      over.add(got.seconds / truth::true_seconds(w, truth::brute_force(w)));
      right += over.last() <= 1.01 ? 1 : 0;
      cost.add(got.cost);
    }
    rows.push_back({fmt::format("times that surprise, {}: best plan found", name),
                    fmt::format("{} of {} (time {:.3f} of the best, worst {:.3f}; cost {:.2f}%)", right, all,
                                over.mean(), over.most(), 100 * cost.mean()),
                    fmt::format("{}", wanted), right >= wanted});
  }
  return rows;
}

inline std::vector<row> repeated(const scale& runs) {
  figures mean, worst;
  for (std::size_t i = 0; i < runs(20); ++i) {
    truth::world w = truth::usual(29000 + i, 100);
    figures seconds;
    for (w.machine = 0; w.machine < 20; ++w.machine) seconds.add(truth::search_in(w).seconds);
    figures off;
    for (const double s : seconds.all()) off.add(s / seconds.least() - 1);
    mean.add(off.mean());
    worst.add(off.most());
  }
  return {{"twenty searches in one world, the machine's noise another: how much slower than the fastest found",
           fmt::format("mean {:.2f}%, worst {:.2f}%", 100 * mean.mean(), 100 * worst.most()), "1% and 2%",
           mean.mean() <= 0.01 && worst.most() <= 0.02}};
}

inline std::vector<row> score_worth(const scale& runs) {
  std::map<std::string, double> parts;
  std::string text;
  for (const std::string_view kind : {"right", "none", "unrelated", "inverse"}) {
    figures part;
    for (std::size_t i = 0; i < runs(40); ++i) {
      truth::world w = truth::sensitive(30000 + i);
      if (kind == "none") w.score_fault = truth::fault::missing;
      truth::draw random{i};
      for (double& s : w.score)
        s = kind == "unrelated" ? std::exp(2.5 * random.normal()) : kind == "inverse" ? 1 / s : s;
      part.add(truth::part_of_saving(w, truth::search_in(w).plan, truth::best_plan(w)));
    }
    parts[std::string{kind}] = part.mean();
    text += fmt::format("{}{} {:.2f}", text.empty() ? "" : ", ", kind, part.mean());
  }
  return {{"64 operators, 32 sensitive, by their scores: part of the saving", text, "wrong scores as good as none",
           std::min(parts["unrelated"], parts["inverse"]) >= parts["none"] - 0.03}};
}

void add_explicit(std::vector<row>& rows, std::string_view name, const auto& strategy, const scale& runs) {
  figures part;
  std::size_t harms = 0;
  for (std::size_t i = 0; i < runs(30); ++i) {
    const truth::world w = truth::one_of_a_kind(31000 + i, 16);
    const truth::found got = truth::search_in(w, comp::two_stage{truth::lists{}, strategy, comp::strategy::greedy{}});
    part.add(truth::part_of_saving(w, got.plan, truth::best_plan(w)));
    harms += got.harms ? 1 : 0;
  }
  rows.push_back({fmt::format("one harmful allow operator of 16 of a kind, by {}: part of the saving", name),
                  fmt::format("{:.2f} (harm in {} of {})", part.mean(), harms, part.size()), "0.9, no harm",
                  part.mean() >= 0.9 && harms == 0});
}

inline std::vector<row> explicit_strategies(const scale& runs) {
  std::vector<row> rows;
  add_explicit(rows, "greedy", comp::strategy::greedy{}, runs);
  add_explicit(rows, "delta debugging", comp::strategy::delta_debugging{}, runs);
  add_explicit(rows, "genetic", comp::strategy::genetic{.trials = 32}, runs);
  return rows;
}

/// The paper's search and the default one in the same worlds.
inline std::vector<row> beside_the_paper(const scale& runs) {
  const comp::paper_search<truth::lists> paper{.policy = truth::lists{}, .low = comp::precision::bf16, .limit = 4096};
  const auto measured = [&](const auto& search, auto make) {
    figures epochs, cost, part;
    std::size_t harms = 0, refused = 0;
    for (std::size_t i = 0; i < runs(60); ++i) {
      const truth::world w = make(33000 + i);
      const truth::found got = truth::search_in(w, search);
      if (!got.ended) {
        ++refused;
        continue;
      }
      epochs.add(got.epochs);
      cost.add(got.cost);
      part.add(truth::part_of_saving(w, got.plan, truth::best_plan(w)));
      harms += got.harms ? 1 : 0;
    }
    if (epochs.size() == 0) return std::string{"refused in all"};
    return fmt::format(
        "{:.1f} epochs, {:.1f}% of 100, {:.0f}% of the best plan's saving, harm in {}, refused in {} of {}",
        epochs.mean(), 100 * cost.mean(), 100 * part.mean(), harms, refused, runs(60));
  };
  std::vector<row> rows;
  const auto add = [&](std::string_view what, auto make) {
    rows.push_back(
        {fmt::format("the paper's search beside the default one, {}", what),
         fmt::format("paper: {}; default: {}", measured(paper, make), measured(comp::two_stage<truth::lists>{}, make)),
         "none, a comparison", true});
  };
  add("12 operators, none harmful", truth::small_dag);
  add("16 allow operators, one harmful", [](std::uint64_t seed) { return truth::one_of_a_kind(seed, 16); });
  add("operators that harm in pairs", truth::pairs);
  add("losses that differ from run to run", truth::noisy_losses);
  add("times that differ by 20%", [](std::uint64_t seed) { return truth::noisy_times(seed, 0.2); });
  return rows;
}

inline std::vector<row> short_trainings(const scale& runs) {
  struct planned {
    std::size_t epochs, batches;
  };
  std::vector<row> rows;
  for (const auto& [epochs, batches] : {planned{2, 3}, planned{100, 1}, planned{10, 20}, planned{100, 3}}) {
    comp::two_stage<truth::lists> search;
    search.settings.planned_epochs = epochs;
    figures cost;
    std::size_t harms = 0;
    for (std::size_t i = 0; i < runs(40); ++i) {
      const truth::found got = truth::search_in(truth::usual(32000 + i, batches), search);
      cost.add(got.cost / (1 - got.cost));
      harms += got.harms ? 1 : 0;
    }
    rows.push_back(
        {fmt::format("{} epochs of {} batches: true cost of the search as part of the training", epochs, batches),
         fmt::format("mean {:.1f}%, worst {:.1f}% (harm in {} of {})", 100 * cost.mean(), 100 * cost.most(), harms,
                     cost.size()),
         "at most 20 batches, or 2%, no harm",
         harms == 0 && cost.most() <= std::max(0.02, 20.0 / static_cast<double>(epochs * batches))});
  }
  return rows;
}

}  // namespace bench
