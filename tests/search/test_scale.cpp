// SPDX-License-Identifier: Apache-2.0
// What the search itself costs, with slack for builds that do not optimise and machines that do other things.
#include <doctest/doctest.h>
#include <sys/resource.h>

#include <comp/policy/pytorch.hpp>
#include <comp/search/space/spaces.hpp>
#include <comp/strategy/exhaustive.hpp>

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

// A transformer of `n` operators, as a backend would record it, in blocks of ten: norm, three linears, a product of
// matrices, softmax, a product, linear, add, GELU.
comp::op_graph large_graph(std::size_t n) {
  constexpr std::string_view kinds[] = {"layer_norm", "linear", "linear", "linear", "bmm",
                                        "softmax",    "bmm",    "linear", "add",    "gelu"};
  const std::vector<std::size_t> reads[] = {{1}, {1}, {2}, {3}, {3, 2}, {1}, {1, 3}, {1}, {1, 9}, {1}};  // how far back
  std::vector<comp::op_info> ops(n);
  for (std::size_t i = 0; i < n; ++i) {
    const std::size_t at = i % 10, block = i / 10;
    comp::op_info& op = ops[i];
    op.name = fmt::format("block{}.{}", block, at);
    op.kind = kinds[at];
    op.scopes = {fmt::format("block{}", block)};
    op.inputs = {{.shape = {64, 512}}};
    op.outputs = {{.shape = {64, 512}}};
    for (const std::size_t back : reads[at]) {
      if (back <= i) op.producers.push_back(i - back);
    }
    if (op.kind == "linear" || op.kind == "bmm") {
      op.m = 64, op.k = 512, op.n = block % 3 == 0 ? 509 : 512;  // every third block has sizes that do not suit
      op.flops = 2 * op.m * op.n * op.k;
    }
    op.bytes = 2 * 64 * 512 * 4;
  }
  return {std::move(ops)};
}

}  // namespace

TEST_CASE("a graph of 100,000 operators is classified, cut and counted in seconds and little memory") {
  const comp::op_graph graph = large_graph(100'000);
  CHECK(seconds_of([&] {
          const comp::precision lows[] = {comp::precision::bf16};
          const auto candidates = comp::make_candidate_space(comp::policy::pytorch{}, graph, {}, lows, comp::tie::none);
          CHECK(candidates.space.groups().size() ==
                10'000 * 2 + 20'004);  // norms and softmaxes, and what does not suit
          const auto cut =
              comp::make_segment_space(graph, candidates.roles, candidates.space.conservative(), comp::tie::none);
          CHECK(cut.space.groups().size() == 20'000);  // each block's add and GELU, between low and FP32
        }) < 10);                                      // 0.2 optimised
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
