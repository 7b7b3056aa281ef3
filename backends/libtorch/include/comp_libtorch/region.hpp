// SPDX-License-Identifier: Apache-2.0
// A block of code whose operators belong to a program. Opened by program::enter and program::evaluate.
#pragma once

#include <comp_libtorch/session.hpp>
#include <cstddef>
#include <exception>
#include <memory>
#include <optional>
#include <utility>

namespace comp::libtorch {

/// While it lives the operators that this thread dispatches belong to the program; a nested region takes them over and
/// gives them back. Threads started in it are not in it. When an exception ends it nothing of it stays.
class [[nodiscard]] region {
 public:
  explicit region(std::unique_ptr<detail::session> listens)
      : session_{std::move(listens)}, exceptions_{std::uncaught_exceptions()} {
    if (session_->begin()) guard_.emplace(session_.get());
  }
  ~region() {
    guard_.reset();
    session_->end(std::uncaught_exceptions() > exceptions_);
  }
  /// The region ends by an exception that is none of C++'s.
  void abandon() { exceptions_ = -1; }
  /// What program::enter_again() goes on from; nothing where no plan is run operator by operator.
  std::optional<std::size_t> position() const { return session_->position(); }
  region(const region&) = delete;
  region& operator=(const region&) = delete;

 private:
  std::unique_ptr<detail::session> session_;
  int exceptions_;
  std::optional<detail::listening_guard> guard_;
};

}  // namespace comp::libtorch
