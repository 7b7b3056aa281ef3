// SPDX-License-Identifier: Apache-2.0
// Graphs: work of streams that is recorded instead of run, and then launched as one, as often as wanted. What the
// documentation forbids while a stream is captured makes the capture invalid, and its end says so. What a driver would
// not see, use of a graph that is gone, is a fault.
// A graph's memory is backed when it is uploaded or first launched, by memory that all graphs of the device share.
#pragma once

#include "runtime_memory.hpp"

using cudaGraph_t = simt_graph*;
using cudaGraphExec_t = simt_executable*;

inline cudaError_t cudaStreamBeginCapture(cudaStream_t s, cudaStreamCaptureMode mode) {
  return simt::runtime_call([=] {
    if (!s) return cudaErrorStreamCaptureUnsupported;  // the default stream
    if (!known_stream(s)) return cudaErrorInvalidResourceHandle;
    if (mode != cudaStreamCaptureModeThreadLocal) return cudaErrorInvalidValue;  // others: not in use
    if (s->in) return simt::broken(*s->in, cudaErrorStreamCaptureUnsupported);
    s->in = std::make_shared<simt::capture>();
    return cudaSuccess;
  });
}
inline cudaError_t cudaStreamIsCapturing(cudaStream_t s, cudaStreamCaptureStatus* to) {
  return simt::runtime_call([=] {
    if (!known_stream(s)) return cudaErrorInvalidResourceHandle;
    *to = !s || !s->in     ? cudaStreamCaptureStatusNone
          : s->in->invalid ? cudaStreamCaptureStatusInvalidated
                           : cudaStreamCaptureStatusActive;
    return cudaSuccess;
  });
}
/// The stream leaves its capture, whatever the result.
inline cudaError_t cudaStreamEndCapture(cudaStream_t s, cudaGraph_t* to) {
  const auto end = [=] {
    if (!s || !known_stream(s)) return cudaErrorInvalidResourceHandle;
    if (!s->in) return cudaErrorInvalidValue;
    if (s->in->thread != std::this_thread::get_id()) return cudaErrorStreamCaptureWrongThread;
    const auto of = std::exchange(s->in, nullptr);
    *to = nullptr;
    if (of->invalid) return cudaErrorStreamCaptureInvalidated;
    auto graph = std::make_unique<simt_graph>();
    graph->work = of->graph;
    *to = graph.get();
    simt::device.graphs.insert(std::move(graph));
    return cudaSuccess;
  };
  const cudaError_t code = simt::runtime_call(end);
  if (simt::device.lost != cudaSuccess && s && s->in) (void)end();  // a lost device captures nothing any more
  return code;
}

namespace simt {
inline simt_graph& existing(cudaGraph_t g) {
  if (!known(device.graphs, g)) throw fault{"a graph is used that is not there: destroyed, or never made"};
  return *g;
}
inline simt_executable& existing(cudaGraphExec_t e) {
  if (!known(device.executables, e)) {
    throw fault{"an executable graph is used that is not there: destroyed, or never made"};
  }
  return *e;
}
/// Backs the memory of a graph. One graph runs at a time here, so all of them share as much as the largest needs.
inline cudaError_t back(const simt_executable& e) {
  const std::size_t need = e.work->most;
  const std::size_t more = need > device.graph_bytes ? need - device.graph_bytes : 0;
  if (more > 0 && device.fail_allocation > 0 && --device.fail_allocation == 0) return cudaErrorMemoryAllocation;
  if (device.used + more > device.properties.totalGlobalMem) return cudaErrorMemoryAllocation;
  device.used += more;
  device.graph_bytes += more;
  return cudaSuccess;
}
inline void run_graph(graph_work& g) {
  if (!g.alive.empty()) throw fault{"a graph runs whose memory of the launch before is not freed"};
  work_point as = now_runs;
  for (const graph_node& node : g.nodes) {
    as.serial = ++works_made;
    as.name = node.name;
    device.run_piece(as, node.run);
  }
}
}  // namespace simt

inline cudaError_t cudaGraphDestroy(cudaGraph_t g) {
  (void)simt::existing(g);
  simt::forget(simt::device.graphs, g);
  return cudaSuccess;
}
inline cudaError_t cudaGraphInstantiate(cudaGraphExec_t* to, cudaGraph_t g, unsigned long long flags = 0) {
  return simt::runtime_call([=] {
    const auto& work = simt::existing(g).work;
    if (flags != 0) return cudaErrorInvalidValue;  // those that there are: not in use
    if (!work->memory.empty() && work->executables > 0) return cudaErrorNotSupported;
    auto executable = std::make_unique<simt_executable>();
    executable->work = work;
    ++work->executables;
    *to = executable.get();
    simt::device.executables.insert(std::move(executable));
    return cudaSuccess;
  });
}
inline cudaError_t cudaGraphUpload(cudaGraphExec_t e, cudaStream_t s) {
  return simt::runtime_call([=] {
    if (!known_stream(s)) return cudaErrorInvalidResourceHandle;
    if (s && s->in) return simt::broken(*s->in, cudaErrorStreamCaptureUnsupported);
    return simt::back(simt::existing(e));
  });
}
inline cudaError_t cudaGraphLaunch(cudaGraphExec_t e, cudaStream_t s) {
  return simt::runtime_call([=] {
    simt_executable& g = simt::existing(e);
    if (simt::device.fail_launch > 0 && --simt::device.fail_launch == 0) return cudaErrorLaunchOutOfResources;
    if (!known_stream(s)) return cudaErrorInvalidResourceHandle;
    if (const auto code = simt::may_give(s); code != cudaSuccess) return code;
    if (s && s->in) return simt::broken(*s->in, cudaErrorStreamCaptureUnsupported);  // graphs in graphs: not in use
    if (!g.work->left.empty()) return cudaErrorInvalidValue;
    if (const auto code = simt::back(g); code != cudaSuccess) return code;
    g.work->left = g.work->unfreed;
    ++simt::device.counts.graphs;
    simt::device.give(s, [work = g.work, runs = simt::device.of_graphs] { simt::run_graph(*work); });
    --simt::device.counts.given;
    return cudaSuccess;
  });
}
/// Launches that were made before go on.
inline cudaError_t cudaGraphExecDestroy(cudaGraphExec_t e) {
  --simt::existing(e).work->executables;
  simt::forget(simt::device.executables, e);
  return cudaSuccess;
}
/// Memory of graphs that do not run now: they are backed anew at their next launch.
inline cudaError_t cudaDeviceGraphMemTrim(int number) {
  return simt::runtime_call([=] {
    if (number < 0 || number >= simt::device.count) return cudaErrorInvalidValue;
    if (simt::device.of_graphs.use_count() > 1) return cudaSuccess;  // one is to run yet: nothing is given back
    simt::device.used -= std::exchange(simt::device.graph_bytes, 0);
    return cudaSuccess;
  });
}
