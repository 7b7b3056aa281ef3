// SPDX-License-Identifier: Apache-2.0
// What the benchmarks of the CUDA backend share: memory with noise in it, times by events, medians with quartiles.
// Without a GPU a program says so and ends with 77, which Meson counts as skipped.
#pragma once

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <comp/core/statistics.hpp>
#include <comp_cuda/capability.hpp>
#include <comp_cuda/kernels.hpp>
#include <cstddef>
#include <cstdio>
#include <exception>
#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>
#include <random>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "versions.hpp"

namespace comp::cuda::bench {

template <class T>
inline constexpr const char* precision_name = "FP32";
template <>
inline constexpr const char* precision_name<bf16> = "BF16";
template <>
inline constexpr const char* precision_name<fp16> = "FP16";

/// Device memory of n elements.
template <class T>
class array {
 public:
  explicit array(std::size_t n) : n_{n} {
    void* p = nullptr;
    check(cudaMalloc(&p, std::max<std::size_t>(n, 1) * sizeof(T)), "allocating a benchmark's memory");
    p_ = static_cast<T*>(p);
  }
  array(array&& other) noexcept : n_{other.n_}, p_{std::exchange(other.p_, nullptr)} {}
  array& operator=(array&&) = delete;
  ~array() { (void)cudaFree(p_); }
  T* data() const { return p_; }
  std::size_t size() const { return n_; }
  void fill(std::span<const T> values) {  // again and again
    for (std::size_t at = 0; at < n_; at += values.size()) {
      check(cudaMemcpy(p_ + at, values.data(), std::min(values.size(), n_ - at) * sizeof(T), cudaMemcpyHostToDevice),
            "filling a benchmark's memory");
    }
    check(cudaStreamSynchronize(nullptr), "filling a benchmark's memory");  // other streams do not wait for this one
  }

 private:
  std::size_t n_;
  T* p_ = nullptr;
};

/// Normal noise: arithmetic on zeros takes less power, and a GPU then clocks higher.
template <class T>
array<T> noise(std::size_t n, unsigned seed, float scale = 1) {
  std::mt19937 engine{seed};
  std::normal_distribution<float> draw{0, scale};
  std::vector<T> values(std::min<std::size_t>(std::max<std::size_t>(n, 1), std::size_t{1} << 20));
  for (T& v : values) native::math::store(v, draw(engine));
  array<T> buffer{n};
  buffer.fill(values);
  return buffer;
}
inline array<std::int32_t> numbers(const std::vector<std::int32_t>& values) {
  array<std::int32_t> buffer{values.size()};
  buffer.fill(values);
  return buffer;
}

/// Time of the default stream between two points.
class stopwatch {
 public:
  stopwatch() {
    check(cudaEventCreateWithFlags(&from_, cudaEventDefault), "making an event");
    check(cudaEventCreateWithFlags(&to_, cudaEventDefault), "making an event");
  }
  stopwatch(const stopwatch&) = delete;
  stopwatch& operator=(const stopwatch&) = delete;
  ~stopwatch() {
    (void)cudaEventDestroy(from_);
    (void)cudaEventDestroy(to_);
  }
  /// Seconds of one run, over `repeats` in a row.
  double seconds(int repeats, auto&& run) const {
    check(cudaEventRecord(from_, nullptr), "starting a clock");
    for (int i = 0; i < repeats; ++i) run();
    check(cudaEventRecord(to_, nullptr), "stopping a clock");
    check(cudaEventSynchronize(to_), "running what is measured");
    float milliseconds = 0;
    check(cudaEventElapsedTime(&milliseconds, from_, to_), "reading a clock");
    return static_cast<double>(milliseconds) / 1e3 / repeats;
  }
  /// How many runs take about 2 ms, warmed up.
  int repeats_for(auto&& run) const {
    (void)seconds(2, run);
    return static_cast<int>(std::clamp(2e-3 / std::max(seconds(3, run), 1e-9), 1.0, 200.0));
  }

 private:
  cudaEvent_t from_ = nullptr, to_ = nullptr;
};

/// Keeps an idle GPU busy until its clocks have risen.
inline void warm_up() {
  const array<char> from{std::size_t{1} << 28}, to{std::size_t{1} << 28};
  const auto begin = std::chrono::steady_clock::now();
  while (std::chrono::steady_clock::now() - begin < std::chrono::milliseconds{500}) {
    check(cudaMemcpyAsync(to.data(), from.data(), from.size(), cudaMemcpyDeviceToDevice, nullptr), "warming up");
    check(cudaStreamSynchronize(nullptr), "warming up");
  }
}

inline double quantile(std::vector<double> values, double q) {
  std::ranges::sort(values);
  return values[static_cast<std::size_t>(q * static_cast<double>(values.size() - 1) + 0.5)];
}
inline nlohmann::json quartiles(const std::vector<double>& values) {
  return {quantile(values, 0.25), quantile(values, 0.75)};
}

/// What failed, so that the rest is measured all the same.
class failures {
 public:
  void hold(const std::string& what, auto&& f) {
    try {
      f();
    } catch (const device_lost&) {
      throw;
    } catch (const std::exception& failed) {
      fmt::print("{} failed: {}\n", what, failed.what());
      ++count_;
      first_ = first_.empty() ? fmt::format("{}: {}", what, failed.what()) : first_;
    }
  }
  /// Throws: error if something failed.
  void tell() const {
    require<error>(count_ == 0, "{} measurements failed (the first is {}): look why", count_, first_);
  }

 private:
  int count_ = 0;
  std::string first_;
};

/// Writes figures to a file, which is whole even if the program is ended the moment after.
inline void write(const std::string& file, const nlohmann::json& figures) {
  std::ofstream{file + ".new"} << figures.dump(1) << '\n';
  std::filesystem::rename(file + ".new", file);
}

/// What a benchmark's main does: measure(small, keep) gives figures to `keep` whenever there are more of them; they go
/// to the file that is named, if one is. --small: tiny sizes, once, to see that everything runs; no figures to publish.
int run_main(int argc, char** argv, const char* name, auto measure) {
  try {
    const std::vector<std::string> arguments(argv + 1, argv + argc);
    const auto file = std::ranges::find_if(arguments, [](const std::string& a) { return !a.starts_with("--"); });
    if (devices() == 0) {
      fmt::print("There is no GPU here (the CUDA driver found none): {} measures nothing without one.\n", name);
      return 77;
    }
    const std::string device = probe().name;
    fmt::print("libraries: {}\n", versions());
    measure(std::ranges::find(arguments, "--small") != arguments.end(), [&](nlohmann::json figures) {
      figures["device"] = device;
      if (file != arguments.end()) write(*file, figures);
      std::fflush(stdout);
    });
    return 0;
  } catch (const std::exception& failed) {
    fmt::print(stderr, "{}: {}\n", name, failed.what());
    return 1;
  }
}

}  // namespace comp::cuda::bench
