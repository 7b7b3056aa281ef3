// SPDX-License-Identifier: Apache-2.0
// Training recipes below 16 bits, on a transformer over characters: whole formats, recipes that are written by hand,
// and the plan that a search finds for a GPU that is not here.
//   recipes --data text.txt [--layers 2] [--width 128] [--epochs 2] [--seeds 3] [--target B200] [--json FILE]
// Each is trained in full with each seed. Losses are of the validation part, mean and deviation over the seeds; the
// interval of the difference to BF16 pairs the seeds. Times are modelled for the target and for a transformer of that
// GPU's size (--timed-width and so on) with as many layers, since a small one is bound by launches there. So the search
// weighs the small model's losses against the large one's times.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cmath>
#include <comp/comp.hpp>
#include <comp/observe/summary.hpp>
#include <comp_host/device.hpp>
#include <comp_native/trainer.hpp>
#include <comp_simulated/trainer.hpp>
#include <examples/data/text.hpp>
#include <examples/models/native/datasets.hpp>
#include <examples/models/native/gpt.hpp>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>
#include <vector>

namespace {

using namespace comp::native;
using comp::op_graph;
using comp::op_info;
using comp::plan;
using comp::precision;
using host_trainer = trainer<comp::host::device>;
using native_models::token_data;

struct options {
  std::string data, target = "B200", json = {};
  std::int64_t layers = 2, width = 128, context = 64, batch = 16, windows = 3200;
  std::int64_t timed_width = 4096, timed_context = 4096, timed_batch = 4;
  std::uint64_t epochs = 2, seeds = 3;
  double tolerance = 0.01;
};

struct job {
  model made;
  token_data train, validation;
};
job job_of(const options& o) {
  const std::string text = data_sets::read_text(o.data);
  const data_sets::vocabulary letters{text};
  std::vector<std::int32_t> tokens = letters.encode(text);
  const auto windows = static_cast<std::ptrdiff_t>(o.windows * o.context + 1);
  const auto held_out = windows / 8;
  comp::require<comp::error>(std::ssize(tokens) >= windows + held_out,
                             "{} has {} characters ({} are needed): use another text, or fewer --windows", o.data,
                             tokens.size(), windows + held_out);
  model made = native_models::gpt({.batch = o.batch,
                                   .vocabulary = static_cast<std::int64_t>(letters.size()),
                                   .context = o.context,
                                   .layers = o.layers,
                                   .width = o.width});
  made.separate_products = true;
  return {std::move(made), token_data{{tokens.begin(), tokens.begin() + windows}, o.context},
          token_data{{tokens.end() - held_out, tokens.end()}, o.context}};
}
/// The operators of the model whose times count.
op_graph timed_graph(const options& o) {
  model large = native_models::gpt({.batch = o.timed_batch,
                                    .vocabulary = 50304,
                                    .context = o.timed_context,
                                    .layers = o.layers,
                                    .width = o.timed_width,
                                    .heads = o.timed_width / 128});
  large.separate_products = true;
  return graph_of(large);
}

struct recipe {
  std::string name;
  comp::plan plan;
  double seconds = 0;               // modelled, of a step
  std::vector<double> losses = {};  // by seed
};

/// All that PyTorch's autocast lowers in BF16, and of that the linear layers that `chosen` takes in `p`.
template <class Chosen>
plan lowered(const op_graph& graph, precision p, Chosen chosen) {
  const comp::policy::pytorch rules{.list = comp::policy::pytorch_list::cuda, .low = precision::bf16};
  plan made = comp::autocast::rule_plan(rules, graph, precision::bf16);
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (graph[i].kind == "linear" && chosen(graph[i])) made[i] = p;
  }
  return made;
}

std::vector<recipe> recipes_of(const op_graph& graph, const options& o) {
  const auto none = [](const op_info&) { return false; };
  const auto body = [](const op_info& op) { return !op.scopes.empty(); };  // all but the head, which no recipe lowers
  const auto in_block = [](const op_info& op, std::int64_t block) {
    return op.scopes.front() == fmt::format("block{}", block);
  };
  const auto inner = [&](const op_info& op) { return body(op) && !in_block(op, 0) && !in_block(op, o.layers - 1); };
  const auto but_last = [&](const op_info& op) { return body(op) && !in_block(op, o.layers - 1); };
  const auto forward = [&](const op_info& op) { return body(op) && op.product == comp::product::forward; };
  std::vector<recipe> all{{"fp32", plan{graph.size()}}, {"bf16", lowered(graph, precision::bf16, none)}};
  for (const precision p :
       {precision::fp8_e4m3, precision::fp8_block128, precision::mxfp8, precision::mxfp4, precision::nvfp4}) {
    all.push_back({std::string{name(p)}, lowered(graph, p, body)});
  }
  for (const precision p : {precision::mxfp8, precision::nvfp4}) {
    if (o.layers > 2) all.push_back({fmt::format("{}, first and last block bf16", name(p)), lowered(graph, p, inner)});
    all.push_back({fmt::format("{}, last block bf16", name(p)), lowered(graph, p, but_last)});
    all.push_back({fmt::format("{} in the forward alone", name(p)), lowered(graph, p, forward)});
  }
  return all;
}

host_trainer trainer_of(comp::host::device& device, const job& j, std::uint64_t seed) {
  return {device, j.made, j.train, j.validation, {.optimizer = adamw(1e-3), .clip_norm = 1, .seed = seed}};
}

