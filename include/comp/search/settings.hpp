// SPDX-License-Identifier: Apache-2.0
// What a user may choose of the two-stage search beside policy and strategies. Every default is sound as it is.
#pragma once

#include <comp/core/error.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/precision.hpp>
#include <comp/core/rival.hpp>
#include <comp/search/acceptance.hpp>
#include <cstddef>
#include <cstdint>
#include <vector>

namespace comp {

/// Which operators change precision together.
enum class tie : std::uint8_t {
  kind,   // all convolutions, all softmaxes, ...: the smallest space
  scope,  // all operators of the outermost scope: "block1", "features"
  none    // each operator alone
};

/// Which stages run: the paper's ablation (section 4.6).
enum class stages : std::uint8_t {
  both,
  epochs_only,  // undecided operators stay in FP32
  batches_only  // no loss is looked at: fast, and may not converge
};

/// When a candidate's epoch is ended before its time.
struct early_cut {
  double slower_than_fp32 = 1.5;  // times FP32's median batch
  double slower_than_best = 1.2;  // times the best accepted candidate's median batch
  std::size_t batches = 6;        // that must have been trained before time is judged, the first not counted
  double at_once = 4;             // times either limit: ended after two batches, the first not counted
  double diverged = 2.0;          // times FP32's mean |loss| over the same batches above its mean loss
  std::size_t loss_batches = 8;   // that must have been trained before divergence is judged
};

/// How long plans are timed in turns.
struct race_settings {
  std::size_t min_rounds = 6;       // 6 give the first 95% interval
  std::size_t max_rounds = 10;      // per candidate of stage 2
  std::size_t fp32_rounds = 10;     // of the head-to-head that FP32 takes part in: each costs what it is slower
  std::size_t contest_rounds = 40;  // at most, of the final head-to-head; it ends when the fastest is clear
  double hopeless = 1.3;            // out after two rounds when so many times slower than the best in each of them
};

enum class loss_direction : std::uint8_t { lower_is_better, higher_is_better };

struct search_settings {
  double tolerance = 0.01;  // of the loss, or the score: 101% of FP32's in the paper
  double level = 0.05;      // chance that a plan is wrongly accepted, or wrongly rejected
  comp::criterion criterion = comp::criterion::batch_losses;
  loss_direction direction = loss_direction::lower_is_better;
  std::size_t planned_epochs = 100;  // of the training that the search is for
  double budget = 0.01;              // part of that training that the search may cost; see docs/guide.md
  std::int64_t memory_limit = 0;  // bytes: the fastest plan within it is wanted; 0: memory decides between ties alone
  double slowdown = 0;            // the plan with the least memory of those so much slower than the fastest is wanted
  plan warm_start = {};           // an earlier search's plan, of another machine or batch size; empty: none
  std::vector<precision> precisions = {};  // to search, in order of preference; empty: what runs fast
  comp::tie epochs_tie = comp::tie::kind;
  comp::tie batches_tie = comp::tie::kind;
  comp::stages stages = comp::stages::both;
  early_cut cut = {};
  race_settings race = {};
  rival_source rivals = {};  // plans that the found one has to beat, beside FP32 and the policy's own
  bool self_check = true;    // looks for mistakes of the trainer at the start, in a batch or two that are undone

  /// Throws: `settings_error` for a value that cannot be used.
  void check() const {
    require<settings_error>(tolerance >= 0 && tolerance < 10,
                            "tolerance is {} (it is a part of the FP32 loss, 0.01 for the paper's 101%): "
                            "give a number from 0 to 10",
                            tolerance);
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
    require<settings_error>(
        cut.slower_than_fp32 > 1 && cut.slower_than_best > 1 && cut.at_once >= 1,
        "early cut at {} times FP32 and {} times the best, at once at {} times those (a factor of 1 "
        "or less would cut noise): give factors above 1",
        cut.slower_than_fp32, cut.slower_than_best, cut.at_once);
    require<settings_error>(cut.diverged > 0,
                            "early cut calls a loss diverged at {} times FP32's above it (0 or less would cut good "
                            "candidates): give a factor above 0",
                            cut.diverged);
  }
};

}  // namespace comp
