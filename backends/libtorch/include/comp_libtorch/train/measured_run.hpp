// SPDX-License-Identifier: Apache-2.0
// Collects what a run of training steps gives: the mean of each loss, times, and the peak of memory.
#pragma once

#include <algorithm>
#include <comp/core/clock.hpp>
#include <comp/core/error.hpp>
#include <comp/core/lost_batches.hpp>
#include <comp/core/sample.hpp>
#include <comp_libtorch/hook/problems.hpp>
#include <comp_libtorch/support/hardware.hpp>
#include <comp_libtorch/support/memory.hpp>
#include <comp_libtorch/train/step.hpp>
#include <cstddef>
#include <cstdint>
#include <limits>
#include <string>
#include <vector>

namespace comp::libtorch::detail {

class measured_run {
 public:
  /// The clock starts here. `held`: see memory_meter.
  measured_run(c10::Device device, std::int64_t held) : device_{device}, meter_{device, held} {}

  /// Call it before each batch of several. Returns: false if the last one failed, or `stop` says so of those so far.
  bool goes_on(const stop_predicate& stop) {
    const bool lost = sample_.batches > 0 && keeps_losing(sample_);
    if (sample_.batches > 0 && !lost && stop(sample_)) sample_.status = status::stopped_early;
    batch_ = {};
    return sample_.ok() && !lost;
  }

  /// Adds a batch that was trained; waits for the device. Throws: `error` for other losses than in the steps before.
  void add(const step_result& result) {
    synchronize(device_);
    sample_.batch_seconds.push_back(batch_.seconds());
    sample_.seconds = all_.seconds();
    sample_.peak_bytes = meter_.peak();
    add_losses(result.losses, !result.not_finite.empty());
    skipped_ += result.skipped;
    if (sample_.message.empty()) sample_.message = result.not_finite;
  }

  /// Returns: the sample of the batches so far. `loss_scale`: as it is now.
  sample result(const program_problems& problems, double loss_scale) const {
    sample all = sample_;
    if (all.not_finite == all.batches || keeps_losing(all)) all.status = status::not_finite;
    if (!all.message.empty()) return all;
    if (skipped_ > 0) {
      all.message = fmt::format("{} steps skipped: FP16 gradients overflowed, loss scale now {}", skipped_, loss_scale);
    }
    if (const auto left = problems.mismatches + problems.ended_early; left > 0) {
      all.message += fmt::format("{}{} forwards left the recorded sequence and went on in FP32, first: {}",
                                 all.message.empty() ? "" : "; ", left, problems.first);
    } else if (problems.unknown > 0) {
      all.message += fmt::format("{}{} operators were not in the recorded forward, first: {}",
                                 all.message.empty() ? "" : "; ", problems.unknown, problems.first);
    } else if (problems.by_aten > 0) {
      all.message += fmt::format("{}{} operators ran by ATen's kernel instead of comp's, first: {}",
                                 all.message.empty() ? "" : "; ", problems.by_aten, problems.first);
    }
    return all;
  }

 private:
  // A lost batch does not count in the means.
  void add_losses(const std::vector<loss_value>& losses, bool lost) {
    if (sums_.empty()) {
      sums_ = losses;
      for (loss_value& sum : sums_) sum.value = 0;
    }
    require<error>(
        std::ranges::equal(sums_, losses, {}, &loss_value::name, &loss_value::name),
        "a step with the losses{} after one with{} (each is judged over the epoch): {} the same losses in each "
        "step",
        names(losses), names(sums_), by_language("call backward() for", "return"));
    ++sample_.batches;
    double batch = 0;
    for (const loss_value& loss : losses) batch += loss.value;
    if (lost) {
      if (sample_.batches == ++sample_.not_finite) sample_.loss = batch;
      sample_.curve.push_back(std::numeric_limits<double>::quiet_NaN());
      return;
    }
    sample_.curve.push_back(batch);
    const auto sound = static_cast<double>(sample_.batches - sample_.not_finite);
    double run = 0;
    sample_.losses.clear();
    for (std::size_t i = 0; i < sums_.size(); ++i) {
      run += (sums_[i].value += losses[i].value);
      if (sums_.size() > 1) sample_.losses.push_back(sums_[i].value / sound);
    }
    sample_.loss = run / sound;
  }
  static std::string names(const std::vector<loss_value>& losses) {
    std::string text;
    for (const loss_value& loss : losses) text += " \"" + loss.name + "\"";
    return text;
  }

  c10::Device device_;
  memory_meter meter_;
  comp::detail::stopwatch all_ = {}, batch_ = {};
  sample sample_;
  std::vector<loss_value> sums_;
  std::int64_t skipped_ = 0;  // steps without an update, because an FP16 gradient overflowed
};

}  // namespace comp::libtorch::detail
