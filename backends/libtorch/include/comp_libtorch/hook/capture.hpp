// SPDX-License-Identifier: Apache-2.0
// How torch.compile takes over a part of a region. It runs the part's operators once, on tensors without data, and the
// session casts these as the plan says: so the casts are in what is compiled. From then on the compiled code runs in
// place of the operators, and the session goes on behind them.
#pragma once

#include <comp/core/precision.hpp>
#include <comp_libtorch/hook/author_blocks.hpp>
#include <comp_libtorch/hook/listener.hpp>
#include <cstddef>
#include <string>
#include <utility>
#include <vector>

namespace comp::libtorch::detail {

/// An operator that was captured by its name (plan/evaluator.hpp).
struct captured_name {
  std::string layer, kind;
  precision chosen = precision::fp32, as_written = precision::fp32;
};

/// Operators of a region that were captured.
struct captured_part {
  std::size_t first = 0, end = 0;                       // their numbers; by names: `first` stands for the plan
  std::vector<captured_name> names = {};                // if they go by names
  author_choice block = author_choice::none;            // that they stand in
  std::vector<const c10::TensorImpl*> parameters = {};  // that the compiled code was given
  std::string stray = {};  // the first of them that is not the recorded one, or cannot be compiled; "": none

  void note_stray(std::string at) {
    if (stray.empty()) stray = std::move(at);
  }
};

/// A session whose parts can be compiled. Its operators are numbered, unless they go by names.
class capturable {
 public:
  /// Returns: the number of the operator that comes next.
  virtual std::size_t place() const = 0;
  virtual void go_to(std::size_t place) = 0;
  /// Between the two, operators are captured. A compiler leaves out operators that it need not run, such as conversions
  /// to the format that there is. `traced[i]`: the tensor without data that stands for `parameters[i]`.
  virtual void begin_capture(const std::vector<at::Tensor>& traced, const std::vector<at::Tensor>& parameters) = 0;
  virtual captured_part end_capture() = 0;
  /// Returns: whether what was captured may run for the operators that come next, with `given[i]` in place of
  /// `part.parameters[i]`: they are the same, or others that the plan treats alike and that read these parameters.
  virtual bool can_run(const captured_part& part, const std::vector<const c10::TensorImpl*>& given) const = 0;
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
