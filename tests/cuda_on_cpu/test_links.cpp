// SPDX-License-Identifier: Apache-2.0
// Links the kernel library as a user's program does, not compiled by nvcc, and calls it: on a GPU if there is one;
// if there is none, the probe and the launch have to say so, as exceptions.
#include <comp_cuda/kernels.hpp>
#include <comp_cuda/prefetch.hpp>
#include <cstdio>
#include <string_view>

namespace {

bool on_a_gpu() {
  const comp::cuda::capability here = comp::cuda::probe();
  for (const auto& warning : here.warnings()) std::puts(warning.c_str());
  comp::cuda::memory_pool pool{here};
  const comp::cuda::owned_stream on;
  comp::cuda::prefetcher batches{pool};
  float y[4] = {1, 1, 1, 1};
  batches.put(std::as_bytes(std::span{y}));
  const comp::cuda::device_block block = batches.take(on);
  auto* x = static_cast<float*>(block.data());
  comp::cuda::softmax<float>(on.get(), x, x, 1, 4, comp::cuda::softmax_kind::full);
  const comp::cuda::event done;
  on.record(done);
  done.wait();
  comp::cuda::check(cudaMemcpy(y, x, sizeof(y), cudaMemcpyDefault), "fetching");
  return y[0] == 0.25F && y[3] == 0.25F;
}
bool refused(const char* with, auto f) {
  try {
    f();
  } catch (const comp::error& e) {
    std::puts(e.what());
    return std::string_view{e.what()}.find(with) != std::string_view::npos;
  }
  return false;
}

}  // namespace

int main() {
  if (comp::cuda::devices() > 0) return on_a_gpu() ? 0 : 1;
  const bool launch = refused(
      "CUDA says", [] { comp::cuda::softmax<float>(nullptr, nullptr, nullptr, 1, 4, comp::cuda::softmax_kind::full); });
  return launch && refused("or the host device", [] { (void)comp::cuda::probe(); }) ? 0 : 1;
}
