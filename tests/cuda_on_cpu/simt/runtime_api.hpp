// SPDX-License-Identifier: Apache-2.0
// The calls of the CUDA runtime that the backend uses, with their documented results and strict checks of arguments.
#pragma once

#include "runtime_state.hpp"

using cudaStream_t = simt_stream*;
using cudaEvent_t = simt_event*;
using cudaMemPool_t = simt_pool*;

inline constexpr unsigned cudaStreamNonBlocking = 1, cudaEventDefault = 0, cudaEventDisableTiming = 2;
enum cudaMemcpyKind {
  cudaMemcpyHostToHost,
  cudaMemcpyHostToDevice,
  cudaMemcpyDeviceToHost,
  cudaMemcpyDeviceToDevice,
  cudaMemcpyDefault
};
enum cudaDeviceAttr { cudaDevAttrMemoryPoolsSupported = 115 };
enum cudaMemAllocationType { cudaMemAllocationTypePinned = 1 };
enum cudaMemLocationType { cudaMemLocationTypeDevice = 1 };
enum cudaMemPoolAttr { cudaMemPoolAttrReleaseThreshold = 4 };
struct cudaMemLocation {
  cudaMemLocationType type;
  int id;
};
struct cudaMemPoolProps {
  cudaMemAllocationType allocType;
  cudaMemLocation location;
};

inline const char* cudaGetErrorName(cudaError_t code) {
  switch (code) {
    case cudaSuccess:
      return "cudaSuccess";
    case cudaErrorMemoryAllocation:
      return "cudaErrorMemoryAllocation";
    case cudaErrorIllegalAddress:
      return "cudaErrorIllegalAddress";
    case cudaErrorLaunchOutOfResources:
      return "cudaErrorLaunchOutOfResources";
    case cudaErrorInvalidValue:
      return "cudaErrorInvalidValue";
    case cudaErrorNoDevice:
      return "cudaErrorNoDevice";
    case cudaErrorStreamCaptureUnsupported:
      return "cudaErrorStreamCaptureUnsupported";
    case cudaErrorStreamCaptureInvalidated:
      return "cudaErrorStreamCaptureInvalidated";
    default:
      return "another cudaError";
  }
}
inline const char* cudaGetErrorString(cudaError_t) { return "from the stand-in"; }
/// Of calls of this runtime: it asks no device, and what libraries have met is theirs. A lost device, once a call has
/// met it, is not forgotten.
inline cudaError_t cudaGetLastError() {
  const bool stays = simt::device.last == simt::device.lost;
  return stays ? simt::device.last : std::exchange(simt::device.last, cudaSuccess);
}

#define CUDART_VERSION 13000
/// 0 if no driver is installed.
inline cudaError_t cudaDriverGetVersion(int* version) {
  *version = simt::device.has_driver ? CUDART_VERSION : simt::device.old_driver;
  return cudaSuccess;
}

inline cudaError_t cudaRuntimeGetVersion(int* version) {
  *version = CUDART_VERSION;
  return cudaSuccess;
}

inline cudaError_t cudaGetDeviceCount(int* count) {
  return simt::runtime_call([=] {
    *count = simt::device.count;
    return simt::device.count ? cudaSuccess : cudaErrorNoDevice;
  });
}
inline cudaError_t cudaSetDevice(int device) {
  return simt::runtime_call([=] {
    if (device < 0 || device >= simt::device.count) return cudaErrorInvalidDevice;
    simt::device.current = device;
    return cudaSuccess;
  });
}
inline cudaError_t cudaGetDeviceProperties(cudaDeviceProp* to, int device) {
  return simt::runtime_call([=] {
    if (device < 0 || device >= simt::device.count) return cudaErrorInvalidDevice;
    *to = simt::device.properties;
    return cudaSuccess;
  });
}
inline cudaError_t cudaDeviceGetAttribute(int* to, cudaDeviceAttr, int device) {
  return simt::runtime_call([=] {
    if (device < 0 || device >= simt::device.count) return cudaErrorInvalidDevice;
    *to = simt::device.has_pools;
    return cudaSuccess;
  });
}
inline cudaError_t cudaDeviceSynchronize() {
  return simt::runtime_call([] {
    for (const auto& s : simt::device.streams) {
      if (s->in) return simt::broken(*s->in, cudaErrorStreamCaptureUnsupported);
    }
    simt::device.run_all();
    return cudaSuccess;
  });
}

