// SPDX-License-Identifier: Apache-2.0
// What a training after a search has behind it: its result so far, and all that its guard knows. With the trainer's
// state of the same moment it goes on in another process as if it had never ended (post_training::go_on), but for
// evidence against the plan that was being gathered: its states are not kept, so it begins anew.
// Not here: the file (files/training_file.hpp).
#pragma once

#include <comp/core/plan.hpp>
#include <comp/core/sample.hpp>
#include <cstddef>
#include <deque>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp {

/// A plan that had to be given up in a training.
struct training_fallback {
  std::size_t epoch = 0;                // in which epoch, counted from 0
  comp::plan from = {}, to = {};        // which plan was given up, and which one took its place
  comp::status why = comp::status::ok;  // what its training came to
  std::string message = {};             // what was seen, in words
};

/// What a training gave.
struct training_result {
  std::vector<sample> epochs = {};                // each finished epoch; those of the search come first
  std::vector<training_fallback> fallbacks = {};  // each plan that was given up, in order
  std::vector<std::string> warnings = {};         // what should be known of the training, a sentence each
  std::size_t compared = 0;                       // how often FP32 was run to judge the plan
  comp::plan plan = {};                           // the plan to train on with; the trainer has it
};

/// What the guard takes for normal (search/training/guard.hpp): lowest and highest level of the last epochs.
struct normal_levels {
  std::deque<std::pair<double, double>> epochs = {};
  std::size_t window = 1;
  double leeway = 1;
};

/// When the guard audits next, and what is known of the plan's first batches.
struct audit_state {
  std::size_t began = 0, next = 4, acquittals = 0;  // epochs, epochs since `began`, times
  bool settled = false;  // FP32 beside the plan has shown that it does no slow harm, or took as long as it may
  double known = 0;      // what the search's batches say of that (search/training/shadow_test.hpp)
};

struct training_progress {
  training_result so_far = {};
  std::vector<comp::plan> ladder = {};  // ever more conservative
  std::size_t rung = 0;                 // of the ladder, now
  std::optional<sample> begun = {};     // the part of the next epoch that is trained already
  normal_levels normal = {};
  audit_state audits = {};
  std::size_t batches_per_epoch = 0;
  double baseline_loss = 0, tolerance = 0.01;  // of the search
  bool higher_is_better = false;
};

}  // namespace comp
