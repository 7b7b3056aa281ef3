// SPDX-License-Identifier: Apache-2.0
// Attention on this CPU, forward and backward: by blocks and operator by operator, in turns in one process; and the
// memory that the two take beside their inputs.
//   attention [rounds] [threads]
#include <algorithm>
#include <bench/native/attention.hpp>
#include <bench/seconds.hpp>
#include <comp/core/statistics.hpp>
#include <vector>

namespace {

using bench::native_attention, comp::precision;

void measure(const bench::attention_sizes& s, precision p, int rounds, int threads) {
  native_attention blocks{s, p, {.threads = threads, .attention_from = 0}};
  native_attention parts{s, p, {.threads = threads, .attention_from = s.length + 1}};
  std::vector<double> by_blocks, in_parts;
  for (int round = -3; round < rounds; ++round) {  // the first three are not counted
    double took[2];
    for (const bool one : {round % 2 == 0, round % 2 != 0}) took[one] = bench::seconds_of(one ? blocks : parts);
    if (round < 0) continue;
    by_blocks.push_back(took[1]);
    in_parts.push_back(took[0]);
  }
  const auto speed = comp::compare_paired(in_parts, by_blocks);
  fmt::print("| {}, {} | {:.2f} ms | {:.2f} ms | {:.2f} ({:.2f} to {:.2f}) | {:.1f}, {:.1f} |\n", s.text(),
             comp::name(p), comp::median(in_parts) * 1e3, comp::median(by_blocks) * 1e3, speed.ratio, speed.bounds.low,
             speed.bounds.high, parts.peak_mib(), blocks.peak_mib());
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = std::max(argc > 1 ? std::atoi(argv[1]) : 20, 6);
  const int threads = argc > 2 ? std::atoi(argv[2]) : 0;
  fmt::print("| | operator by operator | by blocks | speed (95%) | memory of the two [MiB] |\n|---|---|---|---|---|\n");
  bench::for_attention_sizes([&](const bench::attention_sizes& s) {
    for (const precision p : {precision::fp32, precision::bf16}) measure(s, p, rounds, threads);
  });
}
