// SPDX-License-Identifier: Apache-2.0
// The settings of a search besides its policy and strategies. Every default can be left as it is.
#pragma once

#include <comp/core/error.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/precision.hpp>
#include <comp/core/rival.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string_view>
#include <vector>

namespace comp {

/// How far above FP32's a plan's loss may be, as a fraction of it, unless the user chooses: the paper's 101%.
inline constexpr double paper_tolerance = 0.01;

/// What decides whether a plan trains as well as FP32.
enum class criterion : std::uint8_t {
  batch_losses,  // losses of the same batches from the same state, until they decide
  epoch_losses,  // the paper's rule: mean losses of whole epochs
  scores         // what the backend's validate() gives after a whole epoch; higher is better
};

constexpr std::string_view name(criterion c) {
  constexpr std::string_view names[] = {"losses of the same batches", "mean losses of whole epochs",
                                        "scores after whole epochs"};
  return names[static_cast<std::size_t>(c)];
}

/// Which operators change precision together.
enum class tie : std::uint8_t {
  kind,   // all convolutions, all softmaxes, ...: the smallest space
  scope,  // all operators of the outermost scope: "block1", "features"
  none    // each operator alone
};

/// Which stages run: the paper's ablation (section 4.6).
enum class stages : std::uint8_t {
  both,         // plans are judged by losses first, then by times
  losses_only,  // undecided operators stay in FP32
  times_only    // no loss is looked at: fast, and may not converge
};

/// When a candidate's run is ended early, because it is hopeless.
struct early_cut {
  double slower_than_fp32 = 1.5;  // cut if three in four batches take more than this many times FP32's median
  double slower_than_best = 1.2;  // the same, of the fastest accepted candidate's
  std::size_t batches = 6;        // batches before times are judged, after the first
  double at_once = 4;     // before that: cut if even its quickest batch takes this many times as long as these limits
  double diverged = 2.0;  // cut if its mean loss is above FP32's of the same batches by this many of FP32's mean |loss|
  std::size_t loss_batches = 8;  // batches before divergence is judged
};

/// How long plans are timed. A round is a batch of each plan, in turns.
struct race_settings {
  std::size_t min_rounds = 6;       // rounds at least; fewer than 6 give no 95% interval
  std::size_t max_rounds = 10;      // rounds at most of a candidate
  std::size_t fp32_rounds = 10;     // rounds at most with FP32
  std::size_t contest_rounds = 40;  // rounds at most of the contest
  double hopeless = 1.3;  // a plan leaves when it takes this many times the best plan's time, or in a contest FP32's
};

/// Whether lower losses are better.
enum class loss_direction : std::uint8_t {
  lower_is_better,  // as a loss does
  higher_is_better  // as a likelihood or a reward does
};

/// What a user may choose of a search.
struct search_settings {
  double tolerance = paper_tolerance;  // how far above FP32's a plan's loss may be, as a fraction; 0.01 is 101%
  double floor = 0;                    // losses below it count as it (a residual that is solved well enough); 0: none
  double level = 0.05;                 // the chance that a plan is wrongly accepted, or wrongly rejected
  comp::criterion criterion = comp::criterion::batch_losses;   // by what it is judged whether a plan trains
  loss_direction direction = loss_direction::lower_is_better;  // whether lower losses are better
  std::size_t planned_epochs = 100;                            // epochs of the training that the search is for
  double budget = 0.01;                                        // the part of it that the search may cost
  std::int64_t memory_limit = 0;                               // bytes that the plan may need; 0: no limit
  double slowdown = 0;   // above 0: the least memory wins among plans slower than the fastest by this fraction at most
  plan warm_start = {};  // an earlier search's plan to begin with; empty: none
  std::vector<precision> precisions = {};    // low ones to search, in order of preference; empty: those that run fast
  comp::tie losses_tie = comp::tie::kind;    // which operators change together in stage 1; guided ties none
  comp::tie times_tie = comp::tie::kind;     // the same in stage 2
  comp::stages stages = comp::stages::both;  // which stages run
  race_settings race = {};                   // how long plans are timed
  rival_source rivals = {};                  // makes further plans that the found one has to beat
  bool verbatim = false;                     // true: the paper's stages to the letter (paper_search.hpp)
  bool self_check = true;                    // true: a batch or two, which are undone, test the trainer at the start

  /// Returns: when a hopeless candidate is cut; never in the paper's search.
  early_cut cut() const {
    constexpr double never = std::numeric_limits<double>::infinity();
    return verbatim ? early_cut{.slower_than_fp32 = never, .slower_than_best = never, .diverged = never} : early_cut{};
  }

  /// Throws: `settings_error` for a value that cannot be used.
  void check() const {
    require<settings_error>(tolerance >= 0 && tolerance < 10,
                            "tolerance is {} (it is a part of the FP32 loss, 0.01 for the paper's 101%): "
                            "give a number from 0 to 10",
                            tolerance);
    require<settings_error>(
        floor >= 0 && (floor == 0 || direction == loss_direction::lower_is_better),
        "floor is {} (losses that fall below it count as it): give a number from 0 on, and none for "
        "losses that are maximised",
        floor);
    require<settings_error>(level > 0 && level < 0.5,
                            "level is {} (the chance of a wrong answer about a loss): give a number between 0 and 0.5",
                            level);
    require<settings_error>(budget >= 0 && planned_epochs > 0,
                            "budget is {} of a training of {} epochs (a part of it, 0.01 by default): give a number "
                            "from 0 on, and an epoch at least",
                            budget, planned_epochs);
    require<settings_error>(
        slowdown >= 0 && slowdown < 10,
        "slowdown is {} (the least memory is wanted of plans that are by such a part slower than the "
        "fastest; 0: the fastest): give a number from 0 to 10",
        slowdown);
    require<settings_error>(memory_limit >= 0, "memory limit of {} bytes (0: none): give a size", memory_limit);
    require<settings_error>(
        race.min_rounds >= 6 && race.max_rounds >= race.min_rounds && race.contest_rounds >= race.min_rounds,
        "race has {} to {} rounds and {} in the contest (fewer than 6 give no interval, and no maximum may be below the "
        "minimum): give 6 <= min_rounds <= max_rounds and contest_rounds",
        race.min_rounds, race.max_rounds, race.contest_rounds);
    require<settings_error>(race.hopeless > 1,
                            "race lets plans out that are {} times slower (a factor of 1 or less would drop noise): "
                            "give a factor above 1",
                            race.hopeless);
  }
};

}  // namespace comp
