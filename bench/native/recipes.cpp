// SPDX-License-Identifier: Apache-2.0
// Training recipes below 16 bits, on a transformer over characters or on BERT: whole formats, recipes that are
// published for other models, and the plans that searches find for GPUs that are not here.
//   recipes --data text.txt [--model bert] [--layers 8] [--width 64] [--steps 400] [--seeds 3] [--targets H100 B200]
// Each recipe is trained in full with each seed, and all have the same weights and batches for a seed. So differences
// to BF16 are paired by seeds. Times are modelled for each target and for a model of that GPU's size (--timed-width and
// so on) with as many layers, since a small one is bound by launches there. So a search weighs the small model's losses
// against the large one's times. Tables are in Markdown, one after each seed from the second on. A found plan is
// "before" a recipe if it is at least as fast with no higher loss, "behind" if it is neither faster nor lower, and else
// "on" the front that the two make.
#include "recipes.hpp"

#include <CLI/CLI.hpp>
#include <comp_simulated/trainer.hpp>
#include <cstdio>
#include <map>
#include <span>

namespace {

using namespace recipes;
using host_trainer = trainer<comp::host::device>;
using modelled_trainer = comp::simulated::trainer<host_trainer>;

host_trainer trainer_of(comp::host::device& device, const job& j, const options& o, std::uint64_t seed) {
  const schedule over{.warmup = 20, .total = static_cast<std::int64_t>(o.steps), .floor = 0.1};
  return {device,
          j.net,
          j.train,
          j.validation,
          {.optimizer = adamw(o.rate), .schedule = over, .clip_norm = 1, .seed = seed}};
}

/// Returns "28 products in nvfp4, 11 in mxfp8", of the linear layers below 16 bits.
std::string products(const op_graph& graph, const plan& p) {
  std::map<precision, int> counts;
  for (std::size_t i = 0; i < graph.size(); ++i) counts[p[i]] += comp::is_scaled(p[i]);
  std::string text;
  for (const auto& [format, n] : counts) {
    if (n > 0) text += fmt::format("{}{} products in {}", text.empty() ? "" : ", ", n, name(format));
  }
  return text.empty() ? "nothing below 16 bits" : text;
}

/// Returns the plan that a search finds for a target.
recipe found(comp::host::device& device, const job& j, const options& o, const std::string& target) {
  host_trainer inner = trainer_of(device, j, o, 100);
  modelled_trainer modelled{inner, target, {.timed_as = timed_graph(o)}};
  comp::search_settings settings;
  settings.precisions = modelled.usual_precisions();
  std::erase(settings.precisions, precision::fp16);
  settings.tolerance = o.tolerance;
  const comp::policy::pytorch policy{.list = comp::policy::pytorch_list::cuda, .low = precision::bf16};
  const comp::outcome best =
      comp::two_stage{policy, comp::strategy::guided{}, comp::strategy::greedy{}, settings}.run(modelled);
  fmt::print("found for {}: {}, {} of {} operators below FP32; the search trained {} batches in {:.0f} s\n", target,
             products(best.graph, best.plan), best.plan.count_low(), best.plan.size(), best.trained_batches,
             best.overhead_seconds());
  for (const std::string& warning : best.warnings) fmt::print("  {}\n", warning);
  std::fflush(stdout);
  return {.name = "found for " + target, .plan = best.plan, .found = true};
}

/// Trains a recipe whose last part may have a higher precision. Returns the loss of each batch.
std::vector<double> finished(host_trainer& t, recipe& r, const options& o) {
  const comp::plan fp32{r.plan.size()};
  const comp::outcome known{.plan = r.plan,
                            .graph = t.graph(),
                            .batches_per_epoch = o.steps,
                            .fallbacks = {r.plan, fp32},
                            .tolerance = o.tolerance};
  const comp::training_result got =
      comp::post_training{.epochs = 1, .guard = {.on = false}, .finish = r.finish}.run(t, known);
  r.raised += got.later.size();
  for (const comp::later_plan& change : got.later) {
    fmt::print(stderr, "{}: from step {} on BF16, {}\n", r.name, change.batch, change.reason);
  }
  return got.epochs.front().curve;
}

losses trained(comp::host::device& device, const job& j, const options& o, recipe& r, std::uint64_t seed) {
  host_trainer t = trainer_of(device, j, o, seed);
  t.set_precision(r.plan);
  std::vector<double> curve;
  if (r.finish > 0) curve = finished(t, r, o);
  while (curve.size() < o.steps) {
    const comp::sample batch = t.run_batch();
    comp::require<comp::error>(batch.ok(), "{} ended in step {} with: {}", r.name, curve.size(), batch.message);
    curve.push_back(batch.loss);
  }
  losses result{.training = comp::mean_of(std::span{curve}.last(std::max<std::size_t>(o.steps / 10, 1))),
                .validation = -t.validate()};
  t.set_precision(all_bf16(t.graph()));
  result.in_bf16 = -t.validate();
  return result;
}

/// Returns the modelled seconds of a step, as a mean over the training, with BF16 in the last part; 0 if the target
/// lacks a format.
double seconds_of(modelled_trainer& timed, const recipe& r) {
  const std::vector<precision> known = timed.supported_precisions();
  const auto runs = [&](precision p) { return std::ranges::find(known, p) != known.end(); };
  if (!std::ranges::all_of(r.plan, runs)) return 0;
  const double bf16 = r.finish > 0 ? timed.batch_seconds(all_bf16(timed.graph())) : 0;
  return (1 - r.finish) * timed.batch_seconds(r.plan) + r.finish * bf16;
}

/// A mean over the seeds, and the half width of its 95% interval by Student's t.
struct spread {
  double mean = 0, half = 0;
};
spread spread_of(const std::vector<double>& values) {
  constexpr double student[] = {12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262};  // of 2 to 10 values
  const double mean = comp::mean_of(values), count = static_cast<double>(values.size());
  double squares = 0;
  for (const double x : values) squares += (x - mean) * (x - mean);
  return {mean, student[std::min<std::size_t>(values.size() - 2, 8)] * std::sqrt(squares / (count - 1) / count)};
}
/// Returns how far a recipe's loss is above another's, seed by seed.
spread above(const recipe& r, const recipe& other, double losses::*which) {
  std::vector<double> over;
  for (std::size_t k = 0; k < r.seeds.size(); ++k) over.push_back(r.seeds[k].*which - other.seeds[k].*which);
  return spread_of(over);
}

/// How the plan found for a target compares with a recipe by hand, of whose losses those of the weights in BF16 count.
struct comparison {
  double faster;  // 0: the target lacks a format of the recipe
  spread loss;

