// SPDX-License-Identifier: Apache-2.0
// A block of code whose operators belong to a program. program::enter and program::evaluate open one.
#pragma once

#include <comp/core/linkage.hpp>
#include <comp_libtorch/hook/listener.hpp>
#include <comp_libtorch/hook/listening.hpp>
#include <memory>
#include <optional>

namespace comp::libtorch {

namespace detail {
class capturable;
}

/// While it lives, the operators that this thread dispatches belong to the program. A nested region takes them over and
/// gives them back. Threads that are started in it are not in it. TorchScript's optimizer is off in it: from the second
/// forward on it would fuse operators and differentiate them itself, and no plan knows these. A region that an
/// exception ends leaves nothing behind. Dropout draws its numbers faster in a region (bernoulli.hpp).
class [[nodiscard]] region {
 public:
  COMP_INLINE explicit region(std::unique_ptr<detail::session> listens);
  COMP_INLINE ~region();
  /// Ends the region as one that an exception has left. For an exception that C++ does not see, as those of Python.
  void abandon() { exceptions_ = -1; }
  /// Returns: how the part of the forward that begins here is run again in the backward; nothing if that needs no
  /// region.
  COMP_INLINE detail::resumption from_here() const;
  /// Returns: whether operators come to the session. They do not under LibTorch's own autocast, nor if a plan lowers
  /// nothing: code in it may be compiled as if comp were not there.
  bool listens() const { return guard_.has_value(); }
  /// Returns: what torch.compile captures parts of the region by; null if that is not possible.
  COMP_INLINE detail::capturable* as_capturable() const;
  /// Tells that a torch::autograd::Function whose operators do not come here gave `now` for `was`, and changed no
  /// value.
  COMP_INLINE void pass_on(const at::Tensor& was, const at::Tensor& now);
  region(const region&) = delete;
  region& operator=(const region&) = delete;

 private:
  detail::key_guard random_;
  std::unique_ptr<detail::session> session_;
  int exceptions_;
  bool script_optimized_;
  std::optional<detail::listening_guard> guard_;
};

}  // namespace comp::libtorch

#if COMP_HEADER_ONLY
#include <comp_libtorch/hook/open_region.hpp>
#endif
