// SPDX-License-Identifier: Apache-2.0
// Shows how far a search is. On a terminal it is one line that is redrawn and never wraps; when a stage ends, it stays
// as a summary of the stage. In a file, a pipe or with TERM=dumb it is plain lines without control characters: one for
// each run that is judged by its losses, each plan that is timed, and each stage. There are colours only on a terminal,
// and none if NO_COLOR is set (no-color.org).
#pragma once

#include <comp/core/linkage.hpp>
#include <comp/core/sample.hpp>
#include <comp/core/trial.hpp>
#include <comp/search/observers.hpp>
#include <cstdio>
#include <memory>
#include <string>

namespace comp {

namespace detail {
class progress_display;
}

/// An observer that prints progress. Its destructor ends the line, so that an exception's message begins on a new one.
class progress_bar {
 public:
  explicit progress_bar(std::FILE* to = stderr);
  ~progress_bar();
  progress_bar(const progress_bar&) = delete;
  progress_bar& operator=(const progress_bar&) = delete;

  void search_started(const search_info& info);
  void trial_started(const trial& t);
  void batch_done(const trial& t, const sample& so_far);
  void trial_done(const trial& t);
  void warned(const std::string& sentence);
  void search_done(const outcome& result);

 private:
  std::unique_ptr<detail::progress_display> display_;
};

}  // namespace comp

#if COMP_HEADER_ONLY
#include <comp/observe/progress_display.hpp>
#endif
