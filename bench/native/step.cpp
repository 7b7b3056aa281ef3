// SPDX-License-Identifier: Apache-2.0
// The time of a training step against the time that it spends in its operators' arithmetic: what the trainer and
// changes of layout cost on top. The nine models, in FP32 and with every operator in BF16.
//   step [rounds] [threads] [models, a part of their names]
// FP32 and BF16 take turns within each round, so that a noisy moment hits both; medians, and quartiles as the spread.
// Arithmetic is oneDNN's primitives and this backend's own loops: for graphs and activations oneDNN has none that fit.
#include <fmt/format.h>

#include <algorithm>
#include <bench/native/jobs.hpp>
#include <comp/core/statistics.hpp>
#include <comp_host/device.hpp>
#include <memory>
#include <string>
#include <vector>

namespace {

using comp::precision;

struct job {
  std::string name;
  std::unique_ptr<comp::host::device> device;
  std::unique_ptr<comp::native::trainer<comp::host::device>> trained;
  std::vector<double> seconds = {}, primitives = {}, reorders = {}, kernels = {}, over_primitives = {}, over_all = {};

  job(const bench::native_job& of, precision p, int threads)
      : name{fmt::format("{}, {}", of.name, comp::name(p))},
        device{std::make_unique<comp::host::device>(comp::host::settings{.threads = threads})},
        trained{bench::trainer_of(*device, of, p)} {
    for (int warm_up = 0; warm_up < 2; ++warm_up) trained->run_batch();
  }

  void measure() {
    device->profile_primitives(true);
    seconds.push_back(trained->run_batch().seconds);
    const auto shares = device->shares();
    device->profile_primitives(false);
    primitives.push_back(shares.primitives);
    reorders.push_back(shares.reorders);
    kernels.push_back(shares.kernels);
    over_primitives.push_back(seconds.back() / shares.primitives);
    over_all.push_back(seconds.back() / (shares.primitives + shares.kernels));
  }
};

double quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}

std::string with_quartiles(const std::vector<double>& values) {
  return fmt::format("{:.3f} ({:.3f} to {:.3f})", comp::median(values), quantile(values, 0.25), quantile(values, 0.75));
}

void report(const job& j) {
  const double step = comp::median(j.seconds), in_primitives = comp::median(j.primitives);
  const double in_reorders = comp::median(j.reorders), in_kernels = comp::median(j.kernels);
  fmt::print("| {} | {:.2f} ms | {:.2f} ms | {:.2f} ms | {:.2f} ms | {} | {} |\n", j.name, step * 1e3,
             in_primitives * 1e3, in_reorders * 1e3, in_kernels * 1e3, with_quartiles(j.over_primitives),
             with_quartiles(j.over_all));
}

}  // namespace

int main(int argc, char** argv) {
  const int rounds = std::max(argc > 1 ? std::atoi(argv[1]) : 12, 1);
  const int threads = argc > 2 ? std::atoi(argv[2]) : 0;
  const std::string_view part = argc > 3 ? argv[3] : "";
  fmt::print("| job | step | primitives | reorders | own loops | step / primitives | step / primitives and loops |\n");
  fmt::print("|---|---|---|---|---|---|---|\n");
  for (const std::string_view name : bench::native_jobs) {
    if (name.find(part) == std::string_view::npos) continue;
    const bench::native_job of = bench::native_job_of(name);
    job fp32{of, precision::fp32, threads}, bf16{of, precision::bf16, threads};
    for (int round = 0; round < rounds; ++round) {
      for (job* j : {&fp32, &bf16}) j->measure();
    }
    for (const job* j : {&fp32, &bf16}) report(*j);
  }
}
