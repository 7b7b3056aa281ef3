// SPDX-License-Identifier: Apache-2.0
// What a capture is, and the graph that it makes: pieces of work of one stream, in its order (the backend forks none),
// and the memory that belongs to the graph. Memory of a graph has its address from the capture on; it is alive between
// its node that allocates and the one that frees, and holds nothing of the launch before.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <set>
#include <thread>
#include <utility>
#include <vector>

#include "global_memory.hpp"

/// The values are CUDA's.
enum cudaStreamCaptureMode { cudaStreamCaptureModeThreadLocal = 1 };
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2
};

struct simt_stream;

namespace simt {

struct graph_node {
  std::function<void()> run;
  work_name name;
};

/// The nodes of a graph and its memory, which a graph and those made executable share.
struct graph_work {
  std::vector<graph_node> nodes;
  std::map<void*, std::size_t> memory;  // bytes of each allocation
  std::set<void*> alive;                // allocated by a launch, not freed by it
  std::set<void*> unfreed;              // allocated in the capture, and not freed there
  std::set<void*> left;                 // of those: from a launch that was given, to be freed before the next
  std::size_t live = 0, most = 0;       // bytes as the capture went: what a launch needs at most
  int executables = 0;
  graph_work() = default;
  graph_work(const graph_work&) = delete;
  graph_work& operator=(const graph_work&) = delete;
  ~graph_work() {
    for (const auto& [p, bytes] : memory) memory_map::common().free(p);
  }
};

struct capture {
  std::thread::id thread = std::this_thread::get_id();
  bool invalid = false;
  std::shared_ptr<graph_work> graph = std::make_shared<graph_work>();

  /// Nothing is added to a capture that has become invalid.
  void add(const work_name& name, std::function<void()> work) {
    if (!invalid) graph->nodes.push_back({std::move(work), name});
  }
};

}  // namespace simt

struct simt_graph {
  std::shared_ptr<simt::graph_work> work;
};
struct simt_executable {
  std::shared_ptr<simt::graph_work> work;
};
