// SPDX-License-Identifier: Apache-2.0
// The result of one run of a plan, be it a batch or an epoch. It is a struct and no plain number, because a loss alone
// cannot say that the plan ran out of memory.
#pragma once

#include <comp/core/fields.hpp>
#include <cstdint>
#include <functional>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace comp {

/// How a run ended.
enum class status : std::uint8_t {
  ok,             // it ran to its end
  diverged,       // the loss left every reasonable range
  not_finite,     // the loss became NaN or infinite, and stayed so
  out_of_memory,  // the plan needs more memory
  stopped_early,  // the search ended it: the plan was hopelessly slow
  failed          // the trainer threw an exception
};

constexpr std::string_view name(status s) {
  constexpr std::string_view names[] = {"ok", "diverged", "not_finite", "out_of_memory", "stopped_early", "failed"};
  return names[static_cast<std::size_t>(s)];
}

/// What a training holds from step to step [bytes]. The rest of its peak are activations, gradients and workspace.
struct held_bytes {
  std::int64_t weights = 0;    // with buffers
  std::int64_t copies = 0;     // of weights in lower formats, which a plan keeps
  std::int64_t moments = 0;    // and what else optimizers keep
  std::int64_t gradients = 0;  // of all weights that are trained; a step may not have them all at its peak
};

void fields(auto& io, held_bytes& h) {
  io("weights", h.weights);
  io("copies", h.copies);
  io("moments", h.moments);
  io("gradients", h.gradients);
}

/// The result of one run of a plan: of one batch, or of several in a row. A trainer fills it in, and comp adds
/// what the trainer left out.
struct sample {
  /// Mean loss of the batches, without lost ones.
  double loss = std::numeric_limits<double>::quiet_NaN();
  std::vector<double> losses = {};               // the mean of each loss, if there are several
  double seconds = 0;                            // wall time, data loading included; 0: comp takes it
  std::int64_t batches = 0;                      // how many were trained
  std::int64_t not_finite = 0;                   // how many of these were lost
  std::int64_t peak_bytes = 0;                   // the most memory in use at once; 0: not measured
  std::optional<held_bytes> held = {};           // under the plan; empty: not measured
  std::vector<double> batch_seconds = {};        // wall time [s] of each batch, in order
  std::vector<double> curve = {};                // loss of each batch, in order
  std::vector<std::vector<double>> curves = {};  // of several losses: curves[loss][batch]
  std::optional<double> score = {};              // of validate() after the run; higher is better
  comp::status status = comp::status::ok;        // how the run ended
  std::string message = {};                      // the error's words

  bool ok() const { return status == comp::status::ok; }
};

void fields(auto& io, sample& s) {
  io("loss", s.loss);
  io("losses", s.losses, if_any);
  io("seconds", s.seconds, 0);
  io("batches", s.batches);
  io("not_finite", s.not_finite, if_any, 0, s.batches);
  io("peak_bytes", s.peak_bytes);
  io("held", s.held, if_any);
  io("batch_seconds", s.batch_seconds, if_any);
  io("curve", s.curve, if_any);
  io("curves", s.curves, if_any);
  io("score", s.score, if_any);
  io("status", s.status, status::failed);
  io("message", s.message, if_any);
}

/// A backend calls it after each batch of an epoch with the epoch's result so far. True: the epoch is to end now.
using stop_predicate = std::function<bool(const sample& so_far)>;

}  // namespace comp
