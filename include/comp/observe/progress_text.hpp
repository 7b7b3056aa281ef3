// SPDX-License-Identifier: Apache-2.0
// What progress_bar.hpp says of a search. It knows neither a terminal nor a clock, so that tests can say what time it
// is.
#pragma once

#include <algorithm>
#include <cmath>
#include <comp/core/trial.hpp>
#include <comp/observe/figures.hpp>
#include <comp/policy/plan_name.hpp>
#include <cstddef>
#include <limits>
#include <map>
#include <set>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace comp::detail {

constexpr std::string_view in_words(status s) {
  constexpr std::string_view words[] = {"ended well",          "diverged",          "gave a loss that is not finite",
                                        "does not fit memory", "was cut: too slow", "failed"};
  return words[static_cast<std::size_t>(s)];
}

/// Returns at most `most` characters of printable ASCII. Texts from outside then cannot move the cursor or wrap the
/// line.
inline std::string printable(std::string_view text, std::size_t most) {
  std::string shown{text.substr(0, most)};
  std::replace_if(
      shown.begin(), shown.end(), [](char c) { return c < ' ' || c > '~'; }, '?');
  if (text.size() > most && most >= 3) shown.replace(most - 3, 3, "...");
  return shown;
}

/// Formats a duration: "48 s", "3 min 20 s", "2 h 05 min".
inline std::string duration(double seconds) {
  if (!std::isfinite(seconds) || seconds > 1e9) return "a long time";
  const auto s = static_cast<long>(std::lround(std::max(seconds, 0.0)));
  if (s < 60) return fmt::format("{} s", s);
  if (s < 3600) return fmt::format("{} min {:02} s", s / 60, s % 60);
  return fmt::format("{} h {:02} min", s / 3600, s / 60 % 60);
}

/// What was seen of a search so far.
class progress {
 public:
  /// `plans_at_most` is how many plans will be judged by losses at most, FP32 and the winner included; 0: not known.
  void search_started(std::size_t plans_at_most, op_graph graph = {}) {
    *this = {};
    plans_at_most_ = plans_at_most;
    graph_ = std::move(graph);
  }

  /// Runs may be nested: FP32 trains further batches while a candidate is being judged.
  void trial_started(const trial& t, double now) {
    if (under_way_.empty()) began_ = now, batches_ = 0;
    under_way_.push_back(t);
  }

  void batch_done(const trial& t, const sample& so_far) {
    if (!under_way_.empty() && is_same_run(t, under_way_.front())) batches_ = so_far.batches;
  }

  /// Returns: true for a run that was made now, false for one that was recalled from a ledger.
  bool trial_done(const trial& t) {
    const auto at =
        std::find_if(under_way_.begin(), under_way_.end(), [&](const trial& u) { return is_same_run(t, u); });
    const bool measured = at != under_way_.end();
    under_way_.erase(at, under_way_.end());
    learn_fp32(t);
    const bool turn = t.stage == stage::contest && t.sample.batches == 1;  // checks of the state have several
    if (turn && t.sample.ok()) turns_[t.plan.str()].push_back(t.sample.seconds);
    if (t.stage != stage_) return measured;                               // a run of FP32 within a candidate's
    if (t.stage == stage::training && !t.label.empty()) return measured;  // FP32 beside a training is no epoch of it
    ++runs_;
    all_batches_ += t.sample.batches;
    plans_.insert(t.plan.str());
    if (is_judged(t)) {
      ++judged_;
      accepted_ += t.accepted ? 1 : 0;
      if (measured) run_seconds_ += t.sample.seconds, ++timed_;
      if (t.accepted) best_seconds_ = std::min(best_seconds_, own_seconds(t));
    }
    return measured;
  }

  /// Starts the counts of a stage.
  void stage_begins(stage s) {
    stage_ = s;
    runs_ = accepted_ = 0;
    all_batches_ = 0;
    plans_.clear();
    turns_.clear();
    fp32_now_.clear();
    judged_before_ = judged_;
  }

  /// Returns the summary of a stage: "Judged by losses: 7 plans, 5 accepted, best 1.42x FP32", "Timed in turns: 60
  /// batches of 3 plans".
  std::string stage_line(stage s) const {
    const auto of = [](auto count, const char* what) {
      return fmt::format("{} {}{}", count, what, count == 1 ? "" : std::string_view{what} == "batch" ? "es" : "s");
    };
    std::string text = fmt::format("{}: ", in_words(s));
    if (s == stage::training) return text + of(runs_, "epoch");
    if (s == stage::losses) {
      return text + fmt::format("{}, {} accepted{}", of(judged_ - judged_before_, "plan"), accepted_, best());
    }
    return text + of(all_batches_, "batch") + (s == stage::baseline ? "" : " of " + of(plans_.size(), "plan") + best());
  }

  /// Returns the line of a run: "Judged by losses: all in bf16 took 52.1 ms per batch, 1.31x FP32, loss +0.22% of 16
  /// batches, accepted". Times are compared with FP32's in the same stage only, because the first batches of a training
  /// also load data and make kernels.
  std::string trial_line(const trial& t) const {
    const std::string plan = t.label.empty() ? name(t.plan, graph_) : t.label;
    std::string line = fmt::format("{}: {}", in_words(t.stage), printable(plan, 80));
    if (!t.sample.ok()) {
      line += fmt::format(" {}", in_words(t.sample.status));
      if (!t.sample.message.empty()) line += fmt::format(": {}", printable(t.sample.message, 200));
      return line;
    }
    if (!trains(t.purpose)) return line + fmt::format(" took {:.3g} ms", 1e3 * t.sample.seconds);
    line += fmt::format(" took {:.3g} ms per batch", 1e3 * own_seconds(t));
    if (t.purpose == purpose::check) return line + ", a check of the state";
    if (t.purpose == purpose::first_look) return line + ", a first look";
    if (is_judged(t)) {
      if (!fp32_now_.empty())
        line += fmt::format(", {:.2f}x {}", median(fp32_now_) / own_seconds(t), reference_name(graph_));
      const auto change = change_of(t.sample, fp32_);
      line += change ? ", loss " + change_text(*change) : fmt::format(", loss {:.5g}", t.sample.loss);
      return line + (t.accepted ? ", accepted" : ", not accepted");
    }
    if (t.stage == stage::baseline || t.stage == stage::training) {
      line += fmt::format(", loss {:.5g} of {} batch{}", t.sample.loss, t.sample.batches,
                          t.sample.batches == 1 ? "" : "es");
    }
    return line;
  }

