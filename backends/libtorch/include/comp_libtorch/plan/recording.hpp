// SPDX-License-Identifier: Apache-2.0
// One recording: the segments of a training step as they are entered for the first time.
#pragma once

#include <c10/util/ScopeExit.h>

#include <algorithm>
#include <comp/core/error.hpp>
#include <comp_libtorch/hook/composite.hpp>
#include <comp_libtorch/hook/session.hpp>
#include <comp_libtorch/plan/instructions.hpp>
#include <comp_libtorch/plan/recorder.hpp>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

struct segment {
  std::string name;
  std::vector<recorded_call> calls = {};
  std::shared_ptr<const detail::code> code = {};
};

/// What was recorded.
struct recorded {
  std::vector<op_info> infos = {};
  std::vector<recorded_op> ops = {};
  std::vector<segment> segments = {};
};

class recording {
 public:
  recording(const parameter_names& parameters, at::DeviceType device, bool under_plan, bool tries_low = false)
      : recorder_{parameters, device, under_plan, tries_low} {}

  /// Returns: a copy that knows all that was seen, and gives names and numbers as at the beginning of segment `name`.
  /// That segment is run again with it, and nothing of the copy is kept.
  std::shared_ptr<recording> copy_to_repeat(std::string_view name) const {
    const std::lock_guard only_one{mutex_};
    auto copy = std::make_shared<recording>(recorder_);
    const auto at = std::ranges::find_if(segments_, [&](const entry& e) { return e.name == name && !e.abandoned; });
    copy->recorder_.names().set_counts(at->names_before);
    copy->next_number_ = at->first_number;
    return copy;
  }
  explicit recording(const recorder& before) : recorder_{before} {}

  /// Returns: whether the segment was entered, and, if `ended`, left without an exception.
  bool has(std::string_view name, bool ended = false) const {
    const std::lock_guard only_one{mutex_};
    return std::ranges::any_of(segments_,
                               [&](const entry& e) { return e.name == name && !e.abandoned && !(ended && e.is_open); });
  }
  /// Throws: `error` if another thread has a segment open.
  void require_same_thread(std::string_view name) const {
    const std::lock_guard only_one{mutex_};
    require<error>(
        open_ == 0 || thread_ == std::this_thread::get_id(),
        "region \"{}\" is entered by a second thread while the operators of a first step are recorded (their "
        "order would be chance): run the first step on one thread",
        name);
  }
  std::size_t begin(std::string name) {
    const std::lock_guard only_one{mutex_};
    thread_ = std::this_thread::get_id();
    ++open_;
    segments_.push_back({std::move(name), recorder_.names().name_counts(), next_number_});
    return segments_.size() - 1;
  }
  /// Returns: the number that the next operator will have in the graph.
  std::size_t next_number() const {
    const std::lock_guard only_one{mutex_};
    return next_number_;
  }
  /// Returns: whether a recording in FP32 might differ from this one.
  bool is_unsure() const {
    const std::lock_guard only_one{mutex_};
    return unsure_ || recorder_.is_unsure();
  }
  void make_unsure() {
    const std::lock_guard only_one{mutex_};
    unsure_ = true;
  }
  recorder::call begin_call(const c10::OperatorHandle& op, torch::jit::Stack& stack, std::size_t number,
                            author_choice author) {
    const std::lock_guard only_one{mutex_};
    return recorder_.begin_call(op, stack, number, author);
  }
  void end_call(recorder::call now, torch::jit::Stack& stack) {
    const std::lock_guard only_one{mutex_};
    const std::size_t number = now.op.segment;
    segments_[number].calls.push_back({.index = static_cast<std::uint32_t>(recorder_.ops().size())});
    recorder_.end_call(std::move(now), stack);
    ++next_number_;
  }
  at::ScalarType full_format(const at::Tensor& tensor) {
    const std::lock_guard only_one{mutex_};
    return recorder_.full_format(tensor);
  }
  void add_copy(const at::Tensor& copy, const at::Tensor& source) {
    const std::lock_guard only_one{mutex_};
    recorder_.add_copy(copy, source);
  }
  void pass_on(const at::Tensor& was, const at::Tensor& now) {
    const std::lock_guard only_one{mutex_};
    recorder_.pass_on(was, now);
  }
  bool is_of_parameters(const at::Tensor& tensor) {
    const std::lock_guard only_one{mutex_};
    return recorder_.names().is_of_parameters(tensor);
  }
  /// Notes a composite. The operators up to close() are those inside it.
  void open(recorded_call call, std::size_t number) {
    const std::lock_guard only_one{mutex_};
    segments_[number].calls.push_back(std::move(call));
  }
  void close(std::size_t number) {
    const std::lock_guard only_one{mutex_};
    segments_[number].calls.emplace_back();
  }
  /// Ends a segment. One that an exception ended is as if it had not been entered.
  void end(std::size_t number, bool abandoned) {
    const std::lock_guard only_one{mutex_};
    --open_;
    if (abandoned) {
      recorder_.names().set_counts(segments_[number].names_before);
      next_number_ = segments_[number].first_number;
    }
    segments_[number].abandoned = abandoned;
    segments_[number].is_open = false;
    recorder_.end_of_segment();
  }

