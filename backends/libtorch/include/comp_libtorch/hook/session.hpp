// SPDX-License-Identifier: Apache-2.0
// A session: the listener to the operators of one region, from its beginning to its end.
#pragma once

#include <comp/core/error.hpp>
#include <comp_libtorch/hook/author_blocks.hpp>
#include <comp_libtorch/hook/autocast_guard.hpp>
#include <comp_libtorch/hook/capture.hpp>
#include <comp_libtorch/hook/dispatch_key.hpp>
#include <optional>

namespace comp::libtorch::detail {

/// The session of a region whose operators run as they are, and base of all others. Each entry of a region makes one.
class session : public listener {
 public:
  /// `frees_blocks`: the precisions that the model's author wrote into it (author_blocks.hpp) are ignored.
  explicit session(at::DeviceType device, bool frees_blocks = false)
      : device_{device}, frees_blocks_{frees_blocks}, blocks_{device} {}
  virtual ~session() = default;
  /// Called when the region begins, on its thread. Returns: whether the operators come to called().
  virtual bool begin() { return true; }
  void called(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack& stack) override {
    op.callBoxed(stack);
  }
  /// Called when the region ends. `abandoned`: an exception ended it.
  virtual void end(bool /*abandoned*/) noexcept {}

  /// Throws: `error` while LibTorch's own autocast is on for the device.
  void require_no_autocast() const {
    if (!blocks_.is_on()) return;
    throw error{
        fmt::format("LibTorch's autocast is on for {} in a region of comp (it would cast what the plan has cast): "
                    "switch it off, the plan alone decides precisions",
                    c10::DeviceTypeName(device_, true))};
  }
  /// Tells that a torch::autograd::Function of a library's, whose operators do not come here, gave `now` for `was` and
  /// changed no value.
  virtual void pass_on(const at::Tensor& /*was*/, const at::Tensor& /*now*/) {}
  /// Returns: this session if its parts can be compiled; null otherwise.
  virtual capturable* as_capturable() { return nullptr; }
  /// The region runs a part of an earlier region again (checkpoint.hpp), which stood in `block` there.
  void begin_in(author_choice block) { blocks_.begin_in(block); }
  at::DeviceType device() const { return device_; }

 protected:
  /// Returns: what the model's author chose for the operators of the code that runs now. Throws: `error` in an autocast
  /// of the model's own if blocks are not protected, because it and the plan would both cast.
  author_choice block() const {
    const author_choice now = blocks_.now();
    if (!frees_blocks_) return now;
    if (now == author_choice::autocast_on) require_no_autocast();
    return author_choice::none;
  }
  /// Switches LibTorch's autocast on until the session's end. Blocks are told by differences from the state after that,
  /// so that comp's own autocast is not taken for a block of the author's.
  void begin_autocast(at::ScalarType low) {
    autocast_.emplace(device_, low);
    blocks_.begin();
  }

 private:
  at::DeviceType device_;
  bool frees_blocks_;
  author_blocks blocks_;
  std::optional<autocast_guard> autocast_;
};

/// A region to whose operators comp does not listen: LibTorch's own autocast to `autocast` runs them, or else a plan
/// that lowers nothing. The latter keeps them from a region around it, which has another plan.
class unheard_session final : public session {
 public:
  explicit unheard_session(at::DeviceType device, std::optional<at::ScalarType> autocast = {})
      : session{device}, low_{autocast} {}
  bool begin() override {
    if (low_) begin_autocast(*low_);
    return !low_ && listening != nullptr;
  }

 private:
  std::optional<at::ScalarType> low_;
};

}  // namespace comp::libtorch::detail
