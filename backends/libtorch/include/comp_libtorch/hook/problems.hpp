// SPDX-License-Identifier: Apache-2.0
// How forwards differed from the recorded one, as the sessions of a program report it.
#pragma once

#include <cstddef>
#include <mutex>
#include <string>

namespace comp::libtorch {

/// How forwards differed from the recorded one.
struct program_problems {
  std::size_t unknown = 0;      // runs of operators that the recorded forward does not have
  std::size_t mismatches = 0;   // regions that went on in FP32, or ran none of the recorded modules
  std::size_t ended_early = 0;  // regions with fewer operators than recorded
  std::size_t by_aten = 0;      // runs of operators that comp's kernel was chosen for and did not serve
  std::string first = {};       // the first problem, in words
};

namespace detail {

/// Collects problems from the regions of several threads.
class problem_list {
 public:
  /// Counts a problem of `kind`. `describe()` gives its words and is called for the first problem only.
  void add(std::size_t program_problems::*kind, auto describe) {
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
