// SPDX-License-Identifier: Apache-2.0
// The main of test programs that run on a GPU. Without one their exit status is 77, which Meson counts as skipped.
#define DOCTEST_CONFIG_IMPLEMENT
#include <doctest/doctest.h>
#include <fmt/format.h>

#include <bench/cuda/versions.hpp>
#include <comp_cuda/capability.hpp>

int main(int argc, char** argv) {
  if (comp::cuda::devices() == 0) {
    fmt::print("There is no GPU here (the CUDA driver found none): the same tests run on the stand-in, cuda_on_cpu.\n");
    return 77;
  }
  const auto card = comp::cuda::probe();
  fmt::print("on {}, compute capability {}.{}\n", card.name, card.major, card.minor);
  fmt::print("libraries: {}\n", comp::cuda::bench::versions());
  doctest::Context context{argc, argv};
  if (!card.has(comp::precision::fp8_e4m3)) {
    fmt::print("left out: what needs FP8 (compute capability 8.9)\n");
    context.addFilter("test-case-exclude", "*FP8*");
  }
  const int failed = context.run();
  const cudaError_t last = cudaDeviceSynchronize();
  if (last != cudaSuccess) fmt::print("the device ended with: {}\n", cudaGetErrorString(last));
  return failed || last != cudaSuccess ? 1 : 0;
}
