// SPDX-License-Identifier: Apache-2.0
// The promises of bench/search/search.cpp, with slack for builds that do not optimise and machines that do other
// things.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <comp/policy/pytorch.hpp>
#include <comp/search/space/spaces.hpp>
#include <comp/strategy/exhaustive.hpp>

#include "../../bench/search/large_graph.hpp"
#include "processor_time.hpp"

namespace {

#if defined(__SANITIZE_ADDRESS__)
constexpr bool memory_is_ours = false;
#else
constexpr bool memory_is_ours = true;
#endif

double seconds_of(const auto& work) {
  const double begin = processor_seconds();
  work();
  return processor_seconds() - begin;
}

}  // namespace

TEST_CASE("a graph of 100,000 operators is classified, cut and counted in seconds and little memory") {
  const comp::op_graph graph = bench::large_graph(100'000);
  CHECK(seconds_of([&] {
          const comp::precision lows[] = {comp::precision::bf16};
          const auto made = comp::make_candidate_space(comp::policy::pytorch{}, graph, {}, lows, comp::tie::none);
          CHECK(made.space.groups().size() == 10'000 * 2 + 20'004);  // norms and softmaxes, and what does not suit
          const auto cut = comp::make_segment_space(graph, made.roles, made.space.conservative(), comp::tie::none);
          CHECK(cut.space.groups().size() == 20'000);  // each block's add and GELU, between low and FP32
        }) < 10);                                      // 0.2 optimised; the promise is 1
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  if (memory_is_ours) CHECK(usage.ru_maxrss < 200 * 1024);  // of the whole test program
}

TEST_CASE("exhaustive goes through 2^18 plans in seconds") {
  std::vector<comp::op_group> groups;
  for (std::uint32_t i = 0; i < 18; ++i) {
    groups.push_back({std::to_string(i), {i}, {comp::precision::fp32, comp::precision::bf16}});
  }
  std::size_t plans = 0;
  CHECK(seconds_of([&] {
          auto run = comp::strategy::exhaustive{.limit = 1 << 18}.start({comp::plan{18}, groups});
          for (auto asked = run.ask(256); !asked.empty(); asked = run.ask(256)) plans += asked.size();
        }) < 5);  // 0.03 optimised
  CHECK(plans == 1U << 18);
}
