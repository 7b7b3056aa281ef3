// SPDX-License-Identifier: Apache-2.0
// The progress of a post-training (the training with the found plan, after the search): its result so far, and all that
// its guard knows. Together with the trainer's state of the same moment it lets the training go on in another process
// (post_training::go_on). Only a comparison with FP32 that was under way begins anew, because the states that it
// compares are not kept.
#pragma once

#include <comp/core/fields.hpp>
#include <comp/core/later_plan.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/sample.hpp>
#include <comp/core/statistics.hpp>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <vector>

namespace comp {

/// A plan that was given up during a training.
struct training_fallback {
  std::size_t epoch = 0;                // counted from 0
  comp::plan from = {}, to = {};        // the plan that was given up, and its successor
  comp::status why = comp::status::ok;  // how the training under it ended
  std::string message = {};             // what was seen
};

void fields(auto& io, training_fallback& f) {
  io("epoch", f.epoch);
  io("from", f.from);
  io("to", f.to);
  io("why", f.why, status::failed);
  io("message", f.message);
}

/// The result of a training.
struct training_result {
  std::vector<sample> epochs = {};                // finished ones; the search's come first
  std::vector<training_fallback> fallbacks = {};  // plans that were given up
  std::vector<later_plan> later = {};             // plans that the training changed to otherwise
  std::vector<std::string> warnings = {};         // what the user should know
  std::size_t compared = 0;                       // how often FP32 judged the plan
  comp::plan plan = {};                           // the plan that the trainer has now
};

void fields(auto& io, training_result& r) {
  io("epochs", r.epochs);
  io("fallbacks", r.fallbacks);
  io("later", r.later, if_any);
  io("warnings", r.warnings);
  io("compared", r.compared);
  io("plan", r.plan, if_any);
}

/// The range of losses that the guard takes for normal, from the training's own last epochs
/// (search/training/guard.hpp). A level is the mean loss of `window` successive batches.
struct normal_levels {
  std::deque<interval> epochs = {};  // lowest and highest level of each of the last epochs
  std::size_t window = 1;            // batches of a level
  double leeway = 1;  // factor on how far above its recent levels a loss may rise; doubled after each false alarm
};

void fields(auto& io, normal_levels& n) {
  io("window", n.window, 1);
  io("leeway", n.leeway, 0);
  io("epochs", n.epochs);
}

/// When the guard next trains FP32 beside the plan to check it, and what was found so far.
struct check_state {
  // The epoch in which the plan began to train; how many epochs after that the next check may be; how many checks found
  // no harm.
  std::size_t began = 0, next = 4, passed = 0;
  bool beginning_passed =
      false;         // the plan's first batches were shown to do no slow harm, or the time to show it is spent
  double known = 0;  // log likelihood ratio of slow harm by the search's own batches (search/training/shadow.hpp)
};

void fields(auto& io, check_state& c) {
  io("began", c.began);
  io("next", c.next);
  io("acquittals", c.passed);
  io("settled", c.beginning_passed, if_any);  // files of comp 0.2 lack these two
  io("known", c.known, if_any);
}

/// All that a post-training has to remember from one epoch to the next.
struct training_progress {
  training_result so_far = {};
  std::vector<comp::plan> plans = {};  // the plans to fall back on, ever more conservative
  std::size_t current = 0;             // index in `plans` of the plan that trains now
  std::optional<sample> begun = {};    // the part of the next epoch that is trained already
  normal_levels normal = {};
  check_state checks = {};
  std::vector<later_plan> later = {};  // the plans that it is still to change to
  bool raise_tried = false;            // whether a higher precision was tried for its last part
  std::size_t batches_per_epoch = 0;
  double baseline_loss = 0, tolerance = 0;  // FP32's loss in the search, and the search's tolerance
  double floor = 0;                         // the search's floor of losses
  bool higher_is_better = false;            // the search's loss_direction
};

void fields(auto& io, training_progress& p) {
  io("so_far", p.so_far);
  io("ladder", p.plans);
  io("rung", p.current);
  io("normal", p.normal);
  io("audits", p.checks);
  io("batches_per_epoch", p.batches_per_epoch);
  io("baseline_loss", p.baseline_loss);
  io("tolerance", p.tolerance);
  io("floor", p.floor, if_any);
  io("higher_is_better", p.higher_is_better);
  io("begun", p.begun, if_any);
  io("later", p.later, if_any);
  io("raise_tried", p.raise_tried, if_any);
}

}  // namespace comp
