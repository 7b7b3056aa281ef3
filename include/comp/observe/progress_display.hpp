// SPDX-License-Identifier: Apache-2.0
// Defines what progress_bar.hpp declares: the terminal, the pipe or the file that progress is written to, and the
// clock.
#pragma once

#include <sys/ioctl.h>
#include <unistd.h>

#include <chrono>
#include <comp/core/linkage.hpp>
#include <comp/core/sample.hpp>
#include <comp/core/trial.hpp>
#include <comp/observe/figures.hpp>
#include <comp/observe/progress_bar.hpp>
#include <comp/observe/progress_text.hpp>
#include <comp/policy/plan_name.hpp>
#include <comp/search/observers.hpp>
#include <comp/search/times/contest.hpp>
#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <set>
#include <string>
#include <string_view>

namespace comp::detail {

/// What an observer that prints progress writes to a file, a pipe or a terminal.
class progress_display {
 public:
  explicit progress_display(std::FILE* to)
      : to_{to},
        terminal_{::isatty(::fileno(to)) == 1 && set("TERM") != "dumb"},
        colour_{terminal_ && set("NO_COLOR").empty()} {}
  progress_display(const progress_display&) = delete;
  progress_display& operator=(const progress_display&) = delete;
  ~progress_display() { end_line(); }

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
    const bool notable = !is_timed(t.stage) || t.repeat == 0 || !t.sample.ok();
    if (terminal_) {
      draw(true);
    } else if (notable) {
      print(progress_.trial_line(t));
    }
  }

  // Prints a warning once, although an observer is told of it when it arises and with the outcome again.
  void warned(const std::string& sentence) {
    if (warned_.insert(sentence).second) print("Warning: " + printable(sentence, 1000), "33");
  }

  void search_done(const outcome& result) {
    leave();
    const paired_speedup over_fp32{result.speedup, result.speedup_bounds};
    const bool fp32 = !result.contest.empty() && result.plan == result.contest.front().plan;
    const std::string kept = fmt::format("{}, {}", reference_name(result.graph),
                                         problem_of_noise(result) ? "too noisy to tell" : "no accepted plan is faster");
    std::string text = fmt::format("Found {}: {}", printable(name(result.plan, result.graph), 80),
                                   fp32 ? kept : faster_text(over_fp32, reference_name(result.graph)));
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
  progress progress_ = {};
  stage stage_ = stage::baseline;
  bool begun_ = false;      // whether a stage has begun
  bool line_open_ = false;  // whether the cursor stands behind a line that will be redrawn
  std::set<std::string> warned_ = {};
  clock::time_point start_ = clock::now();
  clock::time_point drawn_ = {};
};

}  // namespace comp::detail

namespace comp {

COMP_INLINE progress_bar::progress_bar(std::FILE* to) : display_{std::make_unique<detail::progress_display>(to)} {}
COMP_INLINE progress_bar::~progress_bar() = default;
COMP_INLINE void progress_bar::search_started(const search_info& info) { display_->search_started(info); }
COMP_INLINE void progress_bar::trial_started(const trial& t) { display_->trial_started(t); }
COMP_INLINE void progress_bar::batch_done(const trial& t, const sample& so_far) { display_->batch_done(t, so_far); }
COMP_INLINE void progress_bar::trial_done(const trial& t) { display_->trial_done(t); }
COMP_INLINE void progress_bar::warned(const std::string& sentence) { display_->warned(sentence); }
COMP_INLINE void progress_bar::search_done(const outcome& result) { display_->search_done(result); }

}  // namespace comp