  /// Returns the line to redraw: "Judged by losses  plan 3 of about 8  batch 24  best 1.42x FP32  about 48 s left". It
  /// has at most `width` characters; parts that do not fit are left out.
  std::string line(double now, std::size_t width) const {
    const std::string parts[] = {std::string{in_words(stage_)}, counted(), batch(), best(), left(now)};
    std::string text;
    for (const auto& part : parts) {
      if (part.empty()) continue;
      const std::string next = fmt::format("{}{}", text.empty() ? "" : "  ", part.substr(part.find_first_not_of(", ")));
      if (text.size() + next.size() <= width) text += next;
    }
    return text.substr(0, width);
  }

 private:
  // Collects FP32's losses and times. Its batches come in parts, each of which continues the last one.
  void learn_fp32(const trial& t) {
    if (t.stage != stage::baseline || t.purpose > purpose::perturbed || !t.sample.ok()) return;
    if (stage_ == stage::losses) fp32_now_.push_back(own_seconds(t));
    if (t.purpose != purpose::judge) return;
    fp32_plan_ = t.plan.str();
    const auto add = [](auto& to, const auto& more) { to.insert(to.end(), more.begin(), more.end()); };
    add(fp32_.curve, t.sample.curve);
    add(fp32_.batch_seconds, t.sample.batch_seconds);
    fp32_.loss = t.sample.loss;  // used only without curves, and then FP32 has a single part
    fp32_.batches += t.sample.batches;
  }
  // Returns the seconds of a batch without the first one, which pays for things that are made once.
  static double own_seconds(const trial& t) {
    std::vector<double> times = t.sample.batch_seconds;
    if (times.empty()) return t.seconds;
    if (times.size() > 3) times.erase(times.begin());
    return median(std::move(times));
  }

  bool judging() const { return stage_ == stage::losses; }

  std::string counted() const {
    if (stage_ == stage::baseline) return {};
    if (stage_ == stage::training) return fmt::format("epoch {}", runs_ + 1);
    if (!judging()) return fmt::format("batch {}, {} plans", runs_ + 1, std::max<std::size_t>(plans_.size(), 1));
    if (plans_at_most_ < judged_ + 2) return fmt::format("plan {}", judged_ + 1);
    return fmt::format("plan {} of about {}", judged_ + 1, plans_at_most_ - 1);  // without FP32's
  }

  std::string batch() const {
    const bool one = stage_ == stage::times || stage_ == stage::contest;
    return one || batches_ == 0 ? std::string{} : fmt::format("batch {}", batches_);
  }

  // Returns the speed of the fastest plan over FP32, from whatever the stage measures: times of judged runs, or turns
  // of the contest, which are compared in pairs.
  std::string best() const {
    double speedup = median(fp32_now_) / best_seconds_;
    if (stage_ == stage::contest) {
      speedup = 1;
      const auto fp32 = turns_.find(fp32_plan_);
      if (fp32 == turns_.end()) return {};
      for (const auto& [p, seconds] : turns_) speedup = std::max(speedup, compare_paired(fp32->second, seconds).ratio);
    }
    return speedup > 0 && stage_ != stage::times ? fmt::format(", best {:.2f}x {}", speedup, reference_name(graph_))
                                                 : "";
  }

  // Returns how long the stage will last, from the mean time of the plans that were judged so far.
  std::string left(double now) const {
    if (timed_ == 0 || !judging() || plans_at_most_ < judged_ + 2) return {};
    const double each = run_seconds_ / static_cast<double>(timed_);
    const double all = each * static_cast<double>(plans_at_most_ - 1 - judged_) - std::min(now - began_, each);
    return fmt::format("about {} left", duration(all));
  }

  op_graph graph_ = {};  // a copy, because the post-training that follows a search is still told plans by name
  std::size_t plans_at_most_ = 0, judged_ = 0, timed_ = 0;   // counts of the whole search
  std::size_t runs_ = 0, accepted_ = 0, judged_before_ = 0;  // counts of the current stage
  std::int64_t all_batches_ = 0;                             // batches of the current stage
  std::set<std::string> plans_ = {};                         // plans of the current stage
  stage stage_ = stage::baseline;
  std::vector<trial> under_way_ = {};   // runs that have begun, the outermost first
  double began_ = 0, run_seconds_ = 0;  // when the outermost began; time of all judged runs
  std::int64_t batches_ = 0;            // batches of the outermost run so far
  sample fp32_ = {};                    // FP32's batches so far
  std::string fp32_plan_ = {};
  std::vector<double> fp32_now_ = {};                              // seconds per batch of FP32's runs in this stage
  std::map<std::string, std::vector<double>> turns_ = {};          // seconds of each batch of the contest, by plan
  double best_seconds_ = std::numeric_limits<double>::infinity();  // per batch, of the fastest accepted plan
};

}  // namespace comp::detail
