// SPDX-License-Identifier: Apache-2.0
// What listens to the operators of one life of a region, and what it leaves behind when it ends.
#pragma once

#include <comp/core/error.hpp>
#include <comp_libtorch/hook/author_blocks.hpp>
#include <comp_libtorch/hook/autocast_guard.hpp>
#include <comp_libtorch/hook/dispatch_key.hpp>
#include <cstddef>
#include <mutex>
#include <optional>
#include <string>

namespace comp::libtorch {

/// Where forwards left the recorded sequence.
struct program_problems {
  std::size_t unknown = 0;      // operators that the recorded forward did not have, as often as they ran
  std::size_t mismatches = 0;   // regions that went on in FP32
  std::size_t ended_early = 0;  // regions with fewer operators than recorded
  std::string first = {};       // the first of them, in words
};

namespace detail {

class session : public listener {
 public:
  /// `frees_blocks`: what the model's author says of precisions is not asked for.
  explicit session(at::DeviceType device, bool frees_blocks = false)
      : device_{device}, frees_blocks_{frees_blocks}, blocks_{device} {}
  virtual ~session() = default;
  /// The region begins on this thread. Returns: whether operators come to called().
  virtual bool begin() { return true; }
  /// The region ends; `abandoned`: by an exception.
  virtual void end(bool abandoned) noexcept = 0;

  /// Throws: `error` while LibTorch's own autocast is on for the device.
  void require_no_autocast() const {
    if (!blocks_.is_on()) return;
    throw error{
        fmt::format("LibTorch's autocast is on for {} in a region of comp (it would cast what the plan has cast): "
                    "switch it off, the plan alone decides precisions",
                    c10::DeviceTypeName(device_, true))};
  }
  /// The region is a part of another one that is run again: of what stood in `block` there.
  void begin_in(author_choice block) { blocks_.begin_in(block); }
  at::DeviceType device() const { return device_; }

 protected:
  /// What the author of the code that runs now says of its operators. Throws: `error` in an autocast of the model's own
  /// where blocks are freed.
  author_choice block() const {
    const author_choice now = blocks_.now();
    if (!frees_blocks_) return now;
    if (now == author_choice::autocast_on) require_no_autocast();
    return author_choice::none;
  }
  /// comp itself has switched LibTorch's autocast on: this is no block of the author's.
  void begin_autocast(std::optional<autocast_guard>& on, at::ScalarType low) {
    on.emplace(device_, low);
    blocks_.begin();
  }

 private:
  at::DeviceType device_;
  bool frees_blocks_;
  author_blocks blocks_;
};

/// A region that LibTorch's own autocast runs, and nothing of comp's.
class autocast_session final : public session {
 public:
  autocast_session(at::DeviceType device, at::ScalarType low) : session{device}, low_{low} {}
  void called(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack& stack) override {
    op.callBoxed(stack);
  }
  bool begin() override {
    on_.emplace(device(), low_);
    return false;
  }
  void end(bool /*abandoned*/) noexcept override { on_.reset(); }

 private:
  at::ScalarType low_;
  std::optional<autocast_guard> on_;
};

/// Collects problems from the regions of several threads.
class problem_list {
 public:
  /// One of `kind`. `describe()`: in words, asked for the first problem only.
  template <class Describe>
  void add(std::size_t program_problems::*kind, Describe describe) {
    const std::lock_guard only_one{mutex_};
    ++(all_.*kind);
    if (all_.first.empty()) all_.first = describe();
  }
  program_problems get() const {
    const std::lock_guard only_one{mutex_};
    return all_;
  }
  void clear() {
    const std::lock_guard only_one{mutex_};
    all_ = {};
  }

 private:
  mutable std::mutex mutex_;
  program_problems all_;
};

}  // namespace detail
}  // namespace comp::libtorch
