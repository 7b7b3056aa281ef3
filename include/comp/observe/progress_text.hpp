// SPDX-License-Identifier: Apache-2.0
// What a progress bar says, as plain text: what was seen so far, and one line about it. Knows no terminal
// (observe/progress_bar.hpp) and no clock: it is told the seconds.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/trial.hpp>
#include <comp/search/observers.hpp>
#include <cstddef>
#include <limits>
#include <set>
#include <string>
#include <string_view>

namespace comp::detail {

constexpr std::string_view in_words(stage s) {
  constexpr std::string_view words[] = {"FP32 baseline", "Stage 1, by epochs", "Stage 2, by batches", "Final contest",
                                        "Training"};
  return words[static_cast<std::size_t>(s)];
}

constexpr std::string_view in_words(status s) {
  constexpr std::string_view words[] = {"ended well",          "diverged",          "gave a loss that is not finite",
                                        "does not fit memory", "was cut: too slow", "failed"};
  return words[static_cast<std::size_t>(s)];
}

constexpr bool runs_epochs(stage s) { return s != stage::batches && s != stage::contest; }

/// One line of printable ASCII, at most `most` characters: nothing from outside can move the cursor or wrap a line.
inline std::string printable(std::string_view text, std::size_t most) {
  std::string shown{text.substr(0, most)};
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  if (text.size() > most && most >= 3) shown.replace(most - 3, 3, "...");
  return shown;
}

/// "48 s", "3 min 20 s", "2 h 05 min".
inline std::string duration(double seconds) {
  if (!std::isfinite(seconds) || seconds > 1e9) return "a long time";
  const auto s = static_cast<long>(std::lround(std::max(seconds, 0.0)));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
}

template <class = void>  // compiled where it is used
class progress {
 public:
  void search_started(std::size_t epochs_at_most) {
    *this = {};
    epochs_at_most_ = epochs_at_most;
  }

  void trial_started(const trial& t, double now) {
    running_ = t;
    began_ = now;
    batches_ = 0;
  }

  void batch_done(const sample& so_far) { batches_ = so_far.batches; }

  /// `recalled`: from a ledger, so it took no time.
  void trial_done(const trial& t, bool recalled) {
    ++runs_;
    plans_.insert(t.plan.str());
    accepted_ += t.accepted ? 1 : 0;
    batches_ = 0;
    if (runs_epochs(t.stage)) {
      ++epochs_;
      if (!recalled) run_seconds_ += t.sample.seconds, ++timed_epochs_;
    }
    if (t.stage == stage::baseline && t.accepted && !std::isfinite(fp32_seconds_)) {
      fp32_seconds_ = t.seconds;
      fp32_batches_ = t.sample.batches;
    } else if (t.accepted && t.stage == stage::epochs && t.seconds < best_seconds_) {
      best_seconds_ = t.seconds;
    }
  }

  /// Counts of a stage begin anew.
  void stage_begins() {
    runs_ = accepted_ = 0;
    plans_.clear();
  }

  /// "Stage 1, by epochs: 7 runs of 7 plans, 5 usable, best 1.42x FP32".
  std::string stage_line(stage s) const {
    return fmt::format("{}: {} run{} of {} plan{}, {} usable{}", in_words(s), runs_, runs_ == 1 ? "" : "s",
                       plans_.size(), plans_.size() == 1 ? "" : "s", accepted_, s == stage::epochs ? best() : "");
  }

  /// "Stage 1, by epochs: 0011 took 52.1 ms per batch, 1.31x FP32, loss 1.2345, accepted".
  std::string trial_line(const trial& t) const {
    const std::string plan = t.label.empty() ? t.plan.str() : t.label;
    std::string line = fmt::format("{}: {}", in_words(t.stage), printable(plan, 40));
    if (!t.sample.ok()) {
      line += fmt::format(" {}", in_words(t.sample.status));
      if (!t.sample.message.empty()) line += fmt::format(": {}", printable(t.sample.message, 200));
      return line;
    }
    line += fmt::format(" took {:.3g} ms per batch", 1e3 * t.seconds);
    if (t.stage != stage::baseline && std::isfinite(fp32_seconds_)) {
      line += fmt::format(", {:.2f}x FP32", fp32_seconds_ / t.seconds);
    }
    if (runs_epochs(t.stage))
      line += fmt::format(", loss {:.5g}, {}", t.sample.loss, t.accepted ? "accepted" : "rejected");
    return line;
  }

  /// "Stage 1, by epochs  epoch 3 of about 8  [####....] 52%  best 1.42x FP32  about 48 s left", at most `width`
  /// characters: what matters less is left out first.
  std::string line(double now, std::size_t width) const {
    const std::string parts[] = {std::string{in_words(running_.stage)}, counted(), bar(), best(), left(now)};
    std::string text;
    for (const auto& part : parts) {
      if (part.empty()) continue;
      const std::string next = fmt::format("{}{}", text.empty() ? "" : "  ", part.substr(part.find_first_not_of(", ")));
      if (text.size() + next.size() <= width) text += next;
    }
    return text.substr(0, width);
  }

 private:
  std::string counted() const {
    if (!runs_epochs(running_.stage))
      return fmt::format("batch {}, {} plans", runs_ + 1, std::max<std::size_t>(plans_.size(), 1));
    if (running_.stage == stage::training || epochs_at_most_ < epochs_ + 1) return fmt::format("epoch {}", epochs_ + 1);
    return fmt::format("epoch {} of about {}", epochs_ + 1, epochs_at_most_);
  }

  double done() const {
    return fp32_batches_ > 0 ? std::min(1.0, static_cast<double>(batches_) / static_cast<double>(fp32_batches_)) : 0;
  }

  std::string bar() const {
    if (!runs_epochs(running_.stage)) return {};
    if (fp32_batches_ == 0) return batches_ > 0 ? fmt::format("batch {}", batches_) : std::string{};
    const auto full = static_cast<std::size_t>(done() * 20);
    return fmt::format("[{}{}] {:3.0f}%", std::string(full, '#'), std::string(20 - full, '.'), 100 * done());
  }

  std::string best() const {
    if (!std::isfinite(best_seconds_) || !std::isfinite(fp32_seconds_)) return {};
    return fmt::format(", best {:.2f}x FP32", fp32_seconds_ / best_seconds_);
  }

  std::string left(double now) const {
    if (timed_epochs_ == 0 || !runs_epochs(running_.stage) || running_.stage == stage::training) return {};
    if (epochs_at_most_ <= epochs_) return {};
    const double each = run_seconds_ / static_cast<double>(timed_epochs_);
    const double all = each * static_cast<double>(epochs_at_most_ - epochs_) - std::min(now - began_, each);
    return fmt::format("about {} left", duration(all));
  }

  std::size_t epochs_at_most_ = 0, epochs_ = 0, timed_epochs_ = 0;  // of the search
  std::size_t runs_ = 0, accepted_ = 0;                             // of the stage
  std::set<std::string> plans_ = {};                                // of the stage
  trial running_ = {};
  double began_ = 0, run_seconds_ = 0;
  std::int64_t batches_ = 0, fp32_batches_ = 0;
  double fp32_seconds_ = std::numeric_limits<double>::infinity(), best_seconds_ = fp32_seconds_;
};

}  // namespace comp::detail
