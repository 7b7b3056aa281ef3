// SPDX-License-Identifier: Apache-2.0
// Fourteen models in LibTorch: a search, then FP32, LibTorch's autocast, autocast tuned by hand and the found plan in
// turns in one process; peak memory and page faults.
//   models [--models vgg16,bert] [--data FOLDER] [--limit N] [--seconds S] [--rounds N] [--json FILE]
// FOLDER has the data sets under their names (cifar100, mnist, cora, squad-v2); what it lacks is made up.
#include <sys/wait.h>
#include <unistd.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <comp/comp.hpp>
#include <comp/files/json.hpp>
#include <cstdio>
#include <cstdlib>
#include <fstream>
#include <map>

#include "contest.hpp"
#include "more_jobs.hpp"

namespace {

using bench::way;
using comp::precision;
using json = nlohmann::json;

struct options {
  std::vector<std::string> models = {"alexnet",  "vgg16", "gan", "gcn",     "gat",  "bert", "simplenet",
                                     "resnet18", "lstm",  "gru", "encoder", "unet", "vit",  "experts"};
  std::filesystem::path data = {}, file = {}, weights = {};
  std::string set = {};  // of the folder, for all models; empty: each model's own
  std::int64_t limit = 0, batch = 0, side = 0;
  int threads = 0;
  std::string size = {};
  double seconds = 10, learning_rate = 0;
  std::size_t rounds = 60;
};

torch_models::job make(const options& chosen, const std::string& model) {
  static const std::map<std::string, const char*> sets{{"alexnet", "cifar100"}, {"vgg16", "cifar100"},
                                                       {"gan", "mnist"},        {"gcn", "cora"},
                                                       {"gat", "cora"},         {"bert", "squad-v2"}};
  torch_models::job_options o{.size = chosen.size,
                              .weights = chosen.weights,
                              .batch = chosen.batch,
                              .limit = chosen.limit,
                              .side = chosen.side,
                              .learning_rate = chosen.learning_rate};
  const auto own = sets.find(model);
  const std::string set = !chosen.set.empty() ? chosen.set : own != sets.end() ? own->second : "";
  if (!chosen.data.empty() && !set.empty() && std::filesystem::exists(chosen.data / set)) o.data = chosen.data / set;
  if (model == "gcn" || model == "gat") o.batch = o.limit = 0;  // a step is the whole graph
  if (model == "simplenet") o.limit = 0;
  return bench::any_job(model, o);
}

comp::outcome search(torch_models::job_trainer& trainer) {
  comp::search_settings settings;
  settings.precisions = {precision::fp32, precision::bf16};
  const comp::two_stage strategy{comp::policy::pytorch{.list = comp::policy::pytorch_list::cpu, .low = precision::bf16},
                                 comp::strategy::guided{}, comp::strategy::greedy{}, settings};
  return strategy.run(trainer);
}

/// What the plan does to each kind of operator: how many of them are low.
std::string lowered(const comp::op_graph& graph, const comp::plan& plan) {
  std::map<std::string, std::pair<int, int>> kinds;
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (!graph[i].choosable) continue;
    auto& [low, all] = kinds[std::string{comp::policy::without_overload(graph[i].kind)}];
    low += comp::is_low(plan[i]);
    ++all;
  }
  std::string text;
  for (const auto& [kind, counts] : kinds) {
    text += fmt::format("{}{} {}/{}", text.empty() ? "" : ", ", kind, counts.first, counts.second);
  }
  return text;
}

