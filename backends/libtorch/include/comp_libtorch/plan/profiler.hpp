// SPDX-License-Identifier: Apache-2.0
// Times operators, forward and backward apart, without the casts of their inputs. The backward of an operator is the
// sum over the autograd nodes that it made, so a composite counts as one. On a GPU the device records events, which are
// read when the times are asked for.
#pragma once

#include <c10/core/Event.h>
#include <c10/core/impl/VirtualGuardImpl.h>

#include <comp/core/clock.hpp>
#include <comp/core/concepts.hpp>
#include <comp/core/statistics.hpp>
#include <comp_libtorch/hook/node_hooks.hpp>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

/// A point in time, on a device.
class moment {
 public:
  explicit moment(at::Device device) {
    if (device.is_cpu()) {
      host_ = comp::detail::clock_seconds();
      return;
    }
    const c10::impl::VirtualGuardImpl guard{device.type()};
    const at::Device here = device.has_index() ? device : guard.getDevice();
    event_ = std::make_shared<c10::Event>(device.type(), c10::EventFlag::BACKEND_DEFAULT);
    event_->record(guard.getStream(here));
  }
  double seconds_until(const moment& end) const {
    if (event_ == nullptr) return end.host_ - host_;
    end.event_->synchronize();
    return event_->elapsedTime(*end.event_) / 1e3;
  }

 private:
  double host_ = 0;
  std::shared_ptr<c10::Event> event_;
};

/// The times of the operators of one region. Those of its backward are added when that runs, after the region.
class region_times {
 public:
  region_times(at::Device device, std::uint64_t step) : device_{device}, step_{step} {}

  at::Device device() const { return device_; }
  std::uint64_t step() const { return step_; }
  void add(std::uint32_t op, bool backward, const moment& start, const moment& end) {
    const std::lock_guard only_one{mutex_};
    spans_.push_back({op, backward, start, end});
  }
  template <class F>
  void for_each(F&& f) const {
    const std::lock_guard only_one{mutex_};
    for (const span& s : spans_) f(s.op, s.backward, s.start.seconds_until(s.end));
  }

 private:
  struct span {
    std::uint32_t op;
    bool backward;
    moment start, end;
  };
  at::Device device_;
  std::uint64_t step_;
  mutable std::mutex mutex_;
  std::vector<span> spans_;
};

/// Runs `call`, which is operator `op`, and has the nodes that it makes timed in the backward.
template <class Call>
void profiled(const std::shared_ptr<region_times>& times, std::uint32_t op, const torch::jit::Stack& stack,
              std::size_t results, Call&& call) {
  node_span nodes;
  const moment start{times->device()};
  call();
  nodes.close();
  times->add(op, false, start, moment{times->device()});
  nodes.for_each(stack, results, [&](torch::autograd::Node& node) {
    auto begin = std::make_shared<std::optional<moment>>();
    node.add_pre_hook(std::make_unique<before_node>([times, begin] { *begin = moment{times->device()}; }));
    node.add_post_hook(std::make_unique<after_node>([times, begin, op](auto&&...) {
      if (*begin) times->add(op, true, **begin, moment{times->device()});
    }));
  });
}

/// Collects the times of regions. A step ends when the optimizer has run.
class profiler {
 public:
  void turn(bool on) {
    const std::lock_guard only_one{mutex_};
    if (on && !on_) regions_.clear();
    on_ = on;
  }
  /// Returns: null while off.
  std::shared_ptr<region_times> begin(at::Device device) {
    const std::lock_guard only_one{mutex_};
    if (!on_) return nullptr;
    return regions_.emplace_back(std::make_shared<region_times>(device, step_));
  }
  void end_of_step() {
    const std::lock_guard only_one{mutex_};
    ++step_;
  }

  /// Returns: for each operator the median over the steps in which it ran; 0 if it never ran.
  std::vector<op_time> times(std::size_t operators) const {
    std::map<std::pair<std::uint64_t, std::uint32_t>, op_time> sums;  // step, operator
    const std::lock_guard only_one{mutex_};
    const bool stepped = !regions_.empty() && regions_.front()->step() != step_;
    for (std::size_t i = 0; i < regions_.size(); ++i) {
      const std::uint64_t step = stepped ? regions_[i]->step() : i;  // without an optimizer each region is a step
      regions_[i]->for_each([&](std::uint32_t op, bool backward, double seconds) {
        op_time& sum = sums[{step, op}];
        (backward ? sum.backward : sum.forward) += seconds;
      });
    }
    std::vector<std::vector<double>> forward(operators), backward(operators);
    for (const auto& [key, sum] : sums) {
      forward[key.second].push_back(sum.forward);
      backward[key.second].push_back(sum.backward);
    }
    std::vector<op_time> all(operators);
    for (std::size_t i = 0; i < operators; ++i) {
      if (!forward[i].empty()) all[i] = {median(forward[i]), median(backward[i])};
    }
    return all;
  }

 private:
  mutable std::mutex mutex_;
  bool on_ = false;
  std::uint64_t step_ = 0;
  std::vector<std::shared_ptr<region_times>> regions_;
};

}  // namespace comp::libtorch::detail