inline cudaError_t cudaStreamCreateWithFlags(cudaStream_t* to, unsigned flags) {
  return simt::runtime_call([=] {
    if (flags != cudaStreamNonBlocking)
      return cudaErrorInvalidValue;  // those that wait for the default one: not in use
    auto stream = std::make_shared<simt_stream>();
    stream->gpu = simt::device.current;
    *to = stream.get();
    simt::device.streams.insert(std::move(stream));
    return cudaSuccess;
  });
}
/// The handle may be null (the default stream); otherwise it has to be one that was made.
inline bool known_stream(cudaStream_t s) { return !s || simt::known(simt::device.streams, s); }
inline cudaError_t cudaStreamDestroy(cudaStream_t s) {
  if (!s || !known_stream(s)) return simt::device.report(cudaErrorInvalidResourceHandle);
  if (s->in) throw simt::fault{"a stream is destroyed while it is captured"};
  try {
    simt::device.run(*s);
  } catch (...) {  // who destroys a stream is mostly a destructor: the next call tells
    simt::device.later = std::current_exception();
  }
  s->work.clear();
  s->done = s->given;  // to events that were recorded there
  simt::forget(simt::device.streams, s);
  return cudaSuccess;
}
inline cudaError_t cudaStreamSynchronize(cudaStream_t s) {
  return simt::runtime_call([=] {
    if (!known_stream(s)) return cudaErrorInvalidResourceHandle;
    if (s && s->in) return simt::broken(*s->in, cudaErrorStreamCaptureUnsupported);
    if (const auto code = simt::unsafe_call(); code != cudaSuccess) return code;
    simt_stream& of = s ? *s : simt::device.standard;
    simt::device.wait_until(of, of.given);
    simt::device.host.wait_for(of.order);
    return cudaSuccess;
  });
}
/// The device goes on while the host asks.
inline cudaError_t cudaStreamQuery(cudaStream_t s) {
  return simt::runtime_call([=] {
    if (!known_stream(s)) return cudaErrorInvalidResourceHandle;
    if (s && s->in) return simt::broken(*s->in, cudaErrorStreamCaptureUnsupported);
    if (const auto code = simt::unsafe_call(); code != cudaSuccess) return code;
    simt_stream& of = s ? *s : simt::device.standard;
    if (of.done == of.given) return simt::device.host.wait_for(of.order), cudaSuccess;
    simt::device.run_until(of, of.done + 1);
    return cudaErrorNotReady;
  });
}

namespace simt {
/// A captured stream waits for events of its capture alone, and no other stream for those (it would fork: not in use).
inline cudaError_t wait_in_capture(simt_stream* s, const simt_event& e) {
  if (s && s->in == e.in) return cudaSuccess;
  if (s && s->in) broken(*s->in, cudaErrorStreamCaptureIsolation);
  return e.in ? broken(*e.in, cudaErrorCapturedEvent) : cudaErrorStreamCaptureIsolation;
}
}  // namespace simt