/// Returns the plan that a search finds, and how it ended.
recipe found(comp::host::device& device, const job& j, const options& o) {
  host_trainer inner = trainer_of(device, j, 100);
  comp::simulated::trainer<host_trainer> modelled{inner, o.target, {.timed_as = timed_graph(o)}};
  comp::search_settings settings;
  settings.precisions = {precision::bf16, precision::fp8_e4m3, precision::mxfp8, precision::nvfp4};
  std::erase_if(settings.precisions,
                [&](precision p) { return std::ranges::count(modelled.supported_precisions(), p) == 0; });
  settings.tolerance = o.tolerance;
  const comp::policy::pytorch policy{.list = comp::policy::pytorch_list::cuda, .low = precision::bf16};
  const comp::outcome best = comp::two_stage{policy, comp::strategy::guided{}, comp::strategy::greedy{}, settings}.run(
      modelled, comp::progress_bar{});
  fmt::print("{}\n", comp::table(best));
  for (const std::string& warning : best.warnings) fmt::print("{}\n", warning);
  return {"found", best.plan};
}

/// Returns the standard deviation of a few values.
double deviation(const std::vector<double>& values) {
  const double mean = comp::mean_of(values);
  double squares = 0;
  for (const double x : values) squares += (x - mean) * (x - mean);
  return std::sqrt(squares / static_cast<double>(values.size() - 1));
}

void report(const std::vector<recipe>& all, const options& o, nlohmann::json& to) {
  const recipe& bf16 = all[1];
  fmt::print("{:<36} {:>8} {:>8} {:>20} {:>12}\n", "", "loss", "+-", "over bf16's", "x of bf16");
  for (const recipe& r : all) {
    std::vector<double> over;
    for (std::size_t k = 0; k < r.losses.size(); ++k) over.push_back(r.losses[k] - bf16.losses[k]);
    const double faster = bf16.seconds / r.seconds;
    fmt::print("{:<36} {:>8.4f} {:>8.4f} {:>+9.4f} +- {:<7.4f} {:>11.2f}x\n", r.name, comp::mean_of(r.losses),
               deviation(r.losses), comp::mean_of(over), deviation(over), faster);
    to["recipes"].push_back(
        {{"name", r.name}, {"losses", r.losses}, {"times_of_bf16", faster}, {"plan", r.plan.str()}});
  }
  if (!o.json.empty()) std::ofstream{o.json} << to.dump(2) << '\n';
}

int run(const options& o) {
  comp::host::device device;
  const job j = job_of(o);
  host_trainer first = trainer_of(device, j, 0);
  comp::simulated::trainer<host_trainer> timed{first, o.target, {.timed_as = timed_graph(o)}};
  std::vector<recipe> all = recipes_of(first.graph(), o);
  all.push_back(found(device, j, o));
  for (recipe& r : all) {
    r.seconds = timed.batch_seconds(r.plan);
    for (std::uint64_t seed = 0; seed < o.seeds; ++seed) {
      host_trainer t = trainer_of(device, j, seed);
      t.set_precision(r.plan);
      for (std::uint64_t e = 0; e < o.epochs; ++e) {
        const comp::sample epoch = t.run_epoch();
        comp::require<comp::error>(epoch.ok(), "{} ended with: {}", r.name, epoch.message);
      }
      r.losses.push_back(-t.validate());
    }
    fmt::print(stderr, "{} trained\n", r.name);
  }
  nlohmann::json to{{"bench", "recipes"}, {"layers", o.layers}, {"width", o.width}, {"target", o.target}};
  fmt::print("Transformer of {} layers, width {}, {} epochs of {} steps, {} seeds; times {} at width {}\n", o.layers,
             o.width, o.epochs, first.batches_per_epoch(), o.seeds, timed.hardware().name, o.timed_width);
  report(all, o, to);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  options chosen;
  CLI::App app{"Recipes below 16 bits: their losses after full trainings, and their modelled times."};
  app.option_defaults()->always_capture_default();
  app.add_option("--data", chosen.data, "A text")->required();
  app.add_option("--target", chosen.target, "The GPU whose times are modelled");
  app.add_option("--layers", chosen.layers)->check(CLI::Range(1, 96));
  app.add_option("--width", chosen.width)->check(CLI::Range(32, 4096));
  app.add_option("--windows", chosen.windows, "Training examples of an epoch")->check(CLI::Range(16, 1 << 20));
  app.add_option("--epochs", chosen.epochs)->check(CLI::Range(1, 1000));
  app.add_option("--seeds", chosen.seeds)->check(CLI::Range(2, 100));
  app.add_option("--tolerance", chosen.tolerance, "Of the search")->check(CLI::Range(0.0, 1.0));
  app.add_option("--timed-width", chosen.timed_width, "Of the transformer whose times are modelled");
  app.add_option("--timed-context", chosen.timed_context, "[tokens]");
  app.add_option("--timed-batch", chosen.timed_batch, "[sequences]");
  app.add_option("--json", chosen.json, "File for the figures");
  CLI11_PARSE(app, argc, argv);
  try {
    return run(chosen);
  } catch (const std::exception& failed) {
    fmt::print(stderr, "recipes: {}\n", failed.what());
    return 2;
  }
}
