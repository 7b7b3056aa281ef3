// SPDX-License-Identifier: Apache-2.0
// What a capture is, and the graph that it makes: pieces of work with what each of them waits for, and the memory that
// belongs to the graph. Memory of a graph has its address from the capture on; it is alive between its node that
// allocates and the one that frees, and holds nothing of the launch before.
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
enum cudaStreamCaptureMode {
  cudaStreamCaptureModeGlobal = 0,
  cudaStreamCaptureModeThreadLocal = 1,
  cudaStreamCaptureModeRelaxed = 2
};
enum cudaStreamCaptureStatus {
  cudaStreamCaptureStatusNone = 0,
  cudaStreamCaptureStatusActive = 1,
  cudaStreamCaptureStatusInvalidated = 2
};

struct simt_stream;

namespace simt {

/// A node: its work, the nodes that it waits for, and which of the captured streams gave it.
struct graph_node {
  std::function<void()> run;
  std::set<std::size_t> after;
  work_name name;
  std::size_t branch;
};

/// The nodes of a graph and its memory, which a graph and those made executable share.
struct graph_work {
  std::vector<graph_node> nodes;
  std::map<simt_stream*, std::size_t> branch_of;  // streams of the capture, which may be gone by now
  std::vector<work_line> branches;
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
  simt_stream* origin = nullptr;
  cudaStreamCaptureMode mode = cudaStreamCaptureModeGlobal;
  std::thread::id thread = std::this_thread::get_id();
  bool invalid = false;
  std::shared_ptr<graph_work> graph = std::make_shared<graph_work>();
  std::map<simt_stream*, std::set<std::size_t>> ends;  // of each stream in it: what its next node waits for

  /// Nothing is added to a capture that has become invalid.
  void add(simt_stream* on, const work_name& name, std::function<void()> work) {
    if (invalid) return;
    auto& end = ends[on];
    const auto [branch, first] = graph->branch_of.try_emplace(on, graph->branches.size());
    if (first) graph->branches.emplace_back();
    graph->nodes.push_back({std::move(work), std::exchange(end, {}), name, branch->second});
    end = {graph->nodes.size() - 1};
  }
  /// True when the origin's last node waits, in the end, for every node of every stream.
  bool joined() const {
    std::set<std::size_t> reached = ends.at(origin);
    for (std::size_t i = graph->nodes.size(); i-- > 0;) {
      if (reached.contains(i)) reached.insert(graph->nodes[i].after.begin(), graph->nodes[i].after.end());
    }
    return reached.size() == graph->nodes.size();
  }
};

}  // namespace simt

struct simt_graph {
  std::shared_ptr<simt::graph_work> work;
};
struct simt_executable {
  std::shared_ptr<simt::graph_work> work;
};
