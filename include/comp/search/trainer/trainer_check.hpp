// SPDX-License-Identifier: Apache-2.0
// Checks a trainer for check.hpp: runs its batches in FP32, from a restored state, and in low precisions.
#pragma once

#include <algorithm>
#include <comp/core/clock.hpp>
#include <comp/core/linkage.hpp>
#include <comp/search/check.hpp>
#include <comp/search/outcome.hpp>
#include <comp/search/trainer/any_trainer.hpp>
#include <comp/search/trainer/evaluator.hpp>
#include <comp/search/trainer/findings.hpp>
#include <comp/search/trainer/run_samples.hpp>
#include <cstddef>
#include <string>
#include <vector>

namespace comp {

namespace detail {

inline std::string sentence_of_lost_losses(double loss) {
  return fmt::format("the loss in FP32 is {}, batch after batch ({}plans are judged against FP32's losses): {}", loss,
                     by_language("a comp::sample's loss is NaN until it is set, and += leaves it NaN; ", ""),
                     by_language("begin with loss = 0, or look at the data and the learning rate",
                                 "look at the data and the learning rate, or at what comp.doctor says of a step"));
}

/// Trains the next batches under `p`, up to one that fails. What is wrong with FP32's batches is reported. A low
/// precision may fail, because a search copes with that.
inline sample run_batches(any_trainer& trainer, check_report& report, const plan& p, std::size_t count,
                          bool lowered = false) {
  sample run{.loss = 0};
  problem wrong, fatal;
  try {
    trainer.set_precision(p);
    while (run.ok() && static_cast<std::size_t>(run.batches) < count) {
      const stopwatch watch;
      sample next = trainer.run_batch();
      if (!wrong) wrong = problem_of_sample(next);
      const double loss = next.loss;
      complete(next, watch.seconds());
      append(run, next);
      if (next.not_finite > 0 && !lowered) ++count;  // another batch tells whether all of them are lost
      if (keeps_losing(run)) {
        run.status = status::not_finite;
        if (!lowered) fatal = sentence_of_lost_losses(loss);
      }
    }
  } catch (const interrupted&) {
    throw;
  } catch (...) {
    if (!fail_by_exception(run)) {
      wrong =
          "a batch ended with an exception that is no std::exception (what it says is lost): throw comp::error, or "
          "what derives from std::exception";
    } else if (run.status == status::failed && !lowered) {  // the search has plans that need less memory
      wrong = fmt::format("a batch in FP32 ended with an exception: {}", run.message);
    }
  }
  if (wrong) report.add("batch", check_report::verdict::wrong, *wrong);
  if (fatal) report.add("loss", check_report::verdict::fatal, *fatal);
  return run;
}

/// Calls `work(put_back)` and puts the trainer back to its present state, whatever `work` throws. `work` may call
/// `put_back()` in between, too.
void run_and_undo(any_trainer& trainer, auto work) {
  const auto start = trainer.save();
  const auto put_back = [&] { trainer.restore(start.get()); };
  try {
    work(put_back);
  } catch (...) {
    put_back();
    throw;
  }
  put_back();
}

inline void check_without_running(const any_trainer& trainer, const op_graph& graph, const any_policy& policy,
                                  check_report& report) {
  report.add("graph", problem_of_names(graph), fmt::format("{} operators", graph.size()));
  report.add("kinds", problem_of_kinds(policy, graph), "no operator kind looks like a misspelt one");
  const std::vector<precision> supported = trainer.supported_precisions();
  if (supported.empty()) {
    report.add("supported_precisions", check_report::verdict::fatal, sentence_of_no_precisions);
  } else {
    report.add("supported_precisions", problem{}, names_of(supported));
  }
}

/// Checks that an epoch has as many batches as batches_per_epoch() says, if these are few enough to run them.
inline void check_epoch(any_trainer& trainer, const plan& fp32, check_report& report) {
  constexpr std::size_t most_batches = 64;
  const std::size_t expected = trainer.batches_per_epoch();
  if (expected == 0) return;
  if (expected > most_batches || !trainer.has.stop) {
    report.add("batches_per_epoch", check_report::verdict::not_checked,
               fmt::format("{} batches are said to be an epoch: none was run", expected));
    return;
  }
  const auto batches_of = [](const sample& s) { return std::max(static_cast<std::size_t>(s.batches), s.curve.size()); };
  trainer.set_precision(fp32);
  const sample epoch = trainer.run_epoch([&](const sample& so_far) { return batches_of(so_far) > expected; });
  const std::size_t batches = batches_of(epoch);
  problem wrong;
  if (batches > expected || (batches < expected && epoch.ok()))
    wrong = sentence_of_wrong_length(
        fmt::format("{}{}", batches > expected ? "more than " : "", std::min(batches, expected)), expected);
  report.add("batches_per_epoch", wrong, fmt::format("{} batches", expected));
}

/// Checks what a search should know before it starts. It runs one batch of `fp32`, which is undone; two for a trainer
/// without a signature, whose first losses identify the training in a ledger.
inline check_report check_at_start(any_trainer& trainer, const op_graph& graph, const any_policy& policy,
                                   const plan& fp32) {
  check_report report;
  check_without_running(trainer, graph, policy, report);
  if (!trainer.has.save) return report;
  run_and_undo(trainer, [&](auto&&) {
    report.first_losses = run_batches(trainer, report, fp32, trainer.has.signature ? 1 : 2).curve;
  });
  return report;
}

/// Checks everything for which batches have to be run.
inline void check_batches(any_trainer& trainer, const op_graph& graph, check_report& report) {
  using verdict = check_report::verdict;
  std::vector<precision> lows = trainer.supported_precisions();
  std::erase_if(lows, [&](precision p) { return p == precision::fp64 || p == widest_written(graph); });
  const op_support support{trainer, graph, lows};
  const plan fp32 = support.widest(graph);
  run_and_undo(trainer, [&](const auto& put_back) {
    const std::size_t before = report.lines.size();
    const sample first = run_batches(trainer, report, fp32, 2);
    report.first_losses = first.curve;
    if (report.lines.size() == before) report.add("batch", verdict::ok, fmt::format("loss {:.6g}", first.loss));
    put_back();
    const sample again = run_batches(trainer, report, fp32, 1);
    if (first.curve.size() == 2 && again.curve.size() == 1)
      report.add("restore", problem_of_restore(first.curve, again.curve), "the same batch, the same loss");
    if (trainer.has.batches_per_epoch && first.ok()) {
      put_back();
      check_epoch(trainer, fp32, report);
    }
    for (const precision low : lows) {
      const auto may = [&](std::size_t i) { return graph[i].choosable && support.supports(i, low); };
      const plan p = mix(fp32, plan{fp32.size(), low}, may);
      if (p == fp32) continue;
      put_back();
      const sample lowered = run_batches(trainer, report, p, 2, true);
      const problem ignored = changes_nothing(first, lowered) ? problem{sentence_of_ignored(low)} : std::nullopt;
      const std::string what_happened =
          lowered.ok() ? fmt::format("loss {:.6g}", lowered.loss)
                       : fmt::format("ended as {} with all operators in it {}", name(lowered.status), lowered.message);
      report.add(fmt::format("set_precision {}", name(low)), ignored, what_happened);
    }
    trainer.set_precision(fp32);
  });
}

/// Warns of what makes the result of a search doubtful. `self_check`: also of what a sound trainer never does.
/// `first_losses`: the losses at the training's start tell it apart.
inline void warn_of_faults(evaluator& run, bool self_check, bool first_losses) {
  const outcome& log = run.log();
  if (self_check) {
    for (const std::string& finding : problems_of_ignored_precisions(log)) run.warn(finding);
    run.warn(problem_of_ledger(run.trainer(), log, first_losses));
    if (!is_modelled(log.hardware)) run.warn(run.clock().find_contradiction(run.fp32()));
    run.warn(problem_of_learning(log));
  }
  for (const std::string& finding : problems_of_failed_runs(log)) run.warn(finding);
  run.warn(problem_of_lost_batches(log, run.fp32()));
  run.warn(problem_of_memory(log));
}

COMP_INLINE check_report check_trainer(any_trainer& trainer, const any_policy& policy) {
  const op_graph graph = trainer.graph();
  check_report report;
  check_without_running(trainer, graph, policy, report);
  if (trainer.has.save) {
    check_batches(trainer, graph, report);
  } else {
    report.add(
        "batches", check_report::verdict::not_checked,
        "the trainer has no save() and restore(), so a batch could not be undone: losses, times, the effect of a plan");
  }
  return report;
}

}  // namespace detail

}  // namespace comp
