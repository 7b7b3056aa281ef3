// SPDX-License-Identifier: Apache-2.0
// One self-contained HTML file about a search: what was found and how much it gives, the plan over the operators, the
// contest, every candidate, why each operator has its precision, and where the search's time went. Opens from disk in
// any browser, light or dark, on a phone, on paper, by keyboard; whatever comes from outside is escaped.
// Not here: the machine-readable figures (observe/summary.hpp).
#pragma once

#include <algorithm>
#include <chrono>
#include <comp/core/linkage.hpp>
#include <comp/files/file.hpp>
#include <comp/observe/report_info.hpp>
#include <comp/search/observers.hpp>
#include <filesystem>
#include <string>
#include <utility>

namespace comp {

/// The report as one HTML text.
COMP_INLINE std::string html_text(const outcome& result, const report_info& info = {});

/// The page of a search that still runs: what is known by now. A browser reads it again after `reload` seconds.
COMP_INLINE std::string html_text_so_far(const outcome& so_far, const report_info& info = {}, int reload = 5);

/// Throws: `file_error` when the file cannot be written; the old one is then still there.
COMP_INLINE void write_html(const outcome& result, const std::string& path, const report_info& info = {});

/// Puts what a training after the search has behind it into the report at `path`; nothing where there is no report of
/// its plan. Throws: `file_error` when the file cannot be read or written.
COMP_INLINE void add_training(const std::string& path, const training_progress& now);

/// An observer: writes the report when the search is done, and before that what is known by then, for who watches.
/// Told of a training with the found plan, in another process too, it adds the epochs to that report.
/// Throws: `file_error` where the file cannot be written when the search starts or is done.
class html_report {
 public:
  /// `path`: as it is now; a search may change the working directory.
  explicit html_report(const std::string& path, report_info info = {})
      : path_{path.empty() ? path : std::filesystem::absolute(path).string()}, info_{std::move(info)} {
    if (info_.date.empty()) info_.date = local_time();
  }

  void search_started(const search_info& info) {
    so_far_ = info.so_far;
    if (so_far_ != nullptr) write_so_far(*so_far_);
  }
  void trial_done(const trial& t) {
    if (so_far_ == nullptr || t.stage == stage::training || clock::now() < next_) return;
    try {
      write_so_far(*so_far_);
    } catch (const file_error&) {  // who searches for hours is told at the end, not stopped
    }
  }
  void search_done(const outcome& result) {
    so_far_ = nullptr;
    write_html(result, path_, info_);
  }
  void training_progressed(const training_progress& now) {
    try {
      add_training(path_, now);
    } catch (const file_error&) {  // no report, or no room: nothing that ends a training
    }
  }

 private:
  using clock = std::chrono::steady_clock;

  // Every two seconds at most, and seldom enough that it takes no more than a hundredth of the time.
  void write_so_far(const outcome& so_far) {
    const auto begin = clock::now();
    next_ = begin + std::chrono::minutes{1};  // where it fails
    detail::write_file(path_, html_text_so_far(so_far, info_));
    const auto end = clock::now();
    next_ = end + std::max<clock::duration>(std::chrono::seconds{2}, 100 * (end - begin));
  }

  std::string path_;
  report_info info_;
  const outcome* so_far_ = nullptr;
  clock::time_point next_ = {};
};

}  // namespace comp

#if COMP_HEADER_ONLY
#include <comp/observe/html_text.hpp>
#endif
