// SPDX-License-Identifier: Apache-2.0
// What a step leaves on the device for the host to look at once, when all of it is given: losses, how many gradients
// are not finite, their norm. And what the step is told by the device instead of the host: whether to update, and by
// which factor to clip (comp_native/deferral.hpp). Inert until defer(true): a loss is then read when it is made.
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

  void defer(bool on) {
    on_ = on;
    guarded_ = false;
    noted_.clear();
    if (on) make_room(least_room);
  }
  /// Where a loss operator writes: its own place, or the step's.
  double* place(double* own) {
    if (!on_) return own;
    if (capturing_) return noted_.empty() ? losses() : captured_further();
    make_room(noted_.size() + 1);
    return losses() + noted_.size();
  }
  /// Tells the host what is at a place that place() gave, now or when the step ends.
  void told(const double* from, double* to) {
    if (!on_) *to = c_->read_one(from);
    if (on_ && !capturing_) noted_.push_back(to);
  }

  /// From here to capture(false) losses go where a graph will write them, and nobody is told.
  void capture(bool on) { capturing_ = on; }
  /// Of work that is captured now: whether it is a step's first.
  bool first() const { return noted_.empty(); }
  /// Tells of the loss of a graph that was launched. first: as first() said when it was captured.
  void replayed(bool first, double* to) {
    if (!first) {
      make_room(noted_.size() + 1);
      copy(losses() + noted_.size(), captured_further(), sizeof(double), cudaMemcpyDeviceToDevice);
    }
    noted_.push_back(to);
  }
  /// What graphs write to, which they keep. Another one where more losses were deferred than ever before.
  const std::shared_ptr<memory>& place_of_graphs() const { return held_; }

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
    guarded_ = true;
  }
  /// What updates are given: of guard(), until the step ends.
  step_control control() const { return guarded_ ? control_ : step_control{}; }

  /// Waits, and writes the losses.
  native::step_seen end() {
    guarded_ = false;
    const std::size_t bytes = sizeof(numbers) + noted_.size() * sizeof(double);
    if (host_.bytes() < bytes) host_ = pinned_block{bytes * 2};
    copy(host_.data(), head(), bytes, cudaMemcpyDeviceToHost);
    c_->synchronize();
    const auto* seen = static_cast<const numbers*>(host_.data());
    const auto* loss = reinterpret_cast<const double*>(seen + 1);
    for (double* to : std::exchange(noted_, {})) *to = *loss++;
    return {seen->not_finite == seen->bad_losses, seen->norm};
  }

 private:
  /// In front of the losses.
  struct numbers {
    double norm;
    unsigned long long not_finite, bad_losses;  // the first: gradients and losses together
    float clip, unused;
    double captured_further;
  };
  static constexpr std::size_t least_room = 64;  // [losses]

  numbers* head() const { return static_cast<numbers*>(held_->materialize()); }
  double* losses() const { return reinterpret_cast<double*>(head() + 1); }
  /// Micro-batches after the first run the same graph: it writes to one place, from where each loss is taken.
  double* captured_further() const { return &head()->captured_further; }
  void copy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind how) {
    check(cudaMemcpyAsync(to, from, bytes, how, c_->stream().get()), "moving losses");
  }
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
  std::vector<double*> noted_;
  step_control control_;
  std::shared_ptr<memory> held_;
  std::size_t room_ = 0;
  pinned_block host_;
};

}  // namespace comp::cuda
