// SPDX-License-Identifier: Apache-2.0
// Writes what a search found: the plan as a file, the figures as a text, and a report as one HTML page that needs no
// other file and draws the summary's JSON (report_page.inc). The page works from disk in any browser, in light and dark
// mode, on a phone, printed, and by keyboard; without scripts it is a table.
#pragma once

#include <algorithm>
#include <comp/core/clock.hpp>
#include <comp/core/linkage.hpp>
#include <comp/files/file.hpp>
#include <comp/search/observers.hpp>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp {

/// What report and summary show and a search cannot know, such as the name of the data. A text that is empty is not
/// shown.
struct report_info {
  std::string model = {};               // "mlp of 8 operators"
  std::string data = {};                // "optdigits.csv.gz, 3,823 digits"
  std::string command = {};             // the command line of the search
  std::string date = {};                // when the search was made; html_report fills in its own if it is empty
  std::string use_command = {};         // the command line that trains with the plan
  std::string plan_file = "plan.json";  // where comp::save writes the plan
};

/// Returns the local date and time: "2026-11-22 13:20:05".
inline std::string local_time() { return detail::time_now("%Y-%m-%d %H:%M:%S", false); }

/// Writes the found plan to a plan file (files/plan_file.hpp), together with its speedup.
/// Throws: `file_error` if the file cannot be written.
COMP_INLINE void save(const outcome& result, const std::string& path);

/// Returns the contest and the search's cost as a text; `*` marks the found plan. The cost is the search's time less
/// the time that the batches which it trained, and which count as training, take under the found plan. If a plan
/// damaged the training, the first line says so.
COMP_INLINE std::string table(const outcome& result);

/// Returns the report as one HTML text.
COMP_INLINE std::string html_text(const outcome& result, const report_info& info = {});

/// Returns the page of a search that still runs, with what is known so far. A browser loads it again after `reload`
/// seconds.
COMP_INLINE std::string html_text_so_far(const outcome& so_far, const report_info& info = {}, int reload = 5);

/// Writes the report to a file.
/// Throws: `file_error` if the file cannot be written; an old file is then still there.
COMP_INLINE void write_html(const outcome& result, const std::string& path, const report_info& info = {});

/// Puts the epochs of a post-training into the report at `path`. Does nothing if the report there is not of the
/// training's plan.
/// Throws: `file_error` if the file cannot be read or written.
COMP_INLINE void add_training(const std::string& path, const training_progress& now);

namespace detail {

using text_rows = std::vector<std::vector<std::string>>;

/// Returns a table as text, with columns as wide as their longest cell; the first is aligned left, the others right.
COMP_INLINE std::string aligned(const text_rows& rows);

/// Returns the page that draws `json`. Without scripts it shows `tables`, each with the text above it; the first row is
/// the head. A browser loads the page again after `reload` seconds; 0: never.
COMP_INLINE std::string page(std::string_view title, const std::vector<std::pair<std::string, text_rows>>& tables,
                             std::string_view json, int reload = 0);

}  // namespace detail

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
    next_ = detail::clock_seconds() + 60;  // holds only where writing fails: it is tried again in a minute
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
#include <comp/observe/report_text.hpp>
#endif
