// SPDX-License-Identifier: Apache-2.0
// An executable CUDA graph as a value that owns. Where there is no memory for it, the pool gives back what it keeps.
// Not here: what it is made of (captured_step.hpp).
#pragma once

#include <utility>

#include "context.hpp"

namespace comp::cuda {

/// A graph that can be launched. Its memory goes with it: the driver would keep it for other graphs alone.
class executable_graph {
 public:
  executable_graph() = default;
  /// Backs the graph's memory too: with what the pool keeps, where there is no other. Throws: as check() does.
  executable_graph(cudaGraph_t graph, context& c) : gpu_{c.card().device} {
    check(cudaGraphInstantiate(&graph_, graph, 0), "making a graph executable");
    try {
      check(with_memory(c, [&] { return cudaGraphUpload(graph_, c.stream().get()); }), "giving memory to a graph");
    } catch (...) {
      (void)cudaGraphExecDestroy(graph_);
      throw;
    }
  }
  executable_graph(executable_graph&& other) noexcept
      : graph_{std::exchange(other.graph_, nullptr)}, gpu_{other.gpu_} {}
  executable_graph& operator=(executable_graph&& other) noexcept {
    std::swap(graph_, other.graph_);
    std::swap(gpu_, other.gpu_);
    return *this;
  }
  ~executable_graph() {
    if (!graph_) return;
    (void)cudaGraphExecDestroy(graph_);
    (void)cudaDeviceGraphMemTrim(gpu_);
  }
  /// Its memory may have been given back since it was made. Returns: CUDA's code, which it does not remember.
  cudaError_t launch(context& c) const {
    return with_memory(c, [&] { return cudaGraphLaunch(graph_, c.stream().get()); });
  }

 private:
  /// Where there is no memory for `call`, what the pool keeps is given back, and it is tried once more.
  template <class F>
  static cudaError_t with_memory(context& c, F call) {
    cudaError_t code = call();
    if (code == cudaErrorMemoryAllocation) {
      (void)cudaGetLastError();
      c.pool().give_back();
      code = call();
    }
    if (code != cudaSuccess) (void)cudaGetLastError();
    return code;
  }

  cudaGraphExec_t graph_ = nullptr;
  int gpu_ = 0;
};

}  // namespace comp::cuda
