// SPDX-License-Identifier: Apache-2.0
// Memory of the stand-in: allocations with a limit, pools that keep what is freed, pinned memory, copies in stream
// order. A copy reads memory of the host when it runs, as a device does, and from memory that is not pinned it may, as
// systems differ: what is reused too early gives wrong data. What is not pinned may be written as late too.
#pragma once

#include "runtime_api.hpp"

namespace simt {

/// by: the stream in whose order the memory is there.
inline cudaError_t allocate(void** to, std::size_t bytes, simt_pool* pool, const work_point& by) {
  gpu& g = device;
  if (g.fail_allocation > 0 && --g.fail_allocation == 0) {
    g.fail_allocation = --g.allocations_failing > 0 ? 1 : 0;
    return cudaErrorMemoryAllocation;
  }
  const bool again = pool && pool->kept.contains(bytes);
  if (again) {
    pool->kept.erase(pool->kept.find(bytes));
  } else if (g.used + bytes > g.properties.totalGlobalMem) {
    return cudaErrorMemoryAllocation;
  } else {
    g.used += bytes;
  }
  allocation& block = memory_map::common().make(bytes, 2);
  block.touch(by, true);
  *to = block.data();
  g.memory[*to] = {bytes, pool};
  return cudaSuccess;
}
/// A node of the graph that is being captured: the address is fixed now, and each launch finds it unwritten.
inline cudaError_t allocate_in(simt_stream* s, void** to, std::size_t bytes) {
  if (device.fail_allocation > 0 && --device.fail_allocation == 0) return cudaErrorMemoryAllocation;
  graph_work& g = *s->in->graph;
  allocation& block = memory_map::common().make(bytes, 2);
  block.end_life();
  *to = block.data();
  g.memory[*to] = bytes;
  g.unfreed.insert(*to);
  g.live += bytes;
  g.most = std::max(g.most, g.live);
  s->in->add({"an allocation"}, [&block, &g, p = *to] {
    block.touch(now_runs, true);
    block.begin_life();
    g.alive.insert(p);
  });
  return cudaSuccess;
}
inline void end_life(void* p) {
  allocation& of = *memory_map::common().find(p);
  of.touch(now_runs, true);
  of.end_life();
}
/// Only what the same capture has allocated can be freed in it.
inline cudaError_t free_in(simt_stream* s, void* p) {
  graph_work& g = *s->in->graph;
  if (!g.unfreed.erase(p)) return broken(*s->in, cudaErrorInvalidValue);
  g.live -= g.memory.at(p);
  s->in->add({"a free"}, [&g, p] {
    end_life(p);
    g.alive.erase(p);
  });
  return cudaSuccess;
}
/// The graph whose last launch has left p allocated, or null.
inline std::shared_ptr<graph_work> left_by_graph(void* p) {
  for (const auto& e : device.executables) {
    if (e->work->left.contains(p)) return e->work;
  }
  return nullptr;
}
inline void free_now(void* p) {
  const gpu::owned of = device.memory.at(p);
  device.memory.erase(p);
  memory_map::common().free(p);
  if (of.pool) {
    of.pool->kept.insert(of.bytes);
  } else {
    device.used -= of.bytes;
  }
}
/// True when [p, p + bytes) lies in device memory.
inline bool on_device(const void* p, std::size_t bytes) {
  const allocation* a = memory_map::common().find(p);
  return a && static_cast<const unsigned char*>(p) + bytes <= a->data() + a->bytes();
}
/// Null for memory that is not pinned.
inline std::shared_ptr<pinned_history> use_of_pinned(const void* p, std::size_t bytes) {
  const auto* at = static_cast<const unsigned char*>(p);
  const auto after = device.pinned.upper_bound(at);
  if (after == device.pinned.begin()) return nullptr;
  const auto& [start, block] = *std::prev(after);
  return at + bytes <= start + block.bytes ? block.use : nullptr;
}
inline void copy(void* to, const void* from, std::size_t bytes) {
  if (!bytes) return;
  for (const void* p : {static_cast<const void*>(to), from}) {
    const allocation* a = memory_map::common().find(p);
    if (a && !a->lives()) throw fault{"a copy touches memory of a graph that is not allocated now"};
  }
  if (allocation* a = memory_map::common().find(from)) a->touch(now_runs, false);
  if (allocation* a = memory_map::common().find(to)) a->touch(now_runs, true);
  std::memcpy(to, from, bytes);
  if (allocation* a = memory_map::common().find(to))
    a->mark_written(static_cast<unsigned char*>(to) - a->data(), bytes);
}

}  // namespace simt

