// SPDX-License-Identifier: Apache-2.0
// The truth lab: what the default search finds, and what that costs, in made-up worlds whose best plan is known. One
// line per goal: what was measured, the goal, met or missed. `truth [--quick] [--only ROW]`; --quick
// makes a tenth of the runs. Exits with 0 also when goals are missed: it measures. Not here: real trainings (native/,
// libtorch/), and any clock.
#include <fmt/format.h>

#include <cstdio>
#include <string>
#include <string_view>
#include <vector>

#include "truth_guard.hpp"
#include "truth_loops.hpp"
#include "truth_losses.hpp"
#include "truth_odd.hpp"
#include "truth_row.hpp"
#include "truth_times.hpp"

namespace {

const std::vector<bench::named_row>& all_rows() {
  static const std::vector<bench::named_row> rows{{"healthy", bench::healthy_trainings},
                                                  {"late", bench::late_divergence},
                                                  {"stuck", bench::stuck_above},
                                                  {"rules", bench::slower_than_rules},
                                                  {"optimum", bench::over_the_optimum},
                                                  {"large", bench::large_graphs},
                                                  {"one", bench::one_harmful},
                                                  {"harmless", bench::all_harmless},
                                                  {"raises", bench::harm_of_5_percent},
                                                  {"chaos", bench::chaos},
                                                  {"lengths", bench::batch_lengths},
                                                  {"cost", bench::cost_of_search},
                                                  {"pairs", bench::pair_harm},
                                                  {"scores", bench::scores},
                                                  {"signs", bench::loss_signs},
                                                  {"bad", bench::bad_inputs},
                                                  {"huge", bench::huge_graph},
                                                  {"apart", bench::parts_that_harm},
                                                  {"room", bench::without_room},
                                                  {"bare", bench::without_restore},
                                                  {"slow", bench::slow_harm},
                                                  {"turns", bench::one_late},
                                                  {"evidence", bench::healthy_evidence},
                                                  {"nan", bench::not_finite},
                                                  {"tolerance", bench::tolerance_line},
                                                  {"surprise", bench::surprises},
                                                  {"repeat", bench::repeated},
                                                  {"worth", bench::score_worth},
                                                  {"explicit", bench::explicit_strategies},
                                                  {"paper", bench::beside_the_paper},
                                                  {"short", bench::short_trainings},
                                                  {"loops", bench::loops}};
  return rows;
}

int usage(std::string_view what) {
  fmt::print(stderr, "truth: \"{}\" is no argument (it takes [--quick] [--only ROW]; rows:", what);
  for (const auto& named : all_rows()) fmt::print(stderr, " {}", named.name);
  fmt::print(stderr, "): give one of these\n");
  return 2;
}

}  // namespace

int main(int argc, char** argv) {
  bench::scale runs;
  std::string only;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--quick") {
      runs.quick = true;
    } else if (argument == "--only" && i + 1 < argc) {
      only = argv[++i];
    } else {
      return usage(argument);
    }
  }
  bool known = false;
  for (const bench::named_row& named : all_rows()) {
    if (!only.empty() && named.name != only) continue;
    known = true;
    for (const bench::row& r : named.make(runs)) {
      fmt::print("{}\n  {}; goal: {}: {}\n", r.what, r.measured, r.goal, r.met ? "met" : "MISSED");
      std::fflush(stdout);
    }
  }
  return known ? 0 : usage(only);
}
