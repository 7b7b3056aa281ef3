// SPDX-License-Identifier: Apache-2.0
// An executable CUDA graph that frees itself. If there is no memory for it, the pool gives back the memory that it
// keeps, since the driver does not share memory between pools and graphs.
#pragma once

#include <utility>

#include "context.hpp"

namespace comp::cuda {

/// A graph that can be launched. Its destructor also returns the graph's memory, which the driver would otherwise keep
/// for other graphs alone.
class executable_graph {
 public:
  executable_graph() = default;
  /// Also allocates the graph's memory, so that a graph that does not fit fails here and not in a step.
  /// Throws: what check() throws.
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
  /// Launches the graph, and allocates its memory again if that was given back meanwhile.
  /// Returns: CUDA's code. cudaGetLastError() no longer has it.
  cudaError_t launch(context& c) const {
    return with_memory(c, [&] { return cudaGraphLaunch(graph_, c.stream().get()); });
  }

 private:
  /// Calls `call`; if memory is short, once more after the pool has given back what it keeps.
  static cudaError_t with_memory(context& c, auto call) {
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
