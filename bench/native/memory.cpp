// SPDX-License-Identifier: Apache-2.0
// The memory of a training with AdamW on this CPU: what is kept from batch to batch and the peak within one, in FP32,
// by the rules of PyTorch's autocast, by these with moments in BF16, and under the plan that a search finds.
//   memory [batches of the training that the search is for; 0: no search] [models, a part of their names]
// Bytes are exact, and the same on a busy machine. Times are medians of the ratios of batches that ran in turns.
#include <fmt/format.h>

#include <algorithm>
#include <bench/native/jobs.hpp>
#include <comp/autocast/rule_plan.hpp>
#include <comp/core/statistics.hpp>
#include <comp/policy/plan_name.hpp>
#include <comp/policy/pytorch.hpp>
#include <comp/search/two_stage.hpp>
#include <comp_host/device.hpp>
#include <cstdlib>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace {

using comp::plan;
using comp::precision;

struct contestant {
  std::string name;
  comp::plan plan;
  std::int64_t peak = 0, kept = 0;
  std::vector<double> seconds = {};
};

bench::native_job job_of(std::string_view name) {
  if (name != "mlp") return bench::native_job_of(name);
  return {"MLP of 9 x 1024, batch 128",
          native_models::mlp({.batch = 128,
                              .input = {1024},
                              .hidden = std::vector<std::int64_t>(8, 1024),
                              .outputs = 1024,
                              .regression = true}),
          native_models::random_examples{1024, 12800, 1},
          {.optimizer = comp::native::adamw(1e-4)}};
}

void measure(const bench::native_job& of, std::size_t planned) {
  comp::host::device device;
  comp::native::training settings = of.settings;
  settings.moments = true;
  comp::native::trainer<comp::host::device> t{device, of.model, of.data, of.data, settings};
  const comp::op_graph& graph = t.graph();
  std::vector<contestant> all{{"FP32", plan{graph.size()}}};
  const comp::policy::pytorch lists{.list = comp::policy::pytorch_list::cpu, .low = precision::bf16};
  all.push_back({"autocast's rules", comp::autocast::rule_plan(lists, graph, precision::bf16)});
  plan low = all.back().plan;
  for (std::size_t i = 0; i < low.size(); ++i) low[i] = graph[i].is_state ? precision::bf16 : low[i];
  all.push_back({"the rules, moments in BF16", low});
  if (planned > 0) {
    comp::two_stage search{lists};
    search.settings.precisions = {precision::bf16};
    search.settings.planned_epochs = std::max<std::size_t>(planned / t.batches_per_epoch(), 1);
    const auto start = t.save();
    const comp::outcome found = search.run(t);
    for (const std::string& warning : found.warnings) fmt::print(stderr, "{}\n", warning);
    all.push_back({"found: " + name(found.plan, graph), found.plan});
    t.restore(start);
  }
  for (int round = 0; round < 14; ++round) {
    for (contestant& c : all) {
      t.set_precision(c.plan);
      const comp::sample got = t.run_batch();
      c.peak = got.peak_bytes;
      c.kept = device.live_bytes();
      if (round > 1) c.seconds.push_back(got.seconds);
    }
  }
  for (contestant& c : all) {  // two batches on end, so that no copy of another plan's is there
    t.set_precision(c.plan);
    for (int batch = 0; batch < 3; ++batch) c.peak = t.run_batch().peak_bytes;
    c.kept = device.live_bytes();
    constexpr double mib = 1 << 20;
    const double of_fp32 = static_cast<double>(c.peak) / static_cast<double>(all[0].peak);
    const double of_rules = static_cast<double>(c.peak) / static_cast<double>(all[1].peak);
    fmt::print("| {} | {} | {:.1f} MiB | {:.1f} MiB | {:+.1f}% | {} | {:.2f} |\n", of.name, c.name,
               static_cast<double>(c.kept) / mib, static_cast<double>(c.peak) / mib, 100 * (of_fp32 - 1),
               &c > &all[1] ? fmt::format("{:+.1f}%", 100 * (of_rules - 1)) : "",
               comp::compare_paired(all[0].seconds, c.seconds).ratio);
  }
}

}  // namespace

int main(int argc, char** argv) {
  const std::size_t planned = argc > 1 ? std::strtoull(argv[1], nullptr, 10) : 0;
  const std::string_view part = argc > 2 ? argv[2] : "";
  fmt::print("| training | plan | kept | peak | peak beside FP32's | beside the rules' | times FP32's speed |\n");
  fmt::print("|---|---|---|---|---|---|---|\n");
  for (const std::string_view name : {"mlp", "bert", "transformer"}) {
    if (name.find(part) != std::string_view::npos) measure(job_of(name), planned);
  }
}