inline cudaError_t cudaMalloc(void** to, std::size_t bytes) {
  return simt::runtime_call([=] {
    if (const auto code = simt::unsafe_call(); code != cudaSuccess) return code;
    return simt::allocate(to, bytes, nullptr, {});
  });
}
inline cudaError_t cudaFree(void* p) {
  return simt::runtime_call([=] {
    if (!p) return cudaSuccess;
    if (const auto code = simt::unsafe_call(); code != cudaSuccess) return code;
    if (!simt::device.memory.contains(p)) return cudaErrorInvalidValue;
    simt::device.run_all();
    simt::free_now(p);
    return cudaSuccess;
  });
}

inline cudaError_t cudaMemPoolCreate(cudaMemPool_t* to, const cudaMemPoolProps* how) {
  return simt::runtime_call([=] {
    if (how->allocType != cudaMemAllocationTypePinned || how->location.type != cudaMemLocationTypeDevice)
      return cudaErrorInvalidValue;
    if (how->location.id < 0 || how->location.id >= simt::device.count) return cudaErrorInvalidDevice;
    auto pool = std::make_unique<simt_pool>();
    *to = pool.get();
    simt::device.pools.insert(std::move(pool));
    return cudaSuccess;
  });
}
inline cudaError_t cudaMemPoolSetAttribute(cudaMemPool_t pool, cudaMemPoolAttr, void*) {
  return simt::known(simt::device.pools, pool) ? cudaSuccess : simt::device.report(cudaErrorInvalidValue);
}
inline cudaError_t cudaMemPoolTrimTo(cudaMemPool_t pool, std::size_t least) {
  return simt::runtime_call([=] {
    if (!simt::known(simt::device.pools, pool) || least != 0) return cudaErrorInvalidValue;
    for (const std::size_t bytes : pool->kept) simt::device.used -= bytes;
    pool->kept.clear();
    return cudaSuccess;
  });
}
inline cudaError_t cudaMemPoolDestroy(cudaMemPool_t pool) {
  const cudaError_t code = cudaMemPoolTrimTo(pool, 0);
  simt::forget(simt::device.pools, pool);
  return code;
}
inline cudaError_t cudaMallocFromPoolAsync(void** to, std::size_t bytes, cudaMemPool_t pool, cudaStream_t s) {
  return simt::runtime_call([=] {
    if (!simt::known(simt::device.pools, pool) || !known_stream(s) || bytes == 0) return cudaErrorInvalidValue;
    if (const auto code = simt::may_give(s); code != cudaSuccess) return code;
    if (s && s->in) return simt::allocate_in(s, to, bytes);
    simt_stream& of = s ? *s : simt::device.standard;
    return simt::allocate(to, bytes, pool, simt::device.next_of(of, {"an allocation"}));
  });
}
/// The memory is gone when the stream comes there: kernels given to another stream meanwhile find it freed.
inline cudaError_t cudaFreeAsync(void* p, cudaStream_t s) {
  const auto call = [=] {
    if (!known_stream(s)) return cudaErrorInvalidValue;
    if (const auto code = simt::may_give(s); code != cudaSuccess) return code;
    if (s && s->in) return simt::free_in(s, p);
    if (const auto graph = simt::left_by_graph(p)) {
      graph->left.erase(p);
      simt::device.give(s, {"a free"}, [=] {
        graph->alive.erase(p);
        simt::end_life(p);
      });
      return cudaSuccess;
    }
    const auto found = simt::device.memory.find(p);
    if (found == simt::device.memory.end() || std::exchange(found->second.given_back, true))
      return cudaErrorInvalidValue;
    simt::device.give(s, {"a free"}, [=] {
      simt::memory_map::common().find(p)->touch(simt::now_runs, true);
      simt::free_now(p);
    });
    return cudaSuccess;
  };
  if (simt::device.lost == cudaSuccess) return simt::runtime_call(call);
  if (simt::device.memory.contains(p)) simt::free_now(p);  // of a lost device the process frees it in the end
  return simt::device.lost;
}

