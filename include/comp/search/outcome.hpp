// SPDX-License-Identifier: Apache-2.0
// What a search gives back: the plan, what it was compared with, why each operator has its precision, and what it cost.
#pragma once

#include <array>
#include <comp/core/decision.hpp>
#include <comp/core/hardware.hpp>
#include <comp/core/op_graph.hpp>
#include <comp/core/plan.hpp>
#include <comp/core/statistics.hpp>
#include <comp/core/trial.hpp>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

namespace comp {

/// A plan of the final head-to-head, timed in turns with the others.
struct contestant {
  std::string label = {};  // "fp32", "pytorch cpu bf16", "comp"
  comp::plan plan = {};
  std::vector<double> seconds = {};        // of each batch, in the order of the rounds
  paired_speedup over_fp32 = {};           // how many times as fast as FP32
  std::int64_t peak_bytes = 0;             // most memory in use during a batch; 0: not measured
  std::optional<sample> epoch = {};        // its epoch from the common start, where one was run
  comp::status status = comp::status::ok;  // not ok: it left the contest
};

/// Why an operator has its precision.
struct op_reason {
  comp::category category = comp::category::follow;  // what the policy said
  bool decided_by_epochs = false;                    // in the paper's Stage1_OP_list
  std::string text = {};                             // one sentence
};

/// What one stage cost.
struct stage_cost {
  std::size_t runs = 0;     // epochs or batches
  std::size_t batches = 0;  // trained
  double seconds = 0;       // wall time, restoring and warming up included
};

struct outcome {
  comp::plan plan = {};
  double speedup = 1;                // over FP32, median of the paired batches of the contest
  interval speedup_bounds = {1, 1};  // 95%
  op_graph graph = {};
  comp::hardware hardware = {};
  std::vector<precision> precisions = {};  // that were searched, FP32 first
  sample baseline = {};                    // the FP32 epoch
  std::optional<sample> first_epoch = {};  // the winner's own epoch: training already done
  std::size_t trained_epochs = 0;          // that the trainer's state has behind it when the search ends: 0 or 1
  std::vector<contestant> contest = {};    // FP32 first
  std::vector<trial> trials = {};          // every run, in order
  std::vector<op_reason> reasons = {};     // one per operator
  std::vector<comp::plan> fallbacks = {};  // ever more conservative, from the plan itself to all FP32
  std::array<stage_cost, 5> costs = {};    // by `stage`
  std::vector<std::string> warnings = {};
  double tolerance = 0.01;  // of the loss, relative

  const stage_cost& cost(stage s) const { return costs[static_cast<std::size_t>(s)]; }
  stage_cost& cost(stage s) { return costs[static_cast<std::size_t>(s)]; }

  /// Seconds that the search took beyond training itself: everything but the winner's own epoch.
  double overhead_seconds() const {
    return cost(stage::baseline).seconds + cost(stage::epochs).seconds + cost(stage::batches).seconds +
           cost(stage::contest).seconds;
  }

  /// The overhead as a part of the whole of `epochs` epochs with the found plan: the paper's figure, for 100 epochs.
  double overhead_share(std::size_t epochs = 100) const {
    const double training = (first_epoch ? first_epoch->seconds : baseline.seconds) * static_cast<double>(epochs);
    return overhead_seconds() / (overhead_seconds() + training);
  }
};

}  // namespace comp
