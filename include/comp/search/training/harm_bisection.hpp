// SPDX-License-Identifier: Apache-2.0
// Finds the operators that cause the harm which a training showed, and the plan without them. Parts of the plan train
// the same batches from the same state as the plan and FP32 did; bisection (strategy/bisection.hpp) chooses the parts.
// Harm is attributed to a part that shows two fifths of the plan's harm, a third for lost batches.
// Source: CoMP paper, section 4.4 ("gradually return to a more conservative plan").
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <comp/core/lost_batches.hpp>
#include <comp/search/losses/paths.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <comp/strategy/bisection.hpp>
#include <cstddef>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace comp::detail {

/// Harm as a training showed it, by the losses of the plan and of FP32 on the same batches from `start`; lower is
/// better.
struct shown_harm {
  enum class sign { high_losses, lost_batches, ended };
  sign shown_by = sign::high_losses;
  checkpoint start = {};
  std::vector<double> plan = {}, fp32 = {};
  std::size_t last_batches = 1;  // how many of the last batches show the harm
};

/// The largest part of a plan that does not show the harm; FP32 if every part does.
struct harmless_part {
  comp::plan plan = {};
  std::vector<std::size_t> harmful = {};  // the operators that cause the harm
  std::size_t runs = 0;

  /// Returns: the finding in words, such as "7 runs of its parts find the harm in head (softmax)".
  std::string str(const op_graph& graph) const {
    std::string names;
    for (const std::size_t i : harmful) {
      names += names.empty() ? "" : ", ";
      names += i < graph.size() ? fmt::format("{} ({})", graph[i].name, graph[i].kind) : fmt::format("operator {}", i);
    }
    return fmt::format("{} runs of its parts find the harm in {}", runs, names.empty() ? "all of it" : names);
  }
};

class harm_bisection {
 public:
  harm_bisection(evaluator& run, shown_harm harm, plan harmful)
      : run_{run}, harm_{std::move(harm)}, harmful_{std::move(harmful)} {}

  /// Returns: true if the plan shows the harm again and FP32 does not; otherwise it came by chance. The trainer is left
  /// in another state.
  bool repeats() { return !shows_harm(run_.fp32(), "fp32 again") && shows_harm(harmful_, "the plan again"); }

  /// Returns: the plan without the harmful operators; nothing if `seconds` are too short to find them. `first`: the
  /// part of the plan that is asked about first. The trainer is left in another state.
  std::optional<harmless_part> find_harmless(const plan& first, double seconds) {
    const double seconds_before = run_.seconds();
    std::vector<std::size_t> operators;
    for (std::size_t i = 0; i < harmful_.size(); ++i) {
      if (harmful_[i] != run_.fp32()[i]) operators.push_back(i);
    }
    const auto is_first = [&](std::size_t op) { return first[op] == harmful_[op]; };
    std::sort(operators.begin(), operators.end(),
              [&](std::size_t a, std::size_t b) {  // std's stable_partition is deprecated under clang
                return is_first(a) != is_first(b) ? is_first(a) : a < b;
              });
    const auto end_of_first = std::find_if_not(operators.begin(), operators.end(), is_first);
    bisection bisect{std::vector<double>(operators.size(), 1.0),
                     static_cast<std::size_t>(end_of_first - operators.begin()),
                     false,
                     {.questions = 8 + 2 * operators.size(), .worth = 0}};
    const auto part_of_plan = [&](const std::vector<std::size_t>& chosen) {
      plan p = run_.fp32();
      for (const std::size_t i : chosen) p[operators[i]] = harmful_[operators[i]];
      return p;
    };
    // So many questions have to be affordable, or they find too little to be worth their time.
    constexpr double fewest_questions = 4;
    for (auto question = bisect.next(); question; question = bisect.next()) {
      if (run_.seconds() + longest_run_ >= seconds_before + seconds) break;
      bisect.tell(!shows_harm(part_of_plan(*question), "a part of the plan"));
      if (fewest_questions * longest_run_ > seconds) return std::nullopt;
    }
    if (bisect.questions() == 0) return std::nullopt;
    harmless_part part{part_of_plan(bisect.accepted()), {}, bisect.questions()};
    for (const std::size_t i : bisect.harmful()) part.harmful.push_back(operators[i]);
    return part;
  }

 private:
  bool shows_harm(const plan& p, std::string label) {
    const double seconds_before = run_.seconds();
    bool is_clear = false;
    const trial t = run_.run_and_record(stage::training, p, std::move(label), [&](const trial& begun) {
      run_.restore(harm_.start);
      if (p == run_.fp32() || p == harmful_)
        run_.trainer().perturb(1);  // else a run may repeat the earlier one to the bit
      sample part_run;
      run_.train(begun, p, harm_.plan.size(), part_run, [&](const sample& so_far) {
        if (keeps_losing(so_far)) return status::not_finite;
        is_clear = is_clear || answer_is_clear(so_far.curve);
        return is_clear ? status::stopped_early : status::ok;
      });
      if (part_run.status == status::stopped_early) part_run.status = status::ok;
      return part_run;
    });
    const std::vector<double> losses = make_lower_better(t.sample.curve, loss_sign_of(run_.log()));
    longest_run_ = std::max(longest_run_, run_.seconds() - seconds_before);
    return !t.sample.ok() || is_harmful(losses);
  }

  bool is_harmful(const std::vector<double>& losses) const {
    if (harm_.shown_by == shown_harm::sign::ended) return false;
    if (harm_.shown_by == shown_harm::sign::lost_batches)
      return 3 * lost_alone(losses, harm_.fp32) >= lost_alone(harm_.plan, harm_.fp32);
    return end_above_fp32(losses).mean > part_that_counts * harm_so_far(losses.size());
  }

  // Returns: true if the answer is clear before the last batch, by more than a training wanders; never before the harm
  // itself has shown.
  bool answer_is_clear(const std::vector<double>& curve) const {
    const std::size_t n = curve.size();
    if (harm_.shown_by != shown_harm::sign::high_losses || harm_.last_batches < 8 || n < 16 || n % 8 != 0) return false;
    const double harm = harm_so_far(n);
    if (2 * harm < harm_so_far(harm_.plan.size())) return false;
    const path_mean end = end_above_fp32(make_lower_better(curve, loss_sign_of(run_.log())));
    return std::abs(end.mean - part_that_counts * harm) > 3 * end.error;
  }

  // Returns: how far `losses` end above FP32's, over the batches that showed the harm.
  path_mean end_above_fp32(const std::vector<double>& losses) const {
    const std::vector<double> path = paired_differences(losses, harm_.fp32);
    path_mean end = end_of_path(path);
    if (const std::size_t n = std::min(harm_.last_batches, path.size()); n > 0 && path.size() >= harm_.plan.size())
      end.mean = mean_of(std::span{path}.last(n));
    return end;
  }
  double harm_so_far(std::size_t batches) const {
    return end_above_fp32({harm_.plan.begin(),
                           harm_.plan.begin() + static_cast<std::ptrdiff_t>(std::min(batches, harm_.plan.size()))})
        .mean;
  }

  // The fraction of the plan's harm from which it is attributed to an operator: each of two may do half.
  static constexpr double part_that_counts = 0.4;

  evaluator& run_;
  shown_harm harm_;
  plan harmful_;
  double longest_run_ = 0;  // seconds of the longest run
};

}  // namespace comp::detail
