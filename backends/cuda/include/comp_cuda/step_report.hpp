// SPDX-License-Identifier: Apache-2.0
// The report of a deferred step (comp_native/deferral.hpp): the step leaves its losses, the number of gradients that
// are not finite and their norm on the device, and the host reads them once, after it has launched all of the step. The
// optimizer's kernels read from the same report whether to update and by which factor to clip, so that the host need
// not wait between backward and update. The report goes to the host before the update begins: the update runs while the
// host reads it and launches the next step. Reading a step late would hide the wait in small models, too, but the step
// that was launched meanwhile would have to be undone when an epoch is stopped after a batch.
// Before defer(true) there is no report: the host reads each loss when it is computed.
#pragma once

#include <comp_native/deferral.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "optimizer.hpp"
#include "prefetch.hpp"

namespace comp::cuda {

class step_report {
 public:
  explicit step_report(context& c) : c_{&c} {}
  ~step_report() { (void)cudaEventSynchronize(sent_.get()); }  // the device may still write pinned memory
  step_report(const step_report&) = delete;
  step_report& operator=(const step_report&) = delete;

  /// Begins or ends deferring. Losses that were noted are forgotten.
  void defer(bool on) {
    on_ = on;
    guarded_ = false;
    noted_.clear();
    if (on) make_room(least_room);
  }
  /// Returns: the address to which a loss operator writes its loss: `own`, or one in the report of a deferred step.
  double* loss_address(double* own) {
    if (!on_) return own;
    if (capturing_) return noted_.empty() ? losses() : captured_further();
    make_room(noted_.size() + 1);
    return losses() + noted_.size();
  }
  /// Writes the loss at `from`, which loss_address() returned, to the host's `to`: now, or when the deferred step ends.
  void record_loss(const double* from, double* to) {
    if (!on_) *to = c_->read_one(from);
    if (on_ && !capturing_) noted_.push_back(to);
  }

  /// Between capture(true) and capture(false) losses go to the place that the graph will write, and record_loss() does
  /// nothing, since the work does not run yet.
  void capture(bool on) { capturing_ = on; }
  /// True if the work that is captured now is the first micro-batch of a step.
  bool is_first_micro_batch() const { return noted_.empty(); }
  /// Notes the loss of a graph that was launched. first: what is_first_micro_batch() returned when the graph was
  /// captured.
  void record_graph_loss(bool first, double* to) {
    if (!first) {
      make_room(noted_.size() + 1);
      copy(losses() + noted_.size(), captured_further(), sizeof(double), cudaMemcpyDeviceToDevice);
    }
    noted_.push_back(to);
  }
  /// Returns: the report that graphs write to. It is another one once a step has deferred more losses than any before;
  /// older graphs are not usable then.
  const std::shared_ptr<memory>& graph_loss_buffer() const { return held_; }

  /// Launches the check of a step: it counts gradients and losses that are not finite, and computes the factor of
  /// clipping. Updates read the outcome through control().
  void guard(std::span<parameter* const> all, const native::update_guard& by) {
    make_room(least_room);
    const auto jobs = detail::gradients_of(all);
    const bool clips = by.clip_norm > 0;
    c_->clear(head(), sizeof(numbers));
    if (clips && !jobs.empty()) {
      gradient_norm(c_->stream().get(), jobs, &head()->norm, c_->scratch_of<float>(norm_scratch(jobs)));
    }
    count_not_finite(c_->stream().get(), jobs, &head()->not_finite, clips ? &head()->norm : nullptr);
    judge_step(c_->stream().get(), {.losses = losses(),
                                    .count = std::ssize(noted_),
                                    .not_finite = &head()->not_finite,
                                    .bad_losses = &head()->bad_losses,
                                    .norm = clips ? &head()->norm : nullptr,
                                    .unscale = by.unscale,
                                    .largest = by.clip_norm,
                                    .clip = &head()->clip});
    control_ = {&head()->not_finite, static_cast<float>(by.unscale), clips ? &head()->clip : nullptr};
    send();
    guarded_ = true;
  }
  /// Returns: what an update kernel must read before it updates: guard()'s outcome, or nothing if no guard() was called
  /// in this step.
  step_control control() const { return guarded_ ? control_ : step_control{}; }

  /// Waits for the step, except for a guarded update, and writes each loss to the address that record_loss() was given.
  /// Returns: whether all gradients are finite, and their norm.
  native::step_gradients end() {
    if (!std::exchange(guarded_, false)) send();
    sent_.wait();
    const auto* report = static_cast<const numbers*>(host_.data());
    const auto* loss = reinterpret_cast<const double*>(report + 1);
    for (double* to : std::exchange(noted_, {})) *to = *loss++;
    return {report->not_finite == report->bad_losses, report->norm};
  }

 private:
  /// The report's head, before the losses: one copy to the host brings both.
  struct numbers {
    double norm;                                // of the gradients, before clipping
    unsigned long long not_finite, bad_losses;  // numbers that are not finite: gradients and losses; losses alone
    float clip, unused;                         // the factor of clipping; keeps the next field aligned
    double captured_further;                    // see captured_further()
  };
  static constexpr std::size_t least_room = 64;  // [losses]

  numbers* head() const { return static_cast<numbers*>(held_->materialize()); }
  double* losses() const { return reinterpret_cast<double*>(head() + 1); }
  /// All micro-batches after the first run one graph, which writes to one place. record_graph_loss() copies each loss
  /// from here.
  double* captured_further() const { return &head()->captured_further; }
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind how) {
    check(cudaMemcpyAsync(to, from, bytes, how, c_->stream().get()), "moving losses");
  }
  /// Begins the copy of the report, with the losses so far, to the host.
  void send() {
    const std::size_t bytes = sizeof(numbers) + noted_.size() * sizeof(double);
    if (host_.bytes() < bytes) {
      sent_.wait();
      host_ = pinned_block{bytes * 2};
    }
    copy(host_.data(), head(), bytes, cudaMemcpyDeviceToHost);
    c_->stream().record(sent_);
  }
  /// Makes the report long enough for `wanted` losses, with those that are there.
  void make_room(std::size_t wanted) {
    if (wanted <= room_) return;
    const std::size_t room = wanted < 2 * room_ ? 2 * room_ : wanted;
    auto larger = c_->allocate(static_cast<std::int64_t>(sizeof(numbers) + room * sizeof(double)));
    c_->clear(larger->materialize(), larger->bytes());
    if (held_) {
      copy(larger->materialize(), held_->materialize(), sizeof(numbers) + noted_.size() * sizeof(double),
           cudaMemcpyDeviceToDevice);
    }
    held_ = std::move(larger);
    room_ = room;
  }

  context* c_;
  bool on_ = false, capturing_ = false, guarded_ = false;
  std::vector<double*> noted_;  // the host's addresses for the losses of this step, in their order
  step_control control_;
  std::shared_ptr<memory> held_;
  std::size_t room_ = 0;
  pinned_block host_;
  event sent_{cudaEventDisableTiming};  // the last copy to host_
};

}  // namespace comp::cuda
