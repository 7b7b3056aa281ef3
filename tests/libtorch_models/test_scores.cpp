// SPDX-License-Identifier: Apache-2.0
// After a whole training the found plan scores as FP32 does: three seeds, models and data that a CPU trains in seconds.
// ./run paper does it on the real data sets.
#include <ATen/Parallel.h>

#include <comp/comp.hpp>
#include <libtorch/jobs.hpp>
#include <libtorch/trainers.hpp>

// clang-format off
#include <doctest/doctest.h>  // last: LibTorch has a CHECK of its own, which ends the program
// clang-format on

namespace {
using comp::precision;

struct training {
  std::string model;
  torch_models::job_options options;
  int epochs;
};

torch_models::job make_seeded(const training& t, std::uint64_t seed) {
  torch_models::job_options options = t.options;
  options.seed = seed;
  return torch_models::make_job(t.model, options);
}

comp::outcome search(const training& t) {
  torch_models::job job = make_seeded(t, 1);
  auto trainer = torch_models::make_trainer(job, 1);
  comp::search_settings settings;
  settings.precisions = {precision::fp32, precision::bf16};
  return comp::two_stage{comp::policy::pytorch{.list = comp::policy::pytorch_list::cpu, .low = precision::bf16},
                         comp::strategy::greedy{}, comp::strategy::greedy{}, settings}
      .run(trainer);
}

/// The score after all epochs; without a plan in FP32.
double trained(const training& t, std::uint64_t seed, const comp::plan& plan) {
  torch_models::job job = make_seeded(t, seed);
  auto trainer = torch_models::make_trainer(job, seed);
  trainer.set_precision(plan);
  for (int e = 0; e < t.epochs; ++e) REQUIRE(trainer.run_epoch().ok());
  return trainer.validate();
}

/// Every choosable operator low: the plan that a search can at most find.
comp::plan all_low(const comp::op_graph& graph) {
  comp::plan p{graph.size()};
  for (std::size_t i = 0; i < graph.size(); ++i) {
    if (graph[i].choosable) p[i] = precision::bf16;
  }
  return p;
}

TEST_CASE(
    "three seeds trained to the end: the score of the found plan is within FP32's spread, and so is that of BF16") {
  at::set_num_threads(1);  // small operators: more would wait for each other
  const training jobs[] = {{"gcn", {.limit = 500, .steps_per_epoch = 4}, 3},
                           {"simplenet", {.batch = 32, .limit = 128, .width = 64}, 6}};
  for (const training& t : jobs) {
    CAPTURE(t.model);
    const comp::outcome found = search(t);
    std::vector<double> exact, planned, low;
    for (const std::uint64_t seed : {1, 2, 3}) {
      exact.push_back(trained(t, seed, comp::plan{found.graph.size()}));
      planned.push_back(trained(t, seed, found.plan));
      low.push_back(trained(t, seed, all_low(found.graph)));
    }
    const auto [least, most] = std::ranges::minmax(exact);
    const double spread = most - least;
    MESSAGE(t.model, ": FP32 scores ", least, " to ", most, ", the found plan ", std::ranges::min(planned), " to ",
            std::ranges::max(planned), ", all of it in BF16 ", std::ranges::min(low), " to ", std::ranges::max(low));
    CHECK(comp::median(planned) >= least - spread);
    CHECK(comp::median(low) >= least - spread);
  }
}
}  // namespace
