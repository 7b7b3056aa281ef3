// SPDX-License-Identifier: Apache-2.0
// One recording: the segments of a training step as they are entered for the first time.
#pragma once

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp_libtorch/instructions.hpp>
#include <comp_libtorch/recorder.hpp>
#include <comp_libtorch/session.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

struct segment {
  std::string name;
  std::vector<std::uint32_t> order = {};  // its operators in the graph
  std::shared_ptr<const detail::code> code = {};
};

/// What a recording gives.
struct recorded {
  std::vector<op_info> infos = {};
  std::vector<recorded_op> ops = {};
  std::vector<segment> segments = {};
};

class recording {
 public:
  recording(const parameter_names& parameters, at::DeviceType device) : recorder_{parameters, device} {}

  bool has(std::string_view name) const {
    const std::lock_guard only_one{mutex_};
    return std::ranges::any_of(segments_, [&](const entry& e) { return e.name == name && !e.abandoned; });
  }
  std::size_t begin(std::string name) {
    const std::lock_guard only_one{mutex_};
    segments_.push_back({std::move(name), recorder_.names().given()});
    return segments_.size() - 1;
  }
  recorder::call before(const c10::OperatorHandle& op, const torch::jit::Stack& stack, std::size_t number) {
    const std::lock_guard only_one{mutex_};
    return recorder_.before(op, stack, number);
  }
  void after(recorder::call made, const torch::jit::Stack& stack) {
    const std::lock_guard only_one{mutex_};
    recorder_.after(std::move(made), stack);
  }
  /// A segment that an exception ended is as if it had not been entered.
  void end(std::size_t number, bool abandoned) {
    const std::lock_guard only_one{mutex_};
    if (abandoned) recorder_.names().forget_since(std::move(segments_[number].names_before));
    segments_[number].abandoned = abandoned;
    recorder_.end_of_segment();
  }

  recorded finish() {
    const std::lock_guard only_one{mutex_};
    recorded all;
    std::vector<std::size_t> place(segments_.size());
    for (std::size_t s = 0; s < segments_.size(); ++s) {
      place[s] = all.segments.size();
      if (!segments_[s].abandoned) all.segments.push_back({segments_[s].name});
    }
    const auto& infos = recorder_.infos();
    std::vector<std::size_t> renumbered(infos.size(), infos.size());
    for (std::size_t i = 0; i < infos.size(); ++i) {
      const std::size_t from = recorder_.ops()[i].segment;
      if (segments_[from].abandoned) continue;
      renumbered[i] = all.infos.size();
      all.segments[place[from]].order.push_back(static_cast<std::uint32_t>(all.infos.size()));
      all.ops.push_back(recorder_.ops()[i]);
      all.infos.push_back(infos[i]);
      auto& producers = all.infos.back().producers;
      std::erase_if(producers, [&](std::size_t p) { return renumbered[p] == infos.size(); });
      for (std::size_t& producer : producers) producer = renumbered[producer];
      for (tensor_info& input : all.infos.back().inputs) {
        if (input.source < 0) continue;
        const std::size_t now = renumbered[static_cast<std::size_t>(input.source)];
        input.source = now == infos.size() ? -1 : static_cast<std::int32_t>(now);
      }
    }
    return all;
  }

 private:
  struct entry {
    std::string name;
    op_names::counts names_before;
    bool abandoned = false;
  };
  mutable std::mutex mutex_;
  recorder recorder_;
  std::vector<entry> segments_;
};

/// A region whose operators are recorded, in FP32.
class recording_session final : public session {
 public:
  recording_session(std::shared_ptr<recording> to, std::string segment, at::DeviceType device)
      : session{device}, recording_{std::move(to)}, segment_{recording_->begin(std::move(segment))} {}

  void called(const c10::OperatorHandle& op, torch::jit::Stack& stack) override {
    require_no_backward();
    require_no_autocast();
    recorder::call made = recording_->before(op, stack, segment_);
    op.callBoxed(stack);
    recording_->after(std::move(made), stack);
  }
  void end(bool abandoned) noexcept override { recording_->end(segment_, abandoned); }

 private:
  std::shared_ptr<recording> recording_;
  std::size_t segment_;
};

/// A later region of a segment that is being recorded: FP32, nothing is recorded.
class passing_session final : public session {
 public:
  using session::session;
  void called(const c10::OperatorHandle& op, torch::jit::Stack& stack) override {
    require_no_backward();
    op.callBoxed(stack);
  }
  void end(bool /*abandoned*/) noexcept override {}
};

}  // namespace comp::libtorch::detail