inline cudaError_t cudaEventCreateWithFlags(cudaEvent_t* to, unsigned flags) {
  return simt::runtime_call([=] {
    if (flags != cudaEventDefault && flags != cudaEventDisableTiming) return cudaErrorInvalidValue;
    auto event = std::make_unique<simt_event>();
    event->timed = flags == cudaEventDefault;
    event->gpu = simt::device.current;
    *to = event.get();
    simt::device.events.insert(std::move(event));
    return cudaSuccess;
  });
}
inline cudaError_t cudaEventDestroy(cudaEvent_t e) {
  if (!simt::known(simt::device.events, e)) return simt::device.report(cudaErrorInvalidResourceHandle);
  if (e->on) simt::device.run_until(*e->on, e->at);
  simt::forget(simt::device.events, e);
  return cudaSuccess;
}
namespace simt {
/// Of a stream that is known.
inline std::shared_ptr<simt_stream> owner_of(simt_stream* s) {
  for (const auto& one : device.streams) {
    if (one.get() == s) return one;
  }
  return {std::shared_ptr<void>{}, &device.standard};  // which is always there
}
}  // namespace simt

inline cudaError_t cudaEventRecord(cudaEvent_t e, cudaStream_t s) {
  return simt::runtime_call([=] {
    if (!simt::known(simt::device.events, e) || !known_stream(s)) return cudaErrorInvalidResourceHandle;
    if (s && s->gpu != e->gpu) return cudaErrorInvalidResourceHandle;
    if (const auto code = simt::may_give(s); code != cudaSuccess) return code;
    e->in = s ? s->in : nullptr;
    if (e->in) return e->on = nullptr, cudaSuccess;
    e->on = simt::owner_of(s);
    e->at = e->on->given + 1;
    simt::device.give(s, [=] { e->passed = std::chrono::steady_clock::now() + simt::device.pretended; });
    e->knows = e->on->order.end();
    return cudaSuccess;
  });
}
inline cudaError_t cudaStreamWaitEvent(cudaStream_t s, cudaEvent_t e, unsigned) {
  return simt::runtime_call([=] {
    if (!simt::known(simt::device.events, e) || !known_stream(s)) return cudaErrorInvalidResourceHandle;
    if (const auto code = simt::may_give(s); code != cudaSuccess) return code;
    if (e->in || (s && s->in)) return simt::wait_in_capture(s, *e);
    if (!e->on) return cudaSuccess;
    (s ? *s : simt::device.standard).order.wait_for(e->knows);
    simt::device.give(s, [on = e->on, at = e->at] { simt::device.run_until(*on, at); });
    return cudaSuccess;
  });
}
inline cudaError_t cudaEventSynchronize(cudaEvent_t e) {
  return simt::runtime_call([=] {
    if (!simt::known(simt::device.events, e)) return cudaErrorInvalidResourceHandle;
    if (e->in) return simt::broken(*e->in, cudaErrorCapturedEvent);
    if (const auto code = simt::unsafe_call(); code != cudaSuccess) return code;
    if (e->on) simt::device.wait_until(*e->on, e->at);
    simt::device.host.wait_for(e->knows);
    return cudaSuccess;
  });
}
inline cudaError_t cudaEventQuery(cudaEvent_t e) {
  return simt::runtime_call([=] {
    if (!simt::known(simt::device.events, e)) return cudaErrorInvalidResourceHandle;
    if (e->in) return simt::broken(*e->in, cudaErrorCapturedEvent);
    if (const auto code = simt::unsafe_call(); code != cudaSuccess) return code;
    if (!e->on || e->on->done >= e->at) return simt::device.host.wait_for(e->knows), cudaSuccess;
    simt::device.run_until(*e->on, e->on->done + 1);  // the device goes on while the host asks
    return cudaErrorNotReady;
  });
}
inline cudaError_t cudaEventElapsedTime(float* milliseconds, cudaEvent_t from, cudaEvent_t to) {
  return simt::runtime_call([=] {
    if (!simt::known(simt::device.events, from) || !simt::known(simt::device.events, to))
      return cudaErrorInvalidResourceHandle;
    if (from->in || to->in) return cudaErrorCapturedEvent;
    if (!from->on || !to->on || !from->timed || !to->timed) return cudaErrorInvalidResourceHandle;
    if (from->on->done < from->at || to->on->done < to->at) return cudaErrorNotReady;
    *milliseconds = std::chrono::duration<float, std::milli>(to->passed - from->passed).count();
    return cudaSuccess;
  });
}
