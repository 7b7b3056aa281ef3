// SPDX-License-Identifier: Apache-2.0
// What `train` does with any trainer, whichever backend made it: searches or loads a plan, trains with it, writes the
// files.
#pragma once

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <comp/comp.hpp>
#include <comp/observe/summary.hpp>
#include <comp/observe/t4.hpp>
#include <comp/observe/warm_start.hpp>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <string>
#include <utility>
#include <vector>

#include "choices.hpp"
#include "options.hpp"

namespace train {

/// The precisions to search. What "auto" stands for: those that this machine speeds up; BF16, to see for oneself, where
/// it speeds up none.
inline std::vector<comp::precision> precisions_for(const options& chosen, const std::vector<comp::precision>& sped_up) {
  std::vector<comp::precision> searched{comp::precision::fp32};
  if (chosen.precisions == "auto") {
    for (const comp::precision p : sped_up) searched.push_back(p);
    if (searched.size() == 1) searched.push_back(comp::precision::bf16);
  } else {
    for (const std::string& name : split(chosen.precisions)) {
      searched.push_back(*comp::precision_of(std::string_view{name}));
    }
  }
  return searched;
}

/// Which operators may change precision. What "auto" stands for: the lists of PyTorch's autocast for that kind of
/// device.
inline any_policy policy_for(const options& chosen, const comp::hardware& on, comp::precision low) {
  if (chosen.policy != "auto") return {chosen.policy, low};
  return {on.kind == comp::device_kind::cuda ? "pytorch-cuda" : "pytorch-cpu", low};
}

inline comp::search_settings settings_for(const options& chosen, std::vector<comp::precision> precisions,
                                          const comp::hardware& on) {
  comp::search_settings settings;
  settings.tolerance = chosen.tolerance;
  settings.precisions = std::move(precisions);
  settings.rivals = rivals_of(chosen.rules, on);
  settings.epochs_tie = settings.batches_tie = chosen.tie == "scope"  ? comp::tie::scope
                                               : chosen.tie == "none" ? comp::tie::none
                                                                      : comp::tie::kind;
  settings.level = chosen.level;
  settings.slowdown = chosen.slowdown;
  settings.memory_limit = static_cast<std::int64_t>(chosen.memory_limit);
  settings.budget = chosen.budget;
  settings.criterion = chosen.judge_by == "epochs"   ? comp::criterion::epoch_losses
                       : chosen.judge_by == "scores" ? comp::criterion::scores
                                                     : comp::criterion::batch_losses;
  settings.planned_epochs = std::max(settings.planned_epochs, chosen.epochs);
  if (chosen.stage1 == "none") settings.stages = comp::stages::batches_only;
  if (chosen.stage2 == "none") settings.stages = comp::stages::epochs_only;
  return settings;
}

/// Throws: `error`, naming the option, where what is to be written at the end could not be: said before the search.
inline void require_outputs(const options& chosen) {
  const auto of_option = [](const char* option, const std::string& path) {
    try {
      comp::detail::require_writable(path);
    } catch (const comp::file_error& e) {
      throw comp::error{fmt::format("{}: {}", option, e.what())};
    }
  };
  std::error_code failed;
  std::filesystem::create_directories(chosen.out, failed);
  comp::require<comp::error>(!failed, "--out: \"{}\" cannot be made ({}): give a folder that can be written",
                             chosen.out.string(), failed.message());
  if (!chosen.plan.empty()) return;
  for (const char* file : {"plan.json", "summary.json", "report.html"})
    of_option("--out", (chosen.out / file).string());
  if (!chosen.t4.empty()) of_option("--t4", chosen.t4.string());
}

/// Trains an epoch under each contestant, from where the search began, so that the report can compare losses and scores
/// of whole epochs too. It is no part of the search and not counted as its cost. The trainer is left as it was found.
template <class Trainer>
void fill_in_epochs(Trainer& trainer, const typename Trainer::state& start, comp::outcome& found) {
  const auto now = trainer.save();
  for (comp::contestant& c : found.contest) {
    if (c.epoch || c.status != comp::status::ok) continue;
    fmt::print(stderr, "One epoch of \"{}\" for the comparison ...\n", c.label);
    trainer.restore(start);
    trainer.set_precision(c.plan);
    c.epoch = trainer.run_epoch();
    if (c.epoch->ok()) c.epoch->score = trainer.validate();
  }
  trainer.restore(now);
  trainer.set_precision(found.plan);
}

inline comp::report_info info_of(const options& chosen, const std::string& description) {
  const std::string plan = (chosen.out / "plan.json").string();
  return {.model = description,
          .data = chosen.data.string(),
          .command = chosen.command,
          .date = comp::local_time(),
          .use_command = chosen.command.empty() ? "" : chosen.command + " --plan " + in_shell(plan),
          .plan_file = plan};
}

template <class Trainer>
comp::outcome search(const options& chosen, Trainer& trainer, comp::search_settings settings,
                     const comp::report_info& info, const comp::stop_on_signal& signals) {
  const comp::precision low = settings.precisions[1];
  if (!chosen.warm_start.empty()) {
    comp::loaded_plan first = comp::warm_start(chosen.warm_start.string(), trainer.graph());
    for (const std::string& warning : first.warnings) fmt::print(stderr, "Note: {}\n", warning);
    settings.warm_start = std::move(first.plan);
  }
  const comp::two_stage search{policy_for(chosen, trainer.hardware(), low), any_strategy{chosen.stage1, chosen.seed},
                               any_strategy{chosen.stage2, chosen.seed}, std::move(settings)};
  const auto start = trainer.save();
  comp::ledger ledger{(chosen.out / "search.jsonl").string(),
                      chosen.resume ? comp::ledger::mode::resume_or_start : comp::ledger::mode::keep_old};
  comp::html_report report{(chosen.out / "report.html").string(), info};
  comp::outcome found = search.run(trainer, comp::progress_bar{}, ledger, signals, report);
  if (chosen.compare_epochs) {
    fill_in_epochs(trainer, start, found);
    report.search_done(found);
  }
  comp::save(found, (chosen.out / "plan.json").string());
  comp::write_summary(found, (chosen.out / "summary.json").string(), info);
  if (!chosen.t4.empty()) comp::write_t4(found, chosen.t4.string());
  fmt::print("\n{}\n", comp::table(found));
  return found;
}

/// An outcome without a search: the plan of a file.
template <class Trainer>
comp::outcome load(const options& chosen, Trainer& trainer, comp::precision low) {
  comp::outcome found;
  found.graph = trainer.graph();
  found.hardware = trainer.hardware();
  const comp::loaded_plan loaded = comp::load_plan(chosen.plan.string(), found.graph, &found.hardware);
  for (const std::string& warning : loaded.warnings) fmt::print(stderr, "Note: {}\n", warning);
  found.plan = loaded.plan;
  std::vector<comp::decision> decisions;
  const any_policy policy = policy_for(chosen, found.hardware, low);
  for (const comp::op_info& op : found.graph) decisions.push_back(policy.classify(op));
  found.fallbacks = comp::conservative_ladder(found.plan, decisions);
  trainer.set_precision(found.plan);
  return found;
}

template <class Trainer>
void train_on(const options& chosen, Trainer& trainer, const comp::outcome& found,
              const comp::stop_on_signal& signals) {
  const auto result = comp::post_training{.epochs = chosen.epochs}.run(trainer, found, signals);
  for (std::size_t e = 0; e < result.epochs.size(); ++e) {
    const comp::sample& epoch = result.epochs[e];
    fmt::print("epoch {:>3}: loss {:.4f}, {:.1f} s{}\n", e + 1, epoch.loss, epoch.seconds,
               epoch.score ? fmt::format(", score {:.4f}", *epoch.score) : "");
  }
  if constexpr (requires { text(trainer.captured_steps()); }) {
    const std::string said = text(trainer.captured_steps());
    if (!said.empty()) fmt::print("{}\n", said);
  }
  for (const std::string& warning : result.warnings) fmt::print("Note: {}\n", warning);
  for (const auto& step : result.fallbacks) {
    fmt::print("epoch {:>3} ended as {} and was trained again with a more conservative plan\n", step.epoch + 1,
               name(step.why));
  }
}

/// The whole job. Returns: the program's exit status; 128 and the signal's number after Ctrl-C.
template <class Trainer>
int run_session(const options& chosen, Trainer& trainer, const std::string& description,
                const std::vector<comp::precision>& sped_up) {
  require_outputs(chosen);
  fmt::print("{}, on {}\n", description, trainer.hardware().name);
  const int full = std::fflush(stdout) == 0 ? 0 : errno;  // before the progress on stderr, also into a file
  comp::require<comp::error>(full == 0, "standard output cannot be written ({}): free some space, or lead it elsewhere",
                             comp::detail::errno_text(full));
  const auto precisions = precisions_for(chosen, sped_up);
  const comp::stop_on_signal signals;
  try {
    const comp::outcome found =
        chosen.plan.empty() ? search(chosen, trainer, settings_for(chosen, precisions, trainer.hardware()),
                                     info_of(chosen, description), signals)
                            : load(chosen, trainer, precisions[1]);
    train_on(chosen, trainer, found, signals);
  } catch (const comp::interrupted& stopped) {
    fmt::print(stderr, "\n{}\nThe same command with --resume goes on from {}.\n", stopped.what(),
               (chosen.out / "search.jsonl").string());
    return 128 + signals.signal();
  }
  fmt::print("written: {0}/plan.json, {0}/search.jsonl, {0}/summary.json, {0}/report.html (open it)\n",
             chosen.out.string());
  return 0;
}

/// Becomes the program `name` beside this one, with the same command line. Throws: `error`, saying `otherwise`, where
/// it is not there.
inline void become(const char* name, char** argv, const char* otherwise) {
  const auto program = std::filesystem::read_symlink("/proc/self/exe").parent_path() / name;
  execv(program.c_str(), argv);
  comp::require<comp::error>(false, "{}", otherwise);
}

/// What a program's main does: reads the command line, runs, and says what went wrong in a sentence.
template <class Run>
int run_main(int argc, char** argv, Run run) {
  CLI::App app;
  options chosen;
  describe(app, chosen);
  CLI11_PARSE(app, argc, argv);
  for (int i = 0; i < argc; ++i) chosen.command += (i > 0 ? " " : "") + in_shell(argv[i]);
  try {
    require_heard(chosen);
    require_strategies(chosen);
    require_threads(chosen);
    return run(chosen);
  } catch (const std::exception& failed) {
    fmt::print(stderr, "train: {}\n", failed.what());
    return 1;
  }
}

}  // namespace train