json measure(const options& chosen, const std::string& model) {
  torch_models::job job = make(chosen, model);
  auto given = setup_of(job);
  given.update = comp::libtorch::optimizer_pass::fused;
  auto trainer = torch_models::make_trainer(job, given);
  const comp::outcome found = search(trainer);
  trainer.set_precision(found.plan);
  (void)trainer.tune();
  torch_models::job peer = make(chosen, model);
  const bench::contest timed = bench::race(job, peer, trainer, chosen.seconds, chosen.rounds);
  const comp::libtorch::program_settings run = trainer.executor().settings();
  const comp::op_graph& graph = trainer.graph();
  const comp::plan& plan = trainer.executor().current_plan();
  json of{{"model", model}, {"job", job.description}, {"batch", job.batch}, {"operators", graph.size()}};
  std::string text = fmt::format("{}: {}\n ", model, job.description);
  for (const way w : bench::all_ways) {
    of["step"][bench::way_names[w]] = {{"seconds", timed.of(w)},
                                       {"interval_95", comp::json_of(comp::median_interval(timed.seconds[w]))},
                                       {"peak_bytes", timed.peak_bytes[w]},
                                       {"page_faults", comp::median(timed.faults[w])}};
    text += fmt::format(" {} {:.2f} ms ({:.0f} page faults)", bench::way_names[w], timed.of(w) * 1e3,
                        comp::median(timed.faults[w]));
  }
  const auto ratio = [&](const char* name, way a, way b) {
    const comp::paired_speedup s = timed.speedup(a, b);
    of["speedup"][name] = {{"ratio", s.ratio}, {"interval_95", comp::json_of(s.bounds)}};
    text += fmt::format("\n  {} {:.3f} ({:.3f} to {:.3f})", name, s.ratio, s.bounds.low, s.bounds.high);
  };
  ratio("autocast_over_fp32", bench::fp32, bench::autocast);
  ratio("by_hand_over_autocast", bench::autocast, bench::by_hand);
  ratio("comp_over_fp32", bench::fp32, bench::comp_plan);
  ratio("comp_over_autocast", bench::autocast, bench::comp_plan);
  ratio("comp_over_by_hand", bench::by_hand, bench::comp_plan);
  of["rounds"] = timed.seconds[0].size();
  of["plan"] = plan.str();
  of["low_operators"] = lowered(graph, plan);
  of["weights"] = run.weights == comp::libtorch::weight_casts::keep ? "kept" : "cast";
  of["images"] = run.images == comp::libtorch::memory_format::channels_last ? "channels-last" : "as they are";
  of["search"] = {{"seconds", found.overhead_seconds()},
                  {"share_of_100_epochs", found.overhead_share()},
                  {"trials", found.trials.size()},
                  {"batches_per_epoch", found.batches_per_epoch}};
  text += fmt::format("\n  search {:.1f} s, {:.2f}% of 100 epochs, {} trials", found.overhead_seconds(),
                      100 * found.overhead_share(), found.trials.size());
  fmt::print("{}\n  weights {}, images {}{}, low: {}\n", text, of["weights"].get<std::string>(),
             of["images"].get<std::string>(), plan.runs_autocast() ? ", run by autocast" : "",
             of["low_operators"].get<std::string>());
  std::fflush(stdout);
  return of;
}

/// In a process of its own: what the C library's allocator learns from one model's blocks would serve the next one's.
/// Requires: no thread was started. Throws: `comp::error` if that process failed, which has said why.
json measure_apart(const options& chosen, const std::string& model) {
  std::FILE* written = std::tmpfile();
  comp::require<comp::error>(written != nullptr, "no temporary file (figures go through one): make room in /tmp");
  std::fflush(nullptr);
  const pid_t child = ::fork();
  if (child == 0) {
    try {
      if (chosen.threads > 0) at::set_num_threads(chosen.threads);
      const std::string text = measure(chosen, model).dump();
      std::_Exit(std::fputs(text.c_str(), written) >= 0 && std::fflush(written) == 0 ? 0 : 1);
    } catch (const std::exception& failed) {
      fmt::print(stderr, "{}\n", failed.what());
      std::_Exit(1);
    }
  }
  int status = 1;
  const bool ended = child > 0 && ::waitpid(child, &status, 0) == child;
  comp::require<comp::error>(ended && status == 0, "its process ended with status {}: see above", status);
  std::rewind(written);
  json of = json::parse(written);
  std::fclose(written);
  return of;
}

