// SPDX-License-Identifier: Apache-2.0
// Shows how far a search is. On a terminal it is one line that is redrawn and never wraps; when a stage ends, it stays
// as a summary of the stage. In a file, a pipe or with TERM=dumb it is plain lines without control characters: one for
// each run that is judged by its losses, each plan that is timed, and each stage. There are colours only on a terminal,
// and none if NO_COLOR is set (no-color.org).
// Not here: the text of the lines (observe/progress_text.hpp).
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <comp/observe/progress_text.hpp>
#include <comp/search/observers.hpp>
#include <comp/search/times/contest.hpp>
#include <cstdio>
#include <cstdlib>
#include <set>
#include <string>
#include <string_view>

namespace comp {

/// An observer that prints progress. Its destructor ends the line, so that an exception's message begins on a new one.
class progress_bar {
 public:
  explicit progress_bar(std::FILE* to = stderr)
      : to_{to},
        terminal_{::isatty(::fileno(to)) == 1 && set("TERM") != "dumb"},
        colour_{terminal_ && set("NO_COLOR").empty()} {}
  progress_bar(const progress_bar&) = delete;
  progress_bar& operator=(const progress_bar&) = delete;
  ~progress_bar() { end_line(); }

  void search_started(const search_info& info) {
    progress_.search_started(info.epochs_at_most, info.graph);
    begun_ = false;
    warned_.clear();
  }

  void trial_started(const trial& t) {
    enter(t.stage);
    progress_.trial_started(t, seconds());
    draw(true);
  }

  void batch_done(const trial& t, const sample& so_far) {
    progress_.batch_done(t, so_far);
    draw(false);
  }

  void trial_done(const trial& t) {
    enter(t.stage);
    progress_.trial_done(t);
    const bool notable = !detail::is_timed(t.stage) || t.repeat == 0 || !t.sample.ok();
    if (terminal_) {
      draw(true);
    } else if (notable) {
      print(progress_.trial_line(t));
    }
  }

  // Prints a warning once, although an observer is told of it when it arises and with the outcome again.
  void warned(const std::string& sentence) {
    if (warned_.insert(sentence).second) print("Warning: " + detail::printable(sentence, 1000), "33");
  }

  void search_done(const outcome& result) {
    leave();
    const paired_speedup over_fp32{result.speedup, result.speedup_bounds};
    const bool fp32 = !result.contest.empty() && result.plan == result.contest.front().plan;
    const std::string kept = fmt::format("{}, {}", reference_name(result.graph),
                                         problem_of_noise(result) ? "too noisy to tell" : "no accepted plan is faster");
    std::string text = fmt::format("Found {}: {}", detail::printable(name(result.plan, result.graph), 80),
                                   fp32 ? kept : detail::faster_text(over_fp32, reference_name(result.graph)));
    if (result.recalled > 0) {
      text += fmt::format("; {} of {} runs came from the ledger", result.recalled, result.trials.size());
    }
    print(text, "1");
    for (const std::string& sentence : result.warnings) warned(sentence);
  }

 private:
  static std::string_view set(const char* variable) {
    const char* value = std::getenv(variable);
    return value == nullptr ? "" : value;
  }

  double seconds() const { return std::chrono::duration<double>(clock::now() - start_).count(); }

  void enter(stage s) {
    // While a candidate is judged, FP32 trains further batches to compare with. That does not begin the baseline again.
    if (begun_ && (s == stage_ || s == stage::baseline)) return;
    leave();
    begun_ = true;
    stage_ = s;
    progress_.stage_begins(s);
  }

  void leave() {
    if (begun_) print(progress_.stage_line(stage_));
    begun_ = false;
  }

  std::size_t width() const {
    winsize size = {};
    const bool known = ::ioctl(::fileno(to_), TIOCGWINSZ, &size) == 0 && size.ws_col > 1;
    return known ? size.ws_col - 1U : 79;
  }

  // Redraws the line; not more than ten times a second unless `now`, since a terminal over a slow network would hold up
  // the training.
  void draw(bool now) {
    if (!terminal_) return;
    if (!now && clock::now() - drawn_ < std::chrono::milliseconds{100}) return;
    drawn_ = clock::now();
    put(fmt::format("\r{}\x1b[K", paint(progress_.line(seconds(), width()), "36")));
    line_open_ = true;
  }

  // Prints a line that stays.
  void print(const std::string& text, const char* style = "") {
    if (terminal_ && line_open_) put("\r\x1b[K");
    line_open_ = false;
    put((*style == '\0' ? text : paint(text, style)) + "\n");
  }

  void end_line() {
    if (line_open_) put("\n");
    line_open_ = false;
  }

  std::string paint(const std::string& text, const char* style) const {
    return colour_ ? fmt::format("\x1b[{}m{}\x1b[0m", style, text) : text;
  }

  void put(std::string_view text) {
    std::fwrite(text.data(), 1, text.size(), to_);
    std::fflush(to_);
  }

  using clock = std::chrono::steady_clock;
  std::FILE* to_;
  bool terminal_, colour_;
  detail::progress progress_ = {};
  stage stage_ = stage::baseline;
  bool begun_ = false;      // whether a stage has begun
  bool line_open_ = false;  // whether the cursor stands behind a line that will be redrawn
  std::set<std::string> warned_ = {};
  clock::time_point start_ = clock::now();
  clock::time_point drawn_ = {};
};

}  // namespace comp