  const char* verdict() const {
    if (faster >= 1 && loss.mean <= 0) return "before";
    return faster <= 1 && loss.mean >= 0 ? "behind" : "on";
  }
};
comparison beside(const recipe& plan, const recipe& hand, std::size_t target) {
  return {hand.seconds[target] / plan.seconds[target], above(plan, hand, &losses::in_bf16)};
}

std::string row(const std::vector<recipe>& all, std::size_t i, const options& o) {
  const recipe &r = all[i], &bf16 = all[1];
  std::string text = fmt::format("| {} |", r.name);
  for (const auto which : {&losses::in_bf16, &losses::validation, &losses::training}) {
    const spread over = above(r, bf16, which);
    text += fmt::format(" {:+.4f} ± {:.4f} |", over.mean, over.half);
  }
  for (std::size_t k = 0; k < o.targets.size(); ++k) {
    text += r.seconds[k] > 0 ? fmt::format(" {:.2f} |", bf16.seconds[k] / r.seconds[k]) : " |";
    const comparison plan = beside(all[all.size() - o.targets.size() + k], r, k);
    text += r.found || plan.faster == 0 ? " |"
                                        : fmt::format(" {}: {:.2f}, {:+.4f} ± {:.4f} |", plan.verdict(), plan.faster,
                                                      plan.loss.mean, plan.loss.half);
  }
  return text;
}

void report(const std::vector<recipe>& all, const options& o) {
  std::vector<double> bf16;
  for (const losses& seed : all[1].seeds) bf16.push_back(seed.validation);
  fmt::print("\nAfter {} seeds, with 95% intervals; BF16's validation loss is {:.4f} ± {:.4f}.\n\n", bf16.size(),
             spread_of(bf16).mean, spread_of(bf16).half);
  fmt::print("| recipe | loss of the weights in BF16, over BF16's | loss under the recipe | training |");
  for (const std::string& target : o.targets) fmt::print(" speed on {} | the plan found for it |", target);
  fmt::print("\n|---|---|---|---|");
  for (std::size_t k = 0; k < o.targets.size(); ++k) fmt::print("---|---|");
  for (std::size_t i = 0; i < all.size(); ++i) fmt::print("\n{}", row(all, i, o));
  fmt::print("\n");
  std::fflush(stdout);
}

int run(const options& o) {
  comp::host::device device{{.threads = o.threads}};
  const job j = job_of(o);
  host_trainer first = trainer_of(device, j, o, 0);
  fmt::print("{} of {} layers, width {}, {} steps of {} x {} tokens; times modelled at width {}, {} x {} tokens\n",
             o.model, o.layers, o.width, o.steps, o.batch, o.context, o.timed_width, o.timed_batch, o.timed_context);
  std::vector<recipe> all = by_hand(first.graph(), o);
  const auto is_left_out = [&](const recipe& r) { return std::ranges::count(o.only, r.name) == 0; };
  if (!o.only.empty()) all.erase(std::remove_if(all.begin() + 2, all.end(), is_left_out), all.end());
  for (const std::string& target : o.targets) all.push_back(found(device, j, o, target));
  for (const std::string& target : o.targets) {
    modelled_trainer timed{first, target, {.timed_as = timed_graph(o)}};
    for (recipe& r : all) r.seconds.push_back(seconds_of(timed, r));
  }
  for (std::uint64_t seed = 0; seed < o.seeds; ++seed) {
    for (recipe& r : all) {
      r.seeds.push_back(trained(device, j, o, r, seed));
      fmt::print(stderr, "seed {}: {} ends at {:.4f}\n", seed, r.name, r.seeds.back().validation);
    }
    if (seed > 0) report(all, o);
  }
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  options chosen;
  CLI::App app{"Recipes below 16 bits: their losses after full trainings, and their modelled times."};
  app.option_defaults()->always_capture_default();
  app.add_option("--data", chosen.data, "A text, or for bert a folder of SQuAD with BERT's vocabulary")->required();
  app.add_option("--model", chosen.model)->check(CLI::IsMember({"transformer", "bert"}));
  app.add_option("--targets", chosen.targets, "The GPUs whose times are modelled");
  app.add_option("--only", chosen.only, "Recipes by hand with these names beside BF16, without searches and times");
  app.add_option("--layers", chosen.layers)->check(CLI::Range(1, 96));
  app.add_option("--width", chosen.width)->check(CLI::Range(32, 4096));
  app.add_option("--context", chosen.context, "[tokens]")->check(CLI::Range(16, 4096));
  app.add_option("--batch", chosen.batch, "[sequences]")->check(CLI::Range(1, 4096));
  app.add_option("--windows", chosen.windows, "Training examples of an epoch")->check(CLI::Range(16, 1 << 20));
  app.add_option("--held-out", chosen.held_out, "Validation examples")->check(CLI::Range(16, 1 << 20));
  app.add_option("--steps", chosen.steps)->check(CLI::Range(1, 1 << 20));
  app.add_option("--seeds", chosen.seeds)->check(CLI::Range(2, 100));
  app.add_option("--rate", chosen.rate, "Of AdamW, warmed up in 20 steps and lowered to a tenth");
  app.add_option("--threads", chosen.threads, "0: all cores");
  app.add_option("--tolerance", chosen.tolerance, "Of the searches")->check(CLI::Range(0.0, 1.0));
  app.add_option("--finish", chosen.finish, "Part at the end that is tried in BF16; 0: no such recipes")
      ->check(CLI::Range(0.0, 0.9));
  app.add_option("--timed-width", chosen.timed_width, "Of the model whose times are modelled");
  app.add_option("--timed-context", chosen.timed_context, "[tokens]");
  app.add_option("--timed-batch", chosen.timed_batch, "[sequences]");
  CLI11_PARSE(app, argc, argv);
  if (!chosen.only.empty()) chosen.targets.clear();
  try {
    return run(chosen);
  } catch (const std::exception& failed) {
    fmt::print(stderr, "recipes: {}\n", failed.what());
    return 2;
  }
}