inline cudaError_t cudaMallocHost(void** to, std::size_t bytes) {
  return simt::runtime_call([=] {
    if (const auto code = simt::unsafe_call(); code != cudaSuccess) return code;
    *to = ::operator new(bytes);
    simt::device.pinned[static_cast<unsigned char*>(*to)] = {.bytes = bytes};
    return cudaSuccess;
  });
}
/// That it waits for the device is documented nowhere. Who frees is mostly a destructor: the next call tells of a
/// fault.
inline cudaError_t cudaFreeHost(void* p) {
  if (const auto code = simt::unsafe_call(); code != cudaSuccess) return simt::device.report(code);
  const auto found = simt::device.pinned.find(static_cast<unsigned char*>(p));
  if (found == simt::device.pinned.end()) return simt::device.report(cudaErrorInvalidValue);
  const auto& use = found->second.use;
  if (simt::device.lost == cudaSuccess) {
    try {
      const simt::work_point by{0, 0, ++simt::works_made, simt::device.host.knows, {"cudaFreeHost"}};
      if (use.use_count() == 1) use->touch(by, true);
    } catch (...) {
      simt::device.later = std::current_exception();
    }
  }
  if (use.use_count() > 1 && simt::device.lost == cudaSuccess) {
    try {
      simt::device.run_all();
    } catch (...) {  // one fault is enough
    }
    simt::device.later =
        std::make_exception_ptr(simt::fault{"pinned memory is freed while a copy has still to use it"});
  }
  simt::device.pinned.erase(found);
  ::operator delete(p);
  return cudaSuccess;
}

inline cudaError_t cudaMemcpyAsync(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind, cudaStream_t s) {
  return simt::runtime_call([=] {
    if (!known_stream(s)) return cudaErrorInvalidResourceHandle;
    const bool to_device = simt::on_device(to, bytes), from_device = simt::on_device(from, bytes);
    const bool as_said = kind == cudaMemcpyDefault ||
                         kind == (from_device ? (to_device ? cudaMemcpyDeviceToDevice : cudaMemcpyDeviceToHost)
                                              : (to_device ? cudaMemcpyHostToDevice : cudaMemcpyHostToHost));
    if (bytes && (!as_said || !to || !from)) return cudaErrorInvalidValue;
    if (const auto code = simt::may_give(s); code != cudaSuccess) return code;
    const auto read = simt::use_of_pinned(from, bytes), written = simt::use_of_pinned(to, bytes);
    const bool pageable = (!from_device && !read) || (!to_device && !written);
    if (s && s->in && pageable) return simt::broken(*s->in, cudaErrorStreamCaptureUnsupported);
    const auto* first = static_cast<const unsigned char*>(from);
    const bool watched = read && !(s && s->in);  // a graph reads what is there when it runs
    if (watched) read->check(*simt::device.host.knows);
    const std::uint64_t sum = watched ? simt::pinned_history::sum_of(first, bytes) : 0;
    simt::device.give(s, {"a copy"}, [=] {
      if (watched) simt::pinned_history::require_same(first, bytes, sum);
      if (read) read->touch(simt::now_runs, false);
      if (written) written->touch(simt::now_runs, true);
      simt::copy(to, from, bytes);
    });
    const auto& order = (s ? *s : simt::device.standard).order;
    if (watched) read->on_the_way.push_back({first, bytes, sum, order.line, order.tick});
    return cudaSuccess;
  });
}
/// Returns when memory of the host is read or written. What goes to the device may arrive there later: streams beside
/// the default one have to wait for it.
inline cudaError_t cudaMemcpy(void* to, const void* from, std::size_t bytes, cudaMemcpyKind kind) {
  if (kind != cudaMemcpyHostToDevice || !bytes || !from || !simt::on_device(to, bytes)) {
    const cudaError_t code = cudaMemcpyAsync(to, from, bytes, kind, nullptr);
    return code == cudaSuccess && kind != cudaMemcpyDeviceToDevice ? cudaStreamSynchronize(nullptr) : code;
  }
  return simt::runtime_call([=] {
    if (const auto code = simt::may_give(nullptr); code != cudaSuccess) return code;
    const auto* first = static_cast<const unsigned char*>(from);
    simt::device.give(nullptr, {"a copy"}, [to, staged = std::vector<unsigned char>(first, first + bytes)] {
      simt::copy(to, staged.data(), staged.size());
    });
    return cudaSuccess;
  });
}
inline cudaError_t cudaMemsetAsync(void* to, int value, std::size_t bytes, cudaStream_t s) {
  return simt::runtime_call([=] {
    if (!known_stream(s) || (bytes && !simt::on_device(to, bytes))) return cudaErrorInvalidValue;
    if (const auto code = simt::may_give(s); code != cudaSuccess) return code;
    simt::device.give(s, {"a fill"}, [=] {
      const std::vector<unsigned char> filled(bytes, static_cast<unsigned char>(value));
      simt::copy(to, filled.data(), bytes);
    });
    return cudaSuccess;
  });
}
