// SPDX-License-Identifier: Apache-2.0
// What `train` does with a trainer of any backend: it searches or loads a plan, trains with it, and writes the files.
#pragma once

#include <algorithm>
#include <comp/comp.hpp>
#include <comp/files/warm_start.hpp>
#include <comp/observe/figures.hpp>
#include <comp/observe/summary.hpp>
#include <comp/search/training/plan_changes.hpp>
#include <cstdint>
#include <cstdio>
#include <filesystem>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "become.hpp"
#include "checkpoints.hpp"
#include "choices.hpp"
#include "options.hpp"
#include "outputs.hpp"

namespace train {

/// Returns: the precisions to search. "auto" means those that this machine speeds up, or BF16 if it speeds up none, so
/// that the user sees what BF16 costs. Formats below 16 bits are those of linear layers alone, so BF16 joins them.
inline std::vector<comp::precision> precisions_for(const options& chosen, const std::vector<comp::precision>& sped_up) {
  std::vector<comp::precision> searched{comp::precision::fp32};
  if (chosen.precisions == "auto") {
    for (const comp::precision p : sped_up) searched.push_back(p);
    if (searched.size() == 1) searched.push_back(comp::precision::bf16);
  } else {
    for (const std::string& name : split(chosen.precisions)) {
      searched.push_back(*comp::precision_of(std::string_view{name}));
    }
    const auto is = [&](auto&& what) { return std::ranges::any_of(searched, what); };
    const bool has_16_bits =
        is([](comp::precision p) { return p == comp::precision::bf16 || p == comp::precision::fp16; });
    if (!has_16_bits && is(comp::is_scaled)) searched.insert(searched.begin() + 1, comp::precision::bf16);
  }
  return searched;
}

/// Returns: which operators may change precision. "auto" means the lists of PyTorch's autocast for this kind of device.
inline comp::any_policy policy_for(const options& chosen, const comp::hardware& on, comp::precision low) {
  if (chosen.policy != "auto") return policy_named(chosen.policy, low);
  return policy_named(on.kind == comp::device_kind::cuda ? "pytorch-cuda" : "pytorch-cpu", low);
}

inline comp::search_settings settings_for(const options& chosen, std::vector<comp::precision> precisions,
                                          const comp::hardware& on) {
  comp::search_settings settings;
  settings.tolerance = chosen.tolerance;
  settings.precisions = std::move(precisions);
  settings.rivals = rivals_of(chosen.rules, on);
  settings.losses_tie = settings.times_tie = chosen.tie == "scope"  ? comp::tie::scope
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
  if (chosen.stage1 == "none") settings.stages = comp::stages::times_only;
  if (chosen.stage2 == "none") settings.stages = comp::stages::losses_only;
  return chosen.search == "paper" ? comp::paper_settings(std::move(settings)) : settings;
}

inline comp::report_info info_of(const options& chosen, const std::string& description) {
  const std::string plan = (chosen.out / "plan.json").string();
  return {.model = description,
          .data = chosen.data.string(),
          .command = chosen.command,
          .date = comp::local_time(),
          .use_command = chosen.command.empty() ? "" : chosen.training_command + " --plan " + in_shell(plan),
          .plan_file = plan};
}

comp::outcome search(const options& chosen, auto& trainer, comp::search_settings settings,
                     const comp::report_info& info, comp::html_report& report, const comp::stop_on_signal& signals) {
  const comp::precision low = settings.precisions[1];
  if (!chosen.warm_start.empty()) {
    comp::loaded_plan first =
        naming("--warm-start", [&] { return comp::warm_start(chosen.warm_start.string(), trainer.graph()); });
    for (const std::string& warning : first.warnings) fmt::print(stderr, "Note: {}\n", warning);
    settings.warm_start = std::move(first.plan);
  }
  const comp::two_stage search{policy_for(chosen, trainer.hardware(), low), strategy_named(chosen.stage1, chosen.plans),
                               strategy_named(chosen.stage2, chosen.plans), std::move(settings)};
  comp::ledger ledger{(chosen.out / "search.jsonl").string(),
                      chosen.resume ? comp::ledger::mode::resume_or_start : comp::ledger::mode::keep_old};
  comp::outcome found = search.run(trainer, comp::progress_bar{}, ledger, signals, report);
  comp::save(found, (chosen.out / "plan.json").string());
  comp::write_summary(found, (chosen.out / "summary.json").string(), info);
  fmt::print("\n{}\n", comp::table(found));
  return found;
}

/// Returns: an outcome without a search, which has the plan of a file.
comp::outcome load(const options& chosen, auto& trainer, comp::precision low) {
  comp::outcome found;
  found.graph = trainer.graph();
  found.hardware = trainer.hardware();
  const comp::loaded_plan loaded =
      naming("--plan", [&] { return comp::load_plan(chosen.plan.string(), found.graph, &found.hardware); });
  for (const std::string& warning : loaded.warnings) fmt::print(stderr, "Note: {}\n", warning);
  found.plan = loaded.plan;
  found.later = loaded.later;
  std::vector<comp::decision> decisions;
  const comp::any_policy policy = policy_for(chosen, found.hardware, low);
  for (const comp::op_info& op : found.graph) decisions.push_back(policy.classify(op));
  found.fallbacks = comp::conservative_plans(found.plan, decisions, comp::plan{found.plan.size()});
  if constexpr (requires { trainer.set_precision(loaded); }) {  // the file also says how the plan was run
    for (const std::string& left_out : trainer.set_precision(loaded)) fmt::print(stderr, "Note: {}\n", left_out);
  } else {
    trainer.set_precision(found.plan);
  }
  return found;
}

/// Throws: `settings_error` if --plan names another plan than the training that is resumed.
inline void require_same(const options& chosen, const comp::training_progress& from, const comp::op_graph& graph,
                         const std::string& file) {
  if (!chosen.plan.empty()) {
    const comp::plan asked = naming("--plan", [&] { return comp::load_plan(chosen.plan.string(), graph).plan; });
    comp::require<comp::settings_error>(
        asked == from.plans.front(),
        "--plan \"{}\" is not what \"{}\" trains with (it is {}): leave out --plan to go on, or --resume to begin anew",
        chosen.plan.string(), file, from.plans.front().str());
  }
}

/// Gets the plan from a search, a file or a checkpoint, and trains with it.
template <class Trainer>
comp::training_result train_on(const options& chosen, Trainer& trainer, const std::vector<comp::precision>& precisions,
                               const comp::report_info& info, checkpoints<Trainer>& kept,
                               const comp::stop_on_signal& signals) {
  const comp::post_training training{.epochs = chosen.epochs, .finish = chosen.finish};
  naming("--out", [&] {
    kept.clear_up();
    if (!chosen.resume) kept.set_aside();
  });
  comp::html_report report{(chosen.out / "report.html").string(), info};
  std::optional<comp::training_progress> begun;
  if (chosen.resume) begun = naming("--resume", [&] { return kept.load(); });
  if (!chosen.warm_start.empty() && (begun || !chosen.plan.empty()))
    fmt::print(stderr, "Note: --warm-start is about a search, and none is made: it is not heard\n");
  if (begun) {
    require_same(chosen, *begun, trainer.graph(), kept.last().string());
    fmt::print("The training goes on after {} epochs, {}.\n", begun->so_far.epochs.size(),
               name(begun->plans[begun->current], trainer.graph()));
    std::fflush(stdout);
    return training.go_on(trainer, *std::move(begun), kept, signals, report);
  }
  const comp::outcome found =
      chosen.plan.empty()
          ? search(chosen, trainer, settings_for(chosen, precisions, trainer.hardware()), info, report, signals)
          : load(chosen, trainer, precisions[1]);
  return training.run(trainer, found, kept, signals, report);
}

/// Writes each epoch's mean loss, seconds, score (null for epochs that the search trained) and the trainer's message,
/// the plans that it changed to, and the fallbacks to more conservative ones. `machine` is the one whose seconds they
/// are.
inline void write_training(const comp::training_result& result, const std::string& machine,
                           const std::filesystem::path& path) {
  comp::json to{{"comp_training", 1}, {"machine", machine}, {"plan", result.plan.str()}, {"warnings", result.warnings}};
  to["later"] = comp::json_of(result.later);
  to["epochs"] = to["fallbacks"] = comp::json::array();
  for (const comp::sample& e : result.epochs) {
    to["epochs"].push_back({{"loss", comp::json_of(e.loss)},
                            {"seconds", e.seconds},
                            {"batches", e.batches},
                            {"score", e.score ? comp::json_of(*e.score) : comp::json()},
                            {"message", e.message}});
  }
  for (const auto& step : result.fallbacks) {
    to["fallbacks"].push_back({{"epoch", step.epoch + 1}, {"why", name(step.why)}, {"to", step.to.str()}});
  }
  comp::detail::write_file(path.string(), to.dump(2, ' ', false, comp::json::error_handler_t::replace) + "\n");
}

/// Writes a plan file by which the next training changes its plan at the batches at which this one did, and later as
/// this one's file says. A plan that was given up is in no such file. Returns: whether there was anything to write.
inline bool write_later(const options& chosen, const comp::training_result& result) {
  const std::string found = (chosen.out / "plan.json").string();
  if (result.later.empty() || !result.fallbacks.empty()) return false;
  const std::string from = chosen.plan.empty() ? found : chosen.plan.string();
  std::size_t trained = 0;
  for (const comp::sample& epoch : result.epochs) trained += static_cast<std::size_t>(epoch.batches);
  std::vector<comp::later_plan> later = result.later;
  const std::vector<comp::later_plan> known = comp::load_listing(from).later;
  std::ranges::copy_if(known, std::back_inserter(later), [&](const auto& next) { return next.batch >= trained; });
  if (later == known) return false;
  comp::save_later(from, later, found);
  return true;
}

void tell_of(const comp::training_result& result, auto& trainer) {
  for (std::size_t e = 0; e < result.epochs.size(); ++e) {
    const comp::sample& epoch = result.epochs[e];
    fmt::print("epoch {:>3}: loss {:.4f}, {}{}{}{}{}\n", e + 1, epoch.loss, comp::detail::time_text(epoch.seconds),
               is_modelled(trainer.hardware()) ? " " + trainer.hardware().name : "",
               epoch.score ? fmt::format(", score {:.4f}", *epoch.score) : "", epoch.message.empty() ? "" : ", ",
               epoch.message);
  }
  if constexpr (requires { text(trainer.captured_steps()); }) {
    const std::string note = text(trainer.captured_steps());
    if (!note.empty()) fmt::print("{}\n", note);
  }
  for (const std::string& warning : result.warnings) fmt::print("Note: {}\n", warning);
  for (const comp::later_plan& next : result.later) {
    fmt::print("from batch {} on: {}{}{}\n", next.batch, name(next.plan, trainer.graph()),
               next.reason.empty() ? "" : "; ", next.reason);
  }
  for (const auto& step : result.fallbacks) {
    fmt::print("epoch {:>3} ended as {} and was trained again with a more conservative plan{}{}\n", step.epoch + 1,
               name(step.why), step.message.empty() ? "" : ": ", step.message);
  }
}

/// Prints the last line: the files that this search and training have written. With --plan there was no search, and a
/// plan file only if the plan `changed`.
inline void tell_written(const options& chosen, const std::filesystem::path& checkpoint, bool changed) {
  std::string all;
  const auto add = [&](const std::filesystem::path& file, const char* hint = "") {
    if (std::filesystem::exists(file)) all += fmt::format("{}{}{}", all.empty() ? "" : ", ", file.string(), hint);
  };
  if (chosen.plan.empty()) {
    for (const char* name : {"plan.json", "search.jsonl", "summary.json"}) add(chosen.out / name);
    add(chosen.out / "report.html", " (open it)");
  } else if (changed) {
    add(chosen.out / "plan.json");
  }
  for (const auto& file : {chosen.out / "training.json", checkpoint, chosen.weights_out}) add(file);
  fmt::print("written: {}\n", all);
}

/// Runs the whole job. `write_weights(path)` writes the trainer's weights.
/// Returns: the program's exit status; 128 plus the signal's number after a signal.
template <class Trainer, class F>
int run_session(const options& chosen, Trainer& trainer, const std::string& description,
                const std::vector<comp::precision>& sped_up, F write_weights) {
  const comp::hardware machine = trainer.hardware();
  fmt::print("{}, {} {}\n", description, is_modelled(machine) ? "times" : "on", machine.name);
  require_printed();  // flushes, so that this line also comes before the progress on stderr in a file of both
  const comp::detail::file_handle ours = require_outputs(chosen);
  const comp::stop_on_signal signals;
  checkpoints<Trainer> kept{chosen.out, trainer};
  bool changed = false;
  try {
    const auto result =
        train_on(chosen, trainer, precisions_for(chosen, sped_up), info_of(chosen, description), kept, signals);
    if (!chosen.weights_out.empty()) naming("--weights-out", [&] { write_weights(chosen.weights_out.string()); });
    changed = write_later(chosen, result);
    write_training(result, trainer.hardware().name, chosen.out / "training.json");
    tell_of(result, trainer);
  } catch (const comp::interrupted& stopped) {
    const std::string what =
        kept.epochs() ? fmt::format("training stopped after {} epochs", *kept.epochs()) : std::string{stopped.what()};
    const auto from = kept.epochs() ? kept.last() : chosen.out / "search.jsonl";
    std::fputs(fmt::format("\n{}\nThe same command with --resume goes on from {}.\n", what, from.string()).c_str(),
               stderr);
    return 128 + signals.signal();
  }
  tell_written(chosen, kept.epochs() ? kept.last() : "", changed);
  require_printed();
  return 0;
}

/// The same for a trainer whose weights go to a safetensors file.
int run_session(const options& chosen, auto& trainer, const std::string& description,
                const std::vector<comp::precision>& sped_up) {
  return run_session(chosen, trainer, description, sped_up,
                     [&](const std::string& path) { comp::write_safetensors(path, trainer.weights()); });
}

/// The main function of each train program: reads the command line, runs the job, and prints errors as one sentence.
int run_main(int argc, char** argv, auto run) {
  options chosen;
  try {
    if (const auto status = read_options(argc, argv, chosen)) return *status;
    return run(chosen);
  } catch (const std::exception& failed) {
    std::fputs(fmt::format("train: {}\n", failed.what()).c_str(), stderr);  // fmt::print would throw on a closed stderr
    return 1;
  }
}

}  // namespace train