/// docs/benchmarks/libtorch.md has this table.
void print_table(const json& all) {
  fmt::print(
      "\n| model, batch | FP32 | autocast | by hand | comp | speed over autocast (95%) | speed over by hand (95%) "
      "| peak of the four | page faults of a step of the four |\n|---|---|---|---|---|---|---|---|---|\n");
  double over_autocast = 0, over_by_hand = 0;
  for (const json& m : all) {
    std::string times, peaks, faults;
    for (const char* w : bench::way_names) {
      const json& step = m["step"][w];
      times += fmt::format(" | {:.2f} ms", step["seconds"].get<double>() * 1e3);
      peaks += fmt::format("{}{:.0f}", peaks.empty() ? "" : ", ", step["peak_bytes"].get<double>() / (1 << 20));
      faults += fmt::format("{}{:.0f}", faults.empty() ? "" : ", ", step["page_faults"].get<double>());
    }
    const auto ratio = [&](const char* name) {
      const json& s = m["speedup"][name];
      return fmt::format("{:.3f} ({:.3f} to {:.3f})", s["ratio"].get<double>(), s["interval_95"][0].get<double>(),
                         s["interval_95"][1].get<double>());
    };
    over_autocast += std::log(m["speedup"]["comp_over_autocast"]["ratio"].get<double>());
    over_by_hand += std::log(m["speedup"]["comp_over_by_hand"]["ratio"].get<double>());
    fmt::print("| {}, {}{} | {} | {} | {} MiB | {} |\n", m["model"].get<std::string>(), m["batch"].get<int>(), times,
               ratio("comp_over_autocast"), ratio("comp_over_by_hand"), peaks, faults);
  }
  const auto n = static_cast<double>(all.size());
  fmt::print("\nGeometric means over {} models: {:.3f} of autocast's speed, {:.3f} of that by hand.\n", all.size(),
             std::exp(over_autocast / n), std::exp(over_by_hand / n));
}

}  // namespace

int main(int argc, char** argv) {
  CLI::App app{"LibTorch models: FP32, LibTorch's autocast, that tuned by hand and comp's plan, in turns."};
  options chosen;
  app.add_option("--models", chosen.models, "Which, joined by commas")->delimiter(',');
  app.add_option("--data", chosen.data, "Folder with cifar100, mnist, cora, squad-v2; what is missing is made up");
  app.add_option("--set", chosen.set, "Which of that folder, for all models (default: each model's own)");
  app.add_option("--side", chosen.side, "What JPEG pictures are brought to");
  app.add_option("--limit", chosen.limit, "Training examples per epoch (default: all)");
  app.add_option("--batch", chosen.batch, "Examples per batch (default: each job's own)");
  app.add_option("--threads", chosen.threads, "That compute (default: all cores)");
  app.add_option("--size", chosen.size,
                 "Of bert: small, base, tiny; of gan: connected, convolutional; of vgg16: plain");
  app.add_option("--weights", chosen.weights, "Pre-trained weights of bert, as train's");
  app.add_option("--learning-rate", chosen.learning_rate, "Of the optimisers (default: each job's own)");
  app.add_option("--seconds", chosen.seconds, "Of each model's contest, at least")->capture_default_str();
  app.add_option("--rounds", chosen.rounds, "Of each model's contest, at most")
      ->check(CLI::Range(8, 1000))
      ->capture_default_str();
  app.add_option("--json", chosen.file, "Where the figures go");
  CLI11_PARSE(app, argc, argv);
  json all = json::array();
  for (const std::string& model : chosen.models) {
    try {
      all.push_back(measure_apart(chosen, model));
    } catch (const std::exception& failed) {
      fmt::print(stderr, "{}: {}\n", model, failed.what());
      return 1;
    }
    if (!chosen.file.empty()) std::ofstream{chosen.file} << all.dump(2) << '\n';
  }
  print_table(all);
}
