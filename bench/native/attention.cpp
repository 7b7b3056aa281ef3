// SPDX-License-Identifier: Apache-2.0
// Attention on this CPU, forward and backward: by blocks and operator by operator, in turns in one process; and the
// memory that the two take beside their inputs.
//   attention [rounds] [threads]
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <comp/core/statistics.hpp>
#include <comp_host/device.hpp>
#include <comp_native/op/attention.hpp>
#include <comp_native/random.hpp>
#include <cstdlib>
#include <span>
#include <vector>

namespace {

using comp::precision;
using namespace comp::native;

struct sizes {
  std::int64_t batch, length, heads, width;
  bool causal;
};

/// Steps of the operator on a device of its own.
class native_step {
 public:
  native_step(const sizes& s, precision p, int threads, std::int64_t attention_from)
      : device_{{.threads = threads, .attention_from = attention_from}},
        what_{{.heads = s.heads, .mask = s.causal ? op::softmax_mask::causal : op::softmax_mask::none}},
        precision_{p} {
    random_stream draws{1, 1};
    std::vector<float> some(static_cast<std::size_t>(s.batch * s.length * s.heads * s.width));
    for (int i = 0; i < 4; ++i) {
      for (float& x : some) x = static_cast<float>(draws.normal());
      x_.push_back(device_.upload(some, {s.batch, s.length, s.heads * s.width}, p));
    }
  }
  void operator()() {
    memory<comp::host::device> left;
    const std::span x{x_.data(), 3};
    double loss = 0;
    (void)what_.forward(forward_call<comp::host::device>{{device_, batch_, {}, precision_, left}, x, true, loss});
    (void)what_.backward(
        backward_call<comp::host::device>{{device_, batch_, {}, precision_, left}, x_[3], {true, true, true}, 1});
  }
  double peak_mib() {
    device_.reset_peak();
    const std::int64_t before = device_.live_bytes();
    (*this)();
    return static_cast<double>(device_.peak_bytes() - before) / (1 << 20);
  }

 private:
  comp::host::device device_;
  op::attention what_;
  precision precision_;
  std::vector<comp::host::tensor> x_;
  device_batch<comp::host::device> batch_;
};

double seconds_of(native_step& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

void measure(const sizes& s, precision p, int rounds, int threads) {
  native_step blocks{s, p, threads, 0}, parts{s, p, threads, s.length + 1};
  std::vector<double> by_blocks, in_parts;
  for (int round = -3; round < rounds; ++round) {  // the first three are not counted
    double took[2];
    for (const bool one : {round % 2 == 0, round % 2 != 0}) took[one] = seconds_of(one ? blocks : parts);
    if (round < 0) continue;
    by_blocks.push_back(took[1]);
    in_parts.push_back(took[0]);
  }
  const auto speed = comp::compare_paired(in_parts, by_blocks);
  fmt::print("| {} x {}{}, {} heads of {}, {} | {:.2f} ms | {:.2f} ms | {:.2f} ({:.2f} to {:.2f}) | {:.1f}, {:.1f} |\n",
             s.batch, s.length, s.causal ? ", causal" : "", s.heads, s.width, comp::name(p),
             comp::median(in_parts) * 1e3, comp::median(by_blocks) * 1e3, speed.ratio, speed.bounds.low,
             speed.bounds.high, parts.peak_mib(), blocks.peak_mib());
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = std::max(argc > 1 ? std::atoi(argv[1]) : 20, 6);
  const int threads = argc > 2 ? std::atoi(argv[2]) : 0;
  fmt::print("| | operator by operator | by blocks | speed (95%) | memory of the two [MiB] |\n|---|---|---|---|---|\n");
  for (const auto& [batch, length] :
       std::array<std::array<std::int64_t, 2>, 4>{{{16, 128}, {8, 256}, {4, 512}, {1, 2048}}}) {
    for (const std::int64_t width : {std::int64_t{32}, std::int64_t{64}}) {
      for (const bool causal : {false, true}) {
        for (const precision p : {precision::fp32, precision::bf16})
          measure({batch, length, 256 / width, width, causal}, p, rounds, threads);
      }
    }
  }
}
