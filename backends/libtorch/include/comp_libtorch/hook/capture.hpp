// SPDX-License-Identifier: Apache-2.0
// How torch.compile takes over a part of a region. It runs the part's operators once, on tensors without data, and the
// session casts these as the plan says: so the casts are in what is compiled. From then on the compiled code runs in
// place of the operators, and the session goes on behind them.
#pragma once

#include <comp_libtorch/hook/listener.hpp>
#include <cstddef>
#include <string>
#include <unordered_map>
#include <utility>

namespace comp::libtorch::detail {

/// A session that goes by a recorded sequence of operators, whose parts can be compiled.
class capturable {
 public:
  /// Returns: the number of the operator that comes next.
  virtual std::size_t place() const = 0;
  virtual void go_to(std::size_t place) = 0;
  /// Tensors without data, each with the parameter that it stands for.
  using stand_ins = std::unordered_map<const c10::TensorImpl*, const c10::TensorImpl*>;
  /// Between the two, operators are captured. A compiler leaves out operators that it need not run, such as conversions
  /// to the format that there is.
  virtual void begin_capture(stand_ins parameters) = 0;
  /// Returns: the first operator that has a precision and is not the recorded one, or cannot be compiled; "" where all
  /// are and can.
  virtual std::string end_capture() = 0;
  /// Returns: whether the plan treats as many operators from `here` on as it does those from `first` to `end`.
  virtual bool is_alike(std::size_t first, std::size_t end, std::size_t here) const = 0;
  virtual listener* as_listener() = 0;
  capturable() = default;
  capturable(const capturable&) = delete;
  capturable& operator=(const capturable&) = delete;

 protected:
  ~capturable() = default;
};

/// While it lives, operators of this thread run as they are: a compiler runs them. The dispatch keys of the thread
/// stay, because compiled code is for the keys that it was compiled under.
class unheard_guard {
 public:
  unheard_guard() : before_{std::exchange(listening, &passes_)} {}
  ~unheard_guard() { listening = before_; }
  unheard_guard(const unheard_guard&) = delete;
  unheard_guard& operator=(const unheard_guard&) = delete;

 private:
  struct passing final : listener {
    void called(const c10::OperatorHandle& op, c10::DispatchKeySet /*keys*/, torch::jit::Stack& stack) override {
      op.callBoxed(stack);
    }
    bool called_directly(const c10::OperatorHandle& /*op*/, const at::Tensor* const* /*tensors*/,
                         at::Tensor* /*casts*/) override {
      return true;
    }
  };
  passing passes_;
  listener* before_;
};

}  // namespace comp::libtorch::detail