  /// Returns: the segments that were not abandoned, with their operators numbered without gaps.
  recorded finish() {
    const std::lock_guard only_one{mutex_};
    recorded all;
    const auto& infos = recorder_.infos();
    std::vector<std::size_t> renumbered(infos.size(), infos.size());
    for (std::size_t i = 0; i < infos.size(); ++i) {
      if (segments_[recorder_.ops()[i].segment].abandoned) continue;
      renumbered[i] = all.infos.size();
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
    for (const entry& from : segments_) {
      if (from.abandoned) continue;
      std::vector<recorded_call>& calls = all.segments.emplace_back(segment{from.name, from.calls}).calls;
      for (recorded_call& call : calls) {
        if (call.index) call.index = static_cast<std::uint32_t>(renumbered[*call.index]);
      }
    }
    return all;
  }

 private:
  struct entry {
    std::string name;
    op_names::counts names_before;
    std::size_t first_number;
    bool abandoned = false;
    bool is_open = true;
    std::vector<recorded_call> calls = {};
  };
  mutable std::mutex mutex_;
  recorder recorder_;
  std::vector<entry> segments_;
  std::size_t next_number_ = 0;
  bool unsure_ = false;
  std::size_t open_ = 0;
  std::thread::id thread_ = {};  // the thread of the open segments
};

/// A region whose operators are recorded, in FP32.
class recording_session : public session {
 public:
  recording_session(std::shared_ptr<recording> to, std::string segment, at::DeviceType device,
                    bool frees_blocks = false)
      : session{device, frees_blocks}, recording_{std::move(to)}, segment_{recording_->begin(std::move(segment))} {}

  void called(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) override {
    const author_choice author = block();
    if (has_products(op, stack, device())) return record_opened(op, keys, stack);
    recorder::call now = recording_->begin_call(op, stack, segment_, author);
    run(now, stack);
    recording_->end_call(std::move(now), stack);
  }
  void end(bool abandoned) noexcept override { recording_->end(segment_, abandoned); }
  void pass_on(const at::Tensor& was, const at::Tensor& now) override { recording_->pass_on(was, now); }

 protected:
  virtual void run(const recorder::call& now, torch::jit::Stack& stack) { now.op.op.callBoxed(stack); }

  /// Records the operators inside the composite `op`, one by one.
  void record_opened(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack& stack) {
    recording_->open({.composite = op, .uniform = needs_one_format(op, stack, device())}, segment_);
    const auto close = c10::make_scope_exit([&] { recording_->close(segment_); });
    call_opened(op, keys, stack);
  }

  std::shared_ptr<recording> recording_;
  std::size_t segment_;
};

}  // namespace comp::libtorch::detail
