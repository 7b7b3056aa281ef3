// SPDX-License-Identifier: Apache-2.0
// Writes a report of a search as one HTML file that needs no other: what was found and how much faster it is, the
// precision of each operator and the reason for it, the contest, every candidate, and what the search spent its time
// on. The page works from disk in any browser, in light and dark mode, on a phone, printed, and by keyboard.
// Not here: the figures for programs (observe/summary.hpp).
#pragma once

#include <algorithm>
#include <comp/core/clock.hpp>
#include <comp/core/linkage.hpp>
#include <comp/files/file.hpp>
#include <comp/observe/report_info.hpp>
#include <comp/search/observers.hpp>
#include <filesystem>
#include <string>
#include <utility>

namespace comp {

/// Returns the report as one HTML text.
COMP_INLINE std::string html_text(const outcome& result, const report_info& info = {});

/// Returns the page of a search that still runs, with what is known so far. A browser loads it again after `reload`
/// seconds.
COMP_INLINE std::string html_text_so_far(const outcome& so_far, const report_info& info = {}, int reload = 5);

/// Writes the report to a file.
/// Throws: `file_error` if the file cannot be written; an old file is then still there.
COMP_INLINE void write_html(const outcome& result, const std::string& path, const report_info& info = {});

/// Puts the epochs of a post-training into the report at `path`. Does nothing if that report is of another plan.
/// Throws: `file_error` if the file cannot be read or written.
COMP_INLINE void add_training(const std::string& path, const training_progress& now);

/// An observer that writes the report when the search is done. While the search runs it writes what is known so far, so
/// that one can watch it in a browser. As an observer of a post-training, in the same process or a later one, it adds
/// the epochs to the report.
/// Throws: `file_error` if the file cannot be written when the search starts or ends.
class html_report {
 public:
  /// `path` is made absolute here, because a trainer may change the working directory.
  explicit html_report(const std::string& path, report_info info = {})
      : path_{path.empty() ? path : std::filesystem::absolute(path).string()}, info_{std::move(info)} {
    if (info_.date.empty()) info_.date = local_time();
  }

  void search_started(const search_info& info) {
    so_far_ = info.so_far;
    if (so_far_ != nullptr) write_so_far(*so_far_);
  }
  void trial_done(const trial& t) {
    if (so_far_ == nullptr || t.stage == stage::training || detail::clock_seconds() < next_) return;
    try {
      write_so_far(*so_far_);
    } catch (const file_error&) {  // a full disk must not end a search of hours; its end reports the error
    }
  }
  void search_done(const outcome& result) {
    so_far_ = nullptr;
    write_html(result, path_, info_);
  }
  void training_progressed(const training_progress& now) {
    try {
      add_training(path_, now);
    } catch (const file_error&) {  // neither a missing report nor a full disk may end a training
    }
  }

 private:
  // Writes the page at most every two seconds, and seldom enough to take no more than a hundredth of the search's time.
  void write_so_far(const outcome& so_far) {
    const detail::stopwatch watch;
    next_ = detail::clock_seconds() + 60;  // holds only if writing fails: it is tried again in a minute
    detail::write_file(path_, html_text_so_far(so_far, info_));
    next_ = detail::clock_seconds() + std::max(2.0, 100 * watch.seconds());
  }

  std::string path_;
  report_info info_;
  const outcome* so_far_ = nullptr;
  double next_ = 0;  // by clock_seconds()
};

}  // namespace comp

#if COMP_HEADER_ONLY
#include <comp/observe/html_text.hpp>
#endif
